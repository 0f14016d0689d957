"""Share groups in a world with a clock of its own, where everything that can fail does.

The real core, quorum and replicas run; time, the network, disks, dead letters and workers are the
world's. All chance comes from one seed, so a seed that fails does so again. For a while there are
faults: messages late, lost and out of order, replicas and coordinators that crash, restart, stop
for a while or cannot reach each other, machines that boot anew with another clock, clocks that do
not run alike. In every second world what workers ask of a coordinator at one time is done side by
side, and asked of replicas in one message; and some have share streams, and stand still at times.
Then all is well, workers accept whatever they get, and everything must be finished soon. What must
hold meanwhile is checked by `share_invariants.Observer`.
"""

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa
from share_invariants import Observer

from wings_core.contracts.share import (
    AcknowledgementEntry,
    AcknowledgeMessage,
    AliveMessage,
    ClientMessage,
    CreditMessage,
)
from wings_core.errors import Unavailable, WingsError
from wings_core.model import (
    Lease,
    LeasedRange,
    PartitionState,
    ShareConfig,
    ShareGroup,
    Topic,
    TopicConfig,
)
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.partitions import UNPARTITIONED, Partition
from wings_core.share.coordinator.finalize import Finalizer
from wings_core.share.coordinator.lease import Leases
from wings_core.share.coordinator.partitions import PartitionTable
from wings_core.share.coordinator.settle import Settling
from wings_core.share.coordinator.upkeep import Archiving
from wings_core.share.delivery.stream_holds import StreamHolds
from wings_core.share.model import (
    Acknowledgement,
    AcknowledgeType,
    AcquireRequest,
    ArchivedRange,
    OffsetRange,
    PendingDeadLetters,
)
from wings_core.share.quorum.quorum import (
    ANSWERS_SECONDS_MAX,
    GRACE_SECONDS,
    HoldQuorum,
    is_heard,
)
from wings_core.share.replica.replica import Replica
from wings_core.share.replica.requests import (
    Answer,
    Broadcast,
    Effect,
    FinishDeadLetters,
    Pause,
    Procedure,
    Request,
)
from wings_core.share.replica.store import Mark, PartitionWrite, Row, StoredPartition

LOCK_MS = 5_000
FAULTS_SECONDS = 30.0
MESSAGES_MAX = 40
DRIFT = 0.004
"""Clocks run faster or slower by up to this share, well within a coordinator's margin."""

LOOK_SECONDS = 0.2
"""How often it is looked whether everything is finished."""

HEALED_SECONDS_MAX = LOCK_MS / 1_000 * 2.6 + 10
"""A lock and what a restart adds to it, twice for a dead letter, and the back-off."""


class MemoryStore:
    """A disk: what was written is there after a crash."""

    def __init__(self) -> None:
        self.partitions: dict[Any, StoredPartition] = {}
        self.all_marks: dict[str, Mark] = {}
        self.is_stale = self.is_lost = False

    def check(self) -> None:
        pass

    def load(self) -> list[StoredPartition]:
        return list(self.partitions.values())

    def marks(self) -> dict[str, Mark]:
        return dict(self.all_marks)

    def write(self, writes: Sequence[PartitionWrite], marks: dict[str, Mark | None]) -> None:
        for write in writes:
            before = self.partitions.get(write.key) or StoredPartition(write.key, 0)
            self.partitions[write.key] = StoredPartition(
                write.key,
                write.start_offset,
                _changed(before.finished, write.finished_removed, write.finished_added),
                _changed(before.counts, write.counts_removed, write.counts_added),
            )
        for group_uuid, mark in marks.items():
            self.all_marks.pop(group_uuid, None)
            if mark is not None:
                self.all_marks[group_uuid] = mark

    def forget(self, group_uuid: str) -> None:
        self.partitions = {k: v for k, v in self.partitions.items() if k.group_uuid != group_uuid}

    def close(self) -> None:
        pass


def _changed(rows: list[Row], removed: list[int], added: list[Row]) -> list[Row]:
    kept = {row[0]: row for row in rows}
    for first in removed:
        assert kept.pop(first, None) is not None, f"{first} was never written"
    for row in added:
        assert row[0] not in kept
        kept[row[0]] = row
    return [kept[first] for first in sorted(kept)]


