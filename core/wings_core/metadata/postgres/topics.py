"""Topics and namespaces as they are stored in PostgreSQL.

Topics are not cached here: another node may change them at any time.
"""

from typing import Literal

import pyarrow as pa

from wings_core.errors import NamespaceNotFound, TopicNotFound
from wings_core.metadata.creation import taken_uuid
from wings_core.metadata.postgres.connections import Connection
from wings_core.model import Namespace, Topic, TopicConfig
from wings_core.names import NamespaceName, TopicName

TopicRow = tuple[str, str, bytes, str | None, str, int]


NamespaceLock = Literal["", " FOR KEY SHARE", " FOR UPDATE"]


def find_namespace(
    connection: Connection, name: NamespaceName, lock: NamespaceLock = ""
) -> tuple[int, Namespace]:
    """Return a namespace and its id.

    Args:
        connection: To the database.
        name: The namespace's.
        lock: Let nobody delete it, or change it, until the end of the transaction.

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
    rows = _topic_rows(connection, name.namespace, " AND topics.name = %s::text", name.topic)
    if not rows:
        raise TopicNotFound(f"there is no topic {name}")
    return _topic(name.namespace, rows[0])


def find_topic_by_uuid(
    connection: Connection, uuid: str, name: TopicName, namespace_id: int
) -> Topic | None:
    """Return a topic that has, or had, a UUID and a name; None where no topic has the UUID.

    Raises:
        AlreadyExists: Another one has it.
    """
    row = connection.execute(
        "SELECT uuid, name, schema, partition_key, config, created_at, namespace_id FROM topics "
        "WHERE uuid = %s",
        (uuid,),
    ).fetchone()
    if row is None:
        return None
    if row[1] != name.topic or row[6] not in {None, namespace_id}:
        raise taken_uuid(uuid)
    return _topic(name.namespace, row[:6])


def find_topics(
    connection: Connection, namespace: NamespaceName, after: str | None, items_max: int | None
) -> list[Topic]:
    """Return the topics of a namespace, by name; see `Admin.list_topics`.

    Raises:
        NamespaceNotFound: It does not exist.
    """
    # An id is never empty.
    rows = _topic_rows(connection, namespace, " AND topics.name > %s::text", after or "", items_max)
    return [_topic(namespace, row) for row in rows]


def find_topic_ids(connection: Connection, topic_uuids: list[str]) -> dict[str, int]:
    """Return the ids of those topics that are there, by UUID."""
    rows = connection.execute(
        "SELECT uuid, id FROM topics WHERE uuid = ANY(%s::text[]) AND deleted_at IS NULL",
        (topic_uuids,),
    ).fetchall()
    return {str(topic_uuid): int(topic_id) for topic_uuid, topic_id in rows}


_Which = Literal[" AND topics.name = %s::text", " AND topics.name > %s::text"]


def _topic_rows(
    connection: Connection,
    namespace: NamespaceName,
    which: _Which,
    topic: str,
    items_max: int | None = None,
) -> list[TopicRow]:
    """Return topics of a namespace, by name, seen at one moment with it."""
    rows = connection.execute(
        "SELECT topics.uuid, topics.name, topics.schema, topics.partition_key, topics.config, "
        "topics.created_at FROM namespaces "
        f"LEFT JOIN topics ON topics.namespace_id = namespaces.id{which} "
        "WHERE namespaces.tenant = %s AND namespaces.name = %s "
        "ORDER BY topics.name LIMIT %s::bigint",
        (topic, namespace.tenant, namespace.namespace, items_max),
    ).fetchall()
    if not rows:
        raise NamespaceNotFound(f"there is no namespace {namespace}")
    return [
        (uuid, name, schema, partition_key, config, created_at)
        for uuid, name, schema, partition_key, config, created_at in rows
        if uuid is not None
    ]


def _topic(namespace: NamespaceName, row: TopicRow) -> Topic:
    uuid, name, schema, partition_key, config, created_at = row
    return Topic(
        name=TopicName(namespace, name),
        uuid=uuid,
        schema=pa.ipc.read_schema(pa.py_buffer(schema)),
        partition_key=partition_key,
        config=TopicConfig.model_validate_json(config),
        created_at=created_at,
    )
