"""Converts a caller's data to batches of a topic's schema, cut to a size."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa

from wings_client._model import Topic
from wings_client._rows import (
    Row,
    batch_of_columns,
    batch_of_rows,
    frame_table,
    is_pandas,
    mapping_of_object,
)
from wings_client.arrow import RecordBatch
from wings_core.arrow_compute import pc
from wings_core.cast import Caster
from wings_core.contracts.messages import shortened
from wings_core.errors import InvalidArgument

BATCH_ROWS = 65_536
"""Rows of one batch by default."""

BATCH_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of one batch; a single larger row is sent alone."""

BATCH_PARTITIONS_MAX = 10_000
"""Most partitions that one batch may touch, as the server bounds it."""

Data = object
"""The types that `Client.push` accepts."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The bounds of one batch."""

    rows_max: int = BATCH_ROWS
    bytes_max: int = BATCH_BYTES_MAX
    key: str | None = None
    """The column whose values are counted as partitions; None where all rows go to one."""

    @classmethod
    def of(cls, topic: Topic, rows_max: int, *, routed: bool) -> "Cut":
        """Return the bounds for a topic.

        Args:
            topic: The topic that the batches are pushed to.
            rows_max: Rows of one batch.
            routed: Whether the server finds each row's partition.
        """
        configured = topic.config.get("batch_bytes_max")
        bytes_max = configured if isinstance(configured, int) else BATCH_BYTES_MAX
        return cls(
            rows_max=rows_max,
            bytes_max=min(BATCH_BYTES_MAX, bytes_max),
            key=topic.partition_key if routed else None,
        )


def to_batches(data: Data, schema: pa.Schema, cut: Cut) -> Iterator[RecordBatch]:
    """Yield data as batches of a topic's schema, none of them empty.

    Lazy: a reader or an iterable is read as batches are asked for.

    Raises:
        SchemaMismatch: A column or value does not fit; raised when its batch is asked for.
        InvalidArgument: `data`, or an item of it, is of no type that can be pushed.
    """
    if isinstance(data, pa.RecordBatch) and data.num_rows == 1 and data.schema.equals(schema):
        return iter((cast("RecordBatch", data),))
    return _converted(data, schema, cut)


def _converted(data: Data, schema: pa.Schema, cut: Cut) -> Iterator[RecordBatch]:
    for batch in _conform(data, schema, cut, "data"):
        for piece in _pieces(batch, cut):
            if piece.num_rows:
                yield cast("RecordBatch", piece)


def _conform(data: Data, schema: pa.Schema, cut: Cut, argument: str) -> Iterator[pa.RecordBatch]:
    """Yield data as batches of the schema, of any size."""
    data = _collected(data)
    if isinstance(data, pa.RecordBatch):
        yield Caster(data.schema, schema).cast(data)
    elif isinstance(data, pa.Table):
        yield from _conform_table(data, schema, cut)
    elif is_pandas(data, "DataFrame"):
        yield from _conform_table(frame_table(data, schema), schema, cut)
    elif hasattr(data, "__arrow_c_stream__"):
        with _opened(data, argument) as reader:
            caster = Caster(reader.schema, schema)
            for batch in reader:
                yield caster.cast(batch)
    elif hasattr(data, "__arrow_c_array__"):
        batch = pa.record_batch(cast("Any", data))
        yield Caster(batch.schema, schema).cast(batch)
    elif isinstance(data, Mapping):
        yield _of_columns(cast("Mapping[str, object]", data), schema, argument)
    elif (row := mapping_of_object(data)) is not None:
        yield batch_of_rows([row], schema)
    elif isinstance(data, Iterable) and not isinstance(data, (str, bytes, bytearray, type)):
        yield from _conform_items(cast("Iterable[object]", data), schema, cut, argument)
    else:
        raise _not_pushed(data, argument)


