"""GroupCoordinator: runs the consumer groups whose lease this node holds.

Groups are dealt to a few shards by a hash of their name, and a shard is run by the node that holds
its lease in metadata; the other nodes pass heartbeats on to it. What a heartbeat changes is stored
before it is answered, fenced by the lease, so a node that lost a lease without noticing changes
nothing. Sessions are kept in memory: after a takeover every member has a whole one.

A node answers for a shard only as long as its lease has not ended by its own clock, counted from
before it asked for it and less a margin for clocks that differ. The next holder's sessions begin
later than that, so a member never outlives the session that its last answer promised.
"""

import math
import threading
import time
import zlib
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple, TypeVar

from wings_core.consumer_groups.group import Beat, ConsumerGroup, Heartbeat, TopicSlots
from wings_core.errors import FencedMember, InvalidArgument, ResourceExhausted, Unavailable
from wings_core.metadata.interfaces import ConsumerGroups
from wings_core.metadata.maintenance import Maintenance, MaintenanceLease
from wings_core.model import GroupChange, GroupMember

T = TypeVar("T")

SHARDS = 16
"""Leases over which groups are dealt, and so the most nodes that run groups at a time."""

LEASE_SECONDS = 10.0
"""How long the groups of a node that vanished wait for the next one."""

RENEWALS = 3
"""How often a lease is renewed in the time that it lasts."""

MARGIN = 0.05
"""Share of a lease by which the clocks of nodes may differ."""

BEATS_PER_SECOND = 200
"""Heartbeats a second that members are asked for at most, all groups of a node together."""

BEAT_MS_MIN = 3_000
"""The least time between two heartbeats of a member."""

HOLDER_SECONDS = 0.5
"""How long it is remembered which node runs a group."""

SETTLING_BEAT_MS = 500
"""The least time while slots move."""

BEATS_PER_SESSION = 3
"""The fewest heartbeats that a session is good for."""


class Answer(NamedTuple):
    """The answer to a heartbeat, and when the next one is due."""

    beat: Beat
    heartbeat_ms: int


class RunElsewhere(Exception):  # noqa: N818 - not an error: the caller passes the call on.
    """Another node runs the group.

    Args:
        holder: The holder of its lease.
    """

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


class _Shard:
    """Groups under one lease, as far as they are loaded."""

    def __init__(self, number: int) -> None:
        self.name = f"consumer-groups/{number}"
        self.lock = threading.Lock()
        """Held during a heartbeat, its write of metadata included; no other is taken under it."""
        self.groups: dict[str, ConsumerGroup] = {}
        self.lease: MaintenanceLease | None = None
        self.asked_at = 0.0
        """When the lease was last asked for with success, by the clock."""
        self.holder: str | None = None
        """Another holder, as of `looked_at`."""
        self.looked_at = -math.inf


