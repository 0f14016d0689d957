"""Namespaces and topics in a database: each method of `DatabaseAdmin` is one transaction."""

import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, LiteralString

import pyarrow as pa

from wings_core.errors import (
    AlreadyExists,
    InvalidSchema,
    NamespaceNotEmpty,
    NamespaceNotFound,
    TopicNotFound,
)
from wings_core.kafka_topics import check_kafka
from wings_core.metadata.checks import (
    check_text,
    chosen_uuid,
    existing_topic,
)
from wings_core.metadata.interfaces import Admin
from wings_core.metadata.store.database import Connection, Database, Lock, Notification, RunAgain
from wings_core.model import NamespaceState, Topic, TopicConfig
from wings_core.names import NamespaceName, TopicName
from wings_core.schema_changes import VERSIONS_BYTES_MAX, SchemaChange, changed_schema
from wings_core.storage.lru import Lru
from wings_core.storage.parquet_file import check_segment_format
from wings_core.storage.table_layout import check_layout

KNOWN_BYTES_MAX = 64 << 20
"""Bytes of earlier schemas that are remembered, as they are stored."""


class DatabaseAdmin(Admin):
    """See `Admin`.

    Args:
        database: Where they are.
        topics: Forgets each topic that is changed, once the change is committed.
    """

    def __init__(self, database: Database, topics: "TopicCache") -> None:
        self._database = database
        self._topics = topics
        self._schemas: KnownSchemas = Lru(KNOWN_BYTES_MAX)

    def create_namespace(self, name: NamespaceName, uuid: str | None = None) -> NamespaceState:
        """Create a namespace; see `Admin.create_namespace`."""
        namespace = NamespaceState(name, chosen_uuid(uuid), self._database.now())

        def work(connection: Connection) -> NamespaceState:
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
                raise RunAgain("the namespace was there and is deleted now") from None
            if existing.uuid != namespace.uuid:
                raise AlreadyExists(f"there is a namespace {name} already")
            return existing

        return self._database.write(work)

    def get_namespace(self, name: NamespaceName) -> NamespaceState:
        """Return a namespace; see `Admin.get_namespace`."""
        _, namespace = self._database.read(lambda connection: find_namespace(connection, name))
        return namespace

    def delete_namespace(self, name: NamespaceName, uuid: str | None = None) -> NamespaceState:
        """Delete an empty namespace; see `Admin.delete_namespace`."""

        def work(connection: Connection) -> NamespaceState:
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
    ) -> list[NamespaceState]:
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

        def work(connection: Connection) -> Topic:
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
                raise RunAgain("the topic was there and is deleted now") from None
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

        def work(connection: Connection) -> Topic:
            topic = _require(connection, name, uuid)
            row = connection.execute(
                "SELECT config FROM topics WHERE uuid = %s AND deleted_at IS NULL FOR UPDATE",
                (topic.uuid,),
            ).fetchone()
            if row is None:
                raise RunAgain("the topic was deleted meanwhile")
            before = TopicConfig.from_json(row[0])
            changed = _checked(replace(topic, config=before.changed(config)), before)
            connection.execute(
                "UPDATE topics SET config = %s WHERE uuid = %s",
                (changed.config.model_dump_json(), topic.uuid),
            )
            return changed

        return self._database.write(work, committed=lambda _: self._topics.forget(name))

    def alter_schema(self, name: TopicName, change: SchemaChange, uuid: str | None = None) -> Topic:
        """Change a topic's schema; see `Admin.alter_schema`."""

        def work(connection: Connection) -> Topic:
            topic = _require(connection, name, uuid)
            schema = changed_schema(topic, change)
            if schema is topic.schema:
                return topic
            changed = replace(topic, schema=schema, earlier_schemas=topic.schemas)
            _checked(changed, topic.config)
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
                raise RunAgain("the topic was deleted or changed meanwhile")
            return changed

        return self._database.write(work, committed=lambda _: self._topics.forget(name))

    def delete_topic(self, name: TopicName, uuid: str | None = None) -> Topic:
        """Mark a topic as deleted, which frees its name; see `Admin.delete_topic`."""

        def work(connection: Connection) -> Topic:
            topic = _require(connection, name, uuid)
            # Commits under way come first, and none begins before this is over.
            connection.take_lock(Lock.TOPICS, (topic.uuid,))
            deleted = connection.execute(
                "UPDATE topics SET namespace_id = NULL, deleted_at = %s "
                "WHERE uuid = %s AND deleted_at IS NULL RETURNING id",
                (self._database.now(), topic.uuid),
            ).fetchone()
            if deleted is None:
                raise RunAgain("the topic was deleted meanwhile")
            return topic

        return self._database.write(
            work,
            lambda topic: Notification(topics=(topic.uuid,)),
            committed=lambda _: self._topics.forget(name),
        )


