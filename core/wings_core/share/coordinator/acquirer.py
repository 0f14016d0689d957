"""HandOut: gives messages to members, each range held at a majority first.

select ─▶ hold at a majority ─▶ give up what is at the limit ─▶ leased ranges
"""

import logging
import random
from collections.abc import Callable, Iterable, Sequence

from wings_core.errors import WingsError
from wings_core.partitions import Partition
from wings_core.share.clock import Clock
from wings_core.share.coordinator.entries import Entry
from wings_core.share.coordinator.finalize import Finalizer, pieces
from wings_core.share.coordinator.partition_table import (
    Bounds,
    PartitionTable,
    TrackedPartition,
    learn,
)
from wings_core.share.model import (
    Acknowledgement,
    AcquireRequest,
    Lease,
    LeasedRange,
    OffsetRange,
    ShareGroup,
)
from wings_core.share.quorum.effects import Procedure
from wings_core.share.quorum.quorum import HoldQuorum
from wings_core.share.quorum.votes import Held
from wings_core.share.replica.interfaces import CountedRange, LeaseEntry, ReleaseEntry
from wings_core.share.state.partition import Pick, deliverable, is_throttled

BACK_OFF_SECONDS = (0.02, 1.0)
"""The pause after messages were found to be held by others: at first, and after many times."""

SKIP_REQUESTS_MAX = 8
"""After a collision, begin up to so many requests' messages further on."""

ARCHIVE_RETRY_SECONDS = 1.0
"""The pause before messages that could not be given up are tried again."""

_logger = logging.getLogger(__name__)


