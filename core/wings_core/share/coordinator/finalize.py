"""Finalizer: renews leases, writes dead letters, finishes and releases, at a majority.

It is what leasing, settling and archiving have in common. The entries of an acknowledge request in
one partition come to it checked and sorted; what a hold did not get goes back by it. What is
decided before a step may have been overtaken after it, by an expiry or by another thread; so after
each step only what still is as it was left is changed, and the replicas have the last word.
"""

import itertools
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from wings_core.errors import InvalidArgument, InvalidRecordState, Unavailable, WingsError
from wings_core.model import Lease, LeasedRange, ShareGroup, member_tag
from wings_core.partitions import Partition
from wings_core.share.coordinator.partitions import (
    READ_AGAIN_SECONDS,
    PartitionTable,
    TrackedPartition,
)
from wings_core.share.model import (
    Acknowledgement,
    ArchivedRange,
    Clock,
    DeadLetterSink,
    OffsetRange,
    PendingDeadLetters,
)
from wings_core.share.quorum.quorum import TRIES_MAX, HoldQuorum
from wings_core.share.quorum.votes import Verdict, learn
from wings_core.share.replica.requests import (
    CountedRange,
    FinishDeadLetters,
    LeaseEntry,
    Procedure,
    ReleaseEntry,
)
from wings_core.share.state.partition import Pick
from wings_core.share.state.ranges import merged

DEAD_LETTERS_MAX = 2_000
"""Messages whose dead letters are written between two looks at the leases."""

DEAD_LETTER_WRITE_MS = 2
"""Time allowed for the writing of a letter, so that no piece outlasts a short lock."""

BACK_OFF_SECONDS = (0.02, 1.0)
"""The pause after messages were found to be held by others: at first, and after many times."""

COLLISIONS_READ_MAX = 3
"""Collisions in a row after each of which holds are read; later ones twice a second at most."""

OFFSET_MAX = 1 << 62
"""No message has a later offset, and replicas refuse to be asked about one."""

_logger = logging.getLogger(__name__)

_Ranged = TypeVar("_Ranged", CountedRange, ArchivedRange)


@dataclass(slots=True)
class SettleEntry:
    """One acknowledgement of a partition, cut to what the log still has."""

    asked: Acknowledgement
    first: int
    last: int
    lease: Lease
    until: float = 0.0
    """When its lease is over."""
    counts: list[CountedRange] = field(default_factory=list)
    """Deliveries of its parts, the present one included."""
    gone: bool = False
    """Wholly below the log's start."""
    error: WingsError | None = None

    def exhausted(self, limit: int) -> bool:
        """Tell whether a release archives at least a part of it."""
        if self.asked.type != "release" or not self.asked.counts:
            return False
        return any(part.count >= limit for part in self.counts)


