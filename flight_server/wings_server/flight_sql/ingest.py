"""Bulk ingest: `append` pushes; `create` and `create_append` create an unkeyed topic first."""

import json
from typing import Any

import pyarrow as pa

from wings_core.arrow_types import children, fields_of, plain_bytes, plain_schema
from wings_core.cast import Caster
from wings_core.contracts.actions import CreateTopic
from wings_core.errors import BatchTooLarge, InvalidArgument, SchemaMismatch
from wings_core.names import NamespaceName, TopicName
from wings_core.protocol.flight_sql import flight_sql_pb2 as pb
from wings_core.schemas import schema_to_ipc
from wings_core.sql.statement import TableName, topic_of
from wings_core.sql_process.interface import CATALOG
from wings_server.flight.do_put import RowReader, schema_of

_Options = pb.CommandStatementIngest.TableDefinitionOptions


def ingest_topic(command: pb.CommandStatementIngest, namespace: NamespaceName) -> TopicName:
    """Return the target topic.

    Raises:
        InvalidArgument: The target is a temporary table, in another catalog, or to be replaced.
        InvalidSql: The table's name is not valid for a topic.
    """
    if command.temporary:
        raise InvalidArgument("there are no temporary tables")
    if command.HasField("transaction_id") and command.transaction_id:
        raise InvalidArgument("there are no transactions")
    if command.HasField("catalog") and command.catalog not in ("", CATALOG):
        raise InvalidArgument(f"there is no catalog {command.catalog!r:.80}: it is {CATALOG!r}")
    options = command.table_definition_options
    if options.if_exists == _Options.TABLE_EXISTS_OPTION_REPLACE:
        raise InvalidArgument("a topic cannot be replaced: append to it, or delete it first")
    schema = command.schema if command.HasField("schema") else ""
    return topic_of(TableName(schema, command.table), namespace)


def creation_of(
    command: pb.CommandStatementIngest, topic: TopicName, schema: pa.Schema
) -> CreateTopic | None:
    """Return the body of the action that creates the topic; None if it must exist."""
    options = command.table_definition_options
    if options.if_not_exist != _Options.TABLE_NOT_EXIST_OPTION_CREATE:
        return None
    body: dict[str, Any] = {
        "topic": str(topic),
        "schema_ipc": schema_to_ipc(plain_schema(schema)),
        "if_not_exists": options.if_exists == _Options.TABLE_EXISTS_OPTION_APPEND,
    }
    return CreateTopic.parse_body(json.dumps(body).encode())


class PlainRows:
    """A wrapper of an ingest's stream that casts to the types of the topic's columns.

    Args:
        reader: The call's reader.
        topic_schema: The topic's latest schema.
        batch_bytes_max: Most bytes of a batch in plain types, checked before the conversion.

    Raises:
        SchemaMismatch: The columns differ, or types cannot be converted to the topic's.
    """

    def __init__(
        self,
        reader: RowReader,
        topic_schema: pa.Schema,
        batch_bytes_max: int,
    ) -> None:
        self.schema = topic_schema
        self._reader = reader
        self._bytes_max = batch_bytes_max
        self._caster = Caster(schema_of(reader), topic_schema)
        self._row_bytes = {field.name: _row_bytes(field.type) for field in fields_of(topic_schema)}

    def read_chunk(self) -> Any:
        """Return the next batch, and its metadata.

        Raises:
            StopIteration: There are no more batches.
            SchemaMismatch: A value would be lost, or is invalid.
            BatchTooLarge: The batch is too large in plain types.
        """
        batch, metadata = self._reader.read_chunk()
        if batch is None or batch.schema.equals(self.schema):
            return batch, metadata
        try:
            batch.validate(full=True)
        except (pa.ArrowInvalid, ValueError) as error:
            raise SchemaMismatch(f"the batch is not valid Arrow data: {error!s:.300}") from None
        columns: dict[str, Any] = dict(zip(batch.schema.names, batch.columns, strict=True))
        size = sum(
            max(plain_bytes(columns[name]) if name in columns else 0, batch.num_rows * row_bytes)
            for name, row_bytes in self._row_bytes.items()
        )
        if size > self._bytes_max:
            raise BatchTooLarge(
                f"the batch has {size} bytes in plain types, the limit is {self._bytes_max}"
            )
        return self._caster.cast(batch), metadata


def _row_bytes(data_type: pa.DataType) -> int:
    """Return the least bytes of a row, null or not."""
    inner = children(data_type)
    if pa.types.is_struct(data_type):
        return sum(_row_bytes(field.type) for field in inner)
    try:
        return data_type.bit_width // 8
    except ValueError:
        return 0


class CountedRows:
    """A writer that counts the rows in a push's results instead of sending them."""

    def __init__(self) -> None:
        self.rows = 0

    def write(self, answer: Any) -> None:
        """Count the rows in one batch's result."""
        raw = answer.to_pybytes() if isinstance(answer, pa.Buffer) else bytes(answer)
        for committed in json.loads(raw).get("committed", ()):
            self.rows += committed["end_offset"] - committed["start_offset"] + 1
