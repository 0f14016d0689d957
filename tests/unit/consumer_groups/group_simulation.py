"""Consumer groups in a world with a clock of its own, where everything that can fail does.

The real coordinators and groups run; time, the network, metadata and members are the world's. All
chance comes from one seed, so a seed that fails does so again. For a while there are faults:
messages late and lost, nodes that crash, restart, stop for a while or cannot reach metadata, clocks
that do not run alike, members that die, stall, come back late, restart under an instance, change
their topics. Then all is well, and the group must settle soon.

What must hold meanwhile:

1. No two members read a slot at a time, each by its own clock.
2. A committed offset never goes back: a member commits nothing for a slot that it does not hold.
3. Members hold only slots of topics that they subscribe to.
4. When all is well, each slot is read by one live member, and those with rows are shared evenly.
5. Epochs ascend, of each member and in metadata, where they are before they are answered.
"""

import heapq
import itertools
import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from wings_core.consumer_groups.coordinator import (
    LEASE_SECONDS,
    Answer,
    GroupCoordinator,
    RunElsewhere,
)
from wings_core.consumer_groups.group import JOIN, LEAVE, Heartbeat, TopicSlots
from wings_core.errors import FencedMember, Unavailable, WingsError
from wings_core.metadata.maintenance import MaintenanceLease
from wings_core.model import GroupChange, StoredGroup
from wings_core.partitions import Slots, mask_of, slots_in

T = TypeVar("T")

FAULTS_SECONDS = 60.0
CALL_SECONDS_MAX = 3.0
"""How long a member waits for the answer to a heartbeat."""

DRIFT = 0.01
"""Clocks run faster or slower by up to this share."""

SESSION_MS = 8_000
TOPICS = {"keyed": 12, "small": 3, "single": 1}
"""Slots of the topics."""

HEALED_SECONDS_MAX = 2 * LEASE_SECONDS + SESSION_MS / 1_000 + 10


class CrashedError(Exception):
    """The process that made a call is gone."""


class Clock:
    """A monotonic clock that is a little wrong."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._rate = 1 + world.rng.uniform(-DRIFT, DRIFT)
        self._offset = world.rng.uniform(1, 1_000)

    def __call__(self) -> float:
        return self._offset + self._world.time * self._rate


class Metadata:
    """Groups, offsets and leases: durable, and reached by all nodes but those that are cut off."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.group = StoredGroup()
        self.offsets: dict[tuple[str, int], int] = {}
        self._leases: dict[str, tuple[MaintenanceLease, float]] = {}

    def load(self) -> StoredGroup:
        return self.group

    def save(self, lease: MaintenanceLease, change: GroupChange) -> bool:
        if not self.is_held(lease):
            return False
        assert change.epoch >= self.group.epoch, "a node stored what another has gone past"
        members = {each.member: each for each in self.group.members}
        for gone in change.removed:
            members.pop(gone, None)
        members.update({each.member: each for each in change.changed})
        self.group = StoredGroup(change.epoch, tuple(members.values()))
        return True

    def is_held(self, lease: MaintenanceLease) -> bool:
        held, until = self._leases.get(lease.name, (None, 0.0))
        return held == lease and self.world.time < until

    def acquire(self, name: str, holder: str, seconds: float) -> int | None:
        held, until = self._leases.get(name, (MaintenanceLease(name, "", 0), 0.0))
        over = self.world.time >= until
        if held.holder != holder and not over:
            return None
        token = held.token + (held.holder != holder or over)
        self._leases[name] = (MaintenanceLease(name, holder, token), self.world.time + seconds)
        return token

    def holder(self, name: str) -> str | None:
        held, until = self._leases.get(name, (None, 0.0))
        return held.holder if held is not None and self.world.time < until else None

    def release(self, name: str, holder: str) -> None:
        held, _ = self._leases.get(name, (None, 0.0))
        if held is not None and held.holder == holder:
            self._leases[name] = (held, self.world.time)

    def commit(self, member: str, epoch: int, offsets: Mapping[tuple[str, int], int]) -> None:
        stored = next((each for each in self.group.members if each.member == member), None)
        if stored is None or not all(
            stored.may_commit(epoch, topic, slot) for topic, slot in offsets
        ):
            raise FencedMember(member)
        for key, offset in offsets.items():
            before = self.offsets.get(key, 0)
            assert offset >= before, f"{member} set {key} back from {before} to {offset}"
            self.offsets[key] = offset