class Acquirer:
    """The procedures that hand messages out, or up.

    Args:
        table: The partitions.
        quorum: Of the replicas.
        finalizer: Gives up what is at the limit.
        clock: What leases are counted by.
        rng: For back-off.
        changed: Called with a group's UUID, outside the lock, when something may have become
            available.
    """

    def __init__(
        self,
        table: PartitionTable,
        quorum: HoldQuorum,
        finalizer: Finalizer,
        clock: Clock,
        rng: random.Random,
        changed: Callable[[str], None],
    ) -> None:
        self._table = table
        self._quorum = quorum
        self._finalizer = finalizer
        self._clock = clock
        self._rng = rng
        self._changed = changed

    def acquire(
        self,
        request: AcquireRequest,
        partition: Partition,
        bounds: Bounds,
        batch_end: Callable[[int], int] | None = None,
        *,
        alone: bool = True,
    ) -> Procedure[list[LeasedRange]]:
        """Hand out what there is in a loaded partition.

        Args:
            request: For which member, and how many at most.
            partition: One of those that it names.
            bounds: Of its log.
            batch_end: Of a committed offset, the last offset of the batch that holds it; given
                where whole batches are wanted.
            alone: Whether the member got nothing else; else nothing throttled is handed out.

        Raises:
            Unavailable: No majority answered.
        """
        group, rows_max = request.group, request.rows_max
        tracked = self._table.get(group, partition)
        config = group.config
        skip = 0
        if tracked.collisions:
            skip = self._rng.randrange(SKIP_REQUESTS_MAX) * request.messages_max
        with self._table.lock:
            tracked.state.advance(self._clock.now(), bounds.start)
            retired = tracked.state.take_retired()
            picks = tracked.state.select(
                bounds.end,
                min(request.messages_max, rows_max),
                config.in_flight_max,
                config.delivery_limit,
                skip,
                alone=alone,
            )
            fresh = [pick for pick in picks if not pick.exhausted]
            if fresh or not alone:
                # Neither they nor what the member got before wait for dead letters: those that are
                # at the limit are given up by themselves.
                for pick in picks:
                    if pick.exhausted:
                        tracked.state.give_back(pick.first, pick.last, pick.count)
                picks = fresh
            lease = self._table.next_lease(request.member)
        if retired:
            yield from self._retire(tracked, retired)
        if batch_end is not None and picks:
            try:
                self._extend(tracked, picks, batch_end, bounds.end, rows_max, group)
            except WingsError:
                with self._table.lock:
                    self._put_off(tracked, [(pick.first, pick.last, 0.0) for pick in picks])
                raise
        if not picks:
            return []
        return (yield from self._hold(group, tracked, picks, lease, alone=alone))

    def _hold(
        self,
        group: ShareGroup,
        tracked: TrackedPartition,
        picks: Sequence[Pick],
        lease: Lease,
        *,
        alone: bool,
    ) -> Procedure[list[LeasedRange]]:
        config = group.config
        asked_at = self._clock.now()
        ranges = [OffsetRange(pick.first, pick.last) for pick in sorted(picks, key=_first)]
        try:
            held: Held = yield from self._quorum.hold(
                tracked.key, ranges, lease, config.lock_duration_ms, config.in_flight_max
            )
        except WingsError:
            with self._table.lock:
                self._put_off(tracked, [(pick.first, pick.last, 0.0) for pick in picks])
            raise
        until = self._quorum.expiry(asked_at, config.lock_duration_ms)
        limit = config.delivery_limit
        with self._table.lock:
            for gone in held.finished:
                tracked.state.finish(gone.first, gone.last)
            if held.refused and not held.granted:
                tracked.collisions += 1
            else:
                tracked.collisions = 0
            self._put_off(
                tracked, [(gone.first, gone.last, gone.retry_seconds) for gone in held.refused]
            )
            delivered, surplus = _portion(held.granted, picks, limit)
            exhausted = [counted for counted in held.granted if counted.count >= limit]
            if delivered or not alone:
                surplus, exhausted = surplus + exhausted, []
            for counted in delivered + exhausted:
                tracked.state.grant(counted.first, counted.last, lease, until, counted.count + 1)
        if surplus:
            yield from self._give_back(tracked, surplus, lease)
        if exhausted:
            lists = [
                [
                    Entry(_expired(tracked, part), part.first, part.last, lease, until, [part])
                    for part in piece
                ]
                for piece in pieces(group, exhausted)
            ]
            yield from self._archive(group, tracked, lists)
        if held.finished:
            yield from self._catch_up(group, tracked)
        if delivered and self._clock.now() >= until:
            # It took too long: others may have them by now.
            yield from self._hand_back(
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
            )
            for counted in delivered
        ]

    def _extend(
        self,
        tracked: TrackedPartition,
        picks: list[Pick],
        batch_end: Callable[[int], int],
        log_end: int,
        rows_max: int,
        group: ShareGroup,
    ) -> None:
        """Let the last pick go on to the end of its batch."""
        last = picks[-1]
        if last.exhausted or is_throttled(last.count, group.config.delivery_limit):
            return
        end = batch_end(last.last)
        room = rows_max - sum(pick.last - pick.first + 1 for pick in picks if not pick.exhausted)
        with self._table.lock:
            picks[-1] = tracked.state.extend(last, end, log_end, room, group.config.in_flight_max)

    def _put_off(self, tracked: TrackedPartition, ranges: Iterable[tuple[int, int, float]]) -> None:
        """Make what others hold available again after a pause, which grows; the lock is held."""
        now = self._clock.now()
        least, most = BACK_OFF_SECONDS
        pause = min(most, least * 2 ** min(tracked.collisions, 16)) * self._rng.uniform(0.5, 1.5)
        for first, last, retry_seconds in ranges:
            wait = min(pause, retry_seconds) if retry_seconds else pause
            tracked.state.give_back(first, last, 0, now + wait)

    def _give_back(
        self, tracked: TrackedPartition, surplus: Sequence[CountedRange], lease: Lease
    ) -> Procedure[None]:
        releases = [ReleaseEntry(over.first, over.last, lease, 0) for over in surplus]
        yield from self._quorum.release(tracked.key, releases)
        with self._table.lock:
            for over in surplus:
                tracked.state.give_back(over.first, over.last, over.count)
        self._changed(tracked.key.group_uuid)

    def catch_up(self, group: ShareGroup, partition: Partition) -> Procedure[None]:
        """Hear what other coordinators have finished in a loaded partition, if replicas answer."""
        return self._catch_up(group, self._table.get(group, partition))

    def _catch_up(self, group: ShareGroup, tracked: TrackedPartition) -> Procedure[None]:
        try:
            read = yield from self._quorum.read(
                group.uuid, group.topic.uuid, [tracked.key.partition]
            )
        except WingsError:
            return
        with self._table.lock:
            learn(tracked.state, read[tracked.key.partition])

    def _retire(
        self, tracked: TrackedPartition, retired: Sequence[tuple[int, int]]
    ) -> Procedure[None]:
        """Tell the replicas what retention has passed; who misses it learns it from the log."""
        try:
            yield from self._quorum.repair(
                tracked.key, [OffsetRange(*gone) for gone in sorted(retired)]
            )
        except WingsError as error:
            _logger.warning("retired messages stay on the replicas: %s", error.message)

    def give_back(
        self, group: ShareGroup, partition: Partition, entries: Sequence[LeaseEntry]
    ) -> Procedure[None]:
        """Release what never reached its member, in a loaded partition: no delivery is counted."""
        yield from self._hand_back(self._table.get(group, partition), entries)

    def _hand_back(
        self, tracked: TrackedPartition, entries: Sequence[LeaseEntry]
    ) -> Procedure[None]:
        releases = [ReleaseEntry(entry.first, entry.last, entry.lease, 0) for entry in entries]
        yield from self._quorum.release(tracked.key, releases)
        with self._table.lock:
            for entry in entries:
                tracked.state.hand_back(entry.first, entry.last, entry.lease)
        self._changed(tracked.key.group_uuid)

    def archive_exhausted(
        self, group: ShareGroup, partition: Partition, bounds: Bounds
    ) -> Procedure[None]:
        """Give up what is at the limit in a loaded partition, and hand out nothing.

        Raises:
            Unavailable: No majority answered.
        """
        tracked = self._table.get(group, partition)
        with self._table.lock:
            tracked.state.advance(self._clock.now(), bounds.start)
            picks = tracked.state.select_exhausted(group.config.delivery_limit)
            lease = self._table.next_lease("")
        if picks:
            leased = yield from self._hold(group, tracked, picks, lease, alone=True)
            # Fewer deliveries are agreed on than were known here: they are not at the limit.
            if leased:
                entries = [LeaseEntry(each.start_offset, each.end_offset, lease) for each in leased]
                yield from self._hand_back(tracked, entries)

    def _archive(
        self, group: ShareGroup, tracked: TrackedPartition, lists: Sequence[Sequence[Entry]]
    ) -> Procedure[None]:
        """Give up what met the limit, one list after another, all of which are held meanwhile.

        What cannot be given up now is tried again when its hold ends.
        """
        for number, entries in enumerate(lists):
            left = [entry for each in lists[number:] for entry in each]
            failed = yield from self._finalizer.bury(group, tracked, entries, left, "")
            if failed is None:
                failed = yield from self._finalizer.finish(tracked, (), entries, 0, "")
            if failed is not None:
                yield from self._keep(tracked, left, failed)
                return

    def _keep(
        self, tracked: TrackedPartition, left: Sequence[Entry], failed: WingsError
    ) -> Procedure[None]:
        """Release what could not be given up, to be tried again after a pause."""
        _logger.warning("messages at the delivery limit stay: %s", failed.message)
        delay_ms = int(ARCHIVE_RETRY_SECONDS * 1_000)
        yield from self._finalizer.release(
            tracked,
            [ReleaseEntry(entry.first, entry.last, entry.lease, 0, delay_ms) for entry in left],
        )


def _first(entry: Pick) -> int:
    return entry.first


def _portion(
    granted: Sequence[CountedRange], picks: Sequence[Pick], limit: int
) -> tuple[list[CountedRange], list[CountedRange]]:
    """Divide what was held into what is handed out and what is too much.

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


def _expired(tracked: TrackedPartition, counted: CountedRange) -> Acknowledgement:
    """Return what stands for the acknowledgement that never came."""
    return Acknowledgement(tracked.key.partition, counted.first, counted.last, "", "release")