def _checked(topic: Topic, before: TopicConfig | None = None) -> Topic:
    """Return a topic, where it can be as its configuration says.

    Raises:
        InvalidArgument: The table cannot be partitioned so, or the Kafka topic not be named or
            changed so.
        InvalidSchema: The segments' format has no type for a column; fact `column`. Or the columns
            are not those of a Kafka topic.
    """
    check_kafka(topic, before)
    check_layout(topic, before)
    return check_segment_format(topic)


def _require(connection: Connection, name: TopicName, uuid: str | None) -> Topic:
    """Return the topic of a name, and of a UUID where one is given."""
    topic = find_topic(connection, name)
    if uuid not in {None, topic.uuid}:
        raise TopicNotFound(f"the topic {name} was deleted")
    return topic


TOPICS_CACHED_MAX = 4_096
"""How many topics a process remembers by name; then the one remembered longest is dropped."""


class TopicCache:
    """Topics by name, since every request looks its topic up.

    Only ever as new as the store: a topic read before a change and remembered after it is told by
    the generation and not kept.

    The registry looks topics up by UUID within its own statements, where a topic's deletion and its
    pages are seen at one moment, so they are not cached by it.

    Args:
        topics_max: How many to remember; 0 where another process may change them.
    """

    def __init__(self, topics_max: int) -> None:
        self._topics_max = topics_max
        self._lock = threading.Lock()
        self._topics: dict[TopicName, Topic] = {}
        self._generation = 0

    @property
    def generation(self) -> int:
        """A number to take before a topic is read from the store."""
        return self._generation

    def get(self, name: TopicName) -> Topic | None:
        """Return a topic if it is remembered."""
        return self._topics.get(name)

    def remember(self, topic: Topic, generation: int) -> None:
        """Keep a topic, unless something changed since `generation` was taken."""
        with self._lock:
            if generation != self._generation or self._topics_max == 0:
                return
            if len(self._topics) >= self._topics_max:
                del self._topics[next(iter(self._topics))]
            self._topics[topic.name] = topic

    def forget(self, name: TopicName) -> None:
        """Drop a topic that was changed; call it when the change is committed."""
        with self._lock:
            self._generation += 1
            self._topics.pop(name, None)


KnownSchemas = Lru[str, tuple[bytes, tuple[pa.Schema, ...]]]
"""Schemas by a topic's UUID: the last one's bytes, and all. Weighed in bytes as stored."""

NamespaceLock = Literal["", " FOR KEY SHARE", " FOR UPDATE"]


def find_namespace(
    connection: Connection, name: NamespaceName, lock: NamespaceLock = ""
) -> tuple[int, NamespaceState]:
    """Return a namespace and its id.

    Args:
        connection: To the database.
        name: The namespace's.
        lock: Keeps it from being deleted, or changed, until the end of the transaction.

    Raises:
        NamespaceNotFound: There is none of this name.
    """
    row = connection.execute(
        f"SELECT id, uuid, created_at FROM namespaces WHERE tenant = %s AND name = %s{lock}",
        (name.tenant, name.namespace),
    ).fetchone()
    if row is None:
        raise NamespaceNotFound(f"there is no namespace {name}")
    namespace_id, uuid, created_at = row
    return namespace_id, NamespaceState(name, uuid or "", created_at)


