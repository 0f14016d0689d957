"""Results of flushes and of producers' batches, in the form in which stores keep them: JSON.

A store keeps the last flush of each writer, in the transaction of its commit: a writer begins its
next flush only when it will not retry this one. A repeated flush gets its first results, and one
that arrives after a later flush of its writer is rejected.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any

from pydantic import TypeAdapter

from wings_core.errors import InvalidArgument, error_from_json
from wings_core.model import (
    Accepted,
    AssignedRange,
    CommitResult,
    FlushId,
    Rejected,
    SeriesResults,
    StagedBatch,
)

RESULTS_KEPT_MAX = 64
"""A producer's repeat is answered with its first result while it is among its last this many."""


@dataclass(slots=True)  # Not frozen, which would take three times as long to make.
class Series:
    """Result of batches of a producer whose sequences count up: one batch, or several."""

    sequence: int
    """Sequence of the last batch."""
    committed: tuple[AssignedRange, ...]
    """Committed ranges; several batches share one, in their order."""
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
            (whole,) = committed
            start = whole.end_offset + 1 - sum(rows)
            committed = (AssignedRange(whole.partition, start, whole.end_offset, whole.timestamp),)
        return Series(last, committed, rows)

    def batches(self) -> Iterator[tuple[int, tuple[AssignedRange, ...]]]:
        """Yield the sequence of each batch, and what it got."""
        if not self.rows:
            yield self.sequence, self.committed
            return
        (whole,) = self.committed
        start = whole.start_offset
        for number, rows in enumerate(self.rows, self.first):
            end = start + rows - 1
            yield number, (AssignedRange(whole.partition, start, end, whole.timestamp),)
            start = end + 1

    def result(self, sequence: int) -> tuple[AssignedRange, ...] | None:
        """Return what the batch of a sequence got; None: it is not of this series."""
        return next((committed for number, committed in self.batches() if number == sequence), None)

    def to_json(self) -> str:
        """Return what is stored of it beside its sequence."""
        if not self.rows:
            return ranges_to_json(self.committed)
        return f'{ranges_to_json(self.committed)[:-2]},"rows":[{",".join(map(str, self.rows))}]}}]'

    @staticmethod
    def from_json(sequence: int, text: str) -> "Series":
        """Return what was stored of a series, whose last batch has this sequence."""
        stored = _STORED.validate_json(text)
        committed = tuple(
            AssignedRange(each.partition, each.start_offset, each.end_offset, each.timestamp)
            for each in stored
        )
        return Series(sequence, committed, stored[0].rows if stored else ())


@dataclass(slots=True)
class _StoredRange(AssignedRange):
    rows: tuple[int, ...] = ()


_STORED = TypeAdapter(tuple[_StoredRange, ...])


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

_ACCEPTED = TypeAdapter(Accepted)
_STAGED = TypeAdapter(StagedBatch)
_STORED_RESULTS: TypeAdapter[list[dict[str, Any]]] = TypeAdapter(list[dict[str, Any]])


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
    return _STORED_RESULTS.dump_json([_dump(result) for result in results]).decode()


def load_results(stored: str) -> list[CommitResult]:
    """Return what `dump_results` was given; errors keep code, message and facts."""
    return [_load(entry) for entry in _STORED_RESULTS.validate_json(stored)]


def _dump(result: CommitResult) -> dict[str, Any]:
    match result:
        case Accepted():
            return {"accepted": _ACCEPTED.dump_python(result, mode="json")}
        case StagedBatch():
            return {"staged": _STAGED.dump_python(result, mode="json")}
        case Rejected(error):
            return {"error": error.to_json()}
        case SeriesResults(each):
            return {"series": [_dump(one) for one in each]}


def _load(entry: dict[str, Any]) -> CommitResult:
    if "accepted" in entry:
        return _ACCEPTED.validate_python(entry["accepted"])
    if "staged" in entry:
        return _STAGED.validate_python(entry["staged"])
    if "series" in entry:
        return SeriesResults(tuple([_load(one) for one in entry["series"]]))
    return Rejected(error_from_json(entry["error"]))