@dataclass(frozen=True)
class Parts:
    """What runs in the world; a planted bug is in one of them."""

    replica: type[Replica] = Replica
    quorum: type[HoldQuorum] = HoldQuorum
    leases: type[Leases] = Leases
    settling: type[Settling] = Settling
    finalizer: type[Finalizer] = Finalizer
    store: type[MemoryStore] = MemoryStore
    holds: type[StreamHolds] = StreamHolds
    coordinator_id: Callable[[int, int], str] = lambda number, start: f"c{number}-{start}"


class CoordinatorCore:
    """The procedures of a coordinator, without its threads."""

    def __init__(self, world: "World", clock: "NodeClock", name: str) -> None:
        parts, rng = world.parts, world.rng
        quorum = parts.quorum(len(world.replicas), clock, rng)
        self.now = clock.now
        self.table = table = PartitionTable(quorum, clock, name)
        self.finalizer = finalizer = parts.finalizer(
            table, quorum, Letters(world), clock, rng, _unheard, _unheard
        )
        self.leases = parts.leases(table, quorum, finalizer, clock, rng, _unheard, whole_batches)
        self.archiving = Archiving(table, quorum, self.leases, finalizer, clock, _unheard)
        self.settling = parts.settling(name, table, finalizer, clock, _unheard)


def _unheard(*_: object) -> None:
    """Hear of nothing: workers look from time to time."""


class NodeClock:
    """A monotonic clock that is a little wrong, and begins anywhere at each boot."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._boots = 0
        self.reboot()

    def reboot(self) -> None:
        rng = self._world.rng
        self._boots += 1
        self.boot_id = f"{id(self)}-{self._boots}"
        self.rate = 1 + rng.uniform(-DRIFT, DRIFT)
        self._offset = rng.uniform(1, 1_000) - self._world.time * self.rate

    def now(self) -> float:
        return self._offset + self._world.time * self.rate

    def wall_us(self) -> int:
        return int(self._world.time * 1_000_000)


@dataclass
class Node:
    """A process that can stop for a while, or crash."""

    number: int
    clock: NodeClock
    up: bool = True
    starts: int = 0
    paused_until: float = 0.0
    cut_off: set[int] = field(default_factory=set)
    """Replicas that a coordinator cannot reach."""


@dataclass
class ReplicaNode(Node):
    store: MemoryStore = field(default_factory=MemoryStore)
    replica: Replica = field(init=False)


@dataclass
class CoordinatorNode(Node):
    core: CoordinatorCore = field(init=False)
    flow: "Flow" = field(init=False)


class Letters:
    """Dead letters of a coordinator: written after a while, once for each message."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def begin(self, group: ShareGroup, letters: Sequence[ArchivedRange]) -> "PendingInWorld":
        del group
        return PendingInWorld(self._world, letters)


@dataclass
class PendingInWorld:
    world: "World"
    letters: Sequence[ArchivedRange]

    def finish(self) -> None:
        for letter in self.letters:
            for offset in range(letter.first, letter.last + 1):
                self.world.observer.dead_letters.add(offset)


