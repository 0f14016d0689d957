"""Acquirer: leases messages to members, each range held at a majority first.

select ─▶ hold at a majority ─▶ archive what is at the delivery limit ─▶ leased ranges
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from wings_core.errors import WingsError
from wings_core.model import Lease, LeasedRange, PartitionState, ShareConfig, ShareGroup
from wings_core.partitions import Partition
from wings_core.share.clock import Clock
from wings_core.share.coordinator.finalize import Finalizer
from wings_core.share.coordinator.partition_table import (
    READ_AGAIN_SECONDS,
    READ_PARTITIONS_MAX,
    Bounds,
    PartitionTable,
    TrackedPartition,
    learn,
)
from wings_core.share.model import AcquireRequest, OffsetRange
from wings_core.share.quorum.quorum import HoldQuorum
from wings_core.share.quorum.run import Procedure
from wings_core.share.quorum.votes import Held
from wings_core.share.replica.requests import (
    CountedRange,
    HoldRequest,
    LeaseEntry,
    ReleaseEntry,
)
from wings_core.share.state.partition import Pick, deliverable, is_throttled

BACK_OFF_SECONDS = (0.02, 1.0)
"""The pause after messages were found to be held by others: at first, and after many times."""

SKIP_REQUESTS_MAX = 8
"""After a collision, begin up to so many requests' messages further on."""

BatchEnd = Callable[[ShareGroup, Partition, int], int]
"""Returns the last offset of the batch that holds a committed offset."""


