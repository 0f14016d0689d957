"""Partition table: the partitions of groups as one coordinator knows them from the replicas.

One lock guards the state of all of them, and is never held while an effect is under way.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from wings_core.errors import GroupNotFound
from wings_core.model import Lease, LeasedRange, ShareGroup, member_tag
from wings_core.partitions import Partition
from wings_core.share.clock import Clock
from wings_core.share.model import ShareKey
from wings_core.share.quorum.quorum import HoldQuorum
from wings_core.share.quorum.run import Procedure
from wings_core.share.quorum.votes import KnownPartition
from wings_core.share.state.partition import MessageStates, State

READ_PARTITIONS_MAX = 256
"""Partitions whose state is read at a time."""

READ_AGAIN_SECONDS = (1.0, 16.0)
"""How often a partition whose window is full is read, for what was acknowledged by others: at
first, and later where the window is one lease."""

REREAD_SECONDS_MIN = 0.01
"""Until a partition that is to be read is looked at."""

DELETED_MAX = 10_000
"""Deleted groups that are remembered, so that nothing of them is begun again."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where a partition's log begins, and its next offset."""

    start: int
    end: int


@dataclass(slots=True)
class TrackedPartition:
    """A partition of a group, as this coordinator sees it."""

    key: ShareKey
    state: MessageStates
    read_at: float
    """When the replicas were asked for its state, by the coordinator's clock."""
    read_again_seconds: float = READ_AGAIN_SECONDS[0]
    """How long after that it is worth asking again."""
    collisions: int = 0
    """How often in a row all that was asked for was held by others."""
    is_checking: bool = False
    """Whether the times of messages are being read."""
    is_seen_full: bool = False
    """Whether a member found no room in the window: who makes some tells of it."""


