"""Namespaces and topics in SQLite."""

import sqlite3
from collections.abc import Callable

import pyarrow as pa

from wings_core.errors import NamespaceNotEmpty, NamespaceNotFound, TopicNotFound
from wings_core.metadata.creation import chosen_uuid, existing_namespace, existing_topic
from wings_core.metadata.interfaces import Admin
from wings_core.metadata.judge import check_text
from wings_core.metadata.sqlite.connections import Connections
from wings_core.metadata.sqlite.topics import (
    TopicCache,
    find_namespace,
    find_namespaces,
    find_topic,
    find_topic_by_uuid,
    find_topics,
)
from wings_core.metadata.waiters import Waiters
from wings_core.model import Namespace, Topic, TopicConfig
from wings_core.names import NamespaceName, TopicName


class SqliteAdmin(Admin):
    """See `Admin`.

    Args:
        connections: To the database.
        topics: Told of every change under the writer's lock, once it is committed.
        waiters: Woken when their topic is deleted.
        clock: Microseconds since the epoch.
    """

    def __init__(
        self,
        connections: Connections,
        topics: TopicCache,
        waiters: Waiters,
        clock: Callable[[], int],
    ) -> None:
        self._connections = connections
        self._topics = topics
        self._waiters = waiters
        self._clock = clock

    def create_namespace(self, name: NamespaceName, uuid: str | None = None) -> Namespace:
        """Create a namespace; see `Admin.create_namespace`."""
        namespace = Namespace(name, chosen_uuid(uuid), self._clock())
        with self._connections.writing() as connection:
            cursor = connection.execute(
                "INSERT OR IGNORE INTO namespaces (tenant, name, uuid, created_at) "
                "VALUES (?, ?, ?, ?)",
                (name.tenant, name.namespace, namespace.uuid, namespace.created_at),
            )
            if cursor.rowcount == 0:
                _, existing = find_namespace(connection, name)
                if existing.uuid != namespace.uuid:
                    raise existing_namespace(name)
                return existing
        return namespace

    def get_namespace(self, name: NamespaceName) -> Namespace:
        """Return a namespace; see `Admin.get_namespace`."""
        with self._connections.reading() as connection:
            _, namespace = find_namespace(connection, name)
        return namespace

    def delete_namespace(self, name: NamespaceName, uuid: str | None = None) -> Namespace:
        """Delete an empty namespace; see `Admin.delete_namespace`."""
        with self._connections.writing() as connection:
            namespace_id, namespace = find_namespace(connection, name)
            if uuid not in {None, namespace.uuid}:
                raise NamespaceNotFound(f"the namespace {name} was deleted")
            ((topics,),) = connection.execute(
                "SELECT count(*) FROM topics WHERE namespace_id = ?", (namespace_id,)
            )
            if topics:
                raise NamespaceNotEmpty(f"{name} has {topics} topics: delete them first")
            connection.execute("DELETE FROM namespaces WHERE id = ?", (namespace_id,))
        return namespace

    def list_namespaces(
        self, *, after: NamespaceName | None = None, items_max: int | None = None
    ) -> list[Namespace]:
        """Return namespaces, by name; see `Admin.list_namespaces`."""
        with self._connections.reading() as connection:
            return find_namespaces(connection, after, items_max)

    def create_topic(
        self,
        name: TopicName,
        schema: pa.Schema,
        partition_key: str | None = None,
        config: TopicConfig | None = None,
        *,
        if_not_exists: bool = False,
        uuid: str | None = None,
    ) -> Topic:
        """Create a topic; see `Admin.create_topic`."""
        if partition_key is not None:
            check_text("the partition key", partition_key)
        topic_uuid = chosen_uuid(uuid)
        with self._connections.writing() as connection:
            namespace_id, _ = find_namespace(connection, name.namespace)
            if uuid is not None:
                before = find_topic_by_uuid(connection, topic_uuid, name, namespace_id)
                if before is not None:
                    return before
            try:
                existing = find_topic(connection, name)
            except TopicNotFound:
                pass
            else:
                return existing_topic(existing, schema, partition_key, if_not_exists=if_not_exists)
            topic = Topic(
                name=name,
                uuid=topic_uuid,
                schema=schema,
                partition_key=partition_key,
                config=config or TopicConfig(),
                created_at=self._clock(),
            )
            connection.execute(
                "INSERT INTO topics "
                "(uuid, namespace_id, name, schema, partition_key, config, created_at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    topic.uuid,
                    namespace_id,
                    name.topic,
                    schema.serialize().to_pybytes(),
                    partition_key,
                    topic.config.model_dump_json(),
                    topic.created_at,
                ),
            )
        return topic

    def get_topic(self, name: TopicName) -> Topic:
        """Return a topic; see `Admin.get_topic`."""
        topic = self._topics.get(name)
        if topic is None:
            generation = self._topics.generation
            with self._connections.reading() as connection:
                topic = find_topic(connection, name)
            self._topics.remember(topic, generation)
        return topic

    def list_topics(
        self, namespace: NamespaceName, *, after: str | None = None, items_max: int | None = None
    ) -> list[Topic]:
        """Return the topics of a namespace, by name; see `Admin.list_topics`."""
        with self._connections.reading() as connection:
            return find_topics(connection, namespace, after, items_max)

    def alter_topic(self, name: TopicName, config: TopicConfig, uuid: str | None = None) -> Topic:
        """Replace a topic's configuration; see `Admin.alter_topic`."""
        with self._connections.exclusive() as writer:
            with writer.transaction() as connection:
                topic = _require(connection, name, uuid)
                connection.execute(
                    "UPDATE topics SET config = ? WHERE uuid = ?",
                    (config.model_dump_json(), topic.uuid),
                )
            self._topics.forget(name)
        return Topic(name, topic.uuid, topic.schema, topic.partition_key, config, topic.created_at)

    def delete_topic(self, name: TopicName, uuid: str | None = None) -> Topic:
        """Mark a topic as deleted, which frees its name; see `Admin.delete_topic`."""
        with self._connections.exclusive() as writer:
            with writer.transaction() as connection:
                topic = _require(connection, name, uuid)
                connection.execute(
                    "UPDATE topics SET namespace_id = NULL, deleted_at = ? WHERE uuid = ?",
                    (self._clock(), topic.uuid),
                )
            self._topics.forget(name)
        self._waiters.notify_deleted(topic.uuid)
        return topic


def _require(connection: sqlite3.Connection, name: TopicName, uuid: str | None) -> Topic:
    """Return the topic of a name, and of a UUID where one is given."""
    topic = find_topic(connection, name)
    if uuid not in {None, topic.uuid}:
        raise TopicNotFound(f"the topic {name} was deleted")
    return topic
