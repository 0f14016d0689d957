"""Leases: messages are leased to members, each range held at a majority first.

    prepare ─▶ plan: select for a list of requests ─▶ hold, one bundle a partition ─▶ leased ranges

One request is a list of one. The picks of a partition go to each replica in one message, and those
of several partitions side by side. Messages at the delivery limit are left to `archive_exhausted`.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from wings_core.errors import WingsError
from wings_core.model import Lease, LeasedRange, PartitionState, ShareConfig, ShareGroup
from wings_core.partitions import Partition
from wings_core.share.coordinator.finalize import Finalizer
from wings_core.share.coordinator.groups import (
    READ_AGAIN_SECONDS,
    Bounds,
    PartitionTable,
    TrackedPartition,
    learn,
)
from wings_core.share.model import AcquireRequest, Clock, Leased, OffsetRange
from wings_core.share.quorum.quorum import HoldQuorum
from wings_core.share.quorum.run import Procedure
from wings_core.share.quorum.votes import HoldResult
from wings_core.share.replica.requests import (
    CountedRange,
    HoldRequest,
    ReleaseEntry,
)
from wings_core.share.state.partition import Pick, deliverable, is_throttled

BACK_OFF_SECONDS = (0.02, 1.0)
"""The pause after messages were found to be held by others: at first, and after many times."""

SKIP_REQUESTS_MAX = 8
"""After a collision, begin up to so many requests' messages further on."""

BatchEnd = Callable[[ShareGroup, Partition, int], int]
"""Returns the last offset of the batch that holds a committed offset."""


@dataclass(slots=True)
class LeasePicks:
    """Pending messages of one partition for one request."""

    number: int
    """The request."""
    lease: Lease
    member: str
    picks: list[Pick]


@dataclass(slots=True)
class Bundle:
    """Pending messages of one partition, to be held together."""

    tracked: TrackedPartition
    retired: Sequence[tuple[int, int]]
    """Ranges that retention has passed."""
    taken: list[LeasePicks] = field(default_factory=list[LeasePicks])


@dataclass(slots=True)
class LeasePlan:
    """Pending messages for some requests; all of its bundles must be held."""

    bundles: list[Bundle] = field(default_factory=list[Bundle])
    errors: dict[int, WingsError] = field(default_factory=dict[int, WingsError])
    """The last error on the way, by request."""


