"""CoordinatorCore: hands out messages and settles them, as procedures without threads or clocks.

    acquire:      select ─▶ hold at a majority ─▶ give up what is at the limit ─▶ leased ranges
    acknowledge:  check ─▶ (dead letters, lease proved) ─▶ tombstone, release, renew at a majority

A lock guards the state of all partitions and is never held while a step is under way. What is
decided before a step may have been overtaken after it, by an expiry or by another thread; so after
each step only what still is as it was left is changed, and the replicas have the last word.
"""

import logging
import random
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from wings_core.errors import GroupNotFound, Unavailable, WingsError
from wings_core.partitions import Partition
from wings_core.share.clock import Clock
from wings_core.share.interfaces import (
    CountedRange,
    DeadLetters,
    LeaseEntry,
    PendingDeadLetters,
    ReleaseEntry,
)
from wings_core.share.model import (
    Acknowledgement,
    DeadLetter,
    Lease,
    LeasedRange,
    OffsetRange,
    ShareGroup,
    ShareKey,
    member_tag,
)
from wings_core.share.partition import Pick, SharePartition
from wings_core.share.quorum import Held, HoldQuorum, Verdict
from wings_core.share.settle import Entry, entries_of, not_held
from wings_core.share.steps import FinishDeadLetters, Steps
from wings_core.share.throttle import deliverable, is_throttled
from wings_core.share.votes import Known

READ_PARTITIONS_MAX = 256
"""Partitions whose state is read at a time."""

BACK_OFF_SECONDS = (0.02, 1.0)
"""The pause after messages were found to be held by others: at first, and after many times."""

SKIP_REQUESTS_MAX = 8
"""After a collision, begin up to so many requests' messages further on."""

GIVE_UP_SECONDS = 1.0
"""The pause before messages that could not be given up are tried again."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where a partition's log begins, and its next offset."""

    start: int
    end: int


@dataclass(slots=True)
class Place:
    """A partition of a group, as this coordinator sees it."""

    key: ShareKey
    state: SharePartition
    collisions: int = 0
    """How often in a row all that was asked for was held by others."""