def find_namespaces(
    connection: Connection, after: NamespaceName | None, items_max: int | None
) -> list[NamespaceState]:
    """Return namespaces, by name; see `Admin.list_namespaces`."""
    least = ("", "") if after is None else (after.tenant, after.namespace)
    rows = connection.execute(
        "SELECT tenant, name, uuid, created_at FROM namespaces "
        "WHERE (tenant, name) > (%s::text, %s::text) ORDER BY tenant, name LIMIT %s::bigint",
        (*least, items_max),
    ).fetchall()
    return [
        NamespaceState(NamespaceName(tenant, name), uuid or "", created_at)
        for tenant, name, uuid, created_at in rows
    ]


def find_topic(connection: Connection, name: TopicName) -> Topic:
    """Return a topic.

    Raises:
        NamespaceNotFound: Its namespace does not exist.
        TopicNotFound: There is none of this name in it.
    """
    return _topic(name.namespace, *_find_row(connection, _COLUMNS, name))


def find_topic_again(connection: Connection, name: TopicName, known: KnownSchemas) -> Topic:
    """Return a topic, whose earlier schemas are not read where they are known.

    They may be a thousand times as long as all else of it. Versions are added at the end, and none
    is like another: so the last one says which are before it.

    Args:
        connection: To the database.
        name: The topic's.
        known: Schemas of topics that were looked up; those read are added.

    Raises: as `find_topic`.
    """
    *row, is_first = _find_row(connection, f"{_OWN_COLUMNS}, topics.earlier_schemas IS NULL", name)
    if is_first:
        return _topic(name.namespace, *row)
    uuid, schema = row[0], row[2]
    found = known.get(uuid)
    if found is not None and found[0] == schema:
        *earlier, last = found[1]
        topic = _topic(name.namespace, *row)
        return replace(topic, schema=last, earlier_schemas=tuple(earlier))
    row = _find_row(connection, _COLUMNS, name)
    topic = _topic(name.namespace, *row)
    known.put(topic.uuid, (row[2], topic.schemas), len(row[-1] or b""))
    return topic


def _find_row(connection: Connection, columns: LiteralString, name: TopicName) -> list[Any]:
    """Return columns of a topic; raises as `find_topic`."""
    which: _Which = " AND topics.name = %s::text"
    rows = _find_rows(connection, columns, name.namespace, which, name.topic)
    if not rows:
        raise TopicNotFound(f"there is no topic {name}", topic=str(name))
    return list(rows[0])


def find_topic_by_uuid(
    connection: Connection, uuid: str, name: TopicName, namespace_id: int
) -> Topic | None:
    """Return a topic that has, or had, a UUID and a name; None where no topic has the UUID.

    Raises:
        AlreadyExists: Another one has it.
    """
    row = connection.execute(
        f"SELECT {_COLUMNS}, topics.namespace_id FROM topics WHERE topics.uuid = %s", (uuid,)
    ).fetchone()
    if row is None:
        return None
    *columns, found_namespace_id = row
    topic = _topic(name.namespace, *columns)
    if topic.name != name or found_namespace_id not in {None, namespace_id}:
        raise AlreadyExists(f"there is another topic of the UUID {uuid} already")
    return topic


def find_topics(
    connection: Connection, namespace: NamespaceName, after: str | None, items_max: int | None
) -> list[Topic]:
    """Return the topics of a namespace, by name; see `Admin.list_topics`.

    Raises:
        NamespaceNotFound: It does not exist.
    """
    # An id is never empty.
    return _find(connection, namespace, " AND topics.name > %s::text", after or "", items_max)


