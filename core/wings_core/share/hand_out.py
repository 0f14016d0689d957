"""HandOut: gives messages to members, each range held at a majority first.

select ─▶ hold at a majority ─▶ give up what is at the limit ─▶ leased ranges
"""

import logging
import random
from collections.abc import Callable, Iterable, Sequence

from wings_core.errors import WingsError
from wings_core.partitions import Partition
from wings_core.share.clock import Clock
from wings_core.share.interfaces import CountedRange, LeaseEntry, ReleaseEntry
from wings_core.share.model import (
    Acknowledgement,
    Lease,
    LeasedRange,
    OffsetRange,
    ShareGroup,
)
from wings_core.share.partition import Pick
from wings_core.share.places import Bounds, Place, Places, learn
from wings_core.share.quorum import HoldQuorum
from wings_core.share.results import Held
from wings_core.share.settle import Entry
from wings_core.share.settlement import Settlement, pieces
from wings_core.share.steps import Steps
from wings_core.share.throttle import deliverable, is_throttled

BACK_OFF_SECONDS = (0.02, 1.0)
"""The pause after messages were found to be held by others: at first, and after many times."""

SKIP_REQUESTS_MAX = 8
"""After a collision, begin up to so many requests' messages further on."""

GIVE_UP_SECONDS = 1.0
"""The pause before messages that could not be given up are tried again."""

_logger = logging.getLogger(__name__)


