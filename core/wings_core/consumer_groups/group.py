"""ConsumerGroup: the state of one group, changed by heartbeats and by time; no I/O and no clock.

Each member has a *target*, what it should read once the group has settled: `assign` computes it. A
heartbeat is answered with what the member may read now, its *assignment*: the part of the target
that no other member *holds*. A member holds a slot from the answer that assigned it until its own
heartbeat says that it gave the slot up, or its session ends. So slots move in steps, first given up
and then taken, and no two members hold one slot at a time.

Each change of a member's assignment gives the member a new epoch. A heartbeat releases slots only
under the newest one: one that was sent before the member knew its assignment, and came late, says
nothing about it. A lost answer leaves the member one epoch behind, which is accepted.

The protocol, and the sticky, even target that the server computes, are Kafka's (KIP-848, "The Next
Generation of the Consumer Rebalance Protocol"), with slots in the place of partitions.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

from wings_core.contracts.consumer_groups import SESSION_MS
from wings_core.errors import FencedMember, InvalidArgument, ResourceExhausted
from wings_core.model import Assignment, GroupChange, GroupMember
from wings_core.partitions import Slots, mask_of, slots_in

JOIN, LEAVE = 0, -1
"""Epochs by which a heartbeat joins and leaves."""

REVOKE_MS = 300_000
"""How long a member may beat on without giving up what it was told to."""

MEMBERS_MAX = 1_000
"""Members of a group."""


class TopicSlots(NamedTuple):
    """The slots of a topic."""

    every: Slots
    filled: Slots
    """Slots with a partition that has been written to."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Heartbeat of a member; topics are named by UUID."""

    member: str
    epoch: int
    topics: frozenset[str] | None = None
    """None: as last said."""
    instance: str | None = None
    session_ms: int = SESSION_MS
    """Only of a heartbeat that joins."""
    owned: Assignment | None = None
    """Slots that the member holds; None: as last said."""


@dataclass(frozen=True, slots=True)
class Beat:
    """The answer to a heartbeat."""

    epoch: int
    assignment: Assignment | None
    """Slots that the member may read now; None: those that it said it holds."""


@dataclass(slots=True)
class Session:
    """State of a live member that is lost with the process."""

    deadline: float = math.inf
    """When the session ends."""
    said: Assignment | None = None
    """Slots that the member last said it holds; None: not known since a takeover."""
    told_at: float | None = None
    """Since when the member holds slots that it was told to give up; None: it holds none such."""

    @property
    def end(self) -> float:
        """When the member is removed if nothing changes."""
        if self.told_at is None:
            return self.deadline
        return min(self.deadline, self.told_at + REVOKE_MS / 1_000)


