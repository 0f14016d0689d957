"""Repeats: what stores keep, as JSON, to answer a repeated flush or batch with its first result.

A store keeps the last flush of each writer, in the transaction of its commit: a writer begins its
next flush only when it will not retry this one. A repeated flush gets its first results, and one
that arrives after a later flush of its writer is rejected.

A producer numbers its batches, or rows by partition, as Kafka's idempotent producers number them
(KIP-98): then a batch names the number of its first row, and the next batch goes on after its last
row. An epoch fences the producer's earlier lives.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from json.encoder import encode_basestring
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from wings_core.errors import InvalidArgument, OutOfOrderSequence, PublishFenced, error_from_json
from wings_core.metadata.checks import check_id
from wings_core.model import (
    Accepted,
    AssignedRange,
    CommitBatch,
    CommitResult,
    FlushId,
    PartitionSequence,
    Rejected,
    SeriesResults,
    StagedBatch,
    shares,
)

RESULTS_KEPT_MAX = 64
"""A producer's repeat is answered with its first result while it is among its last this many."""


@dataclass(slots=True)  # Not frozen, which would take three times as long to make.
class Series:
    """Result of batches of a producer whose sequences count up: one batch, or several."""

    sequence: int
    """Sequence of the last batch."""
    committed: tuple[AssignedRange, ...]
    """Committed ranges; several batches share them, in their order."""
    rows: tuple[int, ...] = ()
    """Rows of each of several batches; empty for one batch."""

    @property
    def first(self) -> int:
        """The sequence of the first."""
        return self.sequence + 1 - (len(self.rows) or 1)

    @staticmethod
    def of(last: int, committed: tuple[AssignedRange, ...], rows: tuple[int, ...]) -> "Series":
        """Return a series without those of its batches that will not be asked for."""
        if len(rows) > RESULTS_KEPT_MAX:
            rows = rows[-RESULTS_KEPT_MAX:]
            committed = _last_of(committed, sum(rows))
        return Series(last, committed, rows)

    def batches(self) -> Iterator[tuple[int, tuple[AssignedRange, ...]]]:
        """Yield the sequence of each batch, and what it got."""
        if not self.rows:
            yield self.sequence, self.committed
            return
        for number, own in enumerate(shares(self.committed, self.rows), self.first):
            yield number, (own,)

    def result(self, sequence: int) -> tuple[AssignedRange, ...] | None:
        """Return what the batch of a sequence got; None: it is not of this series."""
        return next((committed for number, committed in self.batches() if number == sequence), None)

    def before(self, sequence: int) -> "Series | None":
        """Return the batches before a sequence; None if there are none."""
        kept = [ranges for number, ranges in self.batches() if number < sequence]
        if len(kept) < 2 or not self.rows:
            return Series(self.first, kept[0]) if kept else None
        committed = tuple([own for (own,) in kept])
        return Series(self.first + len(kept) - 1, committed, self.rows[: len(kept)])

    def to_json(self) -> str:
        """Return what is stored of it beside its sequence."""
        if not self.rows:
            return ranges_to_json(self.committed)
        return f'{ranges_to_json(self.committed)[:-2]},"rows":[{",".join(map(str, self.rows))}]}}]'

    def rows_of_batches(self) -> list[tuple[int, str]]:
        """Return what is stored of it, by sequence: a row for each batch if they are spread."""
        if self.rows and len(self.committed) > 1:
            return [(number, ranges_to_json(committed)) for number, committed in self.batches()]
        return [(self.sequence, self.to_json())]

    @staticmethod
    def from_json(sequence: int, text: str) -> "Series":
        """Return what was stored of a series, whose last batch has this sequence."""
        stored = _ranges().validate_json(text)
        committed = tuple(
            AssignedRange(each.partition, each.start_offset, each.end_offset, each.timestamp)
            for each in stored
        )
        return Series(sequence, committed, stored[-1].rows if stored else ())


def _last_of(committed: Sequence[AssignedRange], rows: int) -> tuple[AssignedRange, ...]:
    """Return the last rows of ranges."""
    kept: list[AssignedRange] = []
    for each in reversed(committed):
        start = max(each.start_offset, each.end_offset + 1 - rows)
        kept.append(AssignedRange(each.partition, start, each.end_offset, each.timestamp))
        rows -= each.end_offset + 1 - start
        if rows == 0:
            break
    return tuple(reversed(kept))


@dataclass(slots=True)
class _StoredRange(AssignedRange):
    rows: tuple[int, ...] = ()


# Adapters are built by their first use: together they would take 2 % of a server's start.
_ranges = cache(partial(TypeAdapter[tuple[_StoredRange, ...]], tuple[_StoredRange, ...]))


def ranges_to_json(committed: Sequence[AssignedRange]) -> str:
    """Return what a batch got, to be stored; formatted by hand, as it is once for each batch."""
    ranges = [
        f'{{"partition":{encode_basestring(each.partition)},"start_offset":{each.start_offset},'
        f'"end_offset":{each.end_offset},"timestamp":{each.timestamp}}}'
        for each in committed
    ]
    return f"[{','.join(ranges)}]"


FLUSHES_KEPT_US = 24 * 3600 * 1_000_000
"""A writer's last flush is forgotten when it is older than this, in microseconds: far longer than
any writer retries, so that the table is bounded by the writers of a day."""

_results = cache(partial(TypeAdapter[list[dict[str, Any]]], list[dict[str, Any]]))
_accepted = cache(partial(TypeAdapter[Accepted], Accepted))
_staged = cache(partial(TypeAdapter[StagedBatch], StagedBatch))


