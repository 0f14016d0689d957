"""Lease: messages are picked for members, held at a majority, and handed out.

    partitions that are ready ─▶ pick for a list of requests ─▶ hold, one bundle a partition
                                                                     └─▶ leased ranges, by request

One request is a list of one. The picks of a partition go to each replica in one message, and those
of several partitions side by side. Messages at the delivery limit are left to `upkeep`.

`Leases` has the procedures, and `Acquires` runs them for what members ask for.
"""

import logging
import random
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wings_core.errors import Internal, WingsError
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.model import Lease, LeasedRange, PartitionState, ShareConfig, ShareGroup
from wings_core.partitions import Partition
from wings_core.share.coordinator.finalize import COLLISIONS_READ_MAX, Finalizer
from wings_core.share.coordinator.partitions import (
    READ_AGAIN_SECONDS,
    READ_PARTITIONS_MAX,
    PartitionTable,
    ReadyPartitions,
    TrackedPartition,
)
from wings_core.share.model import AcquireRequest, Clock, Leased, OffsetRange, ReadTimes
from wings_core.share.quorum.quorum import HoldQuorum, Runner
from wings_core.share.quorum.votes import HoldResult
from wings_core.share.replica.requests import CountedRange, HoldRequest, Procedure, ReleaseEntry
from wings_core.share.state.partition import Pick, deliverable, is_throttled

PEEK_PARTITIONS, PEEK_MIN = 16, 4
"""Ready partitions that an acquire looks at first, at most and at least; then at more."""

BatchEnd = Callable[[ShareGroup, Partition, int], int]
"""Returns the last offset of the batch that holds a committed offset."""


_logger = logging.getLogger(__name__)


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
    has_choice: bool = False
    """Whether others held or delayed what was asked for, and it is known now what they left."""