class World:
    """One run; `run` raises `AssertionError` where something that must hold does not."""

    def __init__(self, seed: int, parts: Parts | None = None) -> None:
        self.rng = rng = random.Random(seed)
        self.parts = parts = parts or Parts()
        self.time = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.loss = rng.choice([0.0, 0.02, 0.15])
        self.latency = rng.choice([0.002, 0.02])
        self.late = rng.choice([0.0, 0.03])
        self.healed = False
        self.log_start, self.log_end = 0, 0
        self.due_us: list[int | None] = []
        topic = Topic(
            DEFAULT_NAMESPACE.topic("t"), "topic", pa.schema([]), None, TopicConfig(), created_at=0
        )
        config = ShareConfig(
            lock_duration_ms=LOCK_MS,
            delivery_limit=rng.choice([1, 2, 3, 5]),
            in_flight_max=rng.choice([6, 40]),
            dlq_topic="tenants/default/namespaces/default/topics/dead",
            ordering="partition" if seed % 3 == 0 else "none",
            deliver_at_column="at" if seed % 4 == 1 else None,
        )
        self.group = ShareGroup("g", "group", topic, config)
        self.observer = Observer(self)
        self.replicas = [
            ReplicaNode(number, NodeClock(self), store=parts.store())
            for number in range(rng.choice([1, 3, 3, 3]))
        ]
        for replica in self.replicas:
            self.start_replica(replica)
        self.coordinators = [CoordinatorNode(number, NodeClock(self)) for number in range(3)]
        for coordinator in self.coordinators:
            self.start_coordinator(coordinator)
        self.has_streams = seed % 2 == 1
        """Whether some workers have share streams, and what all ask for goes together."""
        kinds = [Worker, Worker, *([StreamWorker] * 2 if self.has_streams else [Worker] * 2)]
        self.workers = [kind(self, f"w{number}") for number, kind in enumerate(kinds)]

    # Time.

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.time + seconds, next(self._numbers), function))

    def run(self) -> None:
        for worker in self.workers:
            self.after(self.rng.random(), worker.work)
        self.after(0.1, self.produce)
        self.after(self.rng.uniform(5, 25), self.retain)
        for coordinator in self.coordinators:
            self.maintain(coordinator)
        self.after(self.rng.uniform(0.2, 3), self.break_something)
        self.after(FAULTS_SECONDS, self.heal)
        looked_at = 0.0
        while True:
            if self.healed and self.time > looked_at + LOOK_SECONDS:
                looked_at = self.time
                unfinished = self.observer.unfinished()
                if not unfinished:
                    break
                assert self.time < FAULTS_SECONDS + HEALED_SECONDS_MAX, (
                    f"not finished in time: {unfinished}"
                )
            self.time, _, function = heapq.heappop(self._events)
            function()
        self.observer.check_the_end()

    # The log.

    def times(
        self, topic: Topic, partition: Partition, column: str, first: int, last: int
    ) -> pa.Int64Array:
        return pa.array([self.due_us[offset] for offset in range(first, last + 1)], pa.int64())

    def produce(self) -> None:
        if self.group.config.deliver_at_column is not None:
            for _ in range(6):
                delay = self.rng.choice([None, None, 0.5, 3.0, 9.0])
                due = None if delay is None else int((self.time + delay) * 1_000_000)
                self.due_us.append(due)
        self.log_end = min(MESSAGES_MAX, self.log_end + self.rng.randrange(1, 6))
        if self.log_end < MESSAGES_MAX:
            self.after(self.rng.uniform(0.1, 3), self.produce)

    def retain(self) -> None:
        if self.rng.random() < 0.3:
            self.log_start = self.rng.randrange(self.log_start, self.log_end + 1)

    @property
    def log(self) -> PartitionState:
        return PartitionState(UNPARTITIONED, self.log_start, self.log_end, 0, None)

    # Faults.

    def start_replica(self, node: ReplicaNode) -> None:
        node.up = True
        node.replica = self.parts.replica(lambda: node.store, node.clock)
        node.replica.open()
        self.observer.replica_started(node)

    def start_coordinator(self, node: CoordinatorNode) -> None:
        node.starts += 1
        node.up = True
        name = self.parts.coordinator_id(node.number, node.starts)
        node.core = CoordinatorCore(self, node.clock, name)
        node.flow = Flow(self, node)

    def break_something(self) -> None:
        if self.healed:
            return
        rng = self.rng
        replica, coordinator = rng.choice(self.replicas), rng.choice(self.coordinators)
        match rng.randrange(6):
            case 0 if replica.up:
                self.crash_replica(replica)
            case 1 if coordinator.up:
                coordinator.up = False
                coordinator.starts += 1
                self.after(rng.uniform(0.1, 4), lambda: self.start_coordinator(coordinator))
            case 2:
                replica.paused_until = self.time + rng.uniform(0.1, 7)
            case 3:
                coordinator.paused_until = self.time + rng.uniform(0.1, 7)
            case 4:
                coordinator.cut_off.add(replica.number)
                ends = rng.uniform(0.5, 8)
                self.after(ends, lambda: coordinator.cut_off.discard(replica.number))
            case _:
                pass
        self.after(rng.uniform(0.2, 4), self.break_something)

    def crash_replica(self, node: ReplicaNode) -> None:
        self.observer.replica_crashed(node)
        node.up = False
        if self.rng.random() < 0.4:
            node.clock.reboot()

        def restart() -> None:
            if not node.up:
                self.start_replica(node)

        self.after(self.rng.uniform(0.05, 5), restart)

    def heal(self) -> None:
        self.healed = True
        for worker in self.workers:
            worker.still_until = 0.0
        self.loss = self.late = 0.0
        for coordinator in self.coordinators:
            coordinator.paused_until = 0.0
            coordinator.cut_off.clear()
            if not coordinator.up:
                self.start_coordinator(coordinator)
        for replica in self.replicas:
            replica.paused_until = 0.0
            if not replica.up:
                self.start_replica(replica)

    # The network.

    def delay(self) -> float:
        if self.rng.random() < self.late:
            return self.rng.uniform(0, 8)
        return self.rng.expovariate(1 / self.latency)

    def send(
        self,
        node: CoordinatorNode,
        number: int,
        requests: Sequence[Request],
        answered: Callable[[Sequence[Answer]], None],
    ) -> None:
        """Carry requests to a replica in one message, and its answers back, if they get there."""
        replica = self.replicas[number]

        def arrive() -> None:
            if self.time < replica.paused_until:
                self.after(replica.paused_until - self.time, arrive)
                return
            answers: Sequence[Answer] = [Unavailable("connection refused") for _ in requests]
            if replica.up:
                answers = replica.replica.perform(requests)
                for request, answer in zip(requests, answers, strict=True):
                    self.observer.replica_answered(replica, request, answer)
            if self.rng.random() >= self.loss and number not in node.cut_off:
                self.after(self.delay(), lambda: answered(answers))

        if self.rng.random() >= self.loss and number not in node.cut_off:
            self.after(self.delay(), arrive)

    # What coordinators do.

    def drive(
        self,
        node: CoordinatorNode,
        asked: "AcquireRequest | Accepted",
        done: Callable[[Any, WingsError | None], None],
    ) -> None:
        """Do what a member asks of a coordinator; nothing comes of it if that crashes."""
        if self.has_streams:
            node.flow.offer(asked, done)
            return
        self.drive_alone(node, self._procedure(node.core, asked), done)

    def drive_alone(
        self,
        node: CoordinatorNode,
        procedure: Procedure[Any],
        done: Callable[[Any, WingsError | None], None] = lambda _value, _error: None,
    ) -> None:
        """Run one procedure at a coordinator."""
        self.drive_all(node, [procedure], lambda outcomes: done(*outcomes[0]))

    def _procedure(
        self, core: CoordinatorCore, asked: "AcquireRequest | Accepted"
    ) -> Procedure[Any]:
        group, log = self.group, self.log
        yield from core.table.load(group, [UNPARTITIONED])
        if isinstance(asked, AcquireRequest):
            ranges: list[LeasedRange] = []
            bundles, _ = core.leases.plan(group, {0: asked}, [self.log], self.times)
            for bundle in bundles:
                for _, leased in (yield from core.leases.hold(group, bundle)):
                    if isinstance(leased, WingsError):
                        raise leased
                    ranges += leased
            return ranges
        requests = [(asked.member, asked.entries)]
        (errors,) = yield from core.settling.run(group, log, requests)
        return errors

    def drive_all(
        self,
        node: CoordinatorNode,
        procedures: Sequence[Procedure[Any]],
        done: Callable[[Sequence[tuple[Any, WingsError | None]]], None],
    ) -> None:
        """Run procedures side by side at a coordinator, as those of a round of share streams."""
        Together(self, node, procedures, done).resume(dict.fromkeys(range(len(procedures))))

    def maintain(self, node: CoordinatorNode) -> None:
        self.after(1.0, lambda: self.maintain(node))
        if not node.up or node.paused_until > self.time:
            return
        core = node.core
        if core.table.exhausted(self.group):
            self.drive_alone(node, core.archiving.archive(self.group, self.log))