class HandOut:
    """The procedures that hand messages out, or up.

    Args:
        places: The partitions.
        quorum: Of the replicas.
        settlement: Gives up what is at the limit.
        clock: What leases are counted by.
        rng: For back-off.
        changed: Called with a group's UUID, outside the lock, when something may have become
            available.
    """

    def __init__(
        self,
        places: Places,
        quorum: HoldQuorum,
        settlement: Settlement,
        clock: Clock,
        rng: random.Random,
        changed: Callable[[str], None],
    ) -> None:
        self._places = places
        self._quorum = quorum
        self._settlement = settlement
        self._clock = clock
        self._rng = rng
        self._changed = changed

    def acquire(
        self,
        group: ShareGroup,
        partition: Partition,
        bounds: Bounds,
        member: str,
        messages_max: int,
        rows_max: int,
        batch_end: Callable[[int], int] | None = None,
        *,
        alone: bool = True,
    ) -> Steps[list[LeasedRange]]:
        """Hand out what there is in a loaded partition.

        Args:
            group: With its configuration as it is now.
            partition: Which.
            bounds: Of its log.
            member: Who asks.
            messages_max: No more, but for whole batches.
            rows_max: No more in any case.
            batch_end: Of a committed offset, the last offset of the batch that holds it; given
                where whole batches are wanted.
            alone: Whether the member got nothing else; else nothing throttled is handed out.

        Raises:
            Unavailable: No majority answered.
        """
        place = self._places.get(group, partition)
        config = group.config
        skip = 0
        if place.collisions:
            skip = self._rng.randrange(SKIP_REQUESTS_MAX) * messages_max
        with self._places.lock:
            place.state.advance(self._clock.now(), bounds.start)
            retired = place.state.take_retired()
            picks = place.state.select(
                bounds.end,
                min(messages_max, rows_max),
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
                        place.state.give_back(pick.first, pick.last, pick.count)
                picks = fresh
            lease = self._places.next_lease(member)
        if retired:
            yield from self._retire(place, retired)
        if batch_end is not None and picks:
            try:
                self._extend(place, picks, batch_end, bounds.end, rows_max, group)
            except WingsError:
                with self._places.lock:
                    self._put_off(place, [(pick.first, pick.last, 0.0) for pick in picks])
                raise
        if not picks:
            return []
        return (yield from self._hold(group, place, picks, lease, alone=alone))

    def _hold(
        self,
        group: ShareGroup,
        place: Place,
        picks: Sequence[Pick],
        lease: Lease,
        *,
        alone: bool,
    ) -> Steps[list[LeasedRange]]:
        config = group.config
        asked_at = self._clock.now()
        ranges = [OffsetRange(pick.first, pick.last) for pick in sorted(picks, key=_first)]
        try:
            held: Held = yield from self._quorum.hold(
                place.key, ranges, lease, config.lock_duration_ms, config.in_flight_max
            )
        except WingsError:
            with self._places.lock:
                self._put_off(place, [(pick.first, pick.last, 0.0) for pick in picks])
            raise
        until = self._quorum.expiry(asked_at, config.lock_duration_ms)
        limit = config.delivery_limit
        with self._places.lock:
            for gone in held.finished:
                place.state.finish(gone.first, gone.last)
            if held.refused and not held.granted:
                place.collisions += 1
            else:
                place.collisions = 0
            self._put_off(
                place, [(gone.first, gone.last, gone.retry_seconds) for gone in held.refused]
            )
            delivered, surplus = _portion(held.granted, picks, limit)
            exhausted = [counted for counted in held.granted if counted.count >= limit]
            if delivered or not alone:
                surplus, exhausted = surplus + exhausted, []
            for counted in delivered + exhausted:
                place.state.grant(counted.first, counted.last, lease, until, counted.count + 1)
        if surplus:
            yield from self._give_back(place, surplus, lease)
        if exhausted:
            lists = [
                [
                    Entry(_expired(place, part), part.first, part.last, lease, until, [part])
                    for part in piece
                ]
                for piece in pieces(group, exhausted)
            ]
            yield from self._give_up_exhausted(group, place, lists)
        if held.finished:
            yield from self._catch_up(group, place)
        if delivered and self._clock.now() >= until:
            # It took too long: others may have them by now.
            yield from self._hand_back(
                place, [LeaseEntry(each.first, each.last, lease) for each in delivered]
            )
            return []
        return [
            LeasedRange(
                place.key.partition,
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
        place: Place,
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
        with self._places.lock:
            picks[-1] = place.state.extend(last, end, log_end, room, group.config.in_flight_max)

    def _put_off(self, place: Place, ranges: Iterable[tuple[int, int, float]]) -> None:
        """Make what others hold available again after a pause, which grows; the lock is held."""
        now = self._clock.now()
        least, most = BACK_OFF_SECONDS
        pause = min(most, least * 2 ** min(place.collisions, 16)) * self._rng.uniform(0.5, 1.5)
        for first, last, retry_seconds in ranges:
            wait = min(pause, retry_seconds) if retry_seconds else pause
            place.state.give_back(first, last, 0, now + wait)

    def _give_back(
        self, place: Place, surplus: Sequence[CountedRange], lease: Lease
    ) -> Steps[None]:
        releases = [ReleaseEntry(over.first, over.last, lease, 0) for over in surplus]
        yield from self._quorum.release(place.key, releases)
        with self._places.lock:
            for over in surplus:
                place.state.give_back(over.first, over.last, over.count)
        self._changed(place.key.group_uuid)

    def catch_up(self, group: ShareGroup, partition: Partition) -> Steps[None]:
        """Hear what other coordinators have finished in a loaded partition, if replicas answer."""
        return self._catch_up(group, self._places.get(group, partition))

    def _catch_up(self, group: ShareGroup, place: Place) -> Steps[None]:
        try:
            read = yield from self._quorum.read(group.uuid, group.topic.uuid, [place.key.partition])
        except WingsError:
            return
        with self._places.lock:
            learn(place.state, read[place.key.partition])

    def _retire(self, place: Place, retired: Sequence[tuple[int, int]]) -> Steps[None]:
        """Tell the replicas what retention has passed; who misses it learns it from the log."""
        try:
            yield from self._quorum.repair(
                place.key, [OffsetRange(*gone) for gone in sorted(retired)]
            )
        except WingsError as error:
            _logger.warning("retired messages stay on the replicas: %s", error.message)

    def give_back(
        self, group: ShareGroup, partition: Partition, entries: Sequence[LeaseEntry]
    ) -> Steps[None]:
        """Release what never reached its member, in a loaded partition: no delivery is counted."""
        yield from self._hand_back(self._places.get(group, partition), entries)

    def _hand_back(self, place: Place, entries: Sequence[LeaseEntry]) -> Steps[None]:
        releases = [ReleaseEntry(entry.first, entry.last, entry.lease, 0) for entry in entries]
        yield from self._quorum.release(place.key, releases)
        with self._places.lock:
            for entry in entries:
                place.state.hand_back(entry.first, entry.last, entry.lease)
        self._changed(place.key.group_uuid)

    def give_up(self, group: ShareGroup, partition: Partition, bounds: Bounds) -> Steps[None]:
        """Give up what is at the limit in a loaded partition, and hand out nothing.

        Raises:
            Unavailable: No majority answered.
        """
        place = self._places.get(group, partition)
        with self._places.lock:
            place.state.advance(self._clock.now(), bounds.start)
            picks = place.state.select_exhausted(group.config.delivery_limit)
            lease = self._places.next_lease("")
        if picks:
            leased = yield from self._hold(group, place, picks, lease, alone=True)
            # Fewer deliveries are agreed on than were known here: they are not at the limit.
            if leased:
                entries = [LeaseEntry(each.start_offset, each.end_offset, lease) for each in leased]
                yield from self._hand_back(place, entries)

    def _give_up_exhausted(
        self, group: ShareGroup, place: Place, lists: Sequence[Sequence[Entry]]
    ) -> Steps[None]:
        """Give up what met the limit, one list after another, all of which are held meanwhile.

        What cannot be given up now is tried again when its hold ends.
        """
        for number, entries in enumerate(lists):
            left = [entry for each in lists[number:] for entry in each]
            failed = yield from self._settlement.bury(group, place, entries, left, "")
            if failed is None:
                failed = yield from self._settlement.finish(place, (), entries, 0, "")
            if failed is not None:
                yield from self._keep(place, left, failed)
                return

    def _keep(self, place: Place, left: Sequence[Entry], failed: WingsError) -> Steps[None]:
        """Release what could not be given up, to be tried again after a pause."""
        _logger.warning("messages at the delivery limit stay: %s", failed.message)
        delay_ms = int(GIVE_UP_SECONDS * 1_000)
        yield from self._settlement.release(
            place,
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


def _expired(place: Place, counted: CountedRange) -> Acknowledgement:
    """Return what stands for the acknowledgement that never came."""
    return Acknowledgement(place.key.partition, counted.first, counted.last, "", "release")
