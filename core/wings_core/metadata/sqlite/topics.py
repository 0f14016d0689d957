"""Topics as rows, and those looked up lately."""

import sqlite3
import threading

import pyarrow as pa

from wings_core.errors import NamespaceNotFound, TopicNotFound
from wings_core.metadata.creation import taken_uuid
from wings_core.metadata.sqlite.connections import limit_of
from wings_core.model import Namespace, Topic, TopicConfig
from wings_core.names import NamespaceName, TopicName

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


TopicRow = tuple[str, str, bytes, str | None, str, int]

_SELECT = "SELECT uuid, name, schema, partition_key, config, created_at FROM topics"


def find_namespace(connection: sqlite3.Connection, name: NamespaceName) -> tuple[int, Namespace]:
    """Return a namespace and its id.

    Raises:
        NamespaceNotFound: There is none of this name.
    """
    row: tuple[int, str | None, int] | None = connection.execute(
        "SELECT id, uuid, created_at FROM namespaces WHERE tenant = ? AND name = ?",
        (name.tenant, name.namespace),
    ).fetchone()
    if row is None:
        raise NamespaceNotFound(f"there is no namespace {name}")
    namespace_id, uuid, created_at = row
    return namespace_id, Namespace(name, uuid or "", created_at)


def find_namespaces(
    connection: sqlite3.Connection, after: NamespaceName | None, items_max: int | None
) -> list[Namespace]:
    """Return namespaces, by name; see `Admin.list_namespaces`."""
    least = ("", "") if after is None else (after.tenant, after.namespace)
    rows = connection.execute(
        "SELECT tenant, name, uuid, created_at FROM namespaces WHERE (tenant, name) > (?, ?) "
        "ORDER BY tenant, name LIMIT ?",
        (*least, limit_of(items_max)),
    )
    return [
        Namespace(NamespaceName(tenant, name), uuid or "", created_at)
        for tenant, name, uuid, created_at in rows
    ]


def find_topic(connection: sqlite3.Connection, name: TopicName) -> Topic:
    """Return a topic.

    Raises:
        NamespaceNotFound: Its namespace does not exist.
        TopicNotFound: There is none of this name in it.
    """
    namespace_id, _ = find_namespace(connection, name.namespace)
    row: TopicRow | None = connection.execute(
        f"{_SELECT} WHERE namespace_id = ? AND name = ?", (namespace_id, name.topic)
    ).fetchone()
    if row is None:
        raise TopicNotFound(f"there is no topic {name}")
    return _topic(name.namespace, row)


def find_topic_by_uuid(
    connection: sqlite3.Connection, uuid: str, name: TopicName, namespace_id: int
) -> Topic | None:
    """Return a topic that has, or had, a UUID and a name; None where no topic has the UUID.

    Raises:
        AlreadyExists: Another one has it.
    """
    row = connection.execute(
        f"{_SELECT} WHERE uuid = ? AND name = ? AND ifnull(namespace_id, ?) = ?",
        (uuid, name.topic, namespace_id, namespace_id),
    ).fetchone()
    if row is not None:
        return _topic(name.namespace, row)
    if connection.execute("SELECT 1 FROM topics WHERE uuid = ?", (uuid,)).fetchone():
        raise taken_uuid(uuid)
    return None


def find_topics(
    connection: sqlite3.Connection,
    namespace: NamespaceName,
    after: str | None,
    items_max: int | None,
) -> list[Topic]:
    """Return the topics of a namespace, by name; see `Admin.list_topics`.

    Raises:
        NamespaceNotFound: It does not exist.
    """
    namespace_id, _ = find_namespace(connection, namespace)
    # An id is never empty.
    rows = connection.execute(
        f"{_SELECT} WHERE namespace_id = ? AND name > ? ORDER BY name LIMIT ?",
        (namespace_id, after or "", limit_of(items_max)),
    )
    return [_topic(namespace, row) for row in rows]


def find_topic_id(connection: sqlite3.Connection, topic_uuid: str) -> int | None:
    """Return the id of a topic, None if there is none or it was deleted."""
    row: tuple[int] | None = connection.execute(
        "SELECT id FROM topics WHERE uuid = ? AND deleted_at IS NULL", (topic_uuid,)
    ).fetchone()
    return None if row is None else row[0]


def require_topic_id(connection: sqlite3.Connection, topic_uuid: str) -> int:
    """Return the id of a topic.

    Raises:
        TopicNotFound: It was deleted.
    """
    topic_id = find_topic_id(connection, topic_uuid)
    if topic_id is None:
        raise TopicNotFound("the topic was deleted")
    return topic_id


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