def is_repeat(flush_id: FlushId, last_number: int | None) -> bool:
    """Tell whether a flush repeats its writer's last one.

    Args:
        flush_id: Id of the flush to commit.
        last_number: Number of the writer's last flush; None where none is remembered.

    Raises:
        InvalidArgument: It is older than that one.
    """
    if last_number is None or flush_id.number > last_number:
        return False
    if flush_id.number == last_number:
        return True
    raise InvalidArgument(
        f"flush {flush_id.number} came after flush {last_number} of the same writer: "
        "it was abandoned, and is not committed"
    )


def dump_results(results: Sequence[CommitResult]) -> str:
    """Return the results of a flush as JSON, to be stored."""
    return _results().dump_json([_dump(result) for result in results]).decode()


def load_results(stored: str) -> list[CommitResult]:
    """Return what `dump_results` was given; errors keep code, message and facts."""
    return [_load(entry) for entry in _results().validate_json(stored)]


def _dump(result: CommitResult) -> dict[str, Any]:
    match result:
        case Accepted():
            return {"accepted": _accepted().dump_python(result, mode="json")}
        case StagedBatch():
            return {"staged": _staged().dump_python(result, mode="json")}
        case Rejected(error):
            return {"error": error.to_json()}
        case SeriesResults(each):
            return {"series": [_dump(one) for one in each]}


def _load(entry: dict[str, Any]) -> CommitResult:
    if "accepted" in entry:
        return _accepted().validate_python(entry["accepted"])
    if "staged" in entry:
        return _staged().validate_python(entry["staged"])
    if "series" in entry:
        return SeriesResults(tuple([_load(one) for one in entry["series"]]))
    return Rejected(error_from_json(entry["error"]))


SEQUENCES = 1 << 31
"""Numbers of rows; after the greatest one comes 0."""

EPOCHS = 1 << 31

BATCHES_KEPT = 5
"""Last batches of a producer in a partition whose repeats are recognised."""


_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
"""Shared encoder; `json.dumps` would construct one for each call."""


class NumberedBatch(NamedTuple):
    """An accepted batch."""

    first: int
    """Number of its first row."""
    rows: int
    start_offset: int | None
    """None for a staged batch."""
    timestamp: int


@dataclass(slots=True)
class SequenceDraft:
    """A producer's numbers in a partition as they will be after the batches judged so far."""

    stored: str | None = None
    """The stored form, that of `to_json`; None for nothing, or nothing that still counts."""
    epoch: int = 0
    batches: list[NumberedBatch] = field(default_factory=list[NumberedBatch])
    """Its last batches, at most `BATCHES_KEPT`."""
    changed: bool = False

    @classmethod
    def from_json(cls, text: str) -> "SequenceDraft":
        """Return the draft of what `to_json` wrote."""
        epoch, *batches = json.loads(text)
        return cls(text, epoch, [NumberedBatch(*each) for each in batches])

    def to_json(self) -> str:
        """Return the form in which stores keep it."""
        return _encode([self.epoch, *self.batches])

    def replayed(self, sequence: PartitionSequence, rows: int) -> NumberedBatch | None:
        """Return the batch that a batch of so many rows repeats, None for the next one.

        Raises:
            PublishFenced: The epoch is an earlier one.
            OutOfOrderSequence: The batch is neither the next one nor one of the last ones. Of an
                unknown producer any batch is the next, of a new epoch only one that begins at 0.
        """
        if not self.batches:
            return None
        if sequence.epoch < self.epoch:
            raise PublishFenced(
                f"producer {sequence.producer_id!r:.80} is at epoch {self.epoch}, not "
                f"{sequence.epoch}",
                epoch=self.epoch,
            )
        last = self.batches[-1]
        expected = (last.first + last.rows) % SEQUENCES if sequence.epoch == self.epoch else 0
        if sequence.epoch == self.epoch:
            for batch in self.batches:
                if (batch.first, batch.rows) == (sequence.first, rows):
                    return batch
        if sequence.first != expected:
            raise OutOfOrderSequence(
                f"sequence {sequence.first} of producer {sequence.producer_id!r:.80} is out of "
                f"order: the next is {expected}",
                expected_sequence=expected,
                sequence=sequence.first,
            )
        return None

    def add(self, sequence: PartitionSequence, batch: NumberedBatch) -> None:
        """Note an accepted batch, whose epoch may be a new one."""
        if sequence.epoch != self.epoch:
            self.epoch, self.batches = sequence.epoch, []
        self.batches = [*self.batches[1 - BATCHES_KEPT :], batch]
        self.changed = True


def range_of(batch: CommitBatch, first: NumberedBatch) -> AssignedRange:
    """Return the first result of a repeated batch.

    Raises:
        OutOfOrderSequence: It was staged.
    """
    start, partition = first.start_offset, batch.pages[0].partition
    if start is None:
        raise OutOfOrderSequence(f"the batch with sequence {first.first} was staged")
    return AssignedRange(partition, start, start + first.rows - 1, first.timestamp)


def check_sequence(batch: CommitBatch, sequence: PartitionSequence) -> None:
    """Check that a batch can have a sequence by partition.

    Raises:
        InvalidArgument: It has no rows, or of several partitions, or other conditions; or a number
            is out of range.
    """
    check_id("producer_id", sequence.producer_id)
    if len({page.partition for page in batch.pages}) != 1:
        raise InvalidArgument("a batch with a sequence by partition has rows of one partition")
    if batch.sequence is not None or batch.expected is not None:
        raise InvalidArgument("a batch with a sequence by partition has no other condition")
    if not (0 <= sequence.first < SEQUENCES and 0 <= sequence.epoch < EPOCHS):
        raise InvalidArgument(
            f"{sequence.first} at epoch {sequence.epoch} is not a sequence: expected 0 to "
            f"{SEQUENCES - 1}"
        )
