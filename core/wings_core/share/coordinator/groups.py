"""The groups that members use on this node, and their partitions, as this node knows them.

`PartitionTable` has what a coordinator knows of partitions from the replicas. One lock guards the
state of all of them, and is never held while an effect is under way.

`ShareGroupTable` has the groups, each with its index, and their followers (waiting calls, streams).
They hear at once of a group that is altered or deleted here, and of other nodes' changes by a
look-up from time to time, one for all followers of a group.
"""

import itertools
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from wings_core.errors import GroupNotFound, NotFound, ResourceExhausted, Unavailable, WingsError
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.model import Lease, LeasedRange, PartitionState, ShareGroup, member_tag
from wings_core.partitions import Partition
from wings_core.share.coordinator.ready import ReadyPartitions
from wings_core.share.model import Clock, ShareKey
from wings_core.share.quorum.quorum import HoldQuorum
from wings_core.share.quorum.run import Procedure
from wings_core.share.quorum.votes import KnownPartition
from wings_core.share.state.partition import MessageState, MessageStates

READ_PARTITIONS_MAX = 256
"""Partitions whose state is read at a time."""

READ_AGAIN_SECONDS = (1.0, 16.0)
"""How often a partition whose window is full is read, for what was acknowledged by others: at
first, and later where the window is one lease."""

REREAD_SECONDS_MIN = 0.01
"""Until a partition that is to be read is looked at."""

DELETED_MAX = 10_000
"""Deleted groups that are remembered, so that nothing of them is begun again."""

FOLLOWERS_MAX = 16_384
"""Most followers at once; further ones are refused."""

LOOK_SECONDS = 0.5
"""Interval at which followed groups are looked up."""

LOOKS_MAX = 100
"""Most groups looked up at a time; the others have their turn later."""

UNUSED_SECONDS = 60.0
"""Time after which the index of a group that no member has asked for is dropped."""

WAKE_SECONDS_MIN = 0.005
"""Locks and delays that end within this time of each other wake members together."""

WAKE_SECONDS_MAX = 1.0
"""Longest wait for the next of them, also without a call."""

FindGroup = Callable[[ShareGroup], ShareGroup]
"""Returns a group as it is now; raises `NotFound` where it is not there any more."""

_logger = logging.getLogger(__name__)


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
                held = tracked.state.messages(MessageState.HELD)
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
            if tracked is None:
                return False
            first, last, lease = leased.start_offset, leased.end_offset, Lease.parse(leased.lease)
            return bool(tracked.state.held(first, last, lease, self._clock.now()))

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


@dataclass(slots=True)
class _Followed:
    """A group that has followers, as last heard of, and their callbacks."""

    group: ShareGroup
    callbacks: dict[object, Callable[[], None]] = field(
        default_factory=dict[object, Callable[[], None]]
    )