def whole_batches(_group: ShareGroup, _partition: Partition, offset: int) -> int:
    """Find the end of a batch: each has one message."""
    return offset


class Asked:
    """A broadcast under way; `ended` is called with its answers."""

    def __init__(
        self, world: World, broadcast: Broadcast, ended: Callable[[dict[int, Any]], None]
    ) -> None:
        self._world = world
        self._broadcast = broadcast
        self._ended = ended
        self._answers: dict[int, Sequence[Answer]] = {}
        self._is_over = False
        self._is_hurried = False
        at_once = broadcast.enough({}) or not broadcast.requests
        world.after(0.0 if at_once else ANSWERS_SECONDS_MAX, self._end)

    def answered(self, number: int, answers_of_replica: Sequence[Answer]) -> None:
        """Take the answers of a replica."""
        if self._is_over:
            return
        self._answers[number] = answers_of_replica
        broadcast, answers = self._broadcast, self._answers
        heard = sum(map(is_heard, answers.values()))
        if len(answers) == len(broadcast.requests) or broadcast.enough(answers):
            self._end()
        elif heard >= broadcast.majority and not self._is_hurried:
            self._is_hurried = True
            self._world.after(GRACE_SECONDS, self._end)

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._ended(dict(self._answers))


class Together:
    """Procedures side by side: each step waits for all of them, and replicas are asked once."""

    def __init__(
        self,
        world: World,
        node: CoordinatorNode,
        procedures: Sequence[Procedure[Any]],
        done: Callable[[Sequence[tuple[Any, WingsError | None]]], None],
    ) -> None:
        self._world = world
        self._node = node
        self._procedures = procedures
        self._done = done
        self._start = node.starts
        self._outcomes: dict[int, tuple[Any, WingsError | None]] = {}

    def resume(self, values: dict[int, Any]) -> None:
        """Go on with those that have a value."""
        world, node = self._world, self._node
        if node.starts != self._start or not node.up:
            return
        if world.time < node.paused_until:
            world.after(node.paused_until - world.time, lambda: self.resume(values))
            return
        effects: dict[int, Effect] = {}
        for index, value in values.items():
            try:
                effects[index] = self._procedures[index].send(value)
            except StopIteration as stop:
                self._outcomes[index] = (stop.value, None)
            except WingsError as error:
                self._outcomes[index] = (None, error)
        if effects:
            self._carry_out(effects)
        else:
            self._done([self._outcomes[index] for index in range(len(self._procedures))])

    def _carry_out(self, effects: dict[int, Effect]) -> None:
        world = self._world
        found: dict[int, Any] = {}

        def ended(index: int, value: Any) -> None:
            found[index] = value
            if len(found) == len(effects):
                self.resume(found)

        sent: dict[int, list[tuple[Asked, tuple[Request, ...]]]] = {}
        for index, effect in effects.items():
            tell = partial(ended, index)
            match effect:
                case Broadcast():
                    asked = Asked(world, effect, tell)
                    for number, requests in effect.requests.items():
                        sent.setdefault(number, []).append((asked, requests))
                case Pause(seconds):
                    world.after(seconds, partial(tell, None))
                case FinishDeadLetters(pending):
                    world.after(world.delay(), partial(self._finish, pending, tell))
        for number, parts in sent.items():
            together = [request for _, requests in parts for request in requests]
            world.send(self._node, number, together, partial(_hear, number, parts))

    def _finish(self, pending: PendingDeadLetters, ended: Callable[[object], None]) -> None:
        if self._node.up and self._node.starts == self._start:
            pending.finish()
            ended(None)