@dataclass(frozen=True, slots=True, eq=False)
class Finalizer:
    """The steps that acknowledging and archiving share.

    Args:
        table: The partitions.
        quorum: The majority of the replicas.
        dead_letters: None: no group has any.
        clock: The clock of leases.
        rng: For back-off.
        changed: Called with a group's UUID and a partition that may have something available.
        archived: Called with a group's UUID and how many of its messages were archived.

    Both are called outside the lock.
    """

    _table: PartitionTable
    _quorum: HoldQuorum
    _dead_letters: DeadLetterSink | None
    _clock: Clock
    _rng: random.Random
    _changed: Callable[[str, Partition], None]
    _archived: Callable[[str, int], None]

    def prove(
        self,
        group: ShareGroup,
        tracked: TrackedPartition,
        entries: Sequence[SettleEntry],
        member: str,
    ) -> Procedure[WingsError | None]:
        """Renew leases at a majority; returns why they do not hold."""
        asked_at = self._clock.now()
        ttl_ms = group.config.lock_duration_ms
        ordered = sorted(entries, key=lambda entry: entry.first)
        renewed = yield from self._quorum.renew(
            tracked.key,
            [LeaseEntry(entry.first, entry.last, entry.lease) for entry in ordered],
            ttl_ms,
        )
        if renewed.verdict is Verdict.REFUSED:
            return not_held(ordered[0].asked, member)
        if renewed.verdict is Verdict.UNKNOWN:
            return unknown(ordered[0].asked)
        until = self._quorum.expiry(asked_at, ttl_ms)
        with self._table.lock:
            for entry in ordered:
                entry.until = until
                entry.counts = entry.counts or [
                    CountedRange(
                        max(part.first, entry.first), min(part.last, entry.last), part.count
                    )
                    for part in renewed.counts
                    if part.first <= entry.last and entry.first <= part.last
                ]
                tracked.state.renew(entry.first, entry.last, entry.lease, until)
        return None

    def write_dead_letters(
        self,
        group: ShareGroup,
        tracked: TrackedPartition,
        entries: Sequence[SettleEntry],
        proved: Sequence[SettleEntry],
        member: str,
    ) -> Procedure[WingsError | None]:
        """Write the dead letters of entries, and prove before and after it that leases hold.

        Args:
            group: With its configuration as it is now.
            tracked: The partition.
            entries: Entries that are rejected or at the delivery limit.
            proved: Entries whose leases are proved; `entries` among them.
            member: The member that holds them.

        Returns:
            Why nothing may be finished.
        """
        letters = [letter for entry in entries for letter in _letters(group, tracked, entry)]
        of_pieces = pieces(group, letters)
        try:
            pending = self._begin_next(group, of_pieces)
            error = yield from self.prove(group, tracked, proved, member)
            while error is None and pending is not None:
                ahead = self._begin_next(group, of_pieces)
                error = yield FinishDeadLetters(pending)
                if error is None and not self._is_fresh(group, proved):
                    error = yield from self.prove(group, tracked, proved, member)
                pending = ahead
        except WingsError as refused:
            return refused
        return error

    def tombstone(
        self,
        tracked: TrackedPartition,
        held: Sequence[LeaseEntry],
        until: float,
        *,
        tries: int = TRIES_MAX,
    ) -> Procedure[Verdict]:
        """Write the tombstones of what leases hold, in order of offset: of all, or none.

        Args:
            tracked: The partition.
            held: The finished ranges, with their leases.
            until: When the first of the leases is over.
            tries: How often replicas are asked that do not answer.
        """
        verdict = yield from self._quorum.tombstone(
            tracked.key, held, until, tracked.state.start_offset, tries=tries
        )
        if verdict is Verdict.DONE:
            with self._table.lock:
                for each in held:
                    tracked.state.finish(each.first, each.last)
        return verdict

    def finish(
        self,
        tracked: TrackedPartition,
        accepted: Sequence[SettleEntry],
        to_archive: Sequence[SettleEntry],
        limit: int,
        member: str,
    ) -> Procedure[WingsError | None]:
        """Write the tombstones of accepted and of archived entries: of all, or none.

        Returns:
            Why they are not written; `Unavailable` where it is unknown whether they are.
        """
        entries = [*accepted, *to_archive]
        if not entries:
            return None
        tombs = sorted(
            (
                LeaseEntry(part.first, part.last, entry.lease)
                for entry in entries
                for part in _final_parts(entry, limit)
            ),
            key=lambda tomb: tomb.first,
        )
        until = min(entry.until for entry in entries)
        verdict = yield from self.tombstone(tracked, tombs, until)
        if verdict in {Verdict.UNKNOWN, Verdict.DISPUTED}:
            return unknown(entries[0].asked)
        if verdict is Verdict.REFUSED:
            return not_held(entries[0].asked, member)
        archived = [part for entry in to_archive for part in _final_parts(entry, limit)]
        messages = sum(part.last - part.first + 1 for part in archived)
        self._archived(tracked.key.group_uuid, messages)
        return None

    def retire(
        self, tracked: TrackedPartition, retired: Sequence[tuple[int, int]]
    ) -> Procedure[None]:
        """Tell the replicas what retention has passed; one that misses it learns it later."""
        try:
            yield from self._quorum.repair(
                tracked.key, [OffsetRange(*gone) for gone in sorted(retired)]
            )
        except WingsError as error:
            _logger.warning("retired messages stay on the replicas: %s", error.message)

    def release(
        self, tracked: TrackedPartition, releases: Sequence[ReleaseEntry]
    ) -> Procedure[list[Verdict]]:
        """Release ranges that do not overlap; returns the outcome of each, in their order."""
        verdicts = yield from self._quorum.release(tracked.key, releases)
        now = self._clock.now()
        with self._table.lock:
            for release in releases:
                until = now + release.delay_ms / 1_000 if release.delay_ms else 0.0
                first, last, counts = release.first, release.last, release.count > 0
                tracked.state.release(first, last, release.lease, until, counts=counts)
                if counts:
                    tracked.state.learn(first, last, release.count)
        return verdicts

    def release_undelivered(
        self, tracked: TrackedPartition, lease: Lease, ranges: Iterable[OffsetRange | CountedRange]
    ) -> Procedure[None]:
        """Release ranges that never reached their member, uncounted."""
        releases = [ReleaseEntry(each.first, each.last, lease, 0) for each in ranges]
        yield from self.release(tracked, releases)
        self._changed(tracked.key.group_uuid, tracked.key.partition)

    def retry_seconds(self, group: ShareGroup, partition: Partition) -> float:
        """Return the seconds after which to ask again for messages that seem to be available.

        0: at once, as not all messages asked for last were held by others.
        """
        with self._table.lock:
            tracked = self._table.find(group, partition)
            return self._pause(tracked) if tracked is not None and tracked.collisions else 0.0

    def put_back(self, tracked: TrackedPartition, picks: Iterable[Pick]) -> None:
        """Make messages that were not held available again, and tell those who saw them pending."""
        with self._table.lock:
            self.put_off(tracked, [(pick.first, pick.last, 0.0) for pick in picks])
        self._changed(tracked.key.group_uuid, tracked.key.partition)

    def is_overtaken(self, group: ShareGroup, tracked: TrackedPartition) -> bool:
        """Tell whether a partition is to be read again: then others may have made room in it.

        It is not for a while after this has told so.
        """
        with self._table.lock:
            now = self._clock.now()
            if (
                self._quorum.is_local
                or tracked.state.in_flight < group.config.window
                or now < tracked.read_at + tracked.read_again_seconds
            ):
                return False
            tracked.read_at = now
            if group.config.is_ordered:
                # Every partition that is worked on is full, and most are not settled elsewhere.
                again = min(READ_AGAIN_SECONDS[1], 2 * tracked.read_again_seconds)
                tracked.read_again_seconds = again
            return True

    def put_off(self, tracked: TrackedPartition, ranges: Iterable[tuple[int, int, float]]) -> None:
        """Make ranges that others hold available after a pause, which grows; the lock is held."""
        now, pause = self._clock.now(), self._pause(tracked)
        for first, last, retry_seconds in ranges:
            wait = min(pause, retry_seconds) if retry_seconds else pause
            tracked.state.unpick(first, last, 0, now + wait)

    def put_off_taken(self, group: ShareGroup, tracked: TrackedPartition) -> Procedure[bool]:
        """Put off what others hold or have delayed, for a second, if replicas tell of it.

        Returns:
            Whether they told of some, which leaves room for more.
        """
        partition, longest = tracked.key.partition, BACK_OFF_SECONDS[1]
        with self._table.lock:
            now = self._clock.now()
            # What the last read put off may be asked for again after half of that time.
            if (
                tracked.collisions > COLLISIONS_READ_MAX
                and now < tracked.held_read_at + longest / 2
            ):
                return False
            tracked.held_read_at = now
        try:
            held, delayed = yield from self._quorum.taken(group.uuid, partition)
        except WingsError:
            return False
        most = longest * self._rng.uniform(0.5, 1.5)
        with self._table.lock:
            now = self._clock.now()
            for some in (held, delayed):
                left = ((each.first, each.last, min(most, each.left_ms / 1_000)) for each in some)
                for first, last, seconds in merged(left):
                    tracked.state.put_off(first, last, now + seconds)
        messages = sum(each.last - each.first + 1 for each in held)
        return bool(held or delayed) and messages < group.config.in_flight_max

    def _pause(self, tracked: TrackedPartition) -> float:
        least, most = BACK_OFF_SECONDS
        return min(most, least * 2 ** min(tracked.collisions, 16)) * self._rng.uniform(0.5, 1.5)

    def catch_up(self, group: ShareGroup, tracked: TrackedPartition) -> Procedure[None]:
        """Learn what other coordinators have finished in a partition, if replicas answer."""
        try:
            read = yield from self._quorum.read(
                group.uuid, group.topic.uuid, [tracked.key.partition]
            )
        except WingsError:
            return
        with self._table.lock:
            learn(tracked.state, read[tracked.key.partition])

    def is_leased(self, group: ShareGroup, leased: LeasedRange) -> bool:
        """Tell whether a lease that was given here is not over."""
        with self._table.lock:
            tracked = self._table.find(group, leased.partition)
            if tracked is None:
                return False
            first, last, lease = leased.start_offset, leased.end_offset, Lease.parse(leased.lease)
            return bool(tracked.state.held(first, last, lease, self._clock.now()))

    def _is_fresh(self, group: ShareGroup, proved: Sequence[SettleEntry]) -> bool:
        """Tell whether leases have more than half of the lock before them."""
        half_seconds = group.config.lock_duration_ms / 2_000
        return self._clock.now() + half_seconds < min(entry.until for entry in proved)

    def _begin_next(
        self, group: ShareGroup, of_pieces: Iterator[list[ArchivedRange]]
    ) -> PendingDeadLetters | None:
        piece = next(of_pieces, None)
        if piece is None or group.config.dlq_topic is None or self._dead_letters is None:
            return None
        return self._dead_letters.begin(group, piece)