class Acquirer:
    """The procedures that hand messages out, or up.

    Args:
        table: The partitions.
        quorum: Of the replicas.
        finalizer: Archives what is at the delivery limit.
        clock: What leases are counted by.
        rng: For back-off.
        changed: Called with a group's UUID and a partition, outside the lock, when
            something may have become available.
    """

    def __init__(
        self,
        table: PartitionTable,
        quorum: HoldQuorum,
        finalizer: Finalizer,
        clock: Clock,
        rng: random.Random,
        changed: Callable[[str, Partition], None],
    ) -> None:
        self._table = table
        self._quorum = quorum
        self._finalizer = finalizer
        self._clock = clock
        self._rng = rng
        self._changed = changed

    def acquire(
        self, request: AcquireRequest, states: Sequence[PartitionState], batch_end: BatchEnd
    ) -> Procedure[list[LeasedRange]]:
        """Lease what is available now in some partitions; returns the ranges, in no fixed order.

        Args:
            request: For which member, and how many at most.
            states: Where the logs of the partitions stand.
            batch_end: Called where the group acquires whole batches.

        Raises:
            Unavailable: No majority answered, and nothing was leased.
            GroupNotFound: The group was deleted, and nothing was leased.
        """
        group, ranges, may_catch_up = request.group, list[LeasedRange](), True
        # No partition is always last, in whatever rhythm members of several groups ask.
        turn = self._rng.randrange(len(states)) if states else 0
        ordered = [*states[turn:], *states[:turn]]
        for number, state in enumerate(ordered):
            if state.next_offset == 0:
                continue  # Any value can be asked for: nothing is kept of what was never written.
            partition, bounds = state.partition, Bounds(state.log_start_offset, state.next_offset)
            taken = sum(leased.messages for leased in ranges)
            if taken >= min(request.messages_max, request.rows_max):
                break
            try:
                if not self._table.is_loaded(group, partition):
                    some = ordered[number : number + READ_PARTITIONS_MAX]
                    yield from self._table.load(group, [each.partition for each in some])
                # One partition in a call, since replicas are asked, and while nothing waits.
                if may_catch_up and not ranges and self._table.needs_catch_up(group, partition):
                    may_catch_up = False
                    yield from self._catch_up(group, self._table.get(group, partition))
                if self._table.look(group, partition, bounds) != 0:
                    continue
                left = _left(request, taken) if taken else request
                ranges += yield from self.acquire_partition(
                    left, partition, bounds, batch_end, alone=not ranges
                )
            except WingsError:
                if not ranges:
                    raise
                break  # What was leased must reach its member.
            if ranges and is_throttled(ranges[-1].delivery_count - 1, group.config.delivery_limit):
                break
        return ranges

    def side_by_side(
        self, request: AcquireRequest, states: Sequence[PartitionState]
    ) -> list[Procedure[list[LeasedRange]]]:
        """Return what leases of loaded partitions at once, so that replicas are asked once for all.

        Together they take no more than is asked for. What is throttled is leased by itself, in its
        partition's turn. None where `acquire` alone can tell how much each partition has.

        Args:
            request: For which member, and how many at most.
            states: Where the logs of the partitions stand.
        """
        group, config = request.group, request.group.config
        if config.deliver_at_column is not None or config.acquire_mode != "record_limit":
            return []
        found: list[Procedure[list[LeasedRange]]] = []
        left = min(request.messages_max, request.rows_max)
        turn = self._rng.randrange(len(states)) if states else 0
        for state in (*states[turn:], *states[:turn]):
            bounds = Bounds(state.log_start_offset, state.next_offset)
            if not bounds.end or self._table.look(group, state.partition, bounds) != 0:
                continue
            with self._table.lock:
                known = self._table.get(group, state.partition).state
                messages = min(left, known.available(bounds.end))
                is_first = not found and known.comes_alone(config.delivery_limit)
            if is_first:
                return [self.acquire_partition(request, state.partition, bounds)]
            if config.is_ordered:
                messages = min(messages, request.range_max)
            if messages <= 0:
                break
            part = replace(request, messages_max=messages, rows_max=messages)
            found.append(self.acquire_partition(part, state.partition, bounds, alone=False))
            left -= messages
        return found if len(found) > 1 else []

    def acquire_partition(
        self,
        request: AcquireRequest,
        partition: Partition,
        bounds: Bounds,
        batch_end: BatchEnd | None = None,
        *,
        alone: bool = True,
    ) -> Procedure[list[LeasedRange]]:
        """Lease what is available in a loaded partition.

        Args:
            request: For which member, and how many at most.
            partition: One of those that it names.
            bounds: Of its log.
            batch_end: Called where the group acquires whole batches; None: it does not.
            alone: Whether the member got nothing else; else nothing throttled is leased.

        Raises:
            Unavailable: No majority answered.
        """
        group, rows_max = request.group, request.rows_max
        tracked = self._table.get(group, partition)
        config = group.config
        if config.is_ordered:
            rows_max = min(rows_max, request.range_max)
        skip = 0
        if tracked.collisions:
            skip = self._rng.randrange(SKIP_REQUESTS_MAX) * request.messages_max
        self._check_times(request, tracked, bounds)
        with self._table.lock:
            tracked.state.advance(self._clock.now(), bounds.start)
            retired = tracked.state.take_retired()
            messages_max = min(request.messages_max, rows_max)
            picks = _selected(tracked, config, bounds.end, messages_max, skip, alone=alone)
            fresh = [pick for pick in picks if not pick.exhausted]
            if fresh or not alone or not request.archives:
                # Neither they nor what the member got before wait for dead letters: those that are
                # at the limit are archived by themselves.
                for pick in picks:
                    if pick.exhausted:
                        tracked.state.unpick(pick.first, pick.last, pick.count)
                picks = fresh
            lease = self._table.next_lease(request.member)
        if retired:
            yield from self._finalizer.retire(tracked, retired)
        if batch_end is not None and picks and config.acquire_mode == "batch_optimized":
            try:
                self._extend(tracked, picks, batch_end, bounds.end, rows_max, group)
            except WingsError:
                self.put_back(tracked, picks)
                raise
        if not picks:
            return []
        return (yield from self._hold(group, tracked, picks, lease, request.member, alone=alone))

    def _check_times(
        self, request: AcquireRequest, tracked: TrackedPartition, bounds: Bounds
    ) -> None:
        """Look at the times of messages until one is available; blocks for the reads.

        Raises:
            WingsError: They cannot be read.
        """
        group, state = request.group, tracked.state
        column, ordered = group.config.deliver_at_column, group.config.is_ordered
        with self._table.lock:
            state.deliver_by(column)
        while column is not None:
            with self._table.lock:
                state.advance(self._clock.now(), bounds.start, self._clock.wall_us())
                wanted = None if state.has_ready else state.unchecked(bounds.end, ordered=ordered)
                if wanted is None or request.times is None or tracked.is_checking:
                    return
                tracked.is_checking = True
            try:
                times = request.times(group.topic, tracked.key.partition, column, *wanted)
                with self._table.lock:
                    state.check(wanted[0], times, self._clock.wall_us())
            finally:
                tracked.is_checking = False

    def _hold(
        self,
        group: ShareGroup,
        tracked: TrackedPartition,
        picks: Sequence[Pick],
        lease: Lease,
        member: str,
        *,
        alone: bool,
    ) -> Procedure[list[LeasedRange]]:
        config = group.config
        asked_at = self._clock.now()
        request = HoldRequest(
            tracked.key,
            tuple(OffsetRange(pick.first, pick.last) for pick in sorted(picks, key=_first)),
            lease,
            config.lock_duration_ms,
            config.in_flight_max,
            member,
            tracked.state.start_offset if config.is_ordered else None,
        )
        (held,) = yield from self._quorum.hold([request])
        if isinstance(held, WingsError):
            self.put_back(tracked, picks)
            raise held
        until = self._quorum.expiry(asked_at, config.lock_duration_ms)
        return (yield from self.granted(group, tracked, held, picks, lease, until, alone=alone))

    def granted(
        self,
        group: ShareGroup,
        tracked: TrackedPartition,
        held: Held,
        picks: Sequence[Pick],
        lease: Lease,
        until: float,
        *,
        alone: bool,
    ) -> Procedure[list[LeasedRange]]:
        """Lease what a majority has granted of what was picked; returns it.

        Args:
            group: Whose messages they are.
            tracked: The partition.
            held: What the majority says.
            picks: What it was asked for, which is pending.
            lease: Of what is held.
            until: When that is over.
            alone: Whether the member got nothing else; else nothing is archived.
        """
        config = group.config
        with self._table.lock:
            tracked.read_again_seconds = READ_AGAIN_SECONDS[0]
            for gone in held.finished:
                tracked.state.finish(gone.first, gone.last)
            if held.refused and not held.granted:
                tracked.collisions += 1
            else:
                tracked.collisions = 0
            self._put_off(
                tracked, [(gone.first, gone.last, gone.retry_seconds) for gone in held.refused]
            )
            delivered, surplus, exhausted = _divided(held, picks, config)
            if delivered or not alone:
                surplus, exhausted = surplus + exhausted, []
            for counted in delivered + exhausted:
                tracked.state.grant(counted.first, counted.last, lease, until, counted.count + 1)
        if surplus:
            yield from self._release_surplus(tracked, surplus, lease)
        if exhausted:
            # It may take long: another is to see what becomes due in the partition meanwhile.
            self._changed(tracked.key.group_uuid, tracked.key.partition)
            yield from self._finalizer.archive(group, tracked, exhausted, lease, until)
            # In order, what comes next waited for it.
            self._changed(tracked.key.group_uuid, tracked.key.partition)
        if held.finished:
            yield from self._catch_up(group, tracked)
            if not delivered:  # What comes after it may be available.
                self._changed(tracked.key.group_uuid, tracked.key.partition)
        if delivered and self._clock.now() >= until:
            # It took too long: others may have them by now.
            yield from self._release_undelivered(
                tracked, [LeaseEntry(each.first, each.last, lease) for each in delivered]
            )
            return []
        return [
            LeasedRange(
                tracked.key.partition,
                counted.first,
                counted.last,
                str(lease),
                counted.count + 1,
                config.lock_duration_ms,
                config.is_ordered,
            )
            for counted in delivered
        ]

    def _extend(
        self,
        tracked: TrackedPartition,
        picks: list[Pick],
        batch_end: BatchEnd,
        log_end: int,
        rows_max: int,
        group: ShareGroup,
    ) -> None:
        """Let the last pick go on to the end of its batch."""
        last = picks[-1]
        if last.exhausted or is_throttled(last.count, group.config.delivery_limit):
            return
        end = batch_end(group, tracked.key.partition, last.last)
        room = rows_max - sum(pick.last - pick.first + 1 for pick in picks if not pick.exhausted)
        with self._table.lock:
            picks[-1] = tracked.state.extend(last, end, log_end, room, group.config.in_flight_max)

    def put_back(self, tracked: TrackedPartition, picks: Iterable[Pick]) -> None:
        """Make what could not be held available again, also for those who saw it pending."""
        with self._table.lock:
            self._put_off(tracked, [(pick.first, pick.last, 0.0) for pick in picks])
        self._changed(tracked.key.group_uuid, tracked.key.partition)

    def retry_seconds(self, group: ShareGroup, partition: Partition) -> float:
        """Return in how many seconds to ask again for what seems to be available in a partition.

        0: at once, as not all that was asked for last was held by others.
        """
        with self._table.lock:
            tracked = self._table.find(group, partition)
            return self._pause(tracked) if tracked is not None and tracked.collisions else 0.0

    def _pause(self, tracked: TrackedPartition) -> float:
        least, most = BACK_OFF_SECONDS
        return min(most, least * 2 ** min(tracked.collisions, 16)) * self._rng.uniform(0.5, 1.5)

    def _put_off(self, tracked: TrackedPartition, ranges: Iterable[tuple[int, int, float]]) -> None:
        """Make what others hold available again after a pause, which grows; the lock is held."""
        now, pause = self._clock.now(), self._pause(tracked)
        for first, last, retry_seconds in ranges:
            wait = min(pause, retry_seconds) if retry_seconds else pause
            tracked.state.unpick(first, last, 0, now + wait)

    def _release_surplus(
        self, tracked: TrackedPartition, surplus: Sequence[CountedRange], lease: Lease
    ) -> Procedure[None]:
        releases = [ReleaseEntry(over.first, over.last, lease, 0) for over in surplus]
        yield from self._quorum.release(tracked.key, releases)
        with self._table.lock:
            for over in surplus:
                tracked.state.unpick(over.first, over.last, over.count)
        self._changed(tracked.key.group_uuid, tracked.key.partition)

    def _catch_up(self, group: ShareGroup, tracked: TrackedPartition) -> Procedure[None]:
        """Learn what other coordinators have finished in a partition, if replicas answer."""
        try:
            read = yield from self._quorum.read(
                group.uuid, group.topic.uuid, [tracked.key.partition]
            )
        except WingsError:
            return
        with self._table.lock:
            learn(tracked.state, read[tracked.key.partition])

    def release_undelivered(
        self, group: ShareGroup, partition: Partition, entries: Sequence[LeaseEntry]
    ) -> Procedure[None]:
        """Release what never reached its member, in a loaded partition: no delivery is counted."""
        yield from self._release_undelivered(self._table.get(group, partition), entries)

    def _release_undelivered(
        self, tracked: TrackedPartition, entries: Sequence[LeaseEntry]
    ) -> Procedure[None]:
        releases = [ReleaseEntry(entry.first, entry.last, entry.lease, 0) for entry in entries]
        yield from self._quorum.release(tracked.key, releases)
        with self._table.lock:
            for entry in entries:
                tracked.state.release_undelivered(entry.first, entry.last, entry.lease)
        self._changed(tracked.key.group_uuid, tracked.key.partition)

    def archive_exhausted(
        self, group: ShareGroup, partition: Partition, bounds: Bounds
    ) -> Procedure[None]:
        """Archive what is at the delivery limit in a loaded partition, and lease nothing.

        Raises:
            Unavailable: No majority answered.
        """
        tracked = self._table.get(group, partition)
        with self._table.lock:
            tracked.state.advance(self._clock.now(), bounds.start)
            config = group.config
            picks = tracked.state.select_exhausted(config.delivery_limit, ordered=config.is_ordered)
            lease = self._table.next_lease("")
        if picks:
            leased = yield from self._hold(group, tracked, picks, lease, "", alone=True)
            # Fewer deliveries are agreed on than were known here: they are not at the limit.
            if leased:
                entries = [LeaseEntry(each.start_offset, each.end_offset, lease) for each in leased]
                yield from self._release_undelivered(tracked, entries)


