"""Namespaces and topics in a database."""

from dataclasses import replace
from typing import Generic

import pyarrow as pa

from wings_core.errors import InvalidSchema, NamespaceNotEmpty, NamespaceNotFound, TopicNotFound
from wings_core.metadata.creation import chosen_uuid, existing_namespace, existing_topic
from wings_core.metadata.interfaces import Admin
from wings_core.metadata.judge import check_text
from wings_core.metadata.store.database import C, Connection, Database, Retry
from wings_core.metadata.store.locks import Lock
from wings_core.metadata.store.notifications import Notification
from wings_core.metadata.store.topic_cache import TopicCache
from wings_core.metadata.store.topics import (
    KnownSchemas,
    find_namespace,
    find_namespaces,
    find_topic,
    find_topic_again,
    find_topic_by_uuid,
    find_topics,
    schemas_bytes,
)
from wings_core.model import Namespace, Topic, TopicConfig
from wings_core.names import NamespaceName, TopicName
from wings_core.schema_changes import VERSIONS_BYTES_MAX, SchemaChange, changed_schema
from wings_core.storage.lru import Lru
from wings_core.storage.parquet_file import check_segment_format
from wings_core.storage.table_layout import check_layout

KNOWN_BYTES_MAX = 64 << 20
"""Bytes of earlier schemas that are remembered, as they are stored."""