class Link:
    """What one node sees of metadata: `ConsumerGroups`, and leases."""

    def __init__(self, node: "Node", metadata: Metadata) -> None:
        self._node = node
        self._metadata = metadata

    def load(self, consumer: str) -> StoredGroup:
        del consumer
        return self._ask(self._metadata.load)

    def save(self, lease: MaintenanceLease, consumer: str, change: GroupChange) -> bool:
        del consumer
        return self._ask(lambda: self._metadata.save(lease, change))

    def acquire_lease(self, name: str, holder: str, seconds: float) -> int | None:
        return self._ask(lambda: self._metadata.acquire(name, holder, seconds))

    def lease_holder(self, name: str) -> str | None:
        return self._ask(lambda: self._metadata.holder(name))

    def release_lease(self, name: str, holder: str) -> None:
        self._ask(lambda: self._metadata.release(name, holder))

    def _ask(self, call: Callable[[], T]) -> T:
        """Ask metadata; a call that fails may have had its effect, and the node stop meanwhile."""
        world = self._node.world
        if not world.healed and world.rng.random() < world.stalls:
            self._node.stop_for(world.rng.uniform(0.5, 20))
        fails = self._node.is_cut_off or (not world.healed and world.rng.random() < world.loss)
        if fails and world.rng.random() < 0.5:
            raise Unavailable("cannot be reached")
        answer = call()
        if fails:
            raise Unavailable("the answer was lost")
        return answer


class Node:
    """A process that runs groups; it can crash, stop for a while, or be cut off from metadata."""

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.number = number
        self.starts = 0
        self.up = False
        self.is_cut_off = False
        self.paused_until = 0.0
        self.start()

    def start(self) -> None:
        self.starts += 1
        self.up = True
        self.is_in_call = False
        self.holder = f"n{self.number}-{self.starts}"
        link = Link(self, self.world.metadata)
        parts = self.world.parts
        self.coordinator = parts.coordinator(
            link,  # pyright: ignore[reportArgumentType] - the part of it that groups use.
            link,  # pyright: ignore[reportArgumentType]
            self.holder,
            self.world.slots_of,
            Clock(self.world),
        )

    def stop_for(self, seconds: float) -> None:
        """Stop in the midst of a call, while the world goes on.

        Raises:
            CrashedError: The process crashed meanwhile.
        """
        starts = self.starts
        self.is_in_call = True
        self.world.run_until(self.world.time + seconds)
        if self.starts != starts or not self.up:
            raise CrashedError
        self.is_in_call = False

    def stopped_for(self) -> float:
        """Return for how long it is stopped at least."""
        return 0.5 if self.is_in_call else self.paused_until - self.world.time

    def reach_again(self) -> None:
        self.is_cut_off = False

    def tick(self) -> None:
        if self.up and self.stopped_for() <= 0:
            with suppress(Unavailable, CrashedError):
                self.coordinator.tick()
        self.world.after(1.0, self.tick)


