"""The app_metadata of DoGet chunks: the ranges that each covers, and why the stream ended.

A stream of one partition has a range in each chunk; one of many partitions has a list of them.
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
    """Why a stream ended: the first of these that holds."""

    MAX_MESSAGES = "max_messages"
    END_OFFSET = "end_offset"
    MIN_MESSAGES = "min_messages"
    DEADLINE = "deadline"


class ChunkRange(NamedTuple):
    """The offsets `[start_offset, end_offset]` of the log that a chunk covers.

    Rows that a filter dropped are in the range and not in the chunk.
    """

    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class ChunkEnd:
    """The app_metadata of the last chunk of a stream, which is empty."""

    end: EndReason
    next_offset: int
    """The offset of the next read."""
    log_end_offset: int
    """The next offset to be assigned, as of the last look at the log."""


class PartitionRange(NamedTuple):
    """The offsets `[start_offset, end_offset]` of one partition that a part of a chunk covers."""

    partition: JsonScalar
    """The partition value."""
    start_offset: int
    end_offset: int
    rows: int
    """So many rows of the chunk, after those of the ranges before it: less than the offsets where
    a filter dropped some, and 0 where it dropped all."""


class PartitionRanges(Sequence[PartitionRange]):
    """The ranges of a chunk of many partitions, in the order of its rows.

    Kept as columns: a chunk may have thousands, and most readers ask only how far each partition
    was read.
    """

    def __init__(
        self,
        partitions: Sequence[JsonScalar],
        starts: Sequence[int],
        ends: Sequence[int],
        rows: Sequence[int],
    ) -> None:
        self._columns = (partitions, starts, ends, rows)

    @cached_property
    def reached(self) -> Mapping[JsonScalar, int]:
        """The offset after those of each partition, by its value."""
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
        """Return a range, or some."""
        columns: list[Any] = [cast("Any", column)[index] for column in self._columns]
        return PartitionRanges(*columns) if isinstance(index, slice) else PartitionRange(*columns)

    def __eq__(self, other: object) -> bool:
        """Tell whether there are the same ranges in the same order in another sequence."""
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return list(self) == list(cast("Sequence[object]", other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Return them as a list."""
        return repr(list(self))


def reached(ranges: Sequence[PartitionRange]) -> Mapping[JsonScalar, int]:
    """Return the offset after ranges, by partition value."""
    if isinstance(ranges, PartitionRanges):
        return ranges.reached
    return {each.partition: each.end_offset + 1 for each in ranges}


class PartitionEnd(NamedTuple):
    """Where a stream of many partitions stands in one of them at its end."""

    partition: JsonScalar
    """The partition value."""
    next_offset: int
    """The offset of the next read."""
    log_end_offset: int
    """The next offset to be assigned, as of the last look at the log."""


@dataclass(frozen=True, slots=True)
class ManyEnd:
    """The app_metadata of the last chunk of a stream of many partitions, which is empty."""

    end: EndReason
    partitions: Sequence[PartitionEnd]
    """Each partition that was read or named."""


def chunk_metadata(start_offset: int, end_offset: int) -> bytes:
    """Return the metadata of a chunk of rows; both offsets inclusive."""
    # Formatted by hand: this runs once for each chunk, and holds nothing but numbers.
    return b'{"start_offset": %d, "end_offset": %d}' % (start_offset, end_offset)


def end_metadata(end: EndReason, next_offset: int, log_end_offset: int) -> bytes:
    """Return the metadata of the last chunk."""
    return (
        f'{{"end": "{end}", "next_offset": {next_offset}, "log_end_offset": {log_end_offset}}}'
    ).encode("ascii")


def ranges_metadata(ranges: Iterable[tuple[Partition, int, int, int]]) -> bytes:
    """Return the metadata of a chunk of many partitions.

    Args:
        ranges: Partition, first and last offset (both inclusive) and number of rows of each, in the
            order of the rows.
    """
    found = ", ".join(
        [
            f'{{"partition": {partition}, "start_offset": {start}, "end_offset": {end}, '
            f'"rows": {rows}}}'
            for partition, start, end, rows in ranges
        ]
    )
    return f'{{"ranges": [{found}]}}'.encode()


def many_end_metadata(end: EndReason, partitions: Iterable[tuple[Partition, int, int]]) -> bytes:
    """Return the metadata of the last chunk of a stream of many partitions.

    Args:
        end: Why it ended.
        partitions: Partition, next offset and log end offset of each.
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
"""As `chunk_metadata` writes it."""


def parse_chunk_metadata(raw: "bytes | pa.Buffer") -> ChunkRange | ChunkEnd:
    """Read the metadata of a chunk of one partition, or of the last one, as a server wrote it."""
    text = to_bytes(raw)
    # Ranges come once for each chunk; matching takes a fifth of the time of parsing.
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
"""As `ranges_metadata` writes it."""

_COLUMNS = itemgetter("partition", "start_offset", "end_offset", "rows")

_BETWEEN_VALUES = (
    b'}, {"partition": ',
    b', "start_offset": ',
    b', "end_offset": ',
    b', "rows": ',
)
"""What that has between two values. None is in a string that is JSON, as each has quotes."""

_range_of: Callable[[Iterable[object]], PartitionRange] = partial(tuple.__new__, PartitionRange)  # pyright: ignore[reportAssignmentType] - as `PartitionRange._make`, without a step of Python


def parse_many_metadata(raw: "bytes | pa.Buffer") -> PartitionRanges | ManyEnd:
    """Read the metadata of a chunk of many partitions, or of the last one."""
    text = to_bytes(raw)
    # A chunk may have thousands of ranges: a list of all values takes a third of the time.
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
    return PartitionRanges(*(zip(*ranges, strict=True) if ranges else ((), (), (), ())))
