"""Share groups in SQLite: each method is one transaction."""

import sqlite3
from collections.abc import Callable

from wings_core.metadata.grouping import check_name, check_room, existing_group, no_group
from wings_core.metadata.interfaces import Groups
from wings_core.metadata.sqlite.connections import Connections, limit_of
from wings_core.metadata.sqlite.topics import require_topic_id
from wings_core.model import Topic
from wings_core.share.model import ShareConfig, ShareGroup

_SELECT = (
    "SELECT share_groups.name, share_groups.uuid, share_groups.config "
    "FROM share_groups JOIN topics ON topics.id = share_groups.topic_id "
    "WHERE topics.uuid = ? AND topics.deleted_at IS NULL"
)


class SqliteGroups(Groups):
    """See `Groups`.

    Args:
        connections: To the database.
        clock: Microseconds since the epoch.
    """

    def __init__(self, connections: Connections, clock: Callable[[], int]) -> None:
        self._connections = connections
        self._clock = clock

    def create(self, group: ShareGroup, *, if_not_exists: bool = False) -> ShareGroup:
        """Make a group known; see `Groups.create`."""
        check_name(group.name)
        with self._connections.writing() as connection:
            topic_id = require_topic_id(connection, group.topic.uuid)
            existing = _find(connection, group.topic, group.name)
            if existing is not None:
                return existing_group(existing, group.uuid, if_not_exists=if_not_exists)
            ((groups,),) = connection.execute(
                "SELECT count(*) FROM share_groups WHERE topic_id = ?", (topic_id,)
            )
            check_room(group.topic, groups)
            connection.execute(
                "INSERT INTO share_groups (uuid, topic_id, name, config, created_at) "
                "VALUES (?, ?, ?, ?, ?)",
                (group.uuid, topic_id, group.name, group.config.model_dump_json(), self._clock()),
            )
        return group

    def get(self, topic: Topic, name: str) -> ShareGroup:
        """Return a group; see `Groups.get`."""
        with self._connections.reading() as connection:
            return _require(connection, topic, name)

    def of_topic(
        self, topic: Topic, *, after: str | None = None, items_max: int | None = None
    ) -> list[ShareGroup]:
        """Return a topic's groups, by name; see `Groups.of_topic`."""
        with self._connections.reading() as connection:
            require_topic_id(connection, topic.uuid)
            # A name is never empty.
            rows = connection.execute(
                f"{_SELECT} AND share_groups.name > ? ORDER BY share_groups.name LIMIT ?",
                (topic.uuid, after or "", limit_of(items_max)),
            )
            return [_group(topic, *row) for row in rows]

    def alter(self, topic: Topic, name: str, changes: ShareConfig) -> ShareGroup:
        """Change a group's configuration; see `Groups.alter`."""
        with self._connections.writing() as connection:
            found = _require(connection, topic, name)
            config = found.config.changed_by(changes)
            connection.execute(
                "UPDATE share_groups SET config = ? WHERE uuid = ?",
                (config.model_dump_json(), found.uuid),
            )
        return ShareGroup(name, found.uuid, topic, config)

    def delete(self, topic: Topic, name: str, uuid: str | None = None) -> ShareGroup:
        """Forget a group; see `Groups.delete`."""
        with self._connections.writing() as connection:
            found = _require(connection, topic, name)
            if uuid not in {None, found.uuid}:
                raise no_group(topic, name)
            connection.execute("DELETE FROM share_groups WHERE uuid = ?", (found.uuid,))
        return found


def purge_of_topic(connection: sqlite3.Connection, topic_id: int, rows_max: int) -> int:
    """Delete up to so many groups of a deleted topic; return how many."""
    return connection.execute(
        "DELETE FROM share_groups WHERE id IN "
        "(SELECT id FROM share_groups WHERE topic_id = ? LIMIT ?)",
        (topic_id, max(0, rows_max)),
    ).rowcount


def _require(connection: sqlite3.Connection, topic: Topic, name: str) -> ShareGroup:
    found = _find(connection, topic, name)
    if found is None:
        require_topic_id(connection, topic.uuid)
        raise no_group(topic, name)
    return found


def _find(connection: sqlite3.Connection, topic: Topic, name: str) -> ShareGroup | None:
    try:
        row = connection.execute(
            f"{_SELECT} AND share_groups.name = ?", (topic.uuid, name)
        ).fetchone()
    except UnicodeEncodeError:  # Half a surrogate pair, which no group's name has.
        return None
    return None if row is None else _group(topic, *row)


def _group(topic: Topic, name: str, uuid: str, config: str) -> ShareGroup:
    return ShareGroup(name, uuid, topic, ShareConfig.from_json(config))
