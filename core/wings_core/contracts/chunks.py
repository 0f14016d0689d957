"""The app_metadata of DoGet chunks: the ranges of a chunk, and the end of a stream.

Each chunk has one range in a stream of one partition, and a list of ranges in a stream of many.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, partial
from itertools import repeat
from operator import add, itemgetter
from typing import Any, NamedTuple, cast, overload

import pyarrow as pa
from pydantic_core import from_json

from wings_core.contracts.messages import to_bytes
from wings_core.partitions import JsonScalar, Partition


class EndReason(StrEnum):
    """Reasons for the end of a stream; the first that applies is reported."""

    MAX_MESSAGES = "max_messages"
    END_OFFSET = "end_offset"
    MIN_MESSAGES = "min_messages"
    DEADLINE = "deadline"


class ChunkRange(NamedTuple):
    """Offsets `[start_offset, end_offset]` of the log that a chunk covers.

    Rows dropped by a filter are in the range, but not in the chunk.
    """

    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class ChunkEnd:
    """The app_metadata of the last, empty chunk of a stream."""

    end: EndReason
    next_offset: int
    """Offset of the next read."""
    log_end_offset: int
    """Next offset to be assigned, as of the last look-up."""


class PartitionRange(NamedTuple):
    """Offsets `[start_offset, end_offset]` of one partition that a part of a chunk covers."""

    partition: JsonScalar
    """The partition value."""
    start_offset: int
    end_offset: int
    rows: int
    """Rows of the range in the chunk, after those of earlier ranges; fewer than offsets if a filter
    dropped some, 0 if it dropped all."""


class PartitionRanges(Sequence[PartitionRange]):
    """The ranges of a chunk of many partitions, in the order of its rows.

    Stored as columns: a chunk may have thousands of ranges, and most readers only need the offset
    reached in each partition.
    """

    def __init__(
        self,
        partitions: Sequence[JsonScalar],
        starts: Sequence[int],
        ends: Sequence[int],
        rows: Sequence[int],
        slots: Sequence[int] = (),
    ) -> None:
        self.slots = slots
        """Slots of the partitions, in a read of slots; else empty."""
        self._columns = (partitions, starts, ends, rows)

    @property
    def partitions(self) -> Sequence[JsonScalar]:
        """The partition value of each range."""
        return self._columns[0]

    @cached_property
    def reached(self) -> Mapping[JsonScalar, int]:
        """Next offset of each partition, by value."""
        partitions, _, ends, _ = self._columns
        return dict(zip(partitions, map(add, ends, repeat(1)), strict=True))

    def __len__(self) -> int:
        """The number of ranges."""
        return len(self._columns[0])

    def __iter__(self) -> Iterator[PartitionRange]:
        """Yield the ranges."""
        return map(_range_of, zip(*self._columns, strict=True))

    @overload
    def __getitem__(self, index: int) -> PartitionRange: ...
    @overload
    def __getitem__(self, index: slice) -> "PartitionRanges": ...
    def __getitem__(self, index: int | slice) -> "PartitionRange | PartitionRanges":
        """Return a range, or a slice of ranges."""
        columns: list[Any] = [cast("Any", column)[index] for column in self._columns]
        return PartitionRanges(*columns) if isinstance(index, slice) else PartitionRange(*columns)

    def __eq__(self, other: object) -> bool:
        """Return whether another sequence has the same ranges in the same order."""
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return list(self) == list(cast("Sequence[object]", other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Return the ranges as a list."""
        return repr(list(self))


def reached(ranges: Sequence[PartitionRange]) -> Mapping[JsonScalar, int]:
    """Return the next offset after the ranges of each partition, by value."""
    if isinstance(ranges, PartitionRanges):
        return ranges.reached
    return {each.partition: each.end_offset + 1 for each in ranges}


class PartitionEnd(NamedTuple):
    """Position of a stream of many partitions in one of them at its end."""

    partition: JsonScalar
    """The partition value."""
    next_offset: int
    """Offset of the next read."""
    log_end_offset: int
    """Next offset to be assigned, as of the last look-up."""


@dataclass(frozen=True, slots=True)
class ManyEnd:
    """The app_metadata of the last, empty chunk of a stream of many partitions."""

    end: EndReason
    partitions: Sequence[PartitionEnd]
    """Positions of all partitions read or requested."""


def chunk_metadata(start_offset: int, end_offset: int) -> bytes:
    """Return the metadata of a chunk of rows; both offsets inclusive."""
    # Formatted by hand for speed: it runs for each chunk, and contains only numbers.
    return b'{"start_offset": %d, "end_offset": %d}' % (start_offset, end_offset)