class Member:
    """A client: it heartbeats, reads what it was assigned, commits, and gives up when told to."""

    def __init__(self, world: "World", number: int, instance: str | None) -> None:
        self.world = world
        self.number = number
        self.instance = instance
        self.member = f"m{number}"
        self.topics = frozenset(world.rng.sample(sorted(TOPICS), world.rng.choice([1, 3, 3])))
        self.says_once = number % 2 == 1
        """Whether it says its topics only where they change; Wings's clients always do."""
        self.clock = Clock(world)
        self.alive = True
        self.paused_until = 0.0
        self.positions: dict[tuple[str, int], int] = {}
        self.due = self.call = 0
        self.drop()

    # What it knows.

    @property
    def owned(self) -> dict[str, Slots]:
        owned: dict[str, Slots] = {}
        for topic, slot in self.positions:
            owned[topic] = owned.get(topic, 0) | 1 << slot
        return owned

    def drop(self) -> None:
        """Read nothing any more, and join anew with the next heartbeat."""
        self.epoch = JOIN
        self.said_topics: frozenset[str] | None = None
        self.positions.clear()
        self.session_ends = 0.0
        self.committing = 0
        self.beat_after(self.world.rng.uniform(0.1, 1))

    def is_reading(self) -> bool:
        """Whether it may hand out rows now: it runs, and its session has not ended."""
        return (
            self.alive and self.world.time >= self.paused_until and self.clock() < self.session_ends
        )

    # Heartbeats.

    def beat_after(self, seconds: float) -> None:
        """Send the next heartbeat then, instead of when it was due; await no answer until then."""
        self.call = 0
        due = self.due = next(self.world.numbers)
        self.world.after(seconds, lambda: self.beat() if self.due == due else None)

    def beat(self) -> None:
        if not self.alive:
            return
        if self.world.time < self.paused_until:
            self.beat_after(self.paused_until - self.world.time)
            return
        if self.epoch != JOIN and self.clock() >= self.session_ends:
            self.drop()
            return
        said = Heartbeat(
            self.member,
            self.epoch,
            None if self.says_once and self.said_topics == self.topics else self.topics,
            self.instance,
            SESSION_MS,
            self.owned,
        )
        sent_at, topics = self.clock(), self.topics
        self.beat_after(CALL_SECONDS_MAX)
        call = self.call = next(self.world.numbers)

        def answered(answer: Answer | WingsError) -> None:
            if self.call != call or not self.alive:
                return
            if self.world.time < self.paused_until:  # It is read when the process goes on.
                self.world.after(self.paused_until - self.world.time, lambda: answered(answer))
                return
            self.take(answer, sent_at, topics)

        self.world.send(said, answered)

    def take(self, answer: Answer | WingsError, sent_at: float, topics: frozenset[str]) -> None:
        """Act on the answer to the last heartbeat."""
        if isinstance(answer, FencedMember):
            self.drop()
            return
        if isinstance(answer, WingsError):
            self.beat_after(self.world.rng.uniform(0.1, 1))
            return
        epoch, assignment = answer.beat.epoch, answer.beat.assignment
        assert epoch >= self.epoch, f"{self.member} went back from epoch {self.epoch} to {epoch}"
        self.session_ends = sent_at + SESSION_MS / 1_000 * (1 - DRIFT * 2)
        self.epoch = epoch
        self.said_topics = topics
        self.beat_after(answer.heartbeat_ms / 1_000)
        if assignment is None:
            return
        if any(not assignment.get(topic, 0) >> slot & 1 for topic, slot in self.positions):
            # The program works on what it has, while heartbeats go on.
            self.world.after(self.world.rng.uniform(0, 5), lambda: self.give_up(epoch, assignment))
        else:
            self.take_over(assignment)

    def give_up(self, epoch: int, assignment: Mapping[str, Slots]) -> None:
        def committed() -> None:
            if self.epoch != epoch:
                return  # Another assignment came meanwhile.
            for topic, slot in list(self.positions):
                if not assignment.get(topic, 0) >> slot & 1:
                    del self.positions[topic, slot]
            self.take_over(assignment)

        if self.committing:
            self.world.after(0.1, lambda: self.give_up(epoch, assignment))
        elif self.epoch == epoch and self.is_reading():
            self.commit(committed)

    def take_over(self, assignment: Mapping[str, Slots]) -> None:
        for topic, mask in assignment.items():
            # A heartbeat that comes late may set back what another one has said since.
            assert self.says_once or topic in self.topics or topic in (self.said_topics or ())
            for slot in slots_in(mask):
                if (topic, slot) not in self.positions:
                    self.world.observer.takes(self, (topic, slot))
                    self.positions[topic, slot] = self.world.metadata.offsets.get((topic, slot), 0)
        self.beat_after(0.01)

    # Work.

    def work(self) -> None:
        if not self.alive:
            return
        if self.is_reading():
            for key in self.positions:
                self.positions[key] += self.world.rng.randrange(3)
            if self.world.rng.random() < 0.5 and not self.committing:
                self.commit()
        self.world.after(self.world.rng.uniform(0.1, 0.6), self.work)

    def commit(self, then: Callable[[], None] = lambda: None) -> None:
        """Commit where the member stands, one commit at a time; a lost answer has it join anew."""
        epoch, offsets = self.epoch, dict(self.positions)
        number = self.committing = next(self.world.numbers)

        def answered(is_stored: bool) -> None:
            if self.committing == number:
                self.committing = 0
                if is_stored and self.is_reading():
                    then()
                elif not is_stored:
                    self.drop()

        def serve() -> None:
            try:
                self.world.metadata.commit(self.member, epoch, offsets)
            except FencedMember:
                self.world.deliver(lambda: answered(False))
            else:
                self.world.deliver(lambda: answered(True))

        self.world.deliver(serve)
        self.world.after(CALL_SECONDS_MAX, lambda: answered(False))

    def leave(self) -> None:
        self.alive = False
        self.world.send(Heartbeat(self.member, LEAVE), lambda _: None)