def _selected(
    tracked: TrackedPartition,
    config: ShareConfig,
    log_end: int,
    messages_max: int,
    skip: int,
    *,
    alone: bool,
) -> list[Pick]:
    """Make what is to be leased next pending; the lock is held."""
    state, limit, in_flight_max = tracked.state, config.delivery_limit, config.in_flight_max
    if config.is_ordered:
        return state.select_next(log_end, messages_max, in_flight_max, limit, alone=alone)
    return state.select(log_end, messages_max, in_flight_max, limit, skip, alone=alone)


def _left(request: AcquireRequest, taken: int) -> AcquireRequest:
    """Return what is left of a request for which so many messages were taken."""
    return replace(
        request, messages_max=request.messages_max - taken, rows_max=request.rows_max - taken
    )


def _first(entry: Pick) -> int:
    return entry.first


def _divided(
    held: Held, picks: Sequence[Pick], config: ShareConfig
) -> tuple[list[CountedRange], list[CountedRange], list[CountedRange]]:
    """Divide the ranges held into those to deliver, to release, and at the delivery limit."""
    granted, surplus, limit = held.granted, list[CountedRange](), config.delivery_limit
    if config.is_ordered:
        first = min(pick.first for pick in picks)
        granted, surplus = _next(granted, held.finished, first, limit)
    delivered, over = _portion(granted, picks, limit)
    exhausted = [counted for counted in granted if counted.count >= limit]
    return delivered, surplus + over, exhausted