@dataclass(frozen=True, slots=True, eq=False)
class Leases:
    """The procedures that lease messages, and archive those at the delivery limit.

    Args:
        table: The partitions.
        quorum: Holds at a majority.
        finalizer: Archives messages at the delivery limit.
        clock: Counts leases.
        rng: For back-off.
        changed: Called with a group's UUID and a partition, outside the lock, when
            something may have become available.
    """

    _table: PartitionTable
    _quorum: HoldQuorum
    _finalizer: Finalizer
    _clock: Clock
    _rng: random.Random
    _changed: Callable[[str, Partition], None]

    # Lease.

    def prepare(self, group: ShareGroup, logs: Sequence[PartitionState]) -> Procedure[None]:
        """Load partitions that are not known yet, and learn of room that others have made.

        Raises:
            WingsError: Some are not loaded.
        """
        written = [log.partition for log in logs if log.next_offset]
        yield from self._table.load(group, written)
        for partition in written:
            # One partition in a call, since replicas are asked.
            if self._table.needs_catch_up(group, partition):
                yield from self._catch_up(group, self._table.get(group, partition))
                break

    def plan(
        self,
        group: ShareGroup,
        requests: Mapping[int, AcquireRequest],
        logs: Sequence[PartitionState],
        batch_end: BatchEnd,
    ) -> LeasePlan:
        """Select messages of loaded partitions for requests, the first of which comes first.

        Blocks where the group's messages have times, or it acquires whole batches: for metadata.

        Args:
            group: The group of all requests, as it is now.
            requests: Requests by their numbers, each for any of the partitions.
            logs: The partitions' logs; those that are not loaded are left out.
            batch_end: Called where the group acquires whole batches.
        """
        plan = LeasePlan()
        open_requests = {number: _Open(request) for number, request in requests.items()}
        # No partition is always last, in whatever rhythm members of several groups ask.
        turn = self._rng.randrange(len(logs)) if len(logs) > 1 else 0
        for log in (*logs[turn:], *logs[:turn]):
            wanting = {n: each for n, each in open_requests.items() if each.room > 0}
            if not wanting:
                break
            tracked = self._table.find(group, log.partition)
            if tracked is None or not log.next_offset:
                continue
            bounds = Bounds(log.log_start_offset, log.next_offset)
            try:
                self._check_times(next(iter(wanting.values())).request, tracked, bounds)
                self._select(plan, group, tracked, bounds, wanting, batch_end)
            except WingsError as error:
                plan.errors |= dict.fromkeys(wanting, error)
        return plan

    def hold(self, group: ShareGroup, bundle: Bundle) -> Procedure[list[tuple[int, Leased]]]:
        """Hold the messages of a bundle at a majority; returns the outcome of each request."""
        tracked, config = bundle.tracked, group.config
        if bundle.retired:
            yield from self._finalizer.retire(tracked, bundle.retired)
        if not bundle.taken:
            return []
        asked_at = self._clock.now()
        asked = [_hold_of(group, tracked, each) for each in bundle.taken]
        outcomes = yield from self._quorum.hold(asked)
        until = self._quorum.expiry(asked_at, config.lock_duration_ms)
        found: list[tuple[int, Leased]] = []
        for taken, held in zip(bundle.taken, outcomes, strict=True):
            if isinstance(held, WingsError):
                self._put_back(tracked, taken.picks)
                found.append((taken.number, held))
                continue
            delivered = yield from self._granted(group, tracked, held, taken, until)
            if delivered and self._clock.now() >= until:
                # It took too long: others may have them by now.
                yield from self._release_undelivered(tracked, taken.lease, delivered)
                delivered = []
            ranges = [_leased(group, tracked, each, taken.lease) for each in delivered]
            found.append((taken.number, ranges))
        return found

    def _select(
        self,
        plan: LeasePlan,
        group: ShareGroup,
        tracked: TrackedPartition,
        bounds: Bounds,
        wanting: "Mapping[int, _Open]",
        batch_end: BatchEnd,
    ) -> None:
        """Select messages of one partition for the requests that want some; see `plan`."""
        config, state = group.config, tracked.state
        with self._table.lock:
            state.deliver_by(config.deliver_at_column)
            state.advance(self._clock.now(), bounds.start)
            state.has_met_limit = False
            bundle = Bundle(tracked, state.take_retired())
            for number, each in wanting.items():
                skip = 0
                if tracked.collisions:
                    skip = self._rng.randrange(SKIP_REQUESTS_MAX) * each.request.messages_max
                picks = state.select(
                    bounds.end,
                    min(each.room, each.request.range_max) if config.is_ordered else each.room,
                    config.in_flight_max,
                    config.delivery_limit,
                    skip,
                    ordered=config.is_ordered,
                    alone=not each.has_some,
                )
                if picks:
                    member = each.request.member
                    lease = self._table.next_lease(member)
                    bundle.taken.append(LeasePicks(number, lease, member, picks))
            has_met_limit = state.has_met_limit
        if has_met_limit:
            self._table.met_limit()
        if bundle.taken or bundle.retired:
            plan.bundles.append(bundle)
        for taken in list(bundle.taken):
            each = wanting[taken.number]
            if config.acquire_mode == "batch_optimized":
                try:
                    self._extend(group, tracked, taken.picks, batch_end, bounds.end, each)
                except WingsError as error:
                    self._put_back(tracked, taken.picks)
                    bundle.taken.remove(taken)
                    plan.errors[taken.number] = error
                    continue
            each.take(taken.picks, config.delivery_limit)

    def _extend(
        self,
        group: ShareGroup,
        tracked: TrackedPartition,
        picks: list[Pick],
        batch_end: BatchEnd,
        log_end: int,
        each: "_Open",
    ) -> None:
        """Let the last pick go on to the end of its batch."""
        last, config = picks[-1], group.config
        if is_throttled(last.count, config.delivery_limit):
            return
        end = batch_end(group, tracked.key.partition, last.last)
        rows = min(each.rows, each.request.range_max) if config.is_ordered else each.rows
        room = rows - sum(pick.messages for pick in picks)
        with self._table.lock:
            picks[-1] = tracked.state.extend(last, end, log_end, room, config.in_flight_max)

    def _check_times(
        self, request: AcquireRequest, tracked: TrackedPartition, bounds: Bounds
    ) -> None:
        """Look at the times of messages until one is available; blocks for the reads.

        Raises:
            WingsError: They cannot be read.
        """
        group, state = request.group, tracked.state
        column, ordered = group.config.deliver_at_column, group.config.is_ordered
        if column is None:
            return
        limit = group.config.delivery_limit
        while True:
            with self._table.lock:
                state.deliver_by(column)
                state.advance(self._clock.now(), bounds.start, self._clock.wall_us())
                is_ready = state.has_ready(limit)
                wanted = None if is_ready else state.unchecked(bounds.end, ordered=ordered)
                if wanted is None or request.times is None or tracked.is_checking:
                    return
                tracked.is_checking = True
            try:
                times = request.times(group.topic, tracked.key.partition, column, *wanted)
                with self._table.lock:
                    state.check(wanted[0], times, self._clock.wall_us())
            finally:
                tracked.is_checking = False

    def _granted(
        self,
        group: ShareGroup,
        tracked: TrackedPartition,
        held: HoldResult,
        taken: LeasePicks,
        until: float,
    ) -> Procedure[list[CountedRange]]:
        """Lease the grants of a majority; returns the ranges to deliver."""
        config, lease = group.config, taken.lease
        with self._table.lock:
            self._learn(tracked, held)
            delivered, surplus = _divided(held, taken.picks, config)
            for counted in delivered:
                tracked.state.grant(counted.first, counted.last, lease, until, counted.count + 1)
        if surplus:
            releases = [ReleaseEntry(over.first, over.last, lease, 0) for over in surplus]
            yield from self._quorum.release(tracked.key, releases)
            with self._table.lock:
                for over in surplus:
                    tracked.state.unpick(over.first, over.last, over.count)
            self._changed(tracked.key.group_uuid, tracked.key.partition)
        if held.finished:
            yield from self._catch_up(group, tracked)
            if not delivered:  # What comes after it may be available.
                self._changed(tracked.key.group_uuid, tracked.key.partition)
        return delivered

    # Archive.

    def archive_exhausted(
        self, group: ShareGroup, partition: Partition, bounds: Bounds
    ) -> Procedure[None]:
        """Archive messages of a loaded partition that are at the delivery limit.

        Raises:
            Unavailable: No majority answered.
        """
        config, tracked = group.config, self._table.get(group, partition)
        with self._table.lock:
            tracked.state.advance(self._clock.now(), bounds.start)
            picks = tracked.state.select_exhausted(config.delivery_limit, ordered=config.is_ordered)
            lease = self._table.next_lease("")
        if not picks:
            return
        asked_at = self._clock.now()
        request = _hold_of(group, tracked, LeasePicks(0, lease, "", picks))
        (held,) = yield from self._quorum.hold([request])
        until = self._quorum.expiry(asked_at, config.lock_duration_ms)
        if isinstance(held, WingsError):
            self._put_back(tracked, picks)
            raise held
        exhausted: list[CountedRange] = []
        with self._table.lock:
            self._learn(tracked, held)
            # Fewer deliveries may be agreed on than were known here: not at the limit then.
            fewer = [each for each in held.granted if each.count < config.delivery_limit]
            for each in held.granted:
                tracked.state.grant(each.first, each.last, lease, until, each.count + 1)
                if each.count >= config.delivery_limit and not (config.is_ordered and fewer):
                    exhausted.append(each)
        if left := [each for each in held.granted if each not in exhausted]:
            yield from self._release_undelivered(tracked, lease, left)
        if exhausted:
            # It may take long: another is to see what becomes due in the partition meanwhile.
            self._changed(tracked.key.group_uuid, partition)
            yield from self._finalizer.archive(group, tracked, exhausted, lease, until)
        if held.finished:
            yield from self._catch_up(group, tracked)

    # Release.

    def release_undelivered(
        self, group: ShareGroup, partition: Partition, lease: Lease, ranges: Sequence[OffsetRange]
    ) -> Procedure[None]:
        """Release ranges that never reached their member, in a loaded partition, uncounted."""
        yield from self._release_undelivered(self._table.get(group, partition), lease, ranges)

    def _release_undelivered(
        self, tracked: TrackedPartition, lease: Lease, ranges: Iterable[OffsetRange | CountedRange]
    ) -> Procedure[None]:
        releases = [ReleaseEntry(each.first, each.last, lease, 0) for each in ranges]
        yield from self._finalizer.release(tracked, releases)
        self._changed(tracked.key.group_uuid, tracked.key.partition)

    def retry_seconds(self, group: ShareGroup, partition: Partition) -> float:
        """Return the seconds after which to ask again for messages that seem to be available.

        0: at once, as not all messages asked for last were held by others.
        """
        with self._table.lock:
            tracked = self._table.find(group, partition)
            return self._pause(tracked) if tracked is not None and tracked.collisions else 0.0

    def _put_back(self, tracked: TrackedPartition, picks: Iterable[Pick]) -> None:
        """Make messages that were not held available again, and tell those who saw them pending."""
        with self._table.lock:
            self._put_off(tracked, [(pick.first, pick.last, 0.0) for pick in picks])
        self._changed(tracked.key.group_uuid, tracked.key.partition)

    def _learn(self, tracked: TrackedPartition, held: HoldResult) -> None:
        """Note the finished and the refused ranges of a hold; the lock is held."""
        tracked.read_again_seconds = READ_AGAIN_SECONDS[0]
        for gone in held.finished:
            tracked.state.finish(gone.first, gone.last)
        tracked.collisions = tracked.collisions + 1 if held.refused and not held.granted else 0
        refused = [(gone.first, gone.last, gone.retry_seconds) for gone in held.refused]
        self._put_off(tracked, refused)

    def _put_off(self, tracked: TrackedPartition, ranges: Iterable[tuple[int, int, float]]) -> None:
        """Make ranges that others hold available after a pause, which grows; the lock is held."""
        now, pause = self._clock.now(), self._pause(tracked)
        for first, last, retry_seconds in ranges:
            wait = min(pause, retry_seconds) if retry_seconds else pause
            tracked.state.unpick(first, last, 0, now + wait)

    def _pause(self, tracked: TrackedPartition) -> float:
        least, most = BACK_OFF_SECONDS
        return min(most, least * 2 ** min(tracked.collisions, 16)) * self._rng.uniform(0.5, 1.5)

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