@dataclass(slots=True)
class ConsumerGroup:
    """The state of a group.

    Every method that changes it takes the time, in seconds of one monotonic clock, and leaves the
    changes for `take_change`.

    Args:
        slots_of: Returns the slots of topics by UUID, without those that do not exist.
        epoch: The highest epoch that was given out.
        members: The members, by id.
        sessions: Their sessions, by the members' ids.
    """

    slots_of: Callable[[Iterable[str]], Mapping[str, TopicSlots]]
    epoch: int = 0
    members: dict[str, GroupMember] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    _stored: dict[str, GroupMember] = field(default_factory=dict)
    _is_changed: bool = False
    """Whether a member may differ from what is stored."""
    _is_settled: bool | None = None
    """None: not known since a member changed."""
    _due: float = -math.inf
    """No session ends before."""

    @classmethod
    def load(
        cls,
        slots_of: Callable[[Iterable[str]], Mapping[str, TopicSlots]],
        epoch: int,
        members: Iterable[GroupMember],
        now: float,
    ) -> "ConsumerGroup":
        """Return the group as it was stored; each member has a whole session from now on."""
        by_id = {member.member: member for member in members}
        sessions = {
            name: Session(
                now + member.session_ms / 1_000,
                told_at=None if member.held == member.assigned else now,
            )
            for name, member in by_id.items()
        }
        return cls(slots_of, epoch, by_id, sessions, dict(by_id))

    def heartbeat(self, beat: Heartbeat, now: float) -> Beat:
        """Take a member's heartbeat, and return what the member may read now.

        Raises:
            FencedMember: The member is unknown, its session ended, or its epoch is neither its
                newest nor the one before.
            InvalidArgument: A member joins without topics.
            ResourceExhausted: The group has as many members as it may have.
        """
        self.expire(now)
        if beat.epoch == LEAVE:
            if beat.member in self.members:
                self._remove([beat.member])
            return Beat(LEAVE, None)
        if beat.epoch == JOIN:
            self._join(beat)
        else:
            self._listen(beat)
        member = self._reconcile(self.members[beat.member])
        session = self.sessions[beat.member]
        session.deadline = now + member.session_ms / 1_000
        if member.held == member.assigned:
            session.told_at = None
        elif session.told_at is None:
            session.told_at = now
        self._due = min(self._due, session.end)
        same = session.said == member.assigned and beat.epoch == member.epoch
        return Beat(member.epoch, None if same else member.assigned)

    def expire(self, now: float) -> list[str]:
        """Remove members whose session ended, or that did not give up what they were told to.

        Returns:
            Their ids.
        """
        if now < self._due:
            return []
        ends = {member: session.end for member, session in self.sessions.items()}
        gone = [member for member, end in ends.items() if end <= now]
        self._due = min((end for end in ends.values() if end > now), default=math.inf)
        if gone:
            self._remove(gone)
        return gone

    def cover_slots(self) -> None:
        """Assign slots that topics have gained since the last assignment; nothing else moves."""
        members = self.members.values()
        covered: Assignment = {}
        for member in members:
            covered = _union(covered, member.target)
        topics = self.slots_of(frozenset().union(*(member.topics for member in members)))
        if any(slots.every & ~covered.get(topic, 0) for topic, slots in topics.items()):
            self._retarget()

    @property
    def is_settled(self) -> bool:
        """Whether every member holds its target, and nothing else."""
        if self._is_settled is None:
            self._is_settled = all(
                each.target == each.assigned == each.held for each in self.members.values()
            )
        return self._is_settled

    def take_change(self) -> GroupChange | None:
        """Return what changed since the last call; None: nothing that is durable."""
        if not self._is_changed:
            return None
        self._is_changed = False
        changed = tuple(
            member for name, member in self.members.items() if self._stored.get(name) is not member
        )
        removed = tuple(name for name in self._stored if name not in self.members)
        if not changed and not removed:
            return None
        self._stored = dict(self.members)
        return GroupChange(self.epoch, changed, removed)

    def _listen(self, beat: Heartbeat) -> None:
        """Take what a member says that is in the group."""
        member = self.members.get(beat.member)
        if member is None and any(
            beat.instance is not None and each.instance == beat.instance
            for each in self.members.values()
        ):
            raise FencedMember(
                f"instance {beat.instance!r} of the group is another member by now",
                instance=beat.instance,
            )
        if member is None:
            raise FencedMember(f"member {beat.member!r} is not in the group, or its session ended")
        if beat.epoch not in (member.epoch, member.previous_epoch):
            raise FencedMember(
                f"member {beat.member!r} is at epoch {member.epoch}, not {beat.epoch}"
            )
        session = self.sessions[beat.member]
        if beat.owned is not None:
            session.said = _without_empty(beat.owned)
        if session.said is not None and beat.epoch == member.epoch:
            self._release(member, session.said)
        if beat.topics is not None and beat.topics != member.topics:
            self._put(replace(self.members[beat.member], topics=beat.topics))
            self._retarget()

    def _join(self, beat: Heartbeat) -> None:
        if beat.topics is None:
            raise InvalidArgument("a member that joins names its topics in `topics`")
        replaced = [
            each
            for each in self.members.values()
            if each.member == beat.member
            or (beat.instance is not None and each.instance == beat.instance)
        ]
        before = replaced[0] if replaced else None
        if before is None and len(self.members) >= MEMBERS_MAX:
            raise ResourceExhausted(f"the group has {MEMBERS_MAX} members, the most it may have")
        joined = GroupMember(
            beat.member,
            self._next_epoch(),
            topics=beat.topics,
            instance=beat.instance,
            session_ms=beat.session_ms,
            target={} if before is None else before.target,
            held={} if before is None else before.held,
        )
        for each in replaced:
            del self.members[each.member], self.sessions[each.member]
        self._put(joined)
        self.sessions[beat.member] = Session(said={})
        if len(replaced) != 1 or replaced[0].topics != beat.topics:
            self._retarget()

    def _remove(self, members: Iterable[str]) -> None:
        for member in members:
            del self.members[member], self.sessions[member]
        self._note_change()
        self._retarget()

    def _retarget(self) -> None:
        subscriptions = {name: member.topics for name, member in self.members.items()}
        current = {name: member.target for name, member in self.members.items()}
        topics = self.slots_of(frozenset().union(*subscriptions.values()))
        for name, target in assign(subscriptions, current, topics).items():
            if target != self.members[name].target:
                self._put(replace(self.members[name], target=target))

    def _release(self, member: GroupMember, owned: Assignment) -> None:
        """Take from a member what it was told to give up, and says that it does not hold."""
        held = _union(member.assigned, _common(member.held, owned))
        if held != member.held:
            self._put(replace(member, held=held))

    def _reconcile(self, member: GroupMember) -> GroupMember:
        """Assign what the member may read now: of its target, what no other member holds."""
        if member.assigned == member.target:
            return member
        assigned: dict[str, int] = {}
        for topic, wanted in member.target.items():
            for other in self.members.values():
                if other is not member:
                    wanted &= ~other.held.get(topic, 0)
            if wanted:
                assigned[topic] = wanted
        if assigned != member.assigned:
            member = replace(
                member,
                epoch=self._next_epoch(),
                previous_epoch=member.epoch,
                assigned=assigned,
                held=_union(member.held, assigned),
            )
            self._put(member)
        return member

    def _put(self, member: GroupMember) -> None:
        self.members[member.member] = member
        self._note_change()

    def _note_change(self) -> None:
        self._is_changed = True
        self._is_settled = None

    def _next_epoch(self) -> int:
        self.epoch += 1
        return self.epoch