def require_topic_ids(connection: Connection, topic_uuids: Iterable[str]) -> dict[str, int]:
    """Return the ids of topics, by UUID.

    Raises:
        TopicNotFound: One of them was deleted.
    """
    wanted = list(topic_uuids)
    topic_ids = find_topic_ids(connection, wanted)
    if len(topic_ids) < len(set(wanted)):
        raise TopicNotFound("the topic was deleted")
    return topic_ids


def find_topic_ids(connection: Connection, topic_uuids: Iterable[str]) -> dict[str, int]:
    """Return the ids of those topics that were not deleted, by UUID."""
    # All are sent before any is waited for.
    asked = {
        topic_uuid: connection.execute(
            "SELECT id FROM topics WHERE uuid = %s AND deleted_at IS NULL", (topic_uuid,)
        )
        for topic_uuid in topic_uuids
    }
    topic_ids: dict[str, int] = {}
    for topic_uuid, cursor in asked.items():
        row = cursor.fetchone()
        if row is not None:
            topic_ids[topic_uuid] = row[0]
    return topic_ids


def require_topic_id(connection: Connection, topic_uuid: str) -> int:
    """Return the id of a topic.

    Raises:
        TopicNotFound: It was deleted.
    """
    return require_topic_ids(connection, (topic_uuid,))[topic_uuid]


_OWN_COLUMNS = (
    "topics.uuid, topics.name, topics.schema, topics.partition_key, topics.config, "
    "topics.created_at"
)
_COLUMNS = f"{_OWN_COLUMNS}, topics.earlier_schemas"

_Which = Literal[" AND topics.name = %s::text", " AND topics.name > %s::text"]


def _find(
    connection: Connection,
    namespace: NamespaceName,
    which: _Which,
    topic: str,
    items_max: int | None = None,
) -> list[Topic]:
    """Return topics of a namespace, by name, seen at one moment with it."""
    rows = _find_rows(connection, _COLUMNS, namespace, which, topic, items_max)
    return [_topic(namespace, *row) for row in rows]


def _find_rows(
    connection: Connection,
    columns: LiteralString,
    namespace: NamespaceName,
    which: _Which,
    topic: str,
    items_max: int | None = None,
) -> list[Any]:
    rows = connection.execute(
        f"SELECT {columns} FROM namespaces "
        f"LEFT JOIN topics ON topics.namespace_id = namespaces.id{which} "
        "WHERE namespaces.tenant = %s AND namespaces.name = %s "
        "ORDER BY topics.name LIMIT %s::bigint",
        (topic, namespace.tenant, namespace.namespace, items_max),
    ).fetchall()
    if not rows:
        raise NamespaceNotFound(f"there is no namespace {namespace}")
    return [row for row in rows if row[0] is not None]


def _topic(
    namespace: NamespaceName,
    uuid: str,
    name: str,
    schema: bytes,
    partition_key: str | None,
    config: str,
    created_at: int,
    earlier_schemas: bytes | None = None,
) -> Topic:
    return Topic(
        name=TopicName(namespace, name),
        uuid=uuid,
        schema=pa.ipc.read_schema(pa.py_buffer(schema)),
        partition_key=partition_key,
        config=TopicConfig.from_json(config),
        created_at=created_at,
        earlier_schemas=schemas_of(earlier_schemas),
    )


def schemas_of(data: bytes | None) -> tuple[pa.Schema, ...]:
    """Return the schemas that `schemas_bytes` made bytes of; none of NULL."""
    if data is None:
        return ()
    reader = pa.BufferReader(data)
    schemas: list[pa.Schema] = []
    while reader.tell() < len(data):
        schemas.append(pa.ipc.read_schema(pa.ipc.read_message(reader)))
    return tuple(schemas)


def schemas_bytes(schemas: Iterable[pa.Schema]) -> bytes:
    """Return the form in which earlier schemas are stored: IPC messages one after another."""
    return b"".join(schema.serialize().to_pybytes() for schema in schemas)