class DatabaseAdmin(Admin, Generic[C]):
    """See `Admin`.

    Args:
        database: Where they are.
        topics: Forgets each topic that is changed, once the change is committed.
    """

    def __init__(self, database: Database[C], topics: TopicCache) -> None:
        self._database = database
        self._topics = topics
        self._schemas: KnownSchemas = Lru(KNOWN_BYTES_MAX)

    def create_namespace(self, name: NamespaceName, uuid: str | None = None) -> Namespace:
        """Create a namespace; see `Admin.create_namespace`."""
        namespace = Namespace(name, chosen_uuid(uuid), self._database.now())

        def work(connection: C) -> Namespace:
            created = connection.execute(
                "INSERT INTO namespaces (tenant, name, uuid, created_at) VALUES (%s, %s, %s, %s) "
                "ON CONFLICT DO NOTHING RETURNING id",
                (name.tenant, name.namespace, namespace.uuid, namespace.created_at),
            ).fetchone()
            if created is not None:
                return namespace
            try:
                _, existing = find_namespace(connection, name)
            except NamespaceNotFound:
                raise Retry("the namespace was there and is deleted now") from None
            if existing.uuid != namespace.uuid:
                raise existing_namespace(name)
            return existing

        return self._database.write(work)

    def get_namespace(self, name: NamespaceName) -> Namespace:
        """Return a namespace; see `Admin.get_namespace`."""
        _, namespace = self._database.read(lambda connection: find_namespace(connection, name))
        return namespace

    def delete_namespace(self, name: NamespaceName, uuid: str | None = None) -> Namespace:
        """Delete an empty namespace; see `Admin.delete_namespace`."""

        def work(connection: C) -> Namespace:
            namespace_id, namespace = find_namespace(connection, name, " FOR UPDATE")
            if uuid not in {None, namespace.uuid}:
                raise NamespaceNotFound(f"the namespace {name} was deleted")
            counted = connection.execute(
                "SELECT count(*) FROM topics WHERE namespace_id = %s", (namespace_id,)
            ).fetchone()
            assert counted is not None
            if counted[0]:
                raise NamespaceNotEmpty(f"{name} has {counted[0]} topics: delete them first")
            connection.execute("DELETE FROM namespaces WHERE id = %s", (namespace_id,))
            return namespace

        return self._database.write(work)

    def list_namespaces(
        self, *, after: NamespaceName | None = None, items_max: int | None = None
    ) -> list[Namespace]:
        """Return namespaces, by name; see `Admin.list_namespaces`."""
        return self._database.read(lambda connection: find_namespaces(connection, after, items_max))

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
        topic = _checked(
            Topic(
                name=name,
                uuid=chosen_uuid(uuid),
                schema=schema,
                partition_key=partition_key,
                config=config or TopicConfig(),
                created_at=self._database.now(),
            )
        )

        def work(connection: C) -> Topic:
            namespace_id, _ = find_namespace(connection, name.namespace, " FOR KEY SHARE")
            created = connection.execute(
                "INSERT INTO topics "
                "(uuid, namespace_id, name, schema, partition_key, config, created_at) "
                "VALUES (%s, %s, %s, %s, %s, %s, %s) "
                "ON CONFLICT DO NOTHING RETURNING id",
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
            before = find_topic_by_uuid(connection, topic.uuid, name, namespace_id)
            if before is not None:
                return before
            try:
                existing = find_topic(connection, name)
            except TopicNotFound:
                raise Retry("the topic was there and is deleted now") from None
            return existing_topic(existing, schema, partition_key, if_not_exists=if_not_exists)

        return self._database.write(work)

    def get_topic(self, name: TopicName, *, fresh: bool = False) -> Topic:
        """Return a topic; see `Admin.get_topic`."""
        topic = None if fresh else self._topics.get(name)
        if topic is None:
            generation = self._topics.generation
            topic = self._database.read(
                lambda connection: find_topic_again(connection, name, self._schemas)
            )
            self._topics.remember(topic, generation)
        return topic

    def list_topics(
        self, namespace: NamespaceName, *, after: str | None = None, items_max: int | None = None
    ) -> list[Topic]:
        """Return the topics of a namespace, by name; see `Admin.list_topics`."""
        check_text("after", after or "")
        return self._database.read(
            lambda connection: find_topics(connection, namespace, after, items_max)
        )

    def alter_topic(self, name: TopicName, config: TopicConfig, uuid: str | None = None) -> Topic:
        """Change keys of a topic's configuration; see `Admin.alter_topic`."""

        def work(connection: C) -> Topic:
            topic = _require(connection, name, uuid)
            row = connection.execute(
                "SELECT config FROM topics WHERE uuid = %s AND deleted_at IS NULL FOR UPDATE",
                (topic.uuid,),
            ).fetchone()
            if row is None:
                raise Retry("the topic was deleted meanwhile")
            before = TopicConfig.model_validate_json(row[0])
            changed = _checked(replace(topic, config=before.changed(config)), before)
            connection.execute(
                "UPDATE topics SET config = %s WHERE uuid = %s",
                (changed.config.model_dump_json(), topic.uuid),
            )
            return changed

        return self._database.write(work, committed=lambda _: self._topics.forget(name))

    def alter_schema(self, name: TopicName, change: SchemaChange, uuid: str | None = None) -> Topic:
        """Change a topic's schema; see `Admin.alter_schema`."""

        def work(connection: C) -> Topic:
            topic = _require(connection, name, uuid)
            schema = changed_schema(topic, change)
            if schema is topic.schema:
                return topic
            changed = replace(topic, schema=schema, earlier_schemas=topic.schemas)
            check_segment_format(changed)
            earlier = schemas_bytes(topic.schemas)
            if len(earlier) > VERSIONS_BYTES_MAX:
                raise InvalidSchema(
                    f"the versions of the schema have {len(earlier)} bytes, more than "
                    f"{VERSIONS_BYTES_MAX}"
                )
            before = topic.schema.serialize().to_pybytes()
            altered = connection.execute(
                "UPDATE topics SET schema = %s, earlier_schemas = %s "
                "WHERE uuid = %s AND schema = %s AND deleted_at IS NULL RETURNING id",
                (
                    schema.serialize().to_pybytes(),
                    earlier,
                    topic.uuid,
                    before,
                ),
            ).fetchone()
            if altered is None:
                raise Retry("the topic was deleted or changed meanwhile")
            return changed

        return self._database.write(work, committed=lambda _: self._topics.forget(name))

    def delete_topic(self, name: TopicName, uuid: str | None = None) -> Topic:
        """Mark a topic as deleted, which frees its name; see `Admin.delete_topic`."""

        def work(connection: C) -> Topic:
            topic = _require(connection, name, uuid)
            # Commits under way come first, and none begins before this is over.
            connection.take_lock(Lock.TOPICS, (topic.uuid,))
            deleted = connection.execute(
                "UPDATE topics SET namespace_id = NULL, deleted_at = %s "
                "WHERE uuid = %s AND deleted_at IS NULL RETURNING id",
                (self._database.now(), topic.uuid),
            ).fetchone()
            if deleted is None:
                raise Retry("the topic was deleted meanwhile")
            return topic

        return self._database.write(
            work,
            lambda topic: Notification(topics=(topic.uuid,)),
            committed=lambda _: self._topics.forget(name),
        )


def _checked(topic: Topic, before: TopicConfig | None = None) -> Topic:
    """Return a topic, where its segments and its table can be as its configuration says.

    Raises:
        InvalidArgument: The table cannot be partitioned so.
        InvalidSchema: The segments' format has no type for a column; fact `column`.
    """
    check_layout(topic, before)
    return check_segment_format(topic)


def _require(connection: Connection, name: TopicName, uuid: str | None) -> Topic:
    """Return the topic of a name, and of a UUID where one is given."""
    topic = find_topic(connection, name)
    if uuid not in {None, topic.uuid}:
        raise TopicNotFound(f"the topic {name} was deleted")
    return topic