class ShareGroupTable:
    """The groups of a coordinator, each with its index; all methods from any thread.

    Args:
        partitions: The coordinator's partitions; those of deleted groups are forgotten.
        registry: The log's index.
        clock: The clock of leases.
        local: Whether the only replica is in this process.
        find_group: Looks a group up, for changes by other nodes; None: there are no others.
        used: Called whenever a group was added or has changed.
        sooner: Called when `wake_due` is to be called earlier than it was told last.

    Attributes:
        refusal: Why no group can be served; None: groups are served.
    """

    def __init__(
        self,
        partitions: PartitionTable,
        registry: OffsetRegistry,
        clock: Clock,
        *,
        local: bool,
        find_group: FindGroup | None,
        used: Callable[[], None],
        sooner: Callable[[], None],
    ) -> None:
        self._find_group = find_group
        self._partitions = partitions
        self._registry = registry
        self._clock = clock
        self._is_local = local
        self._used = used
        self._sooner = sooner
        self._lock = threading.Lock()
        self._groups: dict[str, ShareGroup] = {}
        self._indexes: dict[str, ReadyPartitions] = {}
        """The indexes, by group."""
        self._followed: dict[str, _Followed] = {}
        self._followers = 0
        self._turns = itertools.count()
        self._is_closed = False
        self.refusal: str | None = None

    def known(self) -> list[ShareGroup]:
        """Return the groups, as they are now."""
        with self._lock:
            return list(self._groups.values())

    def get(self, group_uuid: str) -> ShareGroup | None:
        """Return a group as it is now; None: no member uses it here."""
        return self._groups.get(group_uuid)

    def is_altered(self, group: ShareGroup) -> bool:
        """Tell whether a group is another now than what was checked."""
        known = self._groups.get(group.uuid)
        return known is not None and known is not group and known.config != group.config

    def check(self, group: ShareGroup) -> ShareGroup:
        """Refuse what cannot be served any more; return and remember the group as it is now."""
        self.refuse()
        group = self._current(group)
        known = self._groups.get(group.uuid)
        if known is group:
            return group  # To compare them takes long, as they have a schema.
        with self._lock:
            group = self._current(group)  # It may have been altered just now.
            if self._partitions.is_deleted(group):
                raise GroupNotFound(f"group {group.name:.80} was deleted")
            self._groups[group.uuid] = group
        self._used()
        return group

    def refuse(self) -> None:
        """Raise `Unavailable` where no group can be served."""
        if self.refusal is not None:
            raise Unavailable(self.refusal)

    def index(self, group: ShareGroup) -> ReadyPartitions:
        """Return the index of a group, made where there is none."""
        index = self._indexes.get(group.uuid)
        if index is not None:
            return index
        topic_uuid = group.topic.uuid
        made = ReadyPartitions(
            self._clock.now,
            lambda: self._registry.partition_states(topic_uuid),
            lambda callback: self._registry.watch_topic(topic_uuid, callback),
            self._sooner,
            # Of what is held elsewhere a member must ask.
            partial(self._look, group.uuid) if self._is_local else None,
        )
        with self._lock:
            index = self._indexes.setdefault(group.uuid, made)
        if index is not made:
            made.close()
        return index

    def state(
        self, index: ReadyPartitions, group: ShareGroup, partition: Partition, *, recent: bool
    ) -> PartitionState:
        """Return where a partition's log stands; `recent`: a moment ago, where that is known."""
        state = index.known_state(partition) if recent else None
        if state is None:
            state = self._registry.partition_state(group.topic.uuid, partition)
            index.note(state)
        return state

    def bounds(self, group: ShareGroup, partition: Partition) -> Bounds | WingsError:
        """Return the bounds of a partition's log now, or why they are not known."""
        try:
            state = self._registry.partition_state(group.topic.uuid, partition)
        except WingsError as error:
            return error
        return Bounds(state.log_start_offset, state.next_offset)

    def known_bounds(self, group: ShareGroup, partition: Partition) -> Bounds | WingsError:
        """Return the bounds as last heard of, where there are such, else as `bounds`."""
        index = self._indexes.get(group.uuid)
        state = None if index is None else index.known_state(partition)
        if state is None:
            return self.bounds(group, partition)
        return Bounds(state.log_start_offset, state.next_offset)

    def changed(self, group_uuid: str, partition: Partition) -> None:
        """Hear that something may have become available in a partition."""
        index = self._indexes.get(group_uuid)
        if index is not None:
            index.changed(partition)

    def has_ready(self, group: ShareGroup) -> bool:
        """Tell whether something may be available, as far as was told; True without an index."""
        index = self._indexes.get(group.uuid)
        return index is None or index.has_ready

    def wake_another(self, group: ShareGroup) -> None:
        """Wake the next member of a group, where one waits and more is ready."""
        index = self._indexes.get(group.uuid)
        if index is not None:
            index.took_some()

    def _look(self, group_uuid: str, partition: Partition, end: int) -> float | None:
        """Return in how many seconds a partition may have messages; see `PartitionTable.look`."""
        group = self._groups.get(group_uuid)
        return 0.0 if group is None else self._partitions.look(group, partition, Bounds(0, end))

    def forget(self, group: ShareGroup) -> None:
        """Forget a group that was deleted, refuse it from now on, and wake its waiters."""
        with self._lock:
            self._partitions.forget(group)
            self._groups.pop(group.uuid, None)
            index = self._indexes.pop(group.uuid, None)
        if index is not None:
            index.close()
        self._tell(group.uuid)

    def wake_due(self) -> float:
        """Wake members for locks and delays that have ended; never blocks.

        Returns:
            The seconds to wait before the next call.
        """
        dues = [index.wake_due() for index in list(self._indexes.values())]
        soonest = min((due for due in dues if due is not None), default=WAKE_SECONDS_MAX)
        return min(WAKE_SECONDS_MAX, max(WAKE_SECONDS_MIN, soonest))

    def drop_unused(self) -> None:
        """Drop the indexes of groups that no member has asked for in a while."""
        with self._lock:
            unused = [
                self._indexes.pop(group_uuid)
                for group_uuid, index in list(self._indexes.items())
                if index.is_idle and index.used_at + UNUSED_SECONDS < self._clock.now()
            ]
        for index in unused:
            index.close()

    def close(self) -> None:
        """Refuse groups from now on, and wake all who wait for them."""
        self.refusal = "the coordinator of share groups is closed"
        self._is_closed = True
        for group_uuid in list(self._followed):
            self._tell(group_uuid)
        for index in list(self._indexes.values()):
            index.close()

    # Followers.

    @contextmanager
    def followed(self, group: ShareGroup, callback: Callable[[], None]) -> Generator[None]:
        """Call back during the block whenever the group was altered or deleted.

        Raises:
            ResourceExhausted: Too many follow already.
        """
        token = object()
        with self._lock:
            if self._followers >= FOLLOWERS_MAX:
                raise ResourceExhausted(f"{FOLLOWERS_MAX} wait for messages of groups already")
            self._followers += 1
            followed = self._followed.setdefault(group.uuid, _Followed(group))
            followed.callbacks[token] = callback
        try:
            yield
        finally:
            with self._lock:
                self._followers -= 1
                del followed.callbacks[token]
                if not followed.callbacks:
                    del self._followed[group.uuid]

    def altered(self, group: ShareGroup) -> None:
        """Go on with a group as it is now, where it is known here, and wake those who wait."""
        with self._lock:
            if group.uuid in self._followed:
                self._followed[group.uuid].group = group
            if group.uuid in self._groups:
                self._groups[group.uuid] = group
            index = self._indexes.get(group.uuid)
        self._tell(group.uuid)
        if index is not None:
            index.wake_all()

    def look_at_followed(self) -> float:
        """Look up groups that have followers; returns the seconds until the next look."""
        with self._lock:
            groups = [followed.group for followed in self._followed.values()]
        begin = next(self._turns) * LOOKS_MAX % len(groups) if len(groups) > LOOKS_MAX else 0
        self.look_up((groups[begin:] + groups[:begin])[:LOOKS_MAX])
        return LOOK_SECONDS

    def look_up(self, groups: Sequence[ShareGroup]) -> None:
        """Look groups up for changes by other nodes; blocks for metadata."""
        for group in groups:
            if self._find_group is None or self._is_closed:
                return
            try:
                found = self._find_group(group)
            except NotFound:
                self.forget(group)
            except WingsError as error:
                _logger.info("the group %s could not be looked up: %s", group.name, error.message)
            except Exception:
                _logger.exception("looking at the group %s failed", group.name)
            else:
                if found != group:
                    self.altered(found)

    def _current(self, group: ShareGroup) -> ShareGroup:
        """Return a group as last heard of, where it has followers; else as it is given."""
        followed = self._followed.get(group.uuid)
        return group if followed is None else followed.group

    def _tell(self, group_uuid: str) -> None:
        """Call the followers of a group."""
        with self._lock:
            followed = self._followed.get(group_uuid)
            callbacks = [] if followed is None else list(followed.callbacks.values())
        for callback in callbacks:
            callback()
