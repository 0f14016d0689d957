"""Settle: members' acknowledgements, all or none of those of a request in one partition.

    check ─▶ prove the leases, dead letters ─▶ tombstones ─▶ releases

All that can be refused is refused before anything is changed. Where replicas fail on the way, each
entry is answered for by itself: what was finished is never told to have failed, nor the reverse.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wings_core.errors import InvalidRecordState, WingsError
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.model import PartitionState, ShareGroup
from wings_core.partitions import Partition
from wings_core.share.coordinator.finalize import (
    Finalizer,
    SettleEntry,
    entries_of,
    not_held,
    not_released,
    not_tried,
    overlap,
    unknown,
)
from wings_core.share.coordinator.partitions import (
    PartitionTable,
    ReadyPartitions,
    TrackedPartition,
)
from wings_core.share.model import Acknowledgement, Clock
from wings_core.share.quorum.quorum import TRIES_MAX, Runner
from wings_core.share.quorum.votes import Verdict
from wings_core.share.replica.requests import CountedRange, LeaseEntry, Procedure, ReleaseEntry
from wings_core.share.state.ranges import merged

SettleRequest = tuple[str, Sequence[Acknowledgement]]
"""A member, and its acknowledgements."""


@dataclass(frozen=True, slots=True, eq=False)
class Settling:
    """The procedure by which acknowledgements are carried out.

    Args:
        coordinator: The id in the leases that were given here.
        table: The partitions.
        finalizer: Carries out the decisions.
        clock: The clock of leases.
        changed: Called with a group's UUID and a partition when it may have something available.
    """

    _coordinator: str
    _table: PartitionTable
    _finalizer: Finalizer
    _clock: Clock
    _changed: Callable[[str, Partition], None]

    def run(
        self,
        group: ShareGroup,
        log: PartitionState,
        requests: Sequence[SettleRequest],
    ) -> Procedure[list[list[WingsError | None]]]:
        """Settle messages of a loaded partition, each request as if it came alone.

        Args:
            group: The group, with its configuration as it is now.
            log: The log of the partition of all entries.
            requests: The entries of each. Requests that only accept messages leased by this
                coordinator share a tombstone.

        Returns:
            The error of each entry, or None, by request.
        """
        tracked = self._table.get(group, log.partition)
        with self._table.lock:
            tracked.state.advance(self._clock.now(), log.log_start_offset)
            was_full = tracked.state.is_full
            held = [self._accepted(tracked, member, asked, log) for member, asked in requests]
        entries = [entry for found in held for entry in found]
        if overlap(entries):
            held, entries = [[] for _ in requests], []  # Twice the same: one by one.
        together = Verdict.REFUSED
        if entries:
            together = yield from self._accept(tracked, entries)
        # Where a majority answered, another of those that take part may be the cause.
        alone = together is Verdict.DISPUTED and sum(map(bool, held)) > 1
        errors: list[list[WingsError | None]] = []
        for (member, asked), found in zip(requests, held, strict=True):
            verdict = together if found else Verdict.REFUSED
            if alone and found:  # Who does not answer was waited for already.
                verdict = yield from self._accept(tracked, found, tries=1)
            if verdict is Verdict.REFUSED:
                # By itself: why, and whether another kept it from being done.
                errors.append((yield from self._settle(group, log, member, asked)))
            elif verdict is Verdict.DONE:
                errors.append([None] * len(asked))
            else:
                errors.append([unknown(entry) for entry in asked])
        self._tell_of_room(group, tracked, was_full=was_full)
        return errors

    def _accepted(
        self,
        tracked: TrackedPartition,
        member: str,
        asked: Sequence[Acknowledgement],
        log: PartitionState,
    ) -> list[SettleEntry]:
        """Return the entries of a request that accepts what leases given here hold; else none."""
        if any(each.type != "accept" for each in asked):
            return []
        checked = entries_of(asked, member, log.log_start_offset)
        if isinstance(checked, WingsError):
            return []
        for entry in checked:
            is_own = entry.lease.coordinator == self._coordinator
            if entry.gone or entry.first != entry.asked.first or not is_own:
                return []
        return [] if self._find(tracked, checked, member) else checked

    def _accept(
        self, tracked: TrackedPartition, entries: Sequence[SettleEntry], *, tries: int = TRIES_MAX
    ) -> Procedure[Verdict]:
        """Write one tombstone of entries; see `Finalizer.tombstone`."""
        in_order = sorted(entries, key=lambda each: each.first)
        # Neighbours of a lease are one, as of rows one by one.
        held = merged((each.first, each.last, each.lease) for each in in_order)
        tombs = [LeaseEntry(*each) for each in held]
        until = min(entry.until for entry in entries)
        return self._finalizer.tombstone(tracked, tombs, until, tries=tries)

    def _settle(
        self,
        group: ShareGroup,
        log: PartitionState,
        member: str,
        asked: Sequence[Acknowledgement],
    ) -> Procedure[list[WingsError | None]]:
        """Settle the entries of one request."""
        checked = entries_of(asked, member, log.log_start_offset)
        if isinstance(checked, WingsError):
            return [checked] * len(asked)
        tracked = self._table.get(group, log.partition)
        live = [entry for entry in checked if not entry.gone]
        foreign = [entry for entry in live if entry.lease.coordinator != self._coordinator]
        with self._table.lock:
            tracked.state.advance(self._clock.now(), log.log_start_offset)
            was_full = tracked.state.is_full
            self._end_holds(tracked, asked, log)
            retired = tracked.state.take_retired()
            error = self._find(tracked, live, member)
        if retired:
            yield from self._finalizer.retire(tracked, retired)
        if error is None and foreign:
            error = yield from self._finalizer.prove(group, tracked, foreign, member)
        if error is None:
            error = yield from self._finalize(group, tracked, live, foreign, member)
        if error is not None:
            self._tell_of_room(group, tracked, was_full=was_full)  # Retention may have made some.
            return [error] * len(asked)
        was_full = was_full or any(entry.asked.type == "release" for entry in live)
        self._tell_of_room(group, tracked, was_full=was_full)
        return [entry.error for entry in checked]

    def _tell_of_room(
        self, group: ShareGroup, tracked: TrackedPartition, *, was_full: bool
    ) -> None:
        """Tell that there may be room in the window, where a member found none."""
        with self._table.lock:
            makes_room = tracked.is_seen_full and tracked.state.in_flight < group.config.window
            tracked.is_seen_full = tracked.is_seen_full and not makes_room
        if was_full or makes_room:
            self._changed(group.uuid, tracked.key.partition)

    def _end_holds(
        self, tracked: TrackedPartition, asked: Sequence[Acknowledgement], log: PartitionState
    ) -> None:
        """Archive what retention has passed and a member is done with; the lock is held."""
        for acknowledgement in asked:
            last = min(acknowledgement.last, log.log_start_offset - 1)
            if acknowledgement.type != "renew" and acknowledgement.first <= last:
                tracked.state.retire(acknowledgement.first, last)

    def _find(
        self, tracked: TrackedPartition, entries: Sequence[SettleEntry], member: str
    ) -> WingsError | None:
        """Look the entries up whose leases were given here; the lock is held.

        Returns:
            The error of the first that is not held.
        """
        for entry in entries:
            is_own = entry.lease.coordinator == self._coordinator
            if is_own and not self._look_up(tracked, entry):
                return not_held(entry.asked, member)
        return None

    def _look_up(self, tracked: TrackedPartition, entry: SettleEntry) -> bool:
        """Note what is known of an entry; false where its lease does not hold all of it."""
        now = self._clock.now()
        held = tracked.state.held(entry.first, entry.last, entry.lease, now)
        for first, last, record in held:
            entry.until = min(entry.until or record.until, record.until)
            entry.counts.append(CountedRange(first, last, record.deliveries))
        return bool(held)

    def _finalize(
        self,
        group: ShareGroup,
        tracked: TrackedPartition,
        entries: Sequence[SettleEntry],
        proved: Sequence[SettleEntry],
        member: str,
    ) -> Procedure[WingsError | None]:
        """Finalize entries, some of which were proved; returns an error of all of them."""
        limit = group.config.delivery_limit
        accepted, to_archive, others = _by_end(entries, limit)
        # Tombstones are written together or not at all. With anything else among them, or several
        # of anything else, none may be refused any more when the first is done.
        together = len(entries) == 1 or len(accepted) == len(entries)
        renews = len(entries) == 1 and entries[0].asked.type == "renew"
        to_prove = entries if (renews or not together) and len(proved) < len(entries) else []
        error = None
        if to_archive:
            error = yield from self._finalizer.write_dead_letters(
                group, tracked, to_archive, to_prove or to_archive, member
            )
        elif to_prove:
            error = yield from self._finalizer.prove(group, tracked, to_prove, member)
        if error is not None:
            return error
        error = yield from self._finalizer.finish(tracked, accepted, to_archive, limit, member)
        if isinstance(error, InvalidRecordState):
            return error  # None of it was done.
        if error is not None:
            for entry in others:
                entry.error = not_tried(entry.asked)
            for entry in (*accepted, *to_archive):
                entry.error = unknown(entry.asked)
            return None
        yield from self._release(tracked, entries, limit, member)
        return None

    def _release(
        self, tracked: TrackedPartition, entries: Sequence[SettleEntry], limit: int, member: str
    ) -> Procedure[None]:
        """Release parts below the delivery limit, or uncounted; notes an error where it failed."""
        parts = [
            (entry, part)
            for entry in entries
            if entry.asked.type == "release"
            for part in entry.counts
            if part.count < limit or not entry.asked.counts
        ]
        if not parts:
            return
        verdicts = yield from self._finalizer.release(
            tracked,
            [
                ReleaseEntry(
                    part.first,
                    part.last,
                    entry.lease,
                    part.count if entry.asked.counts else 0,
                    entry.asked.delay_ms,
                )
                for entry, part in parts
            ],
        )
        alone = not any(verdict is Verdict.DONE for verdict in verdicts) and all(
            entry.asked.type == "release" for entry in entries
        )
        for (entry, _), verdict in zip(parts, verdicts, strict=True):
            if verdict is not Verdict.DONE and entry.error is None:
                entry.error = not_released(entry.asked, member, verdict, alone=alone)


@dataclass(slots=True, eq=False)
class _Part:
    """The entries of one request in one partition, and their errors."""

    member: str
    partition: Partition
    entries: list[Acknowledgement] = field(default_factory=list[Acknowledgement])
    errors: Sequence[WingsError | None] = ()

    @property
    def accepts(self) -> bool:
        """Whether all entries are acceptances."""
        return all(entry.type == "accept" for entry in self.entries)

    def fail(self, error: WingsError) -> None:
        """Let all entries fail."""
        self.errors = [error] * len(self.entries)


@dataclass(frozen=True, slots=True, eq=False)
class Settles:
    """Carries out acknowledgements of many members and partitions, side by side.

    Args:
        registry: The log's index.
        indexes: The indexes of groups.
        table: The partitions.
        settling: The procedure.
        runner: Runs it.
    """

    _registry: OffsetRegistry
    _indexes: Mapping[str, ReadyPartitions]
    _table: PartitionTable
    _settling: Settling
    _runner: Runner

    def take(
        self,
        group: ShareGroup,
        requests: Sequence[SettleRequest],
        beside: Sequence[Procedure[Any]],
    ) -> tuple[list[list[WingsError | None]], Sequence[Any]]:
        """Settle messages of a group, and run other procedures at the same time.

        Args:
            group: The group as it is now.
            requests: The requests.
            beside: The procedures of acquires.

        Returns:
            The errors by request, in the order of its entries, and the outcomes of `beside`.
        """
        parts = _parts(requests)
        logs = self._logs(group, parts.values())
        outcomes = self._carry_out(group, parts.values(), logs, beside)
        # Where retention has passed messages just now, they are acknowledged all the same.
        failed = [part for part in parts.values() if any(part.errors)]
        now = {part.partition: self._log(group, part.partition) for part in failed}
        moved = {each for each, log in now.items() if _place(log) != _place(logs[each])}
        if again := [part for part in failed if part.partition in moved]:
            self._carry_out(group, again, now, ())
        left = {key: iter(part.errors) for key, part in parts.items()}
        results = [
            [next(left[number, entry.partition]) for entry in entries]
            for number, (_, entries) in enumerate(requests)
        ]
        return results, outcomes

    def _logs(
        self, group: ShareGroup, parts: Collection[_Part]
    ) -> dict[Partition, PartitionState | WingsError]:
        """Return the logs of partitions: as of now, but where messages are only accepted."""
        recent: dict[Partition, bool] = {}
        for part in parts:
            recent[part.partition] = part.accepts and recent.get(part.partition, True)
        return {
            each: self._log(group, each, recent=is_enough) for each, is_enough in recent.items()
        }

    def _log(
        self, group: ShareGroup, partition: Partition, *, recent: bool = False
    ) -> PartitionState | WingsError:
        """Return where a partition's log stands, or why that is not known.

        Args:
            group: The group.
            partition: The partition.
            recent: Whether the place last heard of is enough, where there is one.
        """
        index = self._indexes.get(group.uuid) if recent else None
        known = None if index is None else index.known_state(partition)
        try:
            return known or self._registry.partition_state(group.topic.uuid, partition)
        except WingsError as error:
            return error

    def _carry_out(
        self,
        group: ShareGroup,
        parts: Collection[_Part],
        logs: Mapping[Partition, PartitionState | WingsError],
        beside: Sequence[Procedure[Any]],
    ) -> Sequence[Any]:
        """Settle parts, and note their errors; returns the outcomes of `beside`."""
        together = self._loaded(group, parts, logs)
        procedures: list[Procedure[Any]] = [
            self._settling.run(group, log, [(part.member, part.entries) for part in some])
            for log, some in together
        ]
        outcomes: Sequence[Any] = self._runner.run_all([*procedures, *beside])
        for (_, some), outcome in zip(together, outcomes, strict=False):
            for at, part in enumerate(some):
                if isinstance(outcome, WingsError):
                    part.fail(outcome)
                else:
                    part.errors = outcome[at]
        return outcomes[len(procedures) :]

    def _loaded(
        self,
        group: ShareGroup,
        parts: Collection[_Part],
        logs: Mapping[Partition, PartitionState | WingsError],
    ) -> list[tuple[PartitionState, list[_Part]]]:
        """Return the parts that can be settled, those together that may share a tombstone."""
        found: dict[tuple[Partition, int | None], tuple[PartitionState, list[_Part]]] = {}
        for number, part in enumerate(parts):
            log = logs[part.partition]
            if isinstance(log, WingsError):
                part.fail(log)
            elif log.next_offset == 0:  # Never written to; nothing is kept of it.
                part.fail(not_held(part.entries[0], part.member))
            else:
                key = part.partition, None if part.accepts else number
                found.setdefault(key, (log, []))[1].append(part)
        if all(self._table.find(group, partition) for partition, _ in found):
            return list(found.values())
        try:
            self._runner.run(self._table.load(group, list({each: None for each, _ in found})))
        except WingsError as error:
            for _, some in found.values():
                for part in some:
                    part.fail(error)
            return []
        return list(found.values())


def _place(log: PartitionState | WingsError) -> tuple[int, int] | None:
    """Return where a log begins, and its next offset; None where that is not known."""
    return None if isinstance(log, WingsError) else (log.log_start_offset, log.next_offset)


def _parts(requests: Sequence[SettleRequest]) -> dict[tuple[int, Partition], _Part]:
    """Divide requests by partition; the key's number is the request's."""
    parts: dict[tuple[int, Partition], _Part] = {}
    for number, (member, entries) in enumerate(requests):
        for entry in entries:
            part = parts.get((number, entry.partition))
            if part is None:
                part = parts[number, entry.partition] = _Part(member, entry.partition)
            part.entries.append(entry)
    return parts


def _by_end(
    entries: Sequence[SettleEntry], limit: int
) -> tuple[list[SettleEntry], list[SettleEntry], list[SettleEntry]]:
    """Divide entries into those accepted, those to archive, and the others."""
    accepted: list[SettleEntry] = []
    to_archive: list[SettleEntry] = []
    others: list[SettleEntry] = []
    for entry in entries:
        if entry.asked.type == "accept":
            accepted.append(entry)
        elif entry.asked.type == "reject" or entry.exhausted(limit):
            to_archive.append(entry)
        else:
            others.append(entry)
    return accepted, to_archive, others