@dataclass(frozen=True, slots=True, eq=False)
class Leases:
    """The procedures that lease messages.

    Args:
        table: The partitions.
        quorum: Holds at a majority.
        finalizer: Releases, and tells the replicas what retention has passed.
        clock: Counts leases.
        rng: For turns.
        changed: Called with a group's UUID and a partition, outside the lock, when
            something may have become available.
        batch_end: Called where a group acquires whole batches.
    """

    _table: PartitionTable
    _quorum: HoldQuorum
    _finalizer: Finalizer
    _clock: Clock
    _rng: random.Random
    _changed: Callable[[str, Partition], None]
    _batch_end: BatchEnd

    def prepare(self, group: ShareGroup, logs: Sequence[PartitionState]) -> Procedure[None]:
        """Load partitions that are not known yet, and learn of room that others have made.

        Raises:
            WingsError: Some are not loaded.
        """
        written = [log.partition for log in logs if log.next_offset]
        yield from self._table.load(group, written)
        for partition in written:
            # One partition in a call, since replicas are asked.
            tracked = self._table.get(group, partition)
            if self._finalizer.is_overtaken(group, tracked):
                yield from self._finalizer.catch_up(group, tracked)
                break

    def plan(
        self,
        group: ShareGroup,
        requests: Mapping[int, AcquireRequest],
        logs: Sequence[PartitionState],
        times: ReadTimes | None,
    ) -> tuple[list[Bundle], dict[int, WingsError]]:
        """Select messages of loaded partitions for requests, the first of which comes first.

        Blocks where the group's messages have times, or it acquires whole batches: for metadata.

        Args:
            group: The group of all requests, as it is now.
            requests: Requests by their numbers, each for any of the partitions.
            logs: The partitions' logs; those that are not loaded are left out.
            times: Reads from when on messages are delivered; None: those whose time is not known
                yet are left out.

        Returns:
            The bundles, all of which must be held, and the last error on the way, by request.
        """
        bundles, errors = list[Bundle](), dict[int, WingsError]()
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
            try:
                self._check_times(group, tracked, log, times)
                bundle, failed = self._select(group, tracked, log, wanting)
            except Exception as error:  # noqa: BLE001 - What was picked before would stay pending.
                errors |= dict.fromkeys(wanting, _told(error))
                continue
            errors |= failed
            if bundle.taken or bundle.retired:
                bundles.append(bundle)
        return bundles, errors

    def hold(self, group: ShareGroup, bundle: Bundle) -> Procedure[list[tuple[int, Leased]]]:
        """Hold the messages of a bundle at a majority; returns the outcome of each request."""
        tracked, config = bundle.tracked, group.config
        if bundle.retired:
            yield from self._finalizer.retire(tracked, bundle.retired)
        if not bundle.taken:
            return []
        asked_at = self._clock.now()
        asked = [hold_of(group, tracked, each) for each in bundle.taken]
        outcomes = yield from self._quorum.hold(asked)
        until = self._quorum.expiry(asked_at, config.lock_duration_ms)
        found: list[tuple[int, Leased]] = []
        collided = False
        for taken, held in zip(bundle.taken, outcomes, strict=True):
            if isinstance(held, WingsError):
                self._finalizer.put_back(tracked, taken.picks)
                found.append((taken.number, held))
                continue
            collided = collided or is_collision(held)
            delivered = yield from self._granted(group, tracked, held, taken, until)
            if delivered and self._clock.now() >= until:
                # It took too long: others may have them by now.
                yield from self._finalizer.release_undelivered(tracked, taken.lease, delivered)
                delivered = []
            ranges = [_leased(group, tracked, each, taken.lease) for each in delivered]
            found.append((taken.number, ranges))
        if collided and not config.is_ordered:
            bundle.has_choice = yield from self._finalizer.put_off_taken(group, tracked)
        return found

    def _select(
        self,
        group: ShareGroup,
        tracked: TrackedPartition,
        log: PartitionState,
        wanting: "Mapping[int, _Open]",
    ) -> tuple[Bundle, dict[int, WingsError]]:
        """Select messages of one partition for the requests that want some; see `plan`."""
        config, state = group.config, tracked.state
        with self._table.lock:
            state.deliver_by(config.deliver_at_column)
            state.advance(self._clock.now(), log.log_start_offset)
            state.has_met_limit = False
            bundle = Bundle(tracked, state.take_retired())
            for number, each in wanting.items():
                picks = state.select(
                    log.next_offset,
                    min(each.room, each.request.range_max) if config.is_ordered else each.room,
                    config.in_flight_max,
                    config.delivery_limit,
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
        failed = dict[int, WingsError]()
        for taken in list(bundle.taken):
            each = wanting[taken.number]
            if config.acquire_mode == "batch_optimized":
                try:
                    self._extend(group, tracked, taken.picks, log.next_offset, each)
                except Exception as error:  # noqa: BLE001 - See `plan`.
                    self._finalizer.put_back(tracked, taken.picks)
                    bundle.taken.remove(taken)
                    failed[taken.number] = _told(error)
                    continue
            each.take(taken.picks, config.delivery_limit)
        return bundle, failed

    def _extend(
        self,
        group: ShareGroup,
        tracked: TrackedPartition,
        picks: list[Pick],
        log_end: int,
        each: "_Open",
    ) -> None:
        """Let the last pick go on to the end of its batch."""
        last, config = picks[-1], group.config
        if is_throttled(last.count, config.delivery_limit):
            return
        end = self._batch_end(group, tracked.key.partition, last.last)
        rows = min(each.rows, each.request.range_max) if config.is_ordered else each.rows
        room = rows - sum(pick.messages for pick in picks)
        with self._table.lock:
            picks[-1] = tracked.state.extend(last, end, log_end, room, config.in_flight_max)

    def _check_times(
        self,
        group: ShareGroup,
        tracked: TrackedPartition,
        log: PartitionState,
        times: ReadTimes | None,
    ) -> None:
        """Look at the times of messages until one is available; blocks for the reads.

        Raises:
            WingsError: They cannot be read.
        """
        column, ordered = group.config.deliver_at_column, group.config.is_ordered
        if column is None:
            return
        state, limit = tracked.state, group.config.delivery_limit
        while True:
            with self._table.lock:
                state.deliver_by(column)
                state.advance(self._clock.now(), log.log_start_offset, self._clock.wall_us())
                is_ready = state.has_ready(limit)
                wanted = None if is_ready else state.unchecked(log.next_offset, ordered=ordered)
                if wanted is None or times is None or tracked.is_checking:
                    return
                tracked.is_checking = True
            try:
                found = times(group.topic, tracked.key.partition, column, *wanted)
                with self._table.lock:
                    state.check(wanted[0], found, self._clock.wall_us())
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
            self.learn(tracked, held)
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
            yield from self._finalizer.catch_up(group, tracked)
            if not delivered:  # What comes after it may be available.
                self._changed(tracked.key.group_uuid, tracked.key.partition)
        return delivered

    def learn(self, tracked: TrackedPartition, held: HoldResult) -> None:
        """Note the finished and the refused ranges of a hold; the lock is held."""
        tracked.read_again_seconds = READ_AGAIN_SECONDS[0]
        for gone in held.finished:
            tracked.state.finish(gone.first, gone.last)
        tracked.collisions = tracked.collisions + 1 if is_collision(held) else 0
        if held.refused:
            refused = [(gone.first, gone.last, gone.retry_seconds) for gone in held.refused]
            self._finalizer.put_off(tracked, refused)


@dataclass(slots=True)
class Picked:
    """Pending messages for acquires of a group; all of the procedures are to be run."""

    group: ShareGroup
    index: ReadyPartitions
    begun_at: float
    errors: list[WingsError | None]
    """The error that each acquire has met, if any."""
    logs: dict[Partition, PartitionState]
    """Where the logs stand of the partitions looked at."""
    generations: dict[Partition, int]
    """Generations as of which they were ready."""
    bundles: list[Bundle] = field(default_factory=list[Bundle])
    procedures: list[Procedure[Any]] = field(default_factory=list[Procedure[Any]])
    """One for each bundle."""


@dataclass(frozen=True, slots=True, eq=False)
class Acquires:
    """Leases what members of a group ask for, on the caller's thread.

    Args:
        table: The partitions.
        leases: The procedures.
        finalizer: Tells when to ask again for what others held.
        registry: The log's index.
        runner: Runs the procedures.
        clock: Counts leases.
        is_local: Whether the only replica is in this process.
        groups: The groups as they are now.
    """

    _table: PartitionTable
    _leases: Leases
    _finalizer: Finalizer
    _registry: OffsetRegistry
    _runner: Runner
    _clock: Clock
    _is_local: bool
    _groups: Mapping[str, ShareGroup]

    def everywhere(
        self,
        index: ReadyPartitions,
        group: ShareGroup,
        request: AcquireRequest,
        times: ReadTimes | None,
    ) -> list[LeasedRange]:
        """Lease what is available for one request, in some partitions after others.

        Raises:
            WingsError: Nothing was leased.
        """
        only = request.partition
        index.look()
        if only is not None:
            index.note(self._registry.partition_state(group.topic.uuid, only))
        elif not self._is_local:
            index.look_again()  # Over a network, commits are told of a while later.
        most, tried = peeked([request]), set[Partition]()
        recent = only is not None or not self._is_local
        looks = 0
        while True:
            picked = self.pick(index, group, [request], most, tried, times=times, recent=recent)
            outcomes = self._runner.run_all(picked.procedures)
            looks += 1
            if looks > COLLISIONS_READ_MAX:
                for bundle in picked.bundles:
                    bundle.has_choice = False  # It rests, as this does not ask it again.
            (acquired,) = self.hand_out(picked, outcomes)
            if isinstance(acquired, WingsError):
                raise acquired
            if acquired or not picked.logs:
                return acquired
            # Where others held all that was picked, the rest of the partitions were not looked at,
            # nor what comes after it.
            tried.update(
                bundle.tracked.key.partition for bundle in picked.bundles if not bundle.has_choice
            )
            if not picked.bundles:
                tried.update(picked.logs)
            most = READ_PARTITIONS_MAX

    def pick(
        self,
        index: ReadyPartitions,
        group: ShareGroup,
        requests: Sequence[AcquireRequest],
        most: int,
        besides: Container[Partition] = (),
        *,
        times: ReadTimes | None = None,
        recent: bool = True,
    ) -> Picked:
        """Pick messages of partitions that are ready; the procedures that hold them must be run.

        Args:
            index: The group's.
            group: The group as it is now.
            requests: At least one.
            most: Partitions to look at, at most.
            besides: Partitions to leave out.
            times: See `Leases.plan`.
            recent: Whether the place where a partition's log stood a moment ago is enough.
        """
        wanting: dict[Partition | None, dict[int, AcquireRequest]] = {}
        for number, each in enumerate(requests):
            wanting.setdefault(each.partition, {})[number] = each
        begun_at = self._clock.now()
        found = {only: index.peek(only, most, besides) for only in wanting}
        generations = {each: generation for some in found.values() for each, generation in some}
        logs = {each: self._log(index, group, each, recent=recent) for each in generations}
        error = self._prepare(group, logs.values())
        picked = Picked(group, index, begun_at, [error] * len(requests), logs, generations)
        # Only now, as nothing may fail any more: what is picked is kept from all others.
        for only, of_partition in wanting.items():
            looked_at = [logs[partition] for partition, _ in found[only]]
            bundles, failed = self._leases.plan(group, of_partition, looked_at, times)
            picked.bundles += bundles
            for number, failure in failed.items():
                picked.errors[number] = failure
        picked.procedures = [self._leases.hold(group, each) for each in picked.bundles]
        return picked

    def hand_out(
        self, picked: Picked, outcomes: Sequence[list[tuple[int, Leased]] | WingsError]
    ) -> list[Leased]:
        """Return what each request got, by the outcomes of the procedures."""
        group, errors = picked.group, picked.errors
        ranges: list[list[LeasedRange]] = [[] for _ in errors]
        for bundle, outcome in zip(picked.bundles, outcomes, strict=True):
            of_bundle: list[tuple[int, Leased]]
            if isinstance(outcome, WingsError):
                of_bundle = [(each.number, outcome) for each in bundle.taken]
            else:
                of_bundle = outcome
            for number, leased in of_bundle:
                if isinstance(leased, WingsError):
                    errors[number] = errors[number] or leased
                else:
                    ranges[number] += leased
        if (self._clock.now() - picked.begun_at) * 2_000 >= group.config.lock_duration_ms:
            # Other procedures took long, which all waited for: leases may be over by now.
            ranges = [
                [one for one in each if self._finalizer.is_leased(group, one)] for each in ranges
            ]
        known = self._groups.get(group.uuid, group)
        if known is group or known.config == group.config:  # Else who waits looks anew.
            choices = {each.tracked.key.partition for each in picked.bundles if each.has_choice}
            for partition, log in picked.logs.items():
                rests = partition not in choices and not any(ranges)
                self._looked_at(picked, partition, log, rests=rests)
        if any(ranges):
            picked.index.wake_next()
        return [found or error or [] for found, error in zip(ranges, errors, strict=True)]

    def _log(
        self, index: ReadyPartitions, group: ShareGroup, partition: Partition, *, recent: bool
    ) -> PartitionState:
        """Return where a partition's log stands; `recent`: a moment ago, where that is known."""
        log = index.known_state(partition) if recent else None
        if log is None:
            log = self._registry.partition_state(group.topic.uuid, partition)
            index.note(log)
        return log

    def _prepare(self, group: ShareGroup, logs: Collection[PartitionState]) -> WingsError | None:
        """Load partitions that are not known yet; blocks for the replicas then.

        Returns:
            The error for which some are not loaded.
        """
        if self._is_local and all(
            self._table.find(group, log.partition) is not None for log in logs if log.next_offset
        ):
            return None
        return self._runner.run_all([self._leases.prepare(group, list(logs))])[0]

    def _looked_at(
        self, picked: Picked, partition: Partition, log: PartitionState, *, rests: bool
    ) -> None:
        """Take a partition out of the index where it has nothing, after an acquire.

        Also for a while where others held all that was asked for, if it `rests` then.
        """
        group, again = picked.group, None
        if log.next_offset:
            again = self._table.look(group, partition, log.log_start_offset, log.next_offset)
        if again == 0 and rests:
            again = self._finalizer.retry_seconds(group, partition)
        picked.index.looked_at(partition, picked.generations[partition], log.next_offset, again)


def peeked(requests: Sequence[AcquireRequest]) -> int:
    """Return the number of ready partitions to look at first: some have nothing."""
    messages = sum(each.messages_max for each in requests)
    return min(READ_PARTITIONS_MAX, PEEK_PARTITIONS * len(requests), max(PEEK_MIN, messages))


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


def is_collision(held: HoldResult) -> bool:
    """Tell whether others held all that was asked for and is not finished."""
    return bool(held.refused) and not held.granted


def _told(error: Exception) -> WingsError:
    """Return an error of Wings for any; a fault is logged."""
    if isinstance(error, WingsError):
        return error
    _logger.error("messages could not be picked", exc_info=error)
    return Internal(f"a fault while messages were picked: {error!r:.200}")


def hold_of(group: ShareGroup, tracked: TrackedPartition, taken: LeasePicks) -> HoldRequest:
    """Return the request to hold picks."""
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