def _without_empty(slots: Assignment) -> Assignment:
    return {topic: mask for topic, mask in slots.items() if mask}


def _common(one: Assignment, other: Assignment) -> Assignment:
    return _without_empty({topic: mask & other.get(topic, 0) for topic, mask in one.items()})


def _union(one: Assignment, other: Assignment) -> Assignment:
    return {topic: one.get(topic, 0) | other.get(topic, 0) for topic in {**one, **other}}


def assign(
    subscriptions: Mapping[str, frozenset[str]],
    current: Mapping[str, Assignment],
    topics: Mapping[str, TopicSlots],
) -> dict[str, dict[str, Slots]]:
    """Assign every slot of every topic to one of the members that subscribe to it.

    Two members of a topic differ by at most one filled slot, and by at most one slot altogether;
    what evenness allows to stay where it is stays there.

    Args:
        subscriptions: The topics of each member.
        current: The members' earlier assignments.
        topics: The slots of each topic; a topic that is not among them is assigned to nobody.

    Returns:
        The assignment of each member, also of those without a slot.
    """
    target: dict[str, dict[str, Slots]] = {member: {} for member in sorted(subscriptions)}
    load = dict.fromkeys(target, 0)
    for topic in sorted(topics):
        before = {
            member: current.get(member, {}).get(topic, 0)
            for member in target
            if topic in subscriptions[member]
        }
        for member, slots in _assign_topic(topics[topic], before, load).items():
            load[member] += slots.bit_count()
            if slots:
                target[member][topic] = slots
    return target


def _assign_topic(
    slots: TopicSlots, before: Mapping[str, Slots], load: Mapping[str, int]
) -> dict[str, Slots]:
    """Assign a topic's slots to the members that had `before`, of whom the less loaded come first.

    A member with an extra filled slot is the first to have an extra slot altogether: its quota of
    empty slots cannot be negative.
    """
    if not before:
        return {}
    every, filled = slots
    empty = every & ~filled

    def order(member: str) -> tuple[int, int, str]:
        return -(before[member] & filled).bit_count(), load[member], member

    filled_quotas = _quotas(filled.bit_count(), sorted(before, key=order))

    def total_order(member: str) -> tuple[int, int, int, str]:
        kept = (before[member] & empty).bit_count()
        return -filled_quotas[member], -kept, load[member], member

    totals = _quotas(every.bit_count(), sorted(before, key=total_order))
    dealt = _deal(filled, filled_quotas, before)
    rest = _deal(empty, {each: totals[each] - filled_quotas[each] for each in before}, before)
    return {member: dealt[member] | rest[member] for member in before}


def _quotas(count: int, members: Sequence[str]) -> dict[str, int]:
    """Divide a number of slots evenly; the first members get one more where it leaves a rest."""
    share, left = divmod(count, len(members))
    return {member: share + (place < left) for place, member in enumerate(members)}


def _deal(slots: Slots, quotas: Mapping[str, int], before: Mapping[str, Slots]) -> dict[str, Slots]:
    """Give each member as many slots as its quota says, of those that it had before first."""
    dealt: dict[str, Slots] = {}
    for member, quota in quotas.items():
        dealt[member] = mask_of(slots_in(before[member] & slots)[:quota])
        slots &= ~dealt[member]
    spare = iter(slots_in(slots))
    for member, quota in quotas.items():
        dealt[member] |= mask_of(islice(spare, quota - dealt[member].bit_count()))
    return dealt