def end_metadata(end: EndReason, next_offset: int, log_end_offset: int) -> bytes:
    """Return the metadata of the last chunk."""
    return (
        f'{{"end": "{end}", "next_offset": {next_offset}, "log_end_offset": {log_end_offset}}}'
    ).encode("ascii")


def ranges_metadata(
    ranges: Iterable[tuple[Partition, int, int, int]], slots: Iterable[int] | None = None
) -> bytes:
    """Return the metadata of a chunk of many partitions.

    Args:
        ranges: Partition, first and last offset (both inclusive) and number of rows of each range,
            in the order of the rows.
        slots: Slot of the partition of each range; None: the read is not of slots.
    """
    ended = (
        zip(ranges, repeat("}"), strict=False)
        if slots is None
        else zip(ranges, [f', "slot": {slot}}}' for slot in slots], strict=True)
    )
    found = ", ".join(
        [
            f'{{"partition": {partition}, "start_offset": {start}, "end_offset": {end}, '
            f'"rows": {rows}{end_text}'
            for (partition, start, end, rows), end_text in ended
        ]
    )
    return f'{{"ranges": [{found}]}}'.encode()


def many_end_metadata(end: EndReason, partitions: Iterable[tuple[Partition, int, int]]) -> bytes:
    """Return the metadata of the last chunk of a stream of many partitions.

    Args:
        end: Reason for the end.
        partitions: Partition, next offset and log end offset of each partition.
    """
    found = ", ".join(
        [
            f'{{"partition": {partition}, "next_offset": {next_offset}, '
            f'"log_end_offset": {log_end_offset}}}'
            for partition, next_offset, log_end_offset in partitions
        ]
    )
    return f'{{"end": "{end}", "partitions": [{found}]}}'.encode()


_RANGE = re.compile(rb'\{"start_offset": (\d+), "end_offset": (\d+)\}')
"""Pattern of `chunk_metadata`'s results."""


def parse_chunk_metadata(raw: "bytes | pa.Buffer") -> ChunkRange | ChunkEnd:
    """Parse the metadata of a chunk of one partition, or of the last chunk."""
    text = to_bytes(raw)
    # This runs for each chunk; matching takes a fifth of the time of parsing.
    usual = _RANGE.fullmatch(text)
    if usual is not None:
        return ChunkRange(int(usual[1]), int(usual[2]))
    found = json.loads(text)
    if "end" in found:
        return ChunkEnd(EndReason(found["end"]), found["next_offset"], found["log_end_offset"])
    return ChunkRange(found["start_offset"], found["end_offset"])


_FIRST_RANGE = re.compile(
    rb'\{"ranges": \[\{"partition": (?:[^",]+|"(?:[^"\\]|\\.)*"), '
    rb'"start_offset": \d+, "end_offset": \d+, "rows": \d+\}'
)
"""Pattern of the beginning of `ranges_metadata`'s results."""

_COLUMNS = itemgetter("partition", "start_offset", "end_offset", "rows")

_BETWEEN_VALUES = (
    b'}, {"partition": ',
    b', "start_offset": ',
    b', "end_offset": ',
    b', "rows": ',
)
"""Separators between values in that text. No JSON string contains them, since they have quotes."""

_range_of: Callable[[Iterable[object]], PartitionRange] = partial(tuple.__new__, PartitionRange)  # pyright: ignore[reportAssignmentType] - as `PartitionRange._make`, without a step of Python


def parse_many_metadata(raw: "bytes | pa.Buffer") -> PartitionRanges | ManyEnd:
    """Parse the metadata of a chunk of many partitions, or of the last chunk."""
    text = to_bytes(raw)
    # A chunk may have thousands of ranges: parsing a flat list takes a third of the time.
    if _FIRST_RANGE.match(text) is not None:
        values = text[len('{"ranges": [{"partition": ') : -len("}]}")]
        for between in _BETWEEN_VALUES:
            values = values.replace(between, b",")
        found = from_json(b"[%s]" % values)
        return PartitionRanges(found[::4], found[1::4], found[2::4], found[3::4])
    found = from_json(text)
    if "end" in found:
        partitions = [
            PartitionEnd(each["partition"], each["next_offset"], each["log_end_offset"])
            for each in found["partitions"]
        ]
        return ManyEnd(EndReason(found["end"]), partitions)
    ranges = list(map(_COLUMNS, found["ranges"]))
    columns = zip(*ranges, strict=True) if ranges else ((), (), (), ())
    slots = [each["slot"] for each in found["ranges"] if "slot" in each]
    return PartitionRanges(*columns, slots=slots)
