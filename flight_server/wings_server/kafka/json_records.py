"""Records whose values are JSON objects, as rows of a topic's columns, by the rules of HTTP.

A record's key is the value of the topic's column `key`, where that is text or bytes. The time of a
record that is read is that of its commit; headers and times that producers state are dropped.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute
from kio.schema.errors import ErrorCode

from wings_core.errors import InvalidArgument
from wings_core.json_rows import decode_rows, object_columns
from wings_core.model import Topic
from wings_server.kafka.errors import KafkaError
from wings_server.kafka.record_types import Records
from wings_server.kafka.small_records import no_headers, values_of

pc: Any = pyarrow.compute  # Its stubs know no binary arrays in general.

KEY_COLUMN = "key"

_KEY_TYPES = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())
_SYSTEM_COLUMNS = 2
_DECODER = msgspec.json.Decoder(msgspec.Raw)


def rows_of(records: Records, partition: int, topic: Topic) -> pa.RecordBatch:
    """Return records as rows, which may have nulls in a column `key` that takes none.

    A null key leaves the value's own field.

    Raises:
        KafkaError: A value is not one object of the topic's columns; names the record.
    """
    texts: list[bytes] = []
    for index, value in enumerate(values_of(records.value)):
        try:
            if value is None:
                raise ValueError("a null value")
            _DECODER.decode(value)  # Else one could be the beginning or the end of another.
            texts.append(value)
        except (ValueError, RecursionError) as error:
            raise _refusal(f"row {index}: not a JSON object: {error}", index) from None
    schema, at = topic.schema, _key_of(topic.schema)
    if at is not None:
        schema = schema.set(at, schema.field(at).with_nullable(nullable=True))
    fill = {} if topic.partition_key is None else {topic.partition_key: str(partition)}
    try:
        rows = decode_rows(b"[%b]" % b",".join(texts), schema, fill)
    except InvalidArgument as error:
        raise of_row(error) from None
    columns: list[Any] = rows.columns
    if at is not None:
        try:
            given = records.key.cast(schema.field(at).type)
        except pa.ArrowInvalid:
            raise _refusal(f"column {KEY_COLUMN!r}: a record's key is not UTF-8", None) from None
        columns[at] = pc.coalesce(given, columns[at])
    return pa.RecordBatch.from_arrays(columns, schema=topic.schema)


def of_row(error: InvalidArgument) -> KafkaError:
    """Return the refusal of rows that do not fit; names the record where the error does."""
    return _refusal(error.message, error.facts.get("row"))


def records_of(rows: pa.RecordBatch) -> Iterator[Records]:
    """Yield rows as records, a piece at a time, which bounds the memory.

    Args:
        rows: Rows of the topic's columns, with the system columns `__offset` and `__timestamp`.
    """
    own = rows.select(range(rows.num_columns - _SYSTEM_COLUMNS))
    at, key = 0, _key_of(own.schema)
    times = rows.column(rows.num_columns - 1).cast(pa.int64()).to_numpy() // 1_000
    for texts in object_columns(own):
        count = len(texts)
        keys = pa.nulls(count, pa.binary())
        if key is not None:
            keys = own.column(key).slice(at, count).cast(pa.binary())
        yield Records(keys, texts.cast(pa.binary()), no_headers(count), times[at : at + count])
        at += count


def _key_of(schema: pa.Schema) -> int | None:
    index = schema.get_field_index(KEY_COLUMN)
    return index if index >= 0 and schema.field(index).type in _KEY_TYPES else None


def _refusal(message: str, record: int | None) -> KafkaError:
    return KafkaError(ErrorCode.invalid_record, message, () if record is None else (record,))