class _Open:
    """A request that may get more messages."""

    def __init__(self, request: AcquireRequest) -> None:
        self.request = request
        self.rows = request.rows_max
        self.room = min(request.messages_max, request.rows_max)
        """Messages that it may still get."""
        self.has_some = False

    def take(self, picks: Sequence[Pick], limit: int) -> None:
        """Note the messages that it gets of a partition."""
        messages = sum(pick.messages for pick in picks)
        self.rows -= messages
        # Nothing comes beside a throttled range.
        self.room = 0 if is_throttled(picks[-1].count, limit) else self.room - messages
        self.has_some = True


def _hold_of(group: ShareGroup, tracked: TrackedPartition, taken: LeasePicks) -> HoldRequest:
    config = group.config
    return HoldRequest(
        tracked.key,
        tuple(OffsetRange(*each) for each in sorted(pick[:2] for pick in taken.picks)),
        taken.lease,
        config.lock_duration_ms,
        config.in_flight_max,
        taken.member,
        tracked.state.start_offset if config.is_ordered else None,
    )


def _leased(
    group: ShareGroup, tracked: TrackedPartition, counted: CountedRange, lease: Lease
) -> LeasedRange:
    return LeasedRange(
        tracked.key.partition,
        counted.first,
        counted.last,
        str(lease),
        counted.count + 1,
        group.config.lock_duration_ms,
        group.config.is_ordered,
    )


def _divided(
    held: HoldResult, picks: Sequence[Pick], config: ShareConfig
) -> tuple[list[CountedRange], list[CountedRange]]:
    """Divide the ranges held into those to deliver and those to release.

    The replicas may know of more deliveries than were known here at the selection. Ranges at the
    delivery limit are released.
    """
    granted, limit = held.granted, config.delivery_limit
    delivered: list[CountedRange] = []
    surplus: list[CountedRange] = []
    if config.is_ordered:
        granted, surplus = _next(granted, held.finished, min(pick.first for pick in picks))
    full = False
    for counted in granted:
        throttled = is_throttled(counted.count, limit)
        if counted.count >= limit or full or (throttled and delivered):
            surplus.append(counted)
            full = full or counted.count < limit
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


def _next(
    granted: Sequence[CountedRange], finished: Sequence[OffsetRange], first: int
) -> tuple[list[CountedRange], list[CountedRange]]:
    """Divide the ranges held into the one that comes next, from an offset on, and the others."""
    over = {each.first: each.last for each in finished}
    while first in over:
        first = over[first] + 1
    if granted and granted[0].first == first:
        return [granted[0]], list(granted[1:])
    return [], list(granted)
