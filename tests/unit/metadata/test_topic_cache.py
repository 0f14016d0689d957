"""The cache of topics."""

from contextlib import closing
from pathlib import Path
from typing import Any, LiteralString, cast

import pyarrow as pa
import pytest

from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.metadata.sqlite.connections import SqliteConnections
from wings_core.metadata.sqlite.database import SqliteDatabase
from wings_core.metadata.store.database import Connection, Cursor
from wings_core.metadata.store.topics import KnownSchemas, TopicCache, find_topic_again
from wings_core.metadata.waiting import Waiters
from wings_core.model import Topic, TopicConfig
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.schema_changes import SchemaChange
from wings_core.storage.lru import Lru
from wings_core.times import now_us


def topic(topic_id: str) -> Topic:
    name = DEFAULT_NAMESPACE.topic(topic_id)
    return Topic(name, f"uuid of {topic_id}", pa.schema([]), None, TopicConfig(), 0)


def test_a_topic_is_remembered_until_it_is_forgotten() -> None:
    cache, orders = TopicCache(10), topic("orders")
    cache.remember(orders, cache.generation)
    assert cache.get(orders.name) is orders
    cache.forget(orders.name)
    assert cache.get(orders.name) is None


def test_a_topic_read_before_a_change_and_remembered_after_it_is_not_kept() -> None:
    cache, orders = TopicCache(10), topic("orders")
    generation = cache.generation
    cache.forget(orders.name)
    cache.remember(orders, generation)
    assert cache.get(orders.name) is None


@pytest.mark.parametrize("topics_max", [0, 1, 3])
def test_no_more_topics_are_remembered_than_asked_for(topics_max: int) -> None:
    cache = TopicCache(topics_max)
    topics = [topic(f"topic-{number}") for number in range(5)]
    for each in topics:
        cache.remember(each, cache.generation)
    remembered = [each for each in topics if cache.get(each.name) is not None]
    assert remembered == topics[5 - topics_max :]


# Earlier schemas of topics, which are long, and read once for each version that is met. ###########

ORDERS = DEFAULT_NAMESPACE.topic("orders")


class Recorded:
    """A connection that says which statements were sent."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.statements: list[str] = []

    def execute(self, query: LiteralString, params: Any = None, /) -> Cursor:
        self.statements.append(query)
        return self._connection.execute(query, params)


def test_earlier_schemas_are_read_once_for_each_version_that_is_met(tmp_path: Path) -> None:
    known: KnownSchemas = Lru(1_000_000)

    path = tmp_path / "metadata.sqlite"

    def read(connection: Connection) -> tuple[Topic, bool]:
        recorded = Recorded(connection)
        topic = find_topic_again(cast("Connection", recorded), ORDERS, known)
        return topic, "topics.earlier_schemas FROM" in recorded.statements[-1]

    def found() -> tuple[Topic, bool]:
        with closing(SqliteConnections(path)) as connections:
            return SqliteDatabase(connections, Waiters(), now_us).read(read)

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