class GroupCoordinator:
    """Runs groups; thread-safe.

    Args:
        store: Where groups are kept.
        leases: Grants leases.
        holder: This process's name as a holder, unique for each start; others pass calls on by it.
        slots_of: Returns the slots of topics by UUID, without those that do not exist.
        clock: Monotonic, in seconds.

    Attributes:
        name: The holder's name.
    """

    def __init__(
        self,
        store: ConsumerGroups,
        leases: Maintenance,
        holder: str,
        slots_of: Callable[[Iterable[str]], Mapping[str, TopicSlots]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._leases = leases
        self.name = holder
        self._slots_of = slots_of
        self._clock = clock
        self._shards = [_Shard(number) for number in range(SHARDS)]
        self._members = 0
        """Members of all groups, as of the last tick."""
        self.members_by_group: dict[str, int] = {}
        """How many members the groups have that this node runs, as of the last tick."""
        self._is_closed = False

    def heartbeat(self, consumer: str, beat: Heartbeat) -> Answer:
        """Take the heartbeat of a member of a group; blocks for a commit where it changes anything.

        Raises:
            RunElsewhere: Another node holds the lease of the group.
            FencedMember: See `ConsumerGroup.heartbeat`.
            Unavailable: Metadata cannot be reached; the member says the same again.
        """
        with self._opened(consumer) as group:
            answer = group.heartbeat(beat, self._clock())
            heartbeat_ms = self._heartbeat_ms(group, beat.member)
        return Answer(answer, heartbeat_ms)

    def members(self, consumer: str) -> list[GroupMember]:
        """Return the live members of a group, by id, as they are stored.

        Raises:
            RunElsewhere: Another node holds the lease of the group.
            Unavailable: Metadata cannot be reached.
        """
        return self.run_alone(consumer, lambda members: members)

    def run_alone(self, consumer: str, work: Callable[[list[GroupMember]], T]) -> T:
        """Run work on the live members of a group, during which the group does not change.

        Raises:
            RunElsewhere: Another node holds the lease of the group.
            Unavailable: Metadata cannot be reached.
        """
        with self._opened(consumer) as group:
            return work(sorted(group.members.values(), key=lambda member: member.member))

    def lease(self, consumer: str) -> int | None:
        """Return the token of a group's lease, at once; None: `hold` has to be called."""
        shard = self._shard_of(consumer)
        lease = shard.lease
        return lease.token if lease is not None and not self._is_due(shard) else None

    def hold(self, consumer: str) -> int:
        """Take a group's lease, or renew it where that is due; returns its token.

        Raises:
            RunElsewhere: Another node holds the lease of the group.
            Unavailable: Metadata cannot be reached.
        """
        token = self.lease(consumer)
        if token is None:
            shard = self._shard_of(consumer)
            with shard.lock:
                token = self._lease_of(shard).token
        return token

    def holder(self, consumer: str) -> str | None:
        """Return the holder of a group's lease, as it was a moment ago; None: nobody runs it."""
        if self.lease(consumer) is not None:
            return self.name
        shard, now = self._shard_of(consumer), self._clock()
        if now >= shard.looked_at + HOLDER_SECONDS:
            shard.holder, shard.looked_at = self._leases.lease_holder(shard.name), now
        return shard.holder

    def begin_generation(self, consumer: str, generation: int, token: int) -> None:
        """Store the epoch of a group whose members assign for themselves, as Kafka's classic ones.

        From then on commits of earlier generations are refused.

        Args:
            consumer: The group's.
            generation: Greater than all epochs before.
            token: Token of the lease under which the generation began.

        Raises:
            RunElsewhere: Another node holds the lease of the group.
            Unavailable: The lease was lost meanwhile, or metadata cannot be reached.
        """
        shard = self._shard_of(consumer)
        with shard.lock:
            lease = self._lease_of(shard)
            shard.groups.pop(consumer, None)  # It is loaded again, with this epoch.
            change = GroupChange(generation, (), ())
            if lease.token != token or not self._store.save(lease, consumer, change):
                self._forget(shard)
                raise Unavailable(f"another node has taken over the group {consumer!r}; try again")

    def tick(self) -> None:
        """Renew the leases of shards with members, and end the sessions that are over.

        Raises:
            Unavailable: Metadata cannot be reached; the next call tries again.
        """
        counts: dict[str, int] = {}
        for shard in self._shards:
            for consumer in list(shard.groups):
                try:
                    with self._opened(consumer) as group:
                        counts[consumer] = len(group.members)
                        if not group.members:
                            del shard.groups[consumer]
                except RunElsewhere:
                    break
        self.members_by_group, self._members = counts, sum(counts.values())

    def cover_slots(self, topic: str) -> None:
        """Assign slots that a topic, given by its UUID, has gained, in the groups of this node.

        Raises:
            Unavailable: Metadata cannot be reached.
        """
        for shard in self._shards:
            for consumer, group in list(shard.groups.items()):
                if any(topic in member.topics for member in list(group.members.values())):
                    with suppress(RunElsewhere), self._opened(consumer) as opened:
                        opened.cover_slots()

    def close(self) -> None:
        """Release the leases, so that other nodes take over at once; none is acquired after it."""
        self._is_closed = True
        for shard in self._shards:
            with shard.lock:
                if shard.lease is not None:
                    self._leases.release_lease(shard.name, self.name)
                self._forget(shard)

    @contextmanager
    def _opened(self, consumer: str) -> Generator[ConsumerGroup]:
        """Lend a group that this node runs, its ended sessions removed; save what is changed.

        Raises:
            RunElsewhere: Another node holds the lease of the group.
            Unavailable: Metadata cannot be reached.
        """
        shard = self._shard_of(consumer)
        with shard.lock:
            lease = self._lease_of(shard)
            group = shard.groups.get(consumer)
            if group is None:
                group = shard.groups[consumer] = self._load(consumer)
            try:
                if group.expire(self._clock()):
                    self._save(shard, lease, consumer, group)
                yield group
            except (FencedMember, InvalidArgument, ResourceExhausted):
                self._save(shard, lease, consumer, group)
                raise
            except BaseException:
                shard.groups.pop(consumer, None)  # Half changed: it is loaded again.
                raise
            self._save(shard, lease, consumer, group)

    def _shard_of(self, consumer: str) -> _Shard:
        return self._shards[zlib.crc32(consumer.encode()) % SHARDS]

    def _is_due(self, shard: _Shard) -> bool:
        """Return whether a lease is to be renewed."""
        return self._clock() >= shard.asked_at + LEASE_SECONDS / RENEWALS

    def _lease_of(self, shard: _Shard) -> MaintenanceLease:
        """Return the lease of a shard, acquired or renewed where that is due."""
        if self._is_closed:
            raise Unavailable("this node is stopping; try again")
        now = self._clock()
        if shard.lease is not None and not self._is_due(shard):
            return shard.lease
        try:
            token = self._leases.acquire_lease(shard.name, self.name, LEASE_SECONDS)
        except Unavailable:
            if shard.lease is not None and self._clock() < _end(shard):
                return shard.lease
            self._forget(shard)
            raise
        if token is None:
            self._forget(shard)
            holder = self._leases.lease_holder(shard.name)
            if holder is None:  # It ended in between.
                raise Unavailable("the group is changing nodes; try again")
            raise RunElsewhere(holder)
        if shard.lease is None or shard.lease.token != token:
            self._forget(shard)  # Another node may have run the groups meanwhile.
        shard.lease = MaintenanceLease(shard.name, self.name, token)
        shard.asked_at = now
        if self._clock() >= _end(shard):
            raise Unavailable("metadata granted the lease of the group too late; try again")
        return shard.lease

    def _forget(self, shard: _Shard) -> None:
        shard.lease = None
        shard.groups.clear()

    def _load(self, consumer: str) -> ConsumerGroup:
        stored = self._store.load(consumer)
        group = ConsumerGroup.load(self._slots_of, stored.epoch, stored.members, self._clock())
        group.cover_slots()
        return group

    def _save(
        self, shard: _Shard, lease: MaintenanceLease, consumer: str, group: ConsumerGroup
    ) -> None:
        """Store what a group has changed; where that may have failed, it is loaded again."""
        change = group.take_change()
        if change is None:
            return
        try:
            stored = self._store.save(lease, consumer, change)
        except BaseException:
            shard.groups.pop(consumer, None)
            raise
        if not stored:
            self._forget(shard)
            raise Unavailable(f"another node has taken over the group {consumer!r}; try again")

    def _heartbeat_ms(self, group: ConsumerGroup, member: str) -> int:
        least = BEAT_MS_MIN if group.is_settled else SETTLING_BEAT_MS
        least = max(least, self._members * 1_000 // BEATS_PER_SECOND)
        joined = group.members.get(member)
        return least if joined is None else min(least, joined.session_ms // BEATS_PER_SESSION)


def _end(shard: _Shard) -> float:
    """Return when a lease has ended by every clock."""
    return shard.asked_at + LEASE_SECONDS * (1 - MARGIN)
