"""Share groups in a database: each method is one transaction."""

from typing import Literal

from wings_core.errors import AlreadyExists
from wings_core.metadata.checks import (
    check_group_room,
    check_id,
    check_name,
    check_text,
    existing_group,
    no_group,
)
from wings_core.metadata.interfaces import Groups
from wings_core.metadata.store.database import Connection, DatabasePart, Lock
from wings_core.metadata.store.topics import require_topic_id
from wings_core.model import ShareConfig, ShareGroup, Topic

_SELECT = (
    "SELECT share_groups.name, share_groups.uuid, share_groups.config "
    "FROM share_groups JOIN topics ON topics.id = share_groups.topic_id "
    "WHERE topics.uuid = %s AND topics.deleted_at IS NULL"
)


class DatabaseGroups(DatabasePart, Groups):
    """See `Groups`."""

    def create(self, group: ShareGroup, *, if_not_exists: bool = False) -> ShareGroup:
        """Create a group; see `Groups.create`."""
        check_name(group.name)

        def work(connection: Connection) -> ShareGroup:
            connection.share_lock(Lock.TOPICS, (group.topic.uuid,))
            topic_id = require_topic_id(connection, group.topic.uuid)
            existing = _find(connection, group.topic, group.name)
            if existing is None:
                # Others are created before or after this, and not while they are counted.
                connection.execute(
                    "SELECT 1 FROM topics WHERE id = %s FOR NO KEY UPDATE", (topic_id,)
                )
                existing = _find(connection, group.topic, group.name)
            if existing is not None:
                return existing_group(existing, group.uuid, if_not_exists=if_not_exists)
            counted = connection.execute(
                "SELECT count(*) FROM share_groups WHERE topic_id = %s", (topic_id,)
            ).fetchone()
            assert counted is not None
            check_group_room(group.topic, counted[0])
            config = group.config.model_dump_json()
            created = connection.execute(
                "INSERT INTO share_groups (uuid, topic_id, name, config, created_at) "
                "VALUES (%s, %s, %s, %s, %s) ON CONFLICT (uuid) DO NOTHING RETURNING uuid",
                (group.uuid, topic_id, group.name, config, self._database.now()),
            ).fetchone()
            if created is None:
                raise AlreadyExists(f"there is another group of the UUID {group.uuid:.80} already")
            return group

        return self._database.write(work)

    def get(self, topic: Topic, name: str) -> ShareGroup:
        """Return a group; see `Groups.get`."""
        check_text("the group's name", name)
        return self._database.read(lambda connection: _require(connection, topic, name))

    def of_topic(
        self, topic: Topic, *, after: str | None = None, items_max: int | None = None
    ) -> list[ShareGroup]:
        """Return a topic's groups, by name; see `Groups.of_topic`."""
        check_text("after", after or "")

        def work(connection: Connection) -> list[ShareGroup]:
            require_topic_id(connection, topic.uuid)
            # A name is never empty.
            rows = connection.execute(
                f"{_SELECT} AND share_groups.name > %s::text "
                "ORDER BY share_groups.name LIMIT %s::bigint",
                (topic.uuid, after or "", items_max),
            )
            return [_group(topic, *row) for row in rows.fetchall()]

        return self._database.read(work)

    def alter(self, topic: Topic, name: str, changes: ShareConfig) -> ShareGroup:
        """Change a group's configuration; see `Groups.alter`."""
        check_text("the group's name", name)

        def work(connection: Connection) -> ShareGroup:
            found = _require(connection, topic, name, " FOR UPDATE OF share_groups")
            config = found.config.changed_by(changes)
            connection.execute(
                "UPDATE share_groups SET config = %s WHERE uuid = %s",
                (config.model_dump_json(), found.uuid),
            )
            return ShareGroup(name, found.uuid, topic, config)

        return self._database.write(work)

    def restart(self, group: ShareGroup, uuid: str) -> ShareGroup:
        """Give a group another UUID; see `Groups.restart`."""
        topic, name = group.topic, group.name
        check_text("the group's name", name)
        check_id("the group's UUID", uuid)

        def work(connection: Connection) -> ShareGroup:
            found = _require(connection, topic, name, " FOR UPDATE OF share_groups")
            if found.uuid == uuid:
                return found
            if found.uuid != group.uuid:
                raise no_group(topic, name)
            connection.execute(
                "UPDATE share_groups SET uuid = %s WHERE uuid = %s", (uuid, found.uuid)
            )
            return ShareGroup(name, uuid, topic, found.config)

        return self._database.write(work)

    def delete(self, topic: Topic, name: str, uuid: str | None = None) -> ShareGroup:
        """Delete a group; see `Groups.delete`."""
        check_text("the group's name", name)

        def work(connection: Connection) -> ShareGroup:
            found = _require(connection, topic, name, " FOR UPDATE OF share_groups")
            if uuid not in {None, found.uuid}:
                raise no_group(topic, name)
            connection.execute("DELETE FROM share_groups WHERE uuid = %s", (found.uuid,))
            return found

        return self._database.write(work)


def lock_groups(connection: Connection, topic_uuid: str) -> frozenset[str]:
    """Lock the groups of a topic against changes until the end of this transaction.

    None is created, moved or deleted meanwhile.

    Returns:
        Their UUIDs.

    Raises:
        TopicNotFound: The topic was deleted.
    """
    connection.share_lock(Lock.TOPICS, (topic_uuid,))
    topic_id = require_topic_id(connection, topic_uuid)
    connection.execute("SELECT 1 FROM topics WHERE id = %s FOR SHARE", (topic_id,))
    rows = connection.execute(
        "SELECT uuid FROM share_groups WHERE topic_id = %s ORDER BY id FOR SHARE", (topic_id,)
    )
    return frozenset(str(uuid) for (uuid,) in rows.fetchall())


def purge_of_topic(connection: Connection, topic_id: int, rows_max: int) -> int:
    """Delete up to so many groups of a deleted topic; return how many."""
    return connection.execute(
        "DELETE FROM share_groups WHERE id IN "
        "(SELECT id FROM share_groups WHERE topic_id = %s LIMIT %s::bigint)",
        (topic_id, max(0, rows_max)),
    ).rowcount


_Lock = Literal["", " FOR UPDATE OF share_groups"]


def _require(connection: Connection, topic: Topic, name: str, lock: _Lock = "") -> ShareGroup:
    found = _find(connection, topic, name, lock)
    if found is None:
        require_topic_id(connection, topic.uuid)
        raise no_group(topic, name)
    return found


def _find(connection: Connection, topic: Topic, name: str, lock: _Lock = "") -> ShareGroup | None:
    row = connection.execute(
        f"{_SELECT} AND share_groups.name = %s{lock}",
        (topic.uuid, name),
    ).fetchone()
    return None if row is None else _group(topic, *row)


def _group(topic: Topic, name: str, uuid: str, config: str) -> ShareGroup:
    return ShareGroup(name, uuid, topic, ShareConfig.from_json(config))