class PartitionTable:
    """The partitions that a coordinator knows, and the numbers of its leases.

    Args:
        quorum: The majority of the replicas.
        clock: The clock of leases.
        coordinator: In the leases.
        met_limit: Called, outside the lock, when messages are at the delivery limit.

    Attributes:
        lock: To be held while a partition's state is read or changed.
    """

    def __init__(
        self,
        quorum: HoldQuorum,
        clock: Clock,
        coordinator: str,
        met_limit: Callable[[], None] = lambda: None,
    ) -> None:
        self.met_limit = met_limit
        self.lock = threading.Lock()
        self._quorum = quorum
        self._clock = clock
        self._coordinator = coordinator
        self._leases = 0
        self._table: dict[str, dict[Partition, TrackedPartition]] = {}
        self._under_way: dict[str, dict[Partition, None]] = {}
        """The partitions of each group that keep ranges, among some that no longer do."""
        self._deleted: OrderedDict[str, None] = OrderedDict()

    def load(self, group: ShareGroup, partitions: Sequence[Partition]) -> Procedure[None]:
        """Read the state of partitions that are not known yet.

        Raises:
            GroupNotFound: The group was deleted.
            Unavailable: No majority answered.
        """
        with self.lock:
            self._require(group)
            known = self._table.get(group.uuid, {})
            missing = [partition for partition in partitions if partition not in known]
        for at in range(0, len(missing), READ_PARTITIONS_MAX):
            some = missing[at : at + READ_PARTITIONS_MAX]
            read = yield from self._quorum.read(group.uuid, group.topic.uuid, some)
            with self.lock:
                self._require(group)  # It may have been deleted meanwhile.
                partitions_known = self._table.setdefault(group.uuid, {})
                under_way = self._under_way.setdefault(group.uuid, {})
                for partition in some:
                    if partition not in partitions_known:
                        state = MessageStates(
                            read[partition].start_offset, partial(under_way.setdefault, partition)
                        )
                        learn(state, read[partition])
                        key = key_of(group, partition)
                        partitions_known[partition] = TrackedPartition(
                            key, state, self._clock.now()
                        )

    def get(self, group: ShareGroup, partition: Partition) -> TrackedPartition:
        """Return a loaded partition.

        Raises:
            GroupNotFound: It is gone, with its group.
        """
        tracked = self.find(group, partition)
        if tracked is None:
            raise _gone(group)
        return tracked

    def find(self, group: ShareGroup, partition: Partition) -> TrackedPartition | None:
        """Return a partition; None where it is not loaded, or gone with its group."""
        return self._table.get(group.uuid, {}).get(partition)

    def is_loaded(self, group: ShareGroup, partition: Partition) -> bool:
        """Tell whether the state of a partition is known."""
        return partition in self._table.get(group.uuid, {})

    def is_deleted(self, group: ShareGroup) -> bool:
        """Tell whether a group is known to be deleted."""
        return group.uuid in self._deleted

    def forget(self, group: ShareGroup) -> None:
        """Forget a group that was deleted; nothing of it is loaded again."""
        with self.lock:
            self._table.pop(group.uuid, None)
            self._under_way.pop(group.uuid, None)
            self._deleted[group.uuid] = None
            while len(self._deleted) > DELETED_MAX:
                self._deleted.popitem(last=False)

    def look(self, group: ShareGroup, partition: Partition, bounds: Bounds) -> float | None:
        """Return in how many seconds a loaded partition may have available messages.

        0: now; None: only after a change that is heard of.
        """
        limit, ordered = group.config.delivery_limit, group.config.is_ordered
        with self.lock:
            tracked = self.find(group, partition)
            if tracked is None:
                return 0.0
            now = self._clock.now()
            tracked.state.deliver_by(group.config.deliver_at_column)
            wall_us = self._clock.wall_us() if tracked.state.is_scheduled else None
            tracked.state.advance(now, bounds.start, wall_us)
            event = tracked.state.next_event(now, wall_us)
            if tracked.state.in_flight >= group.config.window:
                tracked.is_seen_full = True
                held = tracked.state.messages(State.HELD)
                if self._quorum.is_local or held < group.config.window:
                    return event  # Who is asking for the rest tells of what it leaves.
                again = max(REREAD_SECONDS_MIN, tracked.read_at + tracked.read_again_seconds - now)
                return again if event is None else min(event, again)
            if tracked.state.has_available(bounds.end, limit, ordered=ordered):
                return 0.0
            has_exhausted = tracked.state.has_exhausted(limit, ordered=ordered)
        if has_exhausted:
            self.met_limit()
        return event

    def is_leased(self, group: ShareGroup, leased: LeasedRange) -> bool:
        """Tell whether a lease that was given here is not over."""
        with self.lock:
            tracked = self._table.get(group.uuid, {}).get(leased.partition)
            return tracked is not None and tracked.state.is_held(
                leased.start_offset,
                leased.end_offset,
                Lease.parse(leased.lease),
                self._clock.now(),
            )

    def needs_catch_up(self, group: ShareGroup, partition: Partition) -> bool:
        """Tell whether a partition is to be read again: then others may have made room in it.

        It is not for a while after this has told so.
        """
        with self.lock:
            tracked = self.find(group, partition)
            now = self._clock.now()
            if (
                tracked is None
                or self._quorum.is_local
                or tracked.state.in_flight < group.config.window
                or now < tracked.read_at + tracked.read_again_seconds
            ):
                return False
            tracked.read_at = now
            if group.config.is_ordered:
                # Every partition that is worked on is full, and most are not settled elsewhere.
                tracked.read_again_seconds = min(
                    READ_AGAIN_SECONDS[1], 2 * tracked.read_again_seconds
                )
            return True

    def exhausted(self, group: ShareGroup) -> list[Partition]:
        """Return the loaded partitions that may have messages at the delivery limit."""
        with self.lock:
            limit, now = group.config.delivery_limit, self._clock.now()
            ordered = group.config.is_ordered
            # Of most partitions nothing is under way, so not all are looked at each second.
            table, under_way = self._table.get(group.uuid, {}), self._under_way.get(group.uuid, {})
            found: list[Partition] = []
            for partition in list(under_way):
                state = table[partition].state
                if not state.ranges:
                    del under_way[partition]
                elif state.next_event(now) == 0 or state.has_exhausted(limit, ordered=ordered):
                    found.append(partition)
            return found

    def next_lease(self, member: str) -> Lease:
        """Return a lease that was never given before; the lock is held."""
        self._leases += 1
        return Lease(self._coordinator, self._leases, member_tag(member))

    def _require(self, group: ShareGroup) -> None:
        if group.uuid in self._deleted:
            raise _gone(group)


def key_of(group: ShareGroup, partition: Partition) -> ShareKey:
    """Return what replicas keep the state of a partition of a group by."""
    return ShareKey(group.uuid, group.topic.uuid, partition)


def learn(state: MessageStates, known: KnownPartition) -> None:
    """Tell a partition's state what a majority of the replicas knows."""
    if known.start_offset > state.start_offset:
        state.finish(state.start_offset, known.start_offset - 1)
    for tomb in known.finished:
        state.finish(tomb.first, tomb.last)
    for counted in known.counts:
        state.learn(counted.first, counted.last, counted.count)


def _gone(group: ShareGroup) -> GroupNotFound:
    return GroupNotFound(f"there is no group {group.name:.80} any more: it was deleted")
