"""What producers' batches got, and the form in which that is stored: JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring

from pydantic import TypeAdapter

from wings_core.model import CommittedRange

RESULTS_KEPT_MAX = 64
"""A producer's repeat is answered with its first result while it is among its last this many."""


@dataclass(slots=True)  # Not frozen, which would take three times as long to make.
class Series:
    """What batches of a producer got whose sequences count up: one batch, or several."""

    sequence: int
    """Of the last."""
    committed: tuple[CommittedRange, ...]
    """Of several, the one range that they share, in their order."""
    rows: tuple[int, ...] = ()
    """Of each of several; none: it is one batch."""

    @property
    def first(self) -> int:
        """The sequence of the first."""
        return self.sequence + 1 - (len(self.rows) or 1)

    @staticmethod
    def of(last: int, committed: tuple[CommittedRange, ...], rows: tuple[int, ...]) -> "Series":
        """Return a series without those of its batches that will not be asked for."""
        if len(rows) > RESULTS_KEPT_MAX:
            rows = rows[-RESULTS_KEPT_MAX:]
            (whole,) = committed
            start = whole.end_offset + 1 - sum(rows)
            committed = (CommittedRange(whole.partition, start, whole.end_offset, whole.timestamp),)
        return Series(last, committed, rows)

    def batches(self) -> Iterator[tuple[int, tuple[CommittedRange, ...]]]:
        """Yield the sequence of each batch, and what it got."""
        if not self.rows:
            yield self.sequence, self.committed
            return
        (whole,) = self.committed
        start = whole.start_offset
        for number, rows in enumerate(self.rows, self.first):
            end = start + rows - 1
            yield number, (CommittedRange(whole.partition, start, end, whole.timestamp),)
            start = end + 1

    def result(self, sequence: int) -> tuple[CommittedRange, ...] | None:
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
            CommittedRange(each.partition, each.start_offset, each.end_offset, each.timestamp)
            for each in stored
        )
        return Series(sequence, committed, stored[0].rows if stored else ())


@dataclass(slots=True)
class _StoredRange(CommittedRange):
    rows: tuple[int, ...] = ()


_STORED = TypeAdapter(tuple[_StoredRange, ...])


def ranges_to_json(committed: Sequence[CommittedRange]) -> str:
    """Return what a batch got, to be stored; formatted by hand, as it is once for each batch."""
    ranges = [
        f'{{"partition":{encode_basestring(each.partition)},"start_offset":{each.start_offset},'
        f'"end_offset":{each.end_offset},"timestamp":{each.timestamp}}}'
        for each in committed
    ]
    return f"[{','.join(ranges)}]"