def _hear(
    number: int,
    parts: Sequence[tuple[Asked, tuple[Request, ...]]],
    answers: Sequence[Answer],
) -> None:
    at = 0
    for asked, requests in parts:
        asked.answered(number, answers[at : at + len(requests)])
        at += len(requests)


@dataclass(frozen=True)
class Accepted:
    """What a member says of what it holds, in one request."""

    member: str
    entries: Sequence[Acknowledgement]


class Flow:
    """What the share streams of one coordinator ask for at one time, done in rounds.

    As a coordinator does it: those who accept share a tombstone, and those who acquire a request to
    hold what is new.
    """

    def __init__(self, world: World, node: CoordinatorNode) -> None:
        self._world = world
        self._node = node
        self._start = node.starts
        self._offered: list[_Offer] = []
        self._is_working = False

    def offer(
        self, asked: AcquireRequest | Accepted, done: Callable[[Any, WingsError | None], None]
    ) -> None:
        """Have something done in the next round."""
        self._offered.append((asked, done))
        if not self._is_working:
            self._is_working = True
            self._world.after(self._world.rng.choice([0.0, 0.05]), self._round)

    def _round(self) -> None:
        offered, self._offered = self._offered, []
        world, node = self._world, self._node
        if node.starts != self._start:
            return  # It crashed, and this with it.

        def loaded(outcomes: Sequence[tuple[Any, WingsError | None]]) -> None:
            ((_, error),) = outcomes
            if error is None:
                self._settle(offered)
                return
            for _, tell in offered:
                tell(None, error)
            self._ended()

        world.drive_all(node, [node.core.table.load(world.group, [UNPARTITIONED])], loaded)

    def _settle(self, offered: "Sequence[_Offer]") -> None:
        world, core, group = self._world, self._node.core, self._world.group
        requests = {
            number: asked
            for number, (asked, _) in enumerate(offered)
            if isinstance(asked, AcquireRequest)
        }
        said = {
            number: asked
            for number, (asked, _) in enumerate(offered)
            if isinstance(asked, Accepted)
        }
        accepts = {
            number: asked
            for number, asked in said.items()
            if all(entry.type == "accept" for entry in asked.entries)
        }
        others = {number: asked for number, asked in said.items() if number not in accepts}
        together = [[number] for number in others] + ([list(accepts)] if accepts else [])
        procedures: list[Procedure[Any]] = [
            core.settling.run(
                group,
                world.log,
                [(said[number].member, said[number].entries) for number in numbers],
            )
            for numbers in together
        ]
        bundles, _ = core.leases.plan(group, requests, [world.log], world.times)
        begun, begun_at = len(procedures), core.now()

        def done(outcomes: Sequence[tuple[Any, WingsError | None]]) -> None:
            told: dict[int, tuple[Any, WingsError | None]] = {}
            for numbers, (value, error) in zip(together, outcomes, strict=False):
                for at, number in enumerate(numbers):
                    told[number] = (None if error is not None else value[at], error)
            told |= dict.fromkeys(requests, ([], None))
            for bundle, (value, error) in zip(bundles, outcomes[begun:], strict=True):
                for number, leased in value or [(each.number, error) for each in bundle.taken]:
                    failed = isinstance(leased, WingsError)
                    told[number] = (None, leased) if failed else (leased, None)
            if (core.now() - begun_at) * 2_000 >= group.config.lock_duration_ms:
                for number in requests:
                    ranges, error = told[number]
                    held = [each for each in ranges or () if core.finalizer.is_leased(group, each)]
                    told[number] = (held, error)
            for number, (_, tell) in enumerate(offered):
                tell(*told[number])
            self._ended()

        world.drive_all(
            self._node, [*procedures, *(core.leases.hold(group, each) for each in bundles)], done
        )

    def _ended(self) -> None:
        self._is_working = bool(self._offered)
        if self._offered:
            self._round()