def _next(
    granted: Sequence[CountedRange], finished: Sequence[OffsetRange], first: int, limit: int
) -> tuple[list[CountedRange], list[CountedRange]]:
    """Divide the ranges held into one that comes next, or those at the limit, and the others.

    Args:
        granted: With the deliveries made of each, in order.
        finished: What needs not be held.
        first: The first message that was asked for.
        limit: The group's delivery limit.
    """
    next_offset, kept = first, list[CountedRange]()
    over = {each.first: each.last for each in finished}
    for number, counted in enumerate(granted):
        while next_offset in over:
            next_offset = over[next_offset] + 1
        if counted.first != next_offset or (kept and min(kept[-1].count, counted.count) < limit):
            return kept, list(granted[number:])
        kept.append(counted)
        next_offset = counted.last + 1
    return kept, []


def _portion(
    granted: Sequence[CountedRange], picks: Sequence[Pick], limit: int
) -> tuple[list[CountedRange], list[CountedRange]]:
    """Divide the ranges held into those to deliver and those to release.

    The replicas may know of more deliveries than were known here when it was selected.
    """
    delivered: list[CountedRange] = []
    surplus: list[CountedRange] = []
    full = False
    for counted in granted:
        if counted.count >= limit:
            continue
        throttled = is_throttled(counted.count, limit)
        if full or (throttled and delivered):
            surplus.append(counted)
            full = True
            continue
        last = counted.last
        known = any(
            pick.first <= counted.first and last <= pick.last and pick.count == counted.count
            for pick in picks
        )
        if throttled and not known:
            messages = deliverable(counted.count, last - counted.first + 1, limit)
            last = counted.first + messages - 1
        delivered.append(CountedRange(counted.first, last, counted.count))
        if last < counted.last:
            surplus.append(CountedRange(last + 1, counted.last, counted.count))
        full = throttled
    return delivered, surplus
