"""Earlier schemas of topics, which are long, and read once for each version that is met."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import cast

import pyarrow as pa

from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.metadata.store.database import Connection
from wings_core.metadata.store.topics import KnownSchemas, find_topic_again
from wings_core.model import Topic
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.schema_changes import SchemaChange
from wings_core.storage.lru import Lru

ORDERS = DEFAULT_NAMESPACE.topic("orders")


def test_earlier_schemas_are_read_once_for_each_version_that_is_met(tmp_path: Path) -> None:
    known: KnownSchemas = Lru(1_000_000)

    path = tmp_path / "metadata.sqlite"

    def found() -> tuple[Topic, bool]:
        statements: list[str] = []
        with closing(sqlite3.connect(path)) as connection:
            connection.set_trace_callback(statements.append)
            topic = find_topic_again(cast("Connection", connection), ORDERS, known)
        return topic, "topics.earlier_schemas FROM" in statements[-1]

    with closing(SqliteMetadata(path)) as metadata:
        admin = metadata.admin
        first = admin.create_topic(ORDERS, pa.schema([("n", pa.int16())]))
        assert found() == (first, False)
        for wider in (pa.int32(), pa.int64()):
            altered = admin.alter_schema(ORDERS, SchemaChange(widen=pa.schema([("n", wider)])))
            assert found() == (altered, True)
            again, was_read = found()
            assert (again, was_read) == (altered, False)
            assert again.schemas == altered.schemas
        admin.delete_topic(ORDERS)
        admin.create_topic(ORDERS, pa.schema([("n", pa.int8())]))
        other = admin.alter_schema(ORDERS, SchemaChange(widen=pa.schema([("n", pa.int64())])))
        assert found() == (other, True)  # Its last schema is that of the one before.
