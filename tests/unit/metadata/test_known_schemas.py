"""Earlier schemas of topics, which are long, and read once for each version that is met."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, LiteralString, cast

import pyarrow as pa

from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.metadata.store.database import Connection, Cursor
from wings_core.metadata.store.topics import KnownSchemas, find_topic_again
from wings_core.model import Topic
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.schema_changes import SchemaChange
from wings_core.storage.lru import Lru

ORDERS = DEFAULT_NAMESPACE.topic("orders")


class Recorded:
    """A connection that says which statements were sent."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.statements: list[str] = []

    def execute(
        self,
        query: LiteralString,
        params: Sequence[Any] | Mapping[str, Any] | None = None,
        /,
    ) -> Cursor:
        self.statements.append(query)
        return self._connection.execute(query, params)


def test_earlier_schemas_are_read_once_for_each_version_that_is_met(tmp_path: Path) -> None:
    known: KnownSchemas = Lru(1_000_000)

    def found(metadata: SqliteMetadata) -> tuple[Topic, bool]:
        def read(connection: Connection) -> tuple[Topic, bool]:
            recorded = Recorded(connection)
            topic = find_topic_again(cast("Connection", recorded), ORDERS, known)
            return topic, "topics.earlier_schemas FROM" in recorded.statements[-1]

        return metadata.admin._database.read(read)  # pyright: ignore[reportPrivateUsage]

    with closing(SqliteMetadata(tmp_path / "metadata.sqlite")) as metadata:
        admin = metadata.admin
        first = admin.create_topic(ORDERS, pa.schema([("n", pa.int16())]))
        assert found(metadata) == (first, False)
        for wider in (pa.int32(), pa.int64()):
            altered = admin.alter_schema(ORDERS, SchemaChange(widen=pa.schema([("n", wider)])))
            assert found(metadata) == (altered, True)
            again, was_read = found(metadata)
            assert (again, was_read) == (altered, False)
            assert again.schemas == altered.schemas
        admin.delete_topic(ORDERS)
        admin.create_topic(ORDERS, pa.schema([("n", pa.int8())]))
        other = admin.alter_schema(ORDERS, SchemaChange(widen=pa.schema([("n", pa.int64())])))
        assert found(metadata) == (other, True)  # Its last schema is that of the one before.