class Observer:
    """Sees what members read, and asserts what must hold."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.history: list[str] = []

    def takes(self, member: Member, key: tuple[str, int]) -> None:
        self.history.append(f"{self.world.time:.3f} {member.member} {key}")
        if not member.is_reading():
            return
        for other in self.world.members:
            if other is not member and other.is_reading():
                assert key not in other.positions, (
                    f"{member.member} takes {key}, which {other.member} reads"
                )

    def answers(self, member: str, answer: Answer) -> None:
        for stored in self.world.metadata.group.members:
            assert stored.member != member or stored.epoch >= answer.beat.epoch, (
                f"epoch {answer.beat.epoch} of {member} is answered and not stored"
            )

    def settled(self) -> str | None:
        """Tell what is not as it should be once all is well."""
        live = [member for member in self.world.members if member.alive]
        if idle := [member.member for member in live if not member.is_reading()]:
            return f"{idle} have no session"
        for topic, slots in TOPICS.items():
            readers = [member for member in live if topic in member.topics]
            if not readers:
                continue
            for slot in range(slots):
                owners = [each.member for each in live if (topic, slot) in each.positions]
                if len(owners) != 1:
                    return f"{topic} {slot} is read by {owners}"
            filled = self.world.filled[topic]
            counts = [(each.owned.get(topic, 0) & filled).bit_count() for each in readers]
            if max(counts) - min(counts) > 1:
                return f"{topic} is not shared evenly: {counts}"
        return None


@dataclass(frozen=True)
class Parts:
    """What runs in the world; a planted bug is in one of them."""

    coordinator: type[GroupCoordinator] = GroupCoordinator
    metadata: type[Metadata] = Metadata
    member: type[Member] = Member


@dataclass
class World:
    """One run; `run` raises `AssertionError` where something that must hold does not."""

    seed: int
    parts: Parts = field(default_factory=Parts)

    def __post_init__(self) -> None:
        self.rng = rng = random.Random(self.seed)
        self.time = 0.0
        self.numbers = itertools.count(1)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self.loss = rng.choice([0.0, 0.02, 0.15])
        self.late = rng.choice([0.0, 0.05, 0.2])
        self.stalls = rng.choice([0.0, 0.01, 0.05])
        self.calm = rng.choice([1.0, 3.0, 6.0])
        self.healed = False
        self.filled = dict.fromkeys(TOPICS, 1)
        self.observer = Observer(self)
        self.metadata = self.parts.metadata(self)
        self.nodes = [Node(self, number) for number in range(rng.choice([1, 2, 3, 3]))]
        self.members: list[Member] = []

    def slots_of(self, topics: Iterable[str]) -> dict[str, TopicSlots]:
        return {topic: TopicSlots((1 << TOPICS[topic]) - 1, self.filled[topic]) for topic in topics}

    # Time.

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.time + seconds, next(self.numbers), function))

    def run(self) -> None:
        for _ in range(self.rng.randrange(1, 5)):
            self.begin_member()
        for node in self.nodes:
            self.after(self.rng.random(), node.tick)
        self.after(1, self.give_birth)
        self.after(self.rng.uniform(1, 5), self.break_something)
        self.after(FAULTS_SECONDS, self.heal)
        self.run_until(FAULTS_SECONDS + HEALED_SECONDS_MAX)
        wrong = self.observer.settled()
        assert wrong is None, wrong

    def run_until(self, time: float) -> None:
        while self._events[0][0] < time:
            at, _, function = heapq.heappop(self._events)
            self.time = max(self.time, at)
            function()
        self.time = max(self.time, time)

    # The network.

    def send(self, beat: Heartbeat, answered: Callable[[Answer | WingsError], None]) -> None:
        node = self.rng.choice(self.nodes)
        self.deliver(lambda: self._serve(node, beat, answered))

    def _serve(
        self, node: Node, beat: Heartbeat, answered: Callable[[Answer | WingsError], None]
    ) -> None:
        if not node.up:
            self.deliver(lambda: answered(Unavailable("the node is down")))
            return
        if node.stopped_for() > 0:
            self.after(node.stopped_for(), lambda: self._serve(node, beat, answered))
            return
        answer: Answer | WingsError
        try:
            answer = node.coordinator.heartbeat("group", beat)
            self.observer.answers(beat.member, answer)
        except RunElsewhere as elsewhere:
            holder = next((each for each in self.nodes if each.holder == elsewhere.holder), None)
            if holder is not None:
                self.deliver(lambda: self._serve(holder, beat, answered))
                return
            answer = Unavailable("the holder is gone")
        except CrashedError:
            return
        except WingsError as error:
            answer = error
        self.deliver(lambda: answered(answer))

    def deliver(self, function: Callable[[], None]) -> None:
        seconds = self.rng.uniform(0.001, 0.05)
        if not self.healed:
            if self.rng.random() < self.loss:
                return
            if self.rng.random() < self.late:
                seconds = self.rng.uniform(0.5, 20)
        self.after(seconds, function)

    # Faults.

    def begin_member(self, instance: str | None = None) -> None:
        if instance is None and self.rng.random() < 0.3:
            instance = f"i{len(self.members)}"
        member = self.parts.member(self, len(self.members), instance)
        self.members.append(member)
        self.after(self.rng.random(), member.work)

    def give_birth(self) -> None:
        """Write to a slot that had no partition; moves nothing by itself."""
        topic = self.rng.choice(sorted(TOPICS))
        self.filled[topic] |= mask_of([self.rng.randrange(TOPICS[topic])])
        if self.time < FAULTS_SECONDS:
            self.after(self.rng.uniform(0.5, 4), self.give_birth)

    def break_something(self) -> None:
        if self.healed:
            return
        rng = self.rng
        node = rng.choice(self.nodes)
        member = rng.choice([each for each in self.members if each.alive])
        if rng.random() < 0.4:
            self.break_node(node)
        elif len(self.members) < 20:
            self.break_member(member)
        self.after(rng.uniform(0.3, self.calm), self.break_something)

    def break_node(self, node: Node) -> None:
        rng = self.rng
        match rng.randrange(4):
            case 0 | 1 if node.up:
                node.up = False
                self.after(rng.uniform(0.1, 15), node.start)
            case 2:
                node.paused_until = self.time + rng.uniform(0.5, 20)
            case _:
                node.is_cut_off = True
                self.after(rng.uniform(0.5, 20), node.reach_again)

    def break_member(self, member: Member) -> None:
        rng = self.rng
        match rng.randrange(5):
            case 0:
                member.paused_until = self.time + rng.uniform(0.5, 25)
            case 1:
                member.alive = False  # Killed.
                self.begin_member(member.instance)
            case 2:
                self.begin_member()
            case 3:
                member.leave()
                self.begin_member()
            case _:
                member.topics = frozenset(rng.sample(sorted(TOPICS), rng.choice([1, 2, 3])))

    def heal(self) -> None:
        self.healed = True
        for node in self.nodes:
            node.is_cut_off, node.paused_until = False, self.time
            if not node.up:
                node.start()
        for member in self.members:
            member.paused_until = min(member.paused_until, self.time)
        # Evenness is restored by the next change of members.
        self.after(LEASE_SECONDS, lambda: self.begin_member())
