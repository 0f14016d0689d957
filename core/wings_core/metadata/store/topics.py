"""Topics and namespaces as rows."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, LiteralString

import pyarrow as pa

from wings_core.errors import NamespaceNotFound, TopicNotFound
from wings_core.metadata.creation import taken_uuid
from wings_core.metadata.store.database import Connection
from wings_core.model import Namespace, Topic, TopicConfig
from wings_core.names import NamespaceName, TopicName
from wings_core.storage.lru import Lru

KnownSchemas = Lru[str, tuple[bytes, tuple[pa.Schema, ...]]]
"""By a topic's UUID: the last schema's bytes, and all schemas. The weight is in bytes as stored."""

NamespaceLock = Literal["", " FOR KEY SHARE", " FOR UPDATE"]


def find_namespace(
    connection: Connection, name: NamespaceName, lock: NamespaceLock = ""
) -> tuple[int, Namespace]:
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
    return namespace_id, Namespace(name, uuid or "", created_at)


def find_namespaces(
    connection: Connection, after: NamespaceName | None, items_max: int | None
) -> list[Namespace]:
    """Return namespaces, by name; see `Admin.list_namespaces`."""
    least = ("", "") if after is None else (after.tenant, after.namespace)
    rows = connection.execute(
        "SELECT tenant, name, uuid, created_at FROM namespaces "
        "WHERE (tenant, name) > (%s::text, %s::text) ORDER BY tenant, name LIMIT %s::bigint",
        (*least, items_max),
    ).fetchall()
    return [
        Namespace(NamespaceName(tenant, name), uuid or "", created_at)
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
        known: Of topics that were looked up; what is read is added.

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
        raise taken_uuid(uuid)
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
        config=TopicConfig.model_validate_json(config),
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