_Offer = tuple[AcquireRequest | Accepted, Callable[[Any, WingsError | None], None]]


class Worker:
    """Takes messages and acknowledges them, or not."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.still_until = 0.0
        """Until when its process is stopped."""

    def work(self) -> None:
        """Acquire from some coordinator, and again a while later."""
        world = self.world
        node = world.rng.choice(world.coordinators)
        # A worker of a coordinator that is gone asks another one a while later.
        turn = itertools.count()
        this = next(turn)

        def again() -> None:
            if next(turn) == this + 1:
                self.work()

        world.after(4.0, again)
        if not node.up or node.paused_until > world.time:
            return
        messages_max = world.rng.randrange(1, 9)
        asked_of = node.core

        def done(value: Any, error: WingsError | None) -> None:
            ranges: list[LeasedRange] = [] if error is not None else value
            for leased in ranges:
                world.observer.delivered(asked_of, node.clock, leased)
                self.handle(node, leased)
            world.after(world.rng.uniform(0.05, 0.3), again)

        request = AcquireRequest(world.group, self.name, UNPARTITIONED, messages_max, 1_000)
        world.drive(node, request, done)

    def handle(self, node: CoordinatorNode, leased: LeasedRange) -> None:
        """Decide how a range is acknowledged, and do so a while later."""
        rng = self.world.rng
        if self.world.healed:
            self.world.after(0.01, lambda: self.acknowledge(node, leased, ["accept"]))
            return
        kinds: list[list[AcknowledgeType]] = [
            ["accept"],
            ["release"],
            ["reject"],
            ["renew", "accept"],
            ["renew"],
            [],
        ]
        plan = rng.choices(kinds, [50, 15, 10, 8, 4, 13])[0]
        if plan:
            pause = rng.expovariate(1 / rng.choice([0.1, 1.0, 4.0]))
            self.world.after(pause, lambda: self.acknowledge(node, leased, plan))

    def acknowledge(
        self, node: CoordinatorNode, leased: LeasedRange, plan: Sequence[AcknowledgeType]
    ) -> None:
        world, rng = self.world, self.world.rng
        if world.time < self.still_until:
            world.after(self.still_until - world.time, lambda: self.acknowledge(node, leased, plan))
            return
        if rng.random() < 0.2:
            node = rng.choice(world.coordinators)
        if not node.up or node.paused_until > world.time:
            return
        kind, core, clock = plan[0], node.core, node.clock
        delay_ms = rng.choice([0, 0, 1_500]) if kind == "release" else 0
        middle = rng.randrange(leased.start_offset, leased.end_offset + 1)
        cuts = [(leased.start_offset, middle), (middle + 1, leased.end_offset)]
        if rng.random() < (0.4 if world.group.config.is_ordered else 0.7):
            cuts = [(leased.start_offset, leased.end_offset)]
        elif not world.healed and len(plan) == 1 and rng.random() < 0.3:
            cuts = cuts[:1]  # The rest stays held until its lock ends.
        kinds: list[AcknowledgeType] = [kind, kind]
        if len(plan) == 1 and not world.healed and rng.random() < 0.4:  # Some of it otherwise.
            kinds[1] = rng.choice(["accept", "release", "reject", "renew"])
        entries = [
            Acknowledgement(leased.partition, first, last, leased.lease, each, delay_ms)
            for (first, last), each in zip(cuts, kinds, strict=False)
            if first <= last
        ]
        if world.has_streams and rng.random() < 0.5:
            entries = [
                replace(entry, first=offset, last=offset)
                for entry in entries
                for offset in range(entry.first, entry.last + 1)
            ]
        attempts = [world.observer.acknowledging(leased, entry) for entry in entries]
        told = self.said(node, entries)

        def done(value: Any, error: WingsError | None) -> None:
            errors: list[WingsError | None] = [error] * len(entries) if error is not None else value
            world.observer.acknowledged(core, clock, attempts, errors)
            told(errors)
            if plan[1:] and not any(errors):
                world.after(rng.uniform(0.1, 4), lambda: self.acknowledge(node, leased, plan[1:]))

        world.drive(node, Accepted(self.name, entries), done)

    def said(
        self, node: CoordinatorNode, entries: Sequence[Acknowledgement]
    ) -> Callable[[Sequence[WingsError | None]], None]:
        """Say how messages are acknowledged; returns what is told of the answer."""
        del node, entries
        return lambda _: None


class StreamWorker(Worker):
    """One that has a share stream at a coordinator, and at another once that is gone."""

    stream: "Stream | None" = None

    def work(self) -> None:
        world, rng = self.world, self.world.rng
        if self.stream is None or not self.stream.is_open:
            node = rng.choice(world.coordinators)
            self.stream = (
                Stream(self, node) if node.up and node.paused_until <= world.time else None
            )
        elif world.time >= self.still_until:
            self.stream.hear(AliveMessage(alive=True))
            if rng.random() < 0.5:
                self.stream.hear(CreditMessage(credit=rng.randrange(9)))
            if rng.random() < 0.1 and not world.healed:
                self.still_until = world.time + rng.uniform(1, 3 * LOCK_MS / 1_000)
        world.after(LOCK_MS / 3_000 * rng.uniform(0.3, 1), self.work)

    def said(
        self, node: CoordinatorNode, entries: Sequence[Acknowledgement]
    ) -> Callable[[Sequence[WingsError | None]], None]:
        stream = self.stream
        if stream is None or stream.node is not node or not stream.is_open:
            return super().said(node, entries)  # It is said beside the stream.
        return stream.said(entries)


class Stream:
    """A share stream, as a server sees it: delivers whenever its client may be given more."""

    def __init__(self, worker: StreamWorker, node: CoordinatorNode) -> None:
        self.world = world = worker.world
        self.worker = worker
        self.node = node
        self.leases: set[str] = set()
        """Of what was delivered."""
        self.released: set[int] = set()
        """What its client has released since it asked for more."""
        self.heard_at = world.time
        """When its client last spoke."""
        self._start = node.starts
        self._holds = world.parts.holds(world.rng.randrange(1, 9), LOCK_MS, node.clock.now())
        self.hear(AliveMessage(alive=True))
        self._deliver()

    @property
    def is_open(self) -> bool:
        return self.node.up and self.node.starts == self._start

    def hear(self, message: ClientMessage) -> None:
        self.heard_at = self.world.time
        self._holds.hear(message, self.node.clock.now())
        if isinstance(message, CreditMessage):
            self.released.clear()

    def said(
        self, entries: Sequence[Acknowledgement]
    ) -> Callable[[Sequence[WingsError | None]], None]:
        acks = tuple(
            AcknowledgementEntry(first=each.first, last=each.last, lease=each.lease, type=each.type)
            for each in entries
        )
        self.hear(AcknowledgeMessage(request=1, acks=acks))
        asked_at = self.node.clock.now()
        for each in entries:
            if each.type == "release":
                self.released.update(range(each.first, each.last + 1))

        def told(errors: Sequence[WingsError | None]) -> None:
            for each, error in zip(entries, errors, strict=True):
                if error is None:
                    self._holds.acknowledged(each, asked_at, self.node.clock.now())

        return told

    def _deliver(self) -> None:
        if not self.is_open:
            return
        world, node, asked_at = self.world, self.node, self.node.clock.now()
        room = 0 if node.paused_until > world.time else self._holds.room(asked_at)
        if room <= 0:
            world.after(world.rng.uniform(0.01, 0.3), self._deliver)
            return
        world.observer.asked(self)

        def done(value: Any, error: WingsError | None) -> None:
            ranges: list[LeasedRange] = [] if error is not None else value
            for leased in ranges:
                if leased.messages <= self._holds.room(node.clock.now()):
                    world.observer.delivered(node.core, node.clock, leased, self)
                    self._holds.add(leased, asked_at, node.clock.now())
                    self.worker.handle(node, leased)
                else:  # It stands still by now.
                    self._release(leased)
            world.after(world.rng.uniform(0.01, 0.3), self._deliver)

        name = self.worker.name
        request = AcquireRequest(world.group, name, UNPARTITIONED, room, 1_000)
        world.drive(node, request, done)

    def _release(self, leased: LeasedRange) -> None:
        lease = Lease.parse(leased.lease)
        ranges = [OffsetRange(leased.start_offset, leased.end_offset)]
        core = self.node.core
        tracked = core.table.get(self.world.group, UNPARTITIONED)
        release = core.finalizer.release_undelivered(tracked, lease, ranges)
        self.world.drive_alone(self.node, release)
