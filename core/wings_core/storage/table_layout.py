"""The partitioning of a topic's Iceberg table, as configured by `table_partition_by`.

    table_partition_by ::= transform ("," transform)*
    transform          ::= ("hour" | "day" | "month" | "year") "(" "__timestamp" ")"
                         | "identity" "(" key ")"
                         | ("bucket" | "truncate") "(" width "," key ")"

All rows of a table's file have the same value of each transform. Wings' files have the rows of one
partition in order of offset: so transforms of the key hold anyway, and those of the timestamp,
which never decreases, if files end with the hour, day, month or year. Other columns would need a
copy.
"""

import re
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

import pyarrow as pa

from wings_core.errors import InvalidArgument
from wings_core.model import Location, Topic, TopicConfig
from wings_core.storage.parquet_file import TABLE_MARK, TIMESTAMP_COLUMN

Period = Callable[[int], tuple[int, ...]]
"""Returns the hour, day, month or year of a timestamp in microseconds since the epoch, in UTC."""

UNITS = ("year", "month", "day", "hour")
"""Transforms of the timestamp, from coarse to fine."""

WIDTH_MAX = 2**31 - 1
"""Greatest width of buckets and truncated values: Iceberg's int."""

_TRANSFORM = re.compile(r"\s*([a-z]+)\s*\(\s*(?:(\d{1,10})\s*,\s*)?(.+?)\s*\)\s*")
_SEPARATOR = re.compile(r"(?<=\))\s*,")


@dataclass(frozen=True, slots=True)
class Transform:
    """One field of a table's partition specification."""

    name: str
    """Iceberg's name, without the width."""
    width: int | None
    column: str

    def __str__(self) -> str:
        """Return Iceberg's notation: `day`, `bucket[16]`."""
        return self.name if self.width is None else f"{self.name}[{self.width}]"


def transforms_of(topic: Topic) -> tuple[Transform, ...]:
    """Return the transforms that a topic's table is partitioned by; empty for an unpartitioned one.

    Raises:
        InvalidArgument: A transform is malformed, duplicate, or not of the key or the timestamp.
    """
    text = topic.config.table_partition_by
    if text is None:
        return ()
    found = [_transform(part, topic) for part in _SEPARATOR.split(text)]
    columns = [(each.name in UNITS, each.column) for each in found]
    if len(set(columns)) < len(columns):
        raise _problem(f"{text[:80]!r} transforms a column twice")
    return tuple(found)


def check_layout(topic: Topic, before: TopicConfig | None = None) -> None:
    """Check that a topic's table can be partitioned as configured.

    Args:
        topic: The topic with its configuration.
        before: The previous configuration; None for a new topic.

    Raises:
        InvalidArgument: See `transforms_of`; or the table has another partitioning already.
    """
    config = topic.config
    transforms_of(topic)
    if before is not None and before.table_partition_by == config.table_partition_by:
        return  # Unchanged, which is allowed even if the topic no longer has a table.
    if config.table_partition_by is not None and config.table is None:
        raise _problem("the topic has no table")
    if before is not None and before.table is not None and config.table is not None:
        raise _problem(
            f"the table has {before.table_partition_by!r:.80} already: to change it, set `table` "
            "to null first; the table is then created again"
        )


@dataclass(frozen=True, slots=True)
class TableLayout:
    """Properties that the files of a table share."""

    mark: str
    """Mark in their names; files without it do not belong to the table, or have another layout."""
    period: Period | None
    """Period that all rows of a file must share; None for no such restriction."""

    def has(self, folio: str) -> bool:
        """Return whether a file of pages was written for this layout."""
        return f"{self.mark}." in folio

    def ends_between(self, before: Location, after: Location) -> bool:
        """Return whether a file must end between neighbouring pages."""
        ended = self.period
        return ended is not None and ended(before.timestamp) != ended(after.earliest_timestamp)


def layout_of(topic: Topic) -> TableLayout | None:
    """Return the layout of a topic's table; None if it has no table."""
    config = topic.config
    if config.table is None:
        return None
    return _layout_of(config.table_partition_by)


@lru_cache(maxsize=1_000)
def _layout_of(partition_by: str | None) -> TableLayout:
    """Return the layout for `partition_by`, which was validated with the topic."""
    if partition_by is None:
        return TableLayout(TABLE_MARK, None)
    matches = map(_TRANSFORM.fullmatch, _SEPARATOR.split(partition_by))
    names = {match[1] for match in matches if match is not None}
    finest = max((UNITS.index(name) for name in UNITS if name in names), default=None)
    mark = f"{TABLE_MARK}{zlib.crc32(partition_by.encode()):08x}"
    return TableLayout(mark, None if finest is None else _periods(finest + 1))


def runs_of(rows: pa.RecordBatch, period: Period | None) -> Iterator[pa.RecordBatch]:
    """Split rows at the ends of periods; their last column holds non-decreasing timestamps."""
    times = rows.column(rows.num_columns - 1).cast(pa.int64())
    start = 0
    while start < rows.num_rows:
        end = rows.num_rows
        if period is not None:
            now = period(times[start].as_py())

            def of(row: int, period: Period = period) -> tuple[int, ...]:
                return period(times[row].as_py())

            end = start + bisect_right(range(start, end), now, key=of)
        yield rows.slice(start, end - start)
        start = end


def _transform(text: str, topic: Topic) -> Transform:
    match = _TRANSFORM.fullmatch(text)
    if match is None:
        raise _problem(
            f"{text[:80]!r} is no transform such as `day(__timestamp)` or `bucket(16, KEY)`"
        )
    name, width, column = match.groups()
    if name in UNITS:
        if column != TIMESTAMP_COLUMN or width is not None:
            raise _problem(f"{name} applies to {TIMESTAMP_COLUMN}: {name}({TIMESTAMP_COLUMN})")
        return Transform(name, None, column)
    if name not in {"identity", "bucket", "truncate"}:
        raise _problem(
            f"{name[:80]!r} is no transform: identity, bucket, truncate, year, month, day, hour"
        )
    if column != topic.partition_key:
        key = "it has none" if topic.partition_key is None else repr(topic.partition_key)
        raise _problem(f"{name} applies to the partition key ({key}); got {column[:80]!r}")
    if (width is None) is not (name == "identity"):
        raise _problem(f"{text[:80]!r}: bucket and truncate take a width, identity takes none")
    if width is not None and not 1 <= int(width) <= WIDTH_MAX:
        raise _problem(f"{text[:80]!r}: the width must be from 1 to {WIDTH_MAX}")
    if pa.types.is_boolean(topic.schema.field(column).type) and name != "identity":
        raise _problem(f"{text[:80]!r}: a boolean has no such transform")
    return Transform(name, None if width is None else int(width), column)


@lru_cache
def _periods(count: int) -> Period:
    def period(timestamp: int) -> tuple[int, ...]:
        # Whole seconds: the microseconds of a float would be rounded.
        return datetime.fromtimestamp(timestamp // 1_000_000, UTC).timetuple()[:count]

    return period


def _problem(text: str) -> InvalidArgument:
    return InvalidArgument(f"table_partition_by: {text}")