class CoordinatorCore:
    """The procedures of a coordinator.

    Args:
        quorum: Of the replicas.
        dead_letters: None: no group has any.
        clock: What leases are counted by.
        rng: For back-off.
        changed: Called with a group's UUID, outside the lock, when something may have become
            available.

    Attributes:
        id: In the leases; unique for each start.
    """

    def __init__(
        self,
        quorum: HoldQuorum,
        dead_letters: DeadLetters | None,
        clock: Clock,
        rng: random.Random,
        changed: Callable[[str], None] = lambda _: None,
        id: str | None = None,  # noqa: A002 - of the coordinator.
    ) -> None:
        self.id = id or uuid.uuid4().hex
        self._quorum = quorum
        self._dead_letters = dead_letters
        self._clock = clock
        self._rng = rng
        self._changed = changed
        self._lock = threading.Lock()
        self._places: dict[str, dict[Partition, Place]] = {}
        self._leases = 0

    # Groups.

    def create(self, group: ShareGroup, starts: dict[Partition, int]) -> Steps[None]:
        """Put a group at its start; partitions that are not named begin at 0.

        Raises:
            Unavailable: No majority answered.
        """
        for partition, start in starts.items():
            if start > 0:
                yield from self._quorum.repair(_key(group, partition), [OffsetRange(0, start - 1)])

    def delete(self, group: ShareGroup) -> Steps[None]:
        """Forget a group."""
        with self._lock:
            self._places.pop(group.uuid, None)
        yield from self._quorum.forget(group.uuid)
        self._changed(group.uuid)

    def load(self, group: ShareGroup, partitions: Sequence[Partition]) -> Steps[None]:
        """Read the state of partitions that this coordinator does not know yet.

        Raises:
            Unavailable: No majority answered.
        """
        with self._lock:
            known = self._places.get(group.uuid, {})
            missing = [partition for partition in partitions if partition not in known]
        for at in range(0, len(missing), READ_PARTITIONS_MAX):
            some = missing[at : at + READ_PARTITIONS_MAX]
            read = yield from self._quorum.read(group.uuid, group.topic.uuid, some)
            with self._lock:
                places = self._places.setdefault(group.uuid, {})
                for partition in some:
                    if partition not in places:
                        state = SharePartition(read[partition].start_offset)
                        _learn(state, read[partition])
                        places[partition] = Place(_key(group, partition), state)

    def read(
        self, group: ShareGroup, partitions: Sequence[Partition]
    ) -> Steps[dict[Partition, Known]]:
        """Return what a majority of replicas knows of partitions.

        Raises:
            Unavailable: No majority answered.
        """
        return self._quorum.read(group.uuid, group.topic.uuid, partitions)

    def is_loaded(self, group: ShareGroup, partition: Partition) -> bool:
        """Tell whether the state of a partition is known."""
        return partition in self._places.get(group.uuid, {})

    def look(self, group: ShareGroup, partition: Partition, bounds: Bounds) -> float | None:
        """Return in how many seconds a loaded partition may have something to hand out.

        0: now; None: only after a change that is heard of.
        """
        with self._lock:
            place = self._places.get(group.uuid, {}).get(partition)
            if place is None:
                return 0.0
            now = self._clock.now()
            place.state.advance(now, bounds.start)
            room = place.state.in_flight < group.config.in_flight_max
            if room and place.state.has_available(bounds.end):
                return 0.0
            return place.state.next_event(now)

    def state(self, group: ShareGroup, partition: Partition) -> SharePartition:
        """Return the state of a loaded partition, for whoever looks at it from outside."""
        return self._place(group, partition).state

    # Handing out.

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
        place = self._place(group, partition)
        config = group.config
        skip = 0
        if place.collisions:
            skip = self._rng.randrange(SKIP_REQUESTS_MAX) * messages_max
        with self._lock:
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
            lease = self._next_lease(member)
        if retired:
            yield from self._retire(place, retired)
        if batch_end is not None and picks:
            try:
                self._extend(place, picks, batch_end, bounds.end, rows_max, group)
            except WingsError:
                with self._lock:
                    self._put_off(place, [(pick.first, pick.last, 0.0) for pick in picks])
                raise
        if not picks:
            return []
        return (yield from self._hold(group, place, picks, lease))

    def _hold(
        self, group: ShareGroup, place: Place, picks: Sequence[Pick], lease: Lease
    ) -> Steps[list[LeasedRange]]:
        config = group.config
        asked_at = self._clock.now()
        ranges = [OffsetRange(pick.first, pick.last) for pick in sorted(picks, key=_first)]
        try:
            held: Held = yield from self._quorum.hold(
                place.key, ranges, lease, config.lock_duration_ms, config.in_flight_max
            )
        except WingsError:
            with self._lock:
                self._put_off(place, [(pick.first, pick.last, 0.0) for pick in picks])
            raise
        until = self._quorum.expiry(asked_at, config.lock_duration_ms)
        limit = config.delivery_limit
        with self._lock:
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
            for counted in delivered + exhausted:
                place.state.grant(counted.first, counted.last, lease, until, counted.count + 1)
        if surplus:
            yield from self._give_back(place, surplus, lease)
        if exhausted:
            entries = [
                Entry(
                    _expired(place, counted), counted.first, counted.last, lease, until, [counted]
                )
                for counted in exhausted
            ]
            yield from self._give_up_exhausted(group, place, entries)
        if held.finished:
            yield from self._catch_up(group, place)
        if self._clock.now() >= until:
            return []  # It took too long: others may have them by now.
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
        with self._lock:
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
        entries = [ReleaseEntry(over.first, over.last, lease, 0) for over in surplus]
        yield from self._quorum.release(place.key, entries)
        with self._lock:
            for over in surplus:
                place.state.give_back(over.first, over.last, over.count)
        self._changed(place.key.group_uuid)

    def _catch_up(self, group: ShareGroup, place: Place) -> Steps[None]:
        """Hear what other coordinators have finished."""
        try:
            read = yield from self._quorum.read(group.uuid, group.topic.uuid, [place.key.partition])
        except WingsError:
            return
        with self._lock:
            _learn(place.state, read[place.key.partition])

    def _retire(self, place: Place, retired: Sequence[tuple[int, int]]) -> Steps[None]:
        """Tell the replicas what retention has passed; who misses it learns it from the log."""
        try:
            yield from self._quorum.repair(
                place.key, [OffsetRange(*gone) for gone in sorted(retired)]
            )
        except WingsError as error:
            _logger.warning("retired messages stay on the replicas: %s", error.message)

    # Settling.

    def acknowledge(
        self,
        group: ShareGroup,
        partition: Partition,
        bounds: Bounds,
        member: str,
        asked: Sequence[Acknowledgement],
    ) -> Steps[list[WingsError | None]]:
        """Settle messages of a loaded partition; returns an error or None for each entry."""
        checked = entries_of(asked, member, bounds.start)
        if isinstance(checked, WingsError):
            return [checked] * len(asked)
        place = self._place(group, partition)
        live = [entry for entry in checked if not entry.gone]
        foreign = [entry for entry in live if entry.lease.coordinator != self.id]
        with self._lock:
            now = self._clock.now()
            place.state.advance(now, bounds.start)
            was_full = place.state.in_flight >= group.config.in_flight_max or place.state.is_full
            for entry in live:
                if entry.lease.coordinator != self.id:
                    continue
                if not place.state.is_held(entry.first, entry.last, entry.lease, now):
                    return [not_held(entry.asked, member)] * len(asked)
                for first, last, cell in place.state.parts(entry.first, entry.last):
                    entry.until = min(entry.until or cell.until, cell.until)
                    entry.counts.append(CountedRange(first, last, cell.deliveries))
        if foreign:
            error = yield from self._prove(group, place, foreign, member)
            if error is not None:
                return [error] * len(asked)
        yield from self._settle(group, place, live, member)
        if was_full or any(entry.asked.type == "release" for entry in live):
            self._changed(group.uuid)
        return [entry.error for entry in checked]

    def give_back(
        self, group: ShareGroup, partition: Partition, entries: Sequence[LeaseEntry]
    ) -> Steps[None]:
        """Release what never reached its member, in a loaded partition: no delivery is counted."""
        place = self._place(group, partition)
        releases = [ReleaseEntry(entry.first, entry.last, entry.lease, 0) for entry in entries]
        yield from self._quorum.release(place.key, sorted(releases, key=_first))
        with self._lock:
            for entry in entries:
                place.state.hand_back(entry.first, entry.last, entry.lease)
        self._changed(group.uuid)

    def _settle(
        self, group: ShareGroup, place: Place, entries: Sequence[Entry], member: str
    ) -> Steps[None]:
        limit = group.config.delivery_limit
        given_up = [
            entry for entry in entries if entry.asked.type == "reject" or entry.exhausted(limit)
        ]
        finished = [entry for entry in entries if entry.asked.type == "accept"]
        if given_up:
            yield from self._bury(group, place, given_up, member)
            if any(entry.error is not None for entry in given_up):
                error = next(entry.error for entry in given_up if entry.error is not None)
                for entry in entries:
                    entry.error = error
                return
        yield from self._finish(place, finished, given_up, limit, member)
        renewed = [entry for entry in entries if entry.asked.type == "renew"]
        if renewed:
            error = yield from self._prove(group, place, renewed, member)
            for entry in renewed:
                entry.error = error
        released = [
            entry
            for entry in entries
            if entry.asked.type == "release" and any(part.count < limit for part in entry.counts)
        ]
        if released:
            yield from self._release(place, released, limit, member)

    def _prove(
        self, group: ShareGroup, place: Place, entries: Sequence[Entry], member: str
    ) -> Steps[WingsError | None]:
        """Renew leases at a majority; returns why they do not hold."""
        asked_at = self._clock.now()
        ttl_ms = group.config.lock_duration_ms
        ordered = sorted(entries, key=lambda entry: entry.first)
        renewed = yield from self._quorum.renew(
            place.key,
            [LeaseEntry(entry.first, entry.last, entry.lease) for entry in ordered],
            ttl_ms,
        )
        if renewed.verdict is Verdict.REFUSED:
            return not_held(ordered[0].asked, member)
        if renewed.verdict is Verdict.UNKNOWN:
            return _unknown(ordered[0].asked)
        until = self._quorum.expiry(asked_at, ttl_ms)
        with self._lock:
            for entry in ordered:
                entry.until = until
                entry.counts = entry.counts or [
                    CountedRange(
                        max(part.first, entry.first), min(part.last, entry.last), part.count
                    )
                    for part in renewed.counts
                    if part.first <= entry.last and entry.first <= part.last
                ]
                place.state.renew(entry.first, entry.last, entry.lease, until)
        return None

    def _bury(
        self, group: ShareGroup, place: Place, entries: Sequence[Entry], member: str
    ) -> Steps[None]:
        """Write dead letters, and prove meanwhile that the leases still hold."""
        letters = [letter for entry in entries for letter in _letters(group, place, entry)]
        pending = None
        error: WingsError | None = None
        try:
            pending = self._begin_letters(group, letters)
        except WingsError as refused:
            error = refused
        if error is None:
            error = yield from self._prove(group, place, entries, member)
        if error is None and pending is not None:
            error = yield FinishDeadLetters(pending)
        for entry in entries:
            entry.error = error

    def _begin_letters(
        self, group: ShareGroup, letters: Sequence[DeadLetter]
    ) -> PendingDeadLetters | None:
        if group.config.dlq_topic is None or self._dead_letters is None:
            return None
        return self._dead_letters.begin(group, letters)

    def _finish(
        self,
        place: Place,
        accepted: Sequence[Entry],
        given_up: Sequence[Entry],
        limit: int,
        member: str,
    ) -> Steps[None]:
        """Write the tombstones of what was accepted, and of what was given up."""
        entries = [*accepted, *given_up]
        if not entries:
            return
        tombs = sorted(
            (
                LeaseEntry(part.first, part.last, entry.lease)
                for entry in entries
                for part in _final_parts(entry, limit)
            ),
            key=_first,
        )
        until = min(entry.until for entry in entries)
        verdict = yield from self._quorum.tombstone(
            place.key, tombs, until, place.state.start_offset
        )
        with self._lock:
            for entry in entries if verdict is Verdict.DONE else ():
                for part in _final_parts(entry, limit):
                    archived = entry.asked.type != "accept"
                    place.state.finish(part.first, part.last, archived=archived)
        for entry in entries:
            if verdict is Verdict.UNKNOWN:
                entry.error = _unknown(entry.asked)
            elif verdict is Verdict.REFUSED:
                entry.error = not_held(entry.asked, member)

    def _release(
        self, place: Place, entries: Sequence[Entry], limit: int, member: str
    ) -> Steps[None]:
        releases = sorted(
            (
                ReleaseEntry(part.first, part.last, entry.lease, part.count, entry.asked.delay_ms)
                for entry in entries
                for part in entry.counts
                if part.count < limit
            ),
            key=_first,
        )
        verdict = yield from self._quorum.release(place.key, releases)
        now = self._clock.now()
        with self._lock:
            for release in releases:
                until = now + release.delay_ms / 1_000 if release.delay_ms else 0.0
                place.state.release(release.first, release.last, release.lease, until)
                place.state.learn(release.first, release.last, release.count)
        for entry in entries:
            if verdict is Verdict.UNKNOWN:
                entry.error = entry.error or _unknown(entry.asked)
            elif verdict is Verdict.REFUSED:
                entry.error = entry.error or not_held(entry.asked, member)

    def _give_up_exhausted(
        self, group: ShareGroup, place: Place, entries: Sequence[Entry]
    ) -> Steps[None]:
        """Give up what met the limit; what cannot be now is tried again when its hold ends."""
        yield from self._bury(group, place, entries, "")
        failed = next((entry.error for entry in entries if entry.error is not None), None)
        if failed is None:
            yield from self._finish(place, (), entries, 0, "")
            failed = next((entry.error for entry in entries if entry.error is not None), None)
        if failed is None:
            return
        _logger.warning("messages at the delivery limit stay: %s", failed.message)
        delay_ms = int(GIVE_UP_SECONDS * 1_000)
        releases = [
            ReleaseEntry(entry.first, entry.last, entry.lease, 0, delay_ms) for entry in entries
        ]
        yield from self._quorum.release(place.key, sorted(releases, key=_first))
        with self._lock:
            until = self._clock.now() + GIVE_UP_SECONDS
            for entry in entries:
                place.state.release(entry.first, entry.last, entry.lease, until)

    def give_up(self, group: ShareGroup, partition: Partition, bounds: Bounds) -> Steps[None]:
        """Give up what is at the limit in a loaded partition, and hand out nothing.

        Raises:
            Unavailable: No majority answered.
        """
        place = self._place(group, partition)
        with self._lock:
            place.state.advance(self._clock.now(), bounds.start)
            picks = place.state.select_exhausted(group.config.delivery_limit)
            lease = self._next_lease("")
        if picks:
            yield from self._hold(group, place, picks, lease)

    def exhausted_places(self, group: ShareGroup) -> list[Partition]:
        """Return the loaded partitions that may have something at the limit to give up."""
        with self._lock:
            limit = group.config.delivery_limit
            return [
                partition
                for partition, place in self._places.get(group.uuid, {}).items()
                if place.state.next_event(self._clock.now()) == 0
                or place.state.has_exhausted(limit)
            ]

    def _place(self, group: ShareGroup, partition: Partition) -> Place:
        place = self._places.get(group.uuid, {}).get(partition)
        if place is None:
            raise GroupNotFound(f"there is no group {group.name} any more")
        return place

    def _next_lease(self, member: str) -> Lease:
        self._leases += 1
        return Lease(self.id, self._leases, member_tag(member))