def _opened(data: Any, argument: str) -> pa.RecordBatchReader:
    try:
        return pa.RecordBatchReader.from_stream(data)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        if "Cannot import schema" not in str(error):
            raise InvalidArgument(
                shortened(f"{argument}: cannot push this {type(data).__name__}: {error}")
            ) from None
        raise InvalidArgument(  # A column of pandas, Polars or Arrow.
            f"{argument}: cannot push a {type(data).__name__}, which has no columns: expected a "
            "table or a data frame, or a mapping of the column's name to it"
        ) from None


def _not_pushed(data: object, argument: str) -> InvalidArgument:
    name = f"class {data.__name__}" if isinstance(data, type) else type(data).__name__
    return InvalidArgument(
        f"{argument}: cannot push a {name}: expected a table, a batch, a reader, a data frame, "
        "anything with the Arrow PyCapsule interface, columns as a mapping of names to values, a "
        "row (a pydantic model, a dataclass or a NamedTuple), or an iterable of these or of rows "
        "as mappings"
    )


def _of_columns(given: Mapping[str, object], schema: pa.Schema, argument: str) -> pa.RecordBatch:
    for name, values in given.items():
        # A str is of characters, so a row would become as many rows as it has of them.
        if isinstance(values, (str, bytes, bytearray)) or not isinstance(values, Iterable):
            raise InvalidArgument(
                f"{argument}[{name!r:.80}]: expected the values of a column, got a "
                f"{type(values).__name__}; push one row as a list of it: [row]"
            )
    return batch_of_columns(cast("Mapping[str, Iterable[Any]]", given), schema)


def _conform_table(table: pa.Table, schema: pa.Schema, cut: Cut) -> Iterator[pa.RecordBatch]:
    """Yield a table in full batches, joining small chunks."""
    caster = Caster(table.schema, schema)
    for start in range(0, table.num_rows, cut.rows_max):
        for batch in table.slice(start, cut.rows_max).combine_chunks().to_batches():
            yield caster.cast(batch)


def _conform_items(
    items: Iterable[object], schema: pa.Schema, cut: Cut, argument: str
) -> Iterator[pa.RecordBatch]:
    """Yield the items of an iterable: rows, or tables and batches."""
    rows: list[Row] = []
    taken = 0
    for index, item in enumerate(items):
        row = _row_of(item)
        if row is not None:
            rows.append(row)
            if len(rows) < cut.rows_max:
                continue
        if rows:
            yield batch_of_rows(rows, schema, taken)
            taken += len(rows)
            rows = []
        if row is None:
            yield from _conform(item, schema, cut, f"{argument}[{index}]")
    if rows:
        yield batch_of_rows(rows, schema, taken)


def _row_of(item: object) -> Row | None:
    """Return a row of an iterable as a mapping; None for what is of many rows, or none."""
    if isinstance(item, Mapping):
        return cast("Row", item)
    if isinstance(item, pa.RecordBatch) or hasattr(item, "__arrow_c_stream__"):
        return None
    return None if hasattr(item, "__arrow_c_array__") else mapping_of_object(item)


def _pieces(batch: pa.RecordBatch, cut: Cut) -> Iterator[pa.RecordBatch]:
    """Cut a batch by rows, then into halves until each is within the bounds."""
    if batch.num_rows > cut.rows_max:
        for start in range(0, batch.num_rows, cut.rows_max):
            yield from _pieces(batch.slice(start, cut.rows_max), cut)
    elif batch.num_rows > 1 and not _fits(batch, cut):
        half = batch.num_rows // 2
        yield from _pieces(batch.slice(0, half), cut)
        yield from _pieces(batch.slice(half), cut)
    else:
        yield batch


def _fits(batch: pa.RecordBatch, cut: Cut) -> bool:
    if batch.nbytes > cut.bytes_max:
        return False
    if cut.key is None or batch.num_rows <= BATCH_PARTITIONS_MAX:
        return True
    partitions = pc.count_distinct(batch.column(cut.key), mode="all").as_py()
    return partitions <= BATCH_PARTITIONS_MAX


def _collected(data: Data) -> Data:
    """Return the data frame that a lazy one of Polars stands for; all else as it is."""
    lazy = getattr(sys.modules.get("polars"), "LazyFrame", None)
    return cast("Any", data).collect() if lazy is not None and isinstance(data, lazy) else data
