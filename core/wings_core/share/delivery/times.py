"""Times: when the messages of a range are to be delivered, by a column of their topic."""

from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from wings_core.errors import InvalidArgument
from wings_core.fetch.fetcher import Fetcher
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.model import Topic
from wings_core.partitions import Partition
from wings_core.share.delivery.record_fetcher import LogSource, RecordFetcher
from wings_core.suggestions import suggested

_TICKS_US = {"s": 1_000_000, "ms": 1_000, "us": 1}
_INT64_MAX = (1 << 63) - 1

_compute = cast("Any", pc)  # The stubs do not know the functions used.


def check_column(topic: Topic, column: str) -> None:
    """Refuse a column that has no times.

    Raises:
        InvalidArgument: The topic has no such column, or it is no timestamp.
    """
    index = topic.schema.get_field_index(column)
    if index < 0:
        hint = suggested(column, topic.schema.names)
        raise InvalidArgument(
            f"config.deliver_at_column: topic {topic.name} has no column {column!r:.80}{hint}"
        )
    kind = topic.schema.field(index).type
    if not pa.types.is_timestamp(kind):
        raise InvalidArgument(
            f"config.deliver_at_column: column {column!r:.80} is {kind}, and no timestamp"
        )


class LogTimes:
    """Reads the times of messages from a log; from any thread.

    Args:
        fetcher: Reads it.
        registry: Knows where it ends.
    """

    def __init__(self, fetcher: Fetcher, registry: OffsetRegistry) -> None:
        self._fetcher = fetcher
        self._registry = registry

    def __call__(
        self, topic: Topic, partition: Partition, column: str, first: int, last: int
    ) -> pa.Int64Array:
        """Return the times of `[first, last]`, one each, in microseconds since the epoch.

        Null where the value is, where the row is gone or damaged, and for all of a topic without
        the column: what cannot be known must not be held back for ever. Blocks for the reads.

        Raises:
            WingsError: They cannot be read for now.
        """
        if topic.schema.get_field_index(column) < 0:
            return pa.nulls(last - first + 1, pa.int64())
        records = RecordFetcher(LogSource(self._fetcher, self._registry, [column]))
        try:
            found = records.collect(topic, partition, first, last)
        finally:
            records.close()
        if found.error is not None:
            raise found.error
        pieces: list[pa.Array[Any]] = []
        at = first
        for batch in found.batches:
            offsets = cast("pa.Int64Array", batch.column("__offset"))
            begin, end = offsets[0].as_py(), offsets[-1].as_py()
            if end - begin + 1 != len(offsets):
                raise AssertionError("rows of a log have no gaps")
            pieces += [pa.nulls(begin - at, pa.int64()), microseconds(batch.column(column))]
            at = end + 1
        pieces.append(pa.nulls(last + 1 - at, pa.int64()))
        return cast("pa.Int64Array", pa.concat_arrays(pieces))


def microseconds(times: "pa.Array[Any]") -> pa.Int64Array:
    """Return timestamps as microseconds since the epoch, rounded up; those without a zone are UTC.

    Beyond what 64 bits hold it is the last moment that they do.
    """
    unit = str(times.type.unit)
    ticks = times.cast(pa.int64())
    if unit == "ns":
        down = _compute.divide(ticks, 1_000)  # Rounds towards zero.
        above = _compute.greater(_compute.subtract(ticks, _compute.multiply(down, 1_000)), 0)
        return _compute.add(down, above.cast(pa.int64()))
    each = _TICKS_US[unit]
    most = _INT64_MAX // each
    bounded = _compute.max_element_wise(
        _compute.min_element_wise(ticks, most, skip_nulls=False), -most, skip_nulls=False
    )
    return _compute.multiply(bounded, each)