def pieces(group: ShareGroup, ranges: Iterable[_Ranged]) -> Iterator[list[_Ranged]]:
    """Divide ranges, in order, into lists of as many messages as are to be buried at a time."""
    most = min(DEAD_LETTERS_MAX, group.config.lock_duration_ms // DEAD_LETTER_WRITE_MS)
    piece: list[_Ranged] = []
    room = most
    for each in ranges:
        first = each.first
        while first <= each.last:
            last = min(each.last, first + room - 1)
            piece.append(replace(each, first=first, last=last))
            room -= last - first + 1
            first = last + 1
            if room == 0:
                yield piece
                piece, room = [], most
    if piece:
        yield piece


def _final_parts(entry: SettleEntry, limit: int) -> list[CountedRange]:
    """Return the parts of an entry that are finished by it."""
    if entry.asked.type != "release":
        return [CountedRange(entry.first, entry.last, 0)]
    # A hold of what met the limit is no delivery: all of it goes.
    return [part for part in entry.counts if part.count >= limit]


def _letters(
    group: ShareGroup, tracked: TrackedPartition, entry: SettleEntry
) -> list[ArchivedRange]:
    rejected = entry.asked.type == "reject"
    limit = group.config.delivery_limit
    return [
        ArchivedRange(
            group.topic.name,
            tracked.key.partition,
            part.first,
            part.last,
            part.count,
            "rejected" if rejected else "delivery_limit",
            entry.asked.reason,
        )
        for part in entry.counts
        if rejected or part.count >= limit
    ]


def entries_of(
    asked: Sequence[Acknowledgement], member: str, log_start: int
) -> list[SettleEntry] | WingsError:
    """Check what needs no state: ranges, leases, whose they are.

    Returns:
        The entries in the order given, or why all of them fail.
    """
    tag = member_tag(member)
    entries: list[SettleEntry] = []
    for acknowledgement in asked:
        first, last = acknowledgement.first, acknowledgement.last
        if not 0 <= first <= last:
            return InvalidArgument(f"offsets {first} to {last} are no range")
        gone = last < log_start
        if gone:
            # Whatever it was held with: retention has finished it.
            entries.append(SettleEntry(acknowledgement, first, last, Lease("", 0, ""), gone=True))
            continue
        try:
            lease = Lease.parse(acknowledgement.lease)
        except InvalidArgument:
            lease = None  # To a worker, what leases look like is nothing.
        if lease is None or lease.member_tag != tag or last > OFFSET_MAX:
            return not_held(acknowledgement, member)
        entries.append(SettleEntry(acknowledgement, max(first, log_start), last, lease))
    return overlap(entries) or entries


def not_held(asked: Acknowledgement, member: str) -> InvalidRecordState:
    """Return the error for what a member does not hold with the lease that it named."""
    return InvalidRecordState(
        f"messages {asked.first} to {asked.last} of partition {asked.partition:.80} are not held "
        f"by {member:.80} with lease {asked.lease:.80}; nothing of the partition was changed",
        first=asked.first,
        last=asked.last,
    )


def not_released(
    asked: Acknowledgement, member: str, verdict: Verdict, *, alone: bool
) -> WingsError:
    """Return the error for what was not released.

    Args:
        asked: The acknowledgement.
        member: The member that asked.
        verdict: The outcome of the release.
        alone: Whether nothing else of the request was done.
    """
    if verdict is Verdict.UNKNOWN:
        return unknown(asked)
    if alone:
        return not_held(asked, member)
    return InvalidRecordState(
        f"messages {asked.first} to {asked.last} of partition {asked.partition:.80} are not held "
        f"by {member:.80} any more; what else was asked for in the request is answered for by "
        "itself",
        first=asked.first,
        last=asked.last,
    )


def not_tried(asked: Acknowledgement) -> Unavailable:
    """Return the error for what was left alone as something else of the request had failed."""
    return Unavailable(
        f"messages {asked.first} to {asked.last} stay held: too few of the replicas of holds "
        "answered to acknowledge others of the request"
    )


def unknown(asked: Acknowledgement) -> Unavailable:
    """Return the error for what may have been done."""
    return Unavailable(
        f"it is unknown whether messages {asked.first} to {asked.last} were acknowledged: too few "
        "of the replicas of holds answered",
        in_doubt=True,
    )


def overlap(entries: Sequence[SettleEntry]) -> InvalidRecordState | None:
    """Return the error of entries of which two have a message in common, if there are such."""
    ordered = sorted((entry for entry in entries if not entry.gone), key=lambda entry: entry.first)
    for before, after in itertools.pairwise(ordered):
        if after.first <= before.last:
            return InvalidRecordState(
                f"messages {after.first} to {min(before.last, after.last)} are acknowledged twice "
                "in one request; nothing of the partition was changed"
            )
    return None
