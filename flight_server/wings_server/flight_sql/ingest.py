"""Bulk ingest: `append` pushes, `create` and `create_append` make an unkeyed topic first."""

import json
from typing import Any

import pyarrow as pa

from wings_core.contracts.actions import CreateTopic
from wings_core.errors import InvalidArgument
from wings_core.names import NamespaceName, TopicName
from wings_core.protocol.flight_sql import flight_sql_pb2 as pb
from wings_core.schemas import bare_schema, schema_to_ipc
from wings_core.sql.names import topic_of
from wings_core.sql.statement import TableName
from wings_core.sql_process.engine import CATALOG

_Options = pb.CommandStatementIngest.TableDefinitionOptions


def ingest_topic(command: pb.CommandStatementIngest, namespace: NamespaceName) -> TopicName:
    """Return the topic that rows go to.

    Raises:
        InvalidArgument: It is a temporary table, or of another catalog, or to be replaced.
        InvalidSql: The table's name is none of a topic.
    """
    if command.temporary:
        raise InvalidArgument("there are no temporary tables")
    if command.HasField("transaction_id") and command.transaction_id:
        raise InvalidArgument("there are no transactions")
    if command.HasField("catalog") and command.catalog not in ("", CATALOG):
        raise InvalidArgument(f"there is no catalog {command.catalog!r:.80}: it is {CATALOG!r}")
    options = command.table_definition_options
    if options.if_exists == _Options.TABLE_EXISTS_OPTION_REPLACE:
        raise InvalidArgument("a topic is not replaced: append to it, or delete it first")
    schema = command.schema if command.HasField("schema") else ""
    return topic_of(TableName(schema, command.table), namespace)


def creation_of(
    command: pb.CommandStatementIngest, topic: TopicName, schema: pa.Schema
) -> CreateTopic | None:
    """Return the body of the action that makes the topic; None where it is there already."""
    options = command.table_definition_options
    if options.if_not_exist != _Options.TABLE_NOT_EXIST_OPTION_CREATE:
        return None
    body: dict[str, Any] = {
        "topic": str(topic),
        "schema_ipc": schema_to_ipc(bare_schema(schema)),
        "if_not_exists": options.if_exists == _Options.TABLE_EXISTS_OPTION_APPEND,
    }
    return CreateTopic.parse_body(json.dumps(body).encode())


class CountedRows:
    """Takes the answers of a push in the place of a client, and counts the rows."""

    def __init__(self) -> None:
        self.rows = 0

    def write(self, answer: Any) -> None:
        """Count the rows of one batch's answer."""
        raw = answer.to_pybytes() if isinstance(answer, pa.Buffer) else bytes(answer)
        for committed in json.loads(raw).get("committed", ()):
            self.rows += committed["end_offset"] - committed["start_offset"] + 1
