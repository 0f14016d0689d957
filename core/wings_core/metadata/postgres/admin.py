"""Namespaces and topics in PostgreSQL."""

import uuid
from collections.abc import Callable

import pyarrow as pa

from wings_core.errors import AlreadyExists, NamespaceNotEmpty, NamespaceNotFound, TopicNotFound
from wings_core.metadata.creation import existing_topic
from wings_core.metadata.interfaces import Admin
from wings_core.metadata.postgres import locks
from wings_core.metadata.postgres.connections import Connection
from wings_core.metadata.postgres.database import Database
from wings_core.metadata.postgres.faults import Retry
from wings_core.metadata.postgres.locks import Lock
from wings_core.metadata.postgres.notices import Notice
from wings_core.metadata.postgres.topics import find_namespace, find_topic, find_topics
from wings_core.model import Namespace, Topic, TopicConfig
from wings_core.names import NamespaceName, TopicName


class PostgresAdmin(Admin):
    """See `Admin`.

    Args:
        database: Where they are.
        clock: Microseconds since the epoch.
    """

    def __init__(self, database: Database, clock: Callable[[], int]) -> None:
        self._database = database
        self._clock = clock

    def create_namespace(self, name: NamespaceName) -> Namespace:
        """Create a namespace; see `Admin.create_namespace`."""

        def work(connection: Connection) -> Namespace:
            now = self._clock()
            created = connection.execute(
                "INSERT INTO namespaces (tenant, name, created_at) VALUES (%s, %s, %s) "
                "ON CONFLICT DO NOTHING RETURNING id",
                (name.tenant, name.namespace, now),
            ).fetchone()
            if created is None:
                raise AlreadyExists(f"there is a namespace {name} already")
            return Namespace(name, now)

        return self._database.write(work)

    def get_namespace(self, name: NamespaceName) -> Namespace:
        """Return a namespace; see `Admin.get_namespace`."""
        _, created_at = self._database.read(lambda connection: find_namespace(connection, name))
        return Namespace(name, created_at)

    def delete_namespace(self, name: NamespaceName) -> Namespace:
        """Delete an empty namespace; see `Admin.delete_namespace`."""

        def work(connection: Connection) -> Namespace:
            row = connection.execute(
                "SELECT id, created_at FROM namespaces WHERE tenant = %s AND name = %s FOR UPDATE",
                (name.tenant, name.namespace),
            ).fetchone()
            if row is None:
                raise NamespaceNotFound(f"there is no namespace {name}")
            namespace_id, created_at = row
            counted = connection.execute(
                "SELECT count(*) FROM topics WHERE namespace_id = %s", (namespace_id,)
            ).fetchone()
            assert counted is not None
            if counted[0]:
                raise NamespaceNotEmpty(f"{name} has {counted[0]} topics: delete them first")
            connection.execute("DELETE FROM namespaces WHERE id = %s", (namespace_id,))
            return Namespace(name, created_at)

        return self._database.write(work)

    def list_namespaces(self) -> list[Namespace]:
        """Return all namespaces, by name; see `Admin.list_namespaces`."""
        rows = self._database.read(
            lambda connection: connection.execute(
                "SELECT tenant, name, created_at FROM namespaces ORDER BY tenant, name"
            ).fetchall()
        )
        return [
            Namespace(NamespaceName(tenant, name), created_at) for tenant, name, created_at in rows
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
        topic = Topic(
            name=name,
            uuid=str(uuid.uuid4()),
            schema=schema,
            partition_key=partition_key,
            config=config or TopicConfig(),
            created_at=self._clock(),
        )

        def work(connection: Connection) -> Topic:
            namespace_id, _ = find_namespace(connection, name.namespace, keep=True)
            created = connection.execute(
                "INSERT INTO topics "
                "(uuid, namespace_id, name, schema, partition_key, config, created_at) "
                "VALUES (%s, %s, %s, %s, %s, %s, %s) "
                "ON CONFLICT (namespace_id, name) DO NOTHING RETURNING id",
                (
                    topic.uuid,
                    namespace_id,
                    name.topic,
                    schema.serialize().to_pybytes(),
                    partition_key,
                    topic.config.model_dump_json(),
                    topic.created_at,
                ),
            ).fetchone()
            if created is not None:
                return topic
            try:
                existing = find_topic(connection, name)
            except TopicNotFound:
                raise Retry("the topic was there and is deleted now") from None
            return existing_topic(existing, schema, partition_key, if_not_exists=if_not_exists)

        return self._database.write(work)

    def get_topic(self, name: TopicName) -> Topic:
        """Return a topic; see `Admin.get_topic`."""
        return self._database.read(lambda connection: find_topic(connection, name))

    def list_topics(self, namespace: NamespaceName) -> list[Topic]:
        """Return the topics of a namespace, by name; see `Admin.list_topics`."""
        return self._database.read(lambda connection: find_topics(connection, namespace))

    def alter_topic(self, name: TopicName, config: TopicConfig) -> Topic:
        """Replace a topic's configuration; see `Admin.alter_topic`."""

        def work(connection: Connection) -> Topic:
            topic = find_topic(connection, name)
            altered = connection.execute(
                "UPDATE topics SET config = %s WHERE uuid = %s AND deleted_at IS NULL RETURNING id",
                (config.model_dump_json(), topic.uuid),
            ).fetchone()
            if altered is None:
                raise Retry("the topic was deleted by somebody else")
            return Topic(
                name, topic.uuid, topic.schema, topic.partition_key, config, topic.created_at
            )

        return self._database.write(work)

    def delete_topic(self, name: TopicName) -> Topic:
        """Mark a topic as deleted, which frees its name; see `Admin.delete_topic`."""

        def work(connection: Connection) -> Topic:
            topic = find_topic(connection, name)
            # Commits under way come first, and none begins before this is over.
            locks.take(connection, Lock.TOPICS, (topic.uuid,))
            deleted = connection.execute(
                "UPDATE topics SET namespace_id = NULL, deleted_at = %s "
                "WHERE uuid = %s AND deleted_at IS NULL RETURNING id",
                (self._clock(), topic.uuid),
            ).fetchone()
            if deleted is None:
                raise Retry("the topic was deleted by somebody else")
            return topic

        return self._database.write(work, lambda topic: Notice(topics=(topic.uuid,)))
