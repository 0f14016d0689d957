"""Topics and namespaces as they are stored in PostgreSQL.

Topics are not cached here: another node may change them at any time.
"""

import pyarrow as pa

from wings_core.errors import NamespaceNotFound, TopicNotFound
from wings_core.metadata.postgres.connections import Connection
from wings_core.model import Topic, TopicConfig
from wings_core.names import NamespaceName, TopicName

TopicRow = tuple[str, str, bytes, str | None, str, int]


def find_namespace(
    connection: Connection, name: NamespaceName, *, keep: bool = False
) -> tuple[int, int]:
    """Return the id of a namespace and when it was created.

    Args:
        connection: To the database.
        name: The namespace's.
        keep: Let nobody delete it until the end of the transaction.

    Raises:
        NamespaceNotFound: There is none of this name.
    """
    statement = "SELECT id, created_at FROM namespaces WHERE tenant = %s AND name = %s"
    row = connection.execute(
        f"{statement} FOR KEY SHARE" if keep else statement, (name.tenant, name.namespace)
    ).fetchone()
    if row is None:
        raise NamespaceNotFound(f"there is no namespace {name}")
    return row[0], row[1]


def find_topic(connection: Connection, name: TopicName) -> Topic:
    """Return a topic.

    Raises:
        NamespaceNotFound: Its namespace does not exist.
        TopicNotFound: There is none of this name in it.
    """
    rows = _topic_rows(connection, name.namespace, name.topic)
    if not rows:
        raise TopicNotFound(f"there is no topic {name}")
    return _topic(name.namespace, rows[0])


def find_topics(connection: Connection, namespace: NamespaceName) -> list[Topic]:
    """Return the topics of a namespace, by name.

    Raises:
        NamespaceNotFound: It does not exist.
    """
    return [_topic(namespace, row) for row in _topic_rows(connection, namespace, None)]


def find_topic_ids(connection: Connection, topic_uuids: list[str]) -> dict[str, int]:
    """Return the ids of those topics that are there, by UUID."""
    rows = connection.execute(
        "SELECT uuid, id FROM topics WHERE uuid = ANY(%s::text[]) AND deleted_at IS NULL",
        (topic_uuids,),
    ).fetchall()
    return {str(topic_uuid): int(topic_id) for topic_uuid, topic_id in rows}


def _topic_rows(
    connection: Connection, namespace: NamespaceName, topic: str | None
) -> list[TopicRow]:
    """Return the topics of a namespace, or the one of a name, all seen at one moment."""
    rows = connection.execute(
        "SELECT topics.uuid, topics.name, topics.schema, topics.partition_key, topics.config, "
        "topics.created_at FROM namespaces "
        "LEFT JOIN topics ON topics.namespace_id = namespaces.id "
        "AND (%s::text IS NULL OR topics.name = %s::text) "
        "WHERE namespaces.tenant = %s AND namespaces.name = %s ORDER BY topics.name",
        (topic, topic, namespace.tenant, namespace.namespace),
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
