"""Namespaces and topics in SQLite."""

import uuid
from collections.abc import Callable

import pyarrow as pa

from wings_core.errors import AlreadyExists, NamespaceNotEmpty, TopicNotFound
from wings_core.metadata.creation import existing_topic
from wings_core.metadata.interfaces import Admin
from wings_core.metadata.sqlite.connections import Connections
from wings_core.metadata.sqlite.topics import (
    TopicCache,
    find_namespace,
    find_topic,
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

    def create_namespace(self, name: NamespaceName) -> Namespace:
        """Create a namespace; see `Admin.create_namespace`."""
        with self._connections.writing() as connection:
            now = self._clock()
            cursor = connection.execute(
                "INSERT OR IGNORE INTO namespaces (tenant, name, created_at) VALUES (?, ?, ?)",
                (name.tenant, name.namespace, now),
            )
            if cursor.rowcount == 0:
                raise AlreadyExists(f"there is a namespace {name} already")
        return Namespace(name, now)

    def get_namespace(self, name: NamespaceName) -> Namespace:
        """Return a namespace; see `Admin.get_namespace`."""
        with self._connections.reading() as connection:
            _, created_at = find_namespace(connection, name)
        return Namespace(name, created_at)

    def delete_namespace(self, name: NamespaceName) -> Namespace:
        """Delete an empty namespace; see `Admin.delete_namespace`."""
        with self._connections.writing() as connection:
            namespace_id, created_at = find_namespace(connection, name)
            ((topics,),) = connection.execute(
                "SELECT count(*) FROM topics WHERE namespace_id = ?", (namespace_id,)
            )
            if topics:
                raise NamespaceNotEmpty(f"{name} has {topics} topics: delete them first")
            connection.execute("DELETE FROM namespaces WHERE id = ?", (namespace_id,))
        return Namespace(name, created_at)

    def list_namespaces(self) -> list[Namespace]:
        """Return all namespaces, by name; see `Admin.list_namespaces`."""
        with self._connections.reading() as connection:
            return [
                Namespace(NamespaceName(tenant, name), created_at)
                for tenant, name, created_at in connection.execute(
                    "SELECT tenant, name, created_at FROM namespaces ORDER BY tenant, name"
                )
            ]

    def create_topic(
        self,
        name: TopicName,
        schema: pa.Schema,
        partition_key: str | None = None,
        config: TopicConfig | None = None,
        *,
        if_not_exists: bool = False,
    ) -> Topic:
        """Create a topic; see `Admin.create_topic`."""
        with self._connections.writing() as connection:
            namespace_id, _ = find_namespace(connection, name.namespace)
            try:
                existing = find_topic(connection, name)
            except TopicNotFound:
                pass
            else:
                return existing_topic(existing, schema, partition_key, if_not_exists=if_not_exists)
            topic = Topic(
                name=name,
                uuid=str(uuid.uuid4()),
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

    def list_topics(self, namespace: NamespaceName) -> list[Topic]:
        """Return the topics of a namespace, by name; see `Admin.list_topics`."""
        with self._connections.reading() as connection:
            return find_topics(connection, namespace)

    def alter_topic(self, name: TopicName, config: TopicConfig) -> Topic:
        """Replace a topic's configuration; see `Admin.alter_topic`."""
        with self._connections.exclusive() as writer:
            with writer.transaction() as connection:
                topic = find_topic(connection, name)
                connection.execute(
                    "UPDATE topics SET config = ? WHERE uuid = ?",
                    (config.model_dump_json(), topic.uuid),
                )
            self._topics.forget(name)
        return Topic(name, topic.uuid, topic.schema, topic.partition_key, config, topic.created_at)

    def delete_topic(self, name: TopicName) -> Topic:
        """Mark a topic as deleted, which frees its name; see `Admin.delete_topic`."""
        with self._connections.exclusive() as writer:
            with writer.transaction() as connection:
                topic = find_topic(connection, name)
                connection.execute(
                    "UPDATE topics SET namespace_id = NULL, deleted_at = ? WHERE uuid = ?",
                    (self._clock(), topic.uuid),
                )
            self._topics.forget(name)
        self._waiters.notify_deleted(topic.uuid)
        return topic