def _key(group: ShareGroup, partition: Partition) -> ShareKey:
    return ShareKey(group.uuid, group.topic.uuid, partition)


def _first(entry: Pick | LeaseEntry | ReleaseEntry) -> int:
    return entry.first


def _learn(state: SharePartition, known: Known) -> None:
    if known.start_offset > state.start_offset:
        state.finish(state.start_offset, known.start_offset - 1)
    for tomb in known.finished:
        state.finish(tomb.first, tomb.last)
    for counted in known.counts:
        state.learn(counted.first, counted.last, counted.count)


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


def _final_parts(entry: Entry, limit: int) -> list[CountedRange]:
    """Return the parts of an entry that are finished by it."""
    if entry.asked.type != "release":
        return [CountedRange(entry.first, entry.last, 0)]
    # A hold of what met the limit is no delivery: all of it goes.
    return [part for part in entry.counts if part.count >= limit]


def _letters(group: ShareGroup, place: Place, entry: Entry) -> list[DeadLetter]:
    rejected = entry.asked.type == "reject"
    limit = group.config.delivery_limit
    return [
        DeadLetter(
            group.topic.name,
            place.key.partition,
            part.first,
            part.last,
            part.count,
            "rejected" if rejected else "delivery_limit",
            entry.asked.reason,
        )
        for part in entry.counts
        if rejected or part.count >= limit
    ]


def _expired(place: Place, counted: CountedRange) -> Acknowledgement:
    """Return what stands for the acknowledgement that never came."""
    return Acknowledgement(place.key.partition, counted.first, counted.last, "", "release")


def _unknown(asked: Acknowledgement) -> Unavailable:
    return Unavailable(
        f"it is unknown whether messages {asked.first} to {asked.last} were settled: too few of "
        "the replicas of holds answered",
        in_doubt=True,
    )
