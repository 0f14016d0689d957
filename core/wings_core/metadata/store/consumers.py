"""Consumers in a database: the members of their groups, and their offsets.

Each method of consumer groups is one transaction.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, LiteralString

from wings_core.errors import FencedMember, InvalidArgument, OffsetOutOfRange
from wings_core.metadata.checks import check_id, check_partition, check_text
from wings_core.metadata.interfaces import OFFSET_MAX, ConsumerGroups
from wings_core.metadata.maintenance import MaintenanceLease
from wings_core.metadata.store.database import Connection, DatabasePart, Lock
from wings_core.metadata.store.maintenance import is_held
from wings_core.metadata.store.topics import require_topic_ids
from wings_core.model import (
    CommittedOffset,
    ConsumerCommit,
    GroupChange,
    GroupMember,
    MemberEpoch,
    StoredGroup,
    Topic,
    TopicConfig,
)
from wings_core.names import NamespaceName, TopicName
from wings_core.partitions import Partition, partition_sort_key, partition_value, slot_of

CONFIGS_KEPT_MAX = 1_024
"""Texts of topics' configurations that are remembered, so that a commit need not parse them."""


class DatabaseConsumerGroups(DatabasePart, ConsumerGroups):
    """See `ConsumerGroups`."""

    def load(self, consumer: str) -> StoredGroup:
        """Return a group; see `ConsumerGroups.load`."""
        check_id("the consumer's name", consumer)
        return self._database.read(lambda connection: _load(connection, consumer))

    def save(self, lease: MaintenanceLease, consumer: str, change: GroupChange) -> bool:
        """Store a change of a group; see `ConsumerGroups.save`."""
        check_id("the consumer's name", consumer)
        for member in change.changed:
            check_id("the member's name", member.member)
            check_text("the instance", member.instance or "")

        def work(connection: Connection) -> None:
            _save(connection, consumer, change)
            if not is_held(connection, lease, self._database.lease_now(connection)):
                raise _LeaseLostError

        try:
            self._database.write(work)
        except _LeaseLostError:
            return False
        return True

    def names(self, names_max: int, *, after: str | None = None) -> list[str]:
        """Return the consumers that have a group; see `ConsumerGroups.names`."""
        check_text("after", after or "")
        rows = self._database.read(
            lambda connection: connection.execute(
                "SELECT consumer FROM consumer_groups WHERE consumer > %s::text "
                "ORDER BY consumer LIMIT %s::bigint",
                (after or "", max(0, names_max)),
            ).fetchall()
        )
        return [consumer for (consumer,) in rows]


class _LeaseLostError(Exception):
    """Undoes the transaction."""


def _check_fence(
    connection: Connection,
    consumer: str,
    member: MemberEpoch | None,
    offsets: Sequence[tuple[Topic, Partition, int]],
) -> None:
    """Check that a commit may set a consumer's offsets, until the end of the transaction.

    Args:
        connection: In a transaction.
        consumer: The consumer's name.
        member: The member that commits, or a generation; None: the commit states none.
        offsets: Offsets that it commits, of topics that are there.

    Raises:
        FencedMember: The member does not hold one of the partitions, or the generation is not the
            group's; or no member is stated, and the consumer's group has members.
    """
    # Excludes a change of the group; the next statement sees the members as they are then.
    group = connection.execute(
        "SELECT epoch FROM consumer_groups WHERE consumer = %s FOR SHARE", (consumer,)
    ).fetchone()
    if group is None and member is None:  # Which most consumers are.
        return
    named = (member and member.member) or None
    row = connection.execute(
        "SELECT state FROM consumer_group_members WHERE consumer = %s "
        "AND (%s::text IS NULL OR member = %s::text) LIMIT 1",
        (consumer, named, named),
    ).fetchone()
    if member is None or named is None:
        if row is not None:
            raise FencedMember(
                f"{consumer!r} is a consumer group with members: a commit states its member"
            )
        if member is not None and (group is None or group[0] != member.epoch):
            raise FencedMember(f"{consumer!r} is past generation {member.epoch}")
        return
    if row is None:
        raise FencedMember(f"member {member.member!r} is not in the group {consumer!r}")
    stored = GroupMember.from_json(row[0])
    # All are sent before any is waited for.
    asked = {
        uuid: connection.execute("SELECT config FROM topics WHERE uuid = %s", (uuid,))
        for uuid in {topic.uuid for topic, *_ in offsets}
    }
    numbered = {uuid: _is_numbered(*cursor.fetchall()[0]) for uuid, cursor in asked.items()}
    for topic, partition, _ in offsets:
        slot = slot_of(partition, numbered=numbered[topic.uuid])
        if not stored.may_commit(member.epoch, topic.uuid, slot):
            raise FencedMember(
                f"member {member.member!r} at epoch {member.epoch} does not hold partition "
                f"{partition:.80} of {topic.name}"
            )


@lru_cache(CONFIGS_KEPT_MAX)
def _is_numbered(config: str) -> bool:
    return TopicConfig.from_json(config).kafka is not None


def _load(connection: Connection, consumer: str) -> StoredGroup:
    row = connection.execute(
        "SELECT epoch FROM consumer_groups WHERE consumer = %s", (consumer,)
    ).fetchone()
    if row is None:
        return StoredGroup()
    states = connection.execute(
        "SELECT state FROM consumer_group_members WHERE consumer = %s ORDER BY member", (consumer,)
    ).fetchall()
    return StoredGroup(row[0], tuple(GroupMember.from_json(state) for (state,) in states))


def _save(connection: Connection, consumer: str, change: GroupChange) -> None:
    connection.execute(
        "INSERT INTO consumer_groups (consumer, epoch) VALUES (%s, %s) "
        "ON CONFLICT (consumer) DO UPDATE SET epoch = excluded.epoch",
        (consumer, change.epoch),
    )
    if change.removed:
        connection.execute_rows(
            "DELETE FROM consumer_group_members WHERE consumer = %(consumer)s "
            "AND member IN (SELECT given.member FROM {given})",
            {"member text": change.removed},
            {"consumer": consumer},
        )
    if change.changed:
        connection.execute_rows(
            "INSERT INTO consumer_group_members (consumer, member, state) "
            "SELECT %(consumer)s, given.member, given.state FROM {given} WHERE true "
            "ON CONFLICT (consumer, member) DO UPDATE SET state = excluded.state",
            {
                "member text": [each.member for each in change.changed],
                "state text": [each.to_json() for each in change.changed],
            },
            {"consumer": consumer},
        )


NOTE_BYTES_MAX = 4_096
"""Longest text kept with an offset, in UTF-8."""


def check_offsets(commit: ConsumerCommit, partition_bytes_max: int) -> None:
    """Check that a consumer's offsets can be stored.

    Args:
        commit: The offsets.
        partition_bytes_max: Longest value of a partition that the database stores.

    Raises:
        InvalidArgument: The name, a partition, an offset or a note cannot be stored, or there are
            not as many notes as offsets.
    """
    check_id("the consumer's name", commit.consumer)
    for _, partition, offset in commit.offsets:
        if len(partition) * 4 > partition_bytes_max:  # Else it is shorter, whatever is in it.
            check_partition(partition, partition_bytes_max)
        if not 0 <= offset <= OFFSET_MAX:
            raise InvalidArgument(f"{offset} is not an offset: expected 0 to {OFFSET_MAX}")
    if commit.notes and len(commit.notes) != len(commit.offsets):
        raise InvalidArgument(f"{len(commit.notes)} notes for {len(commit.offsets)} offsets")
    for note in commit.notes:
        check_text("the note", note, NOTE_BYTES_MAX)


def commit_offsets(connection: Connection, commit: ConsumerCommit, now: int) -> None:
    """Store a consumer's offsets; see `OffsetRegistry.commit_offsets`.

    Args:
        connection: In a transaction.
        commit: The offsets, checked by `check_offsets`.
        now: Microseconds since the epoch.
    """
    columns, check_ends = find_entries(connection, commit)
    connection.execute_rows(
        'INSERT INTO consumer_offsets (consumer, topic_id, partition, "offset", note, '
        'committed_at) SELECT %(consumer)s, given.topic_id, given.partition, given."offset", '
        "given.note, %(now)s::bigint "
        "FROM {given} WHERE true ON CONFLICT (consumer, topic_id, partition) DO UPDATE "
        'SET "offset" = excluded."offset", committed_at = excluded.committed_at, '
        "note = excluded.note",
        columns,
        {"consumer": commit.consumer, "now": now},
    )
    check_ends()


def find_entries(
    connection: Connection, commit: ConsumerCommit
) -> tuple[Mapping[str, Sequence[Any]], Callable[[], None]]:
    """Return a consumer's offsets as columns, once it may commit them.

    Keeps their topics from deletion, and the consumer's group from changes, until the end of the
    transaction.

    Returns:
        Columns for `Connection.execute_rows`: topic id, partition, offset and note; each partition
        once, in order. And a function to be called before the end of the transaction, which raises
        `OffsetOutOfRange`; the database looks meanwhile.

    Raises:
        FencedMember, TopicNotFound: As of `OffsetRegistry.commit_offsets`.
    """
    offsets = commit.offsets
    last: dict[str, dict[Partition, tuple[int, str]]] = {}
    notes = commit.notes or [""] * len(offsets)
    for (topic, partition, offset), note in zip(offsets, notes, strict=True):
        # The last one counts where a partition is named twice.
        last.setdefault(topic.uuid, {})[partition] = offset, note
    topics = sorted(last)
    connection.share_lock(Lock.TOPICS, topics)
    topic_ids = require_topic_ids(connection, topics)
    _check_fence(connection, commit.consumer, commit.member, offsets)
    # In order, which excludes deadlocks.
    entries = [
        (topic_ids[uuid], partition, *last[uuid][partition])
        for uuid in sorted(topics, key=topic_ids.__getitem__)
        for partition in sorted(last[uuid])
    ]
    columns = {
        "topic_id bigint": [topic_id for topic_id, *_ in entries],
        "partition text": [partition for _, partition, *_ in entries],
        "offset bigint": [offset for _, _, offset, _ in entries],
        "note text": [note for *_, note in entries],
    }
    past_end = connection.execute_rows(
        'SELECT given.topic_id, given.partition, given."offset", coalesce(log_start_offset, 0), '
        "coalesce(next_offset, 0) FROM {given} LEFT JOIN partitions "
        "ON partitions.topic_id = given.topic_id AND partitions.value = given.partition "
        'WHERE given."offset" > coalesce(next_offset, 0) LIMIT 1',
        columns,
    )

    def check_ends() -> None:
        row = past_end.fetchone()
        if row is not None:
            topic_id, partition, offset, log_start_offset, log_end_offset = row
            name = next(topic.name for topic, *_ in offsets if topic_ids[topic.uuid] == topic_id)
            raise OffsetOutOfRange(
                f"offset {offset} is past the end of partition {partition:.80} of {name}, "
                f"{log_end_offset}",
                topic=str(name),
                partition=partition_value(partition),
                log_start_offset=log_start_offset,
                log_end_offset=log_end_offset,
            )

    return columns, check_ends


def get_offsets(
    connection: Connection,
    consumer: str,
    topic_uuid: str | None,
    after: tuple[TopicName, Partition] | None,
    items_max: int | None,
) -> list[CommittedOffset]:
    """Return a consumer's offsets, by topic and partition; see `OffsetRegistry.get_offsets`."""
    least = ("", "", "", "")
    if after is not None:
        name, partition = after
        least = (name.namespace.tenant, name.namespace.namespace, name.topic, partition)
    # A deleted topic has no namespace, so it falls out of the join.
    rows = connection.execute(
        "SELECT namespaces.tenant, namespaces.name, topics.name, consumer_offsets.partition, "
        'consumer_offsets."offset", consumer_offsets.committed_at, consumer_offsets.note '
        "FROM consumer_offsets "
        "JOIN topics ON topics.id = consumer_offsets.topic_id "
        "JOIN namespaces ON namespaces.id = topics.namespace_id "
        "WHERE consumer_offsets.consumer = %s AND (%s::text IS NULL OR topics.uuid = %s::text) "
        "AND (namespaces.tenant, namespaces.name, topics.name, consumer_offsets.partition) "
        "> (%s::text, %s::text, %s::text, %s::text) ORDER BY 1, 2, 3, 4 LIMIT %s::bigint",
        (consumer, topic_uuid, topic_uuid, *least, items_max),
    ).fetchall()
    offsets = [
        CommittedOffset(TopicName(NamespaceName(tenant, namespace), topic), *offset)
        for tenant, namespace, topic, *offset in rows
    ]
    return sorted(offsets, key=lambda entry: (entry.topic, partition_sort_key(entry.partition)))


def forget_offsets(
    connection: Connection, consumer: str, topic_uuid: str | None, partitions: Sequence[Partition]
) -> None:
    """Delete a consumer's offsets; see `OffsetRegistry.forget_offsets`."""
    _check_fence(connection, consumer, None, ())
    chosen: LiteralString = (
        "" if not partitions else "AND partition IN (SELECT given.partition FROM {given}) "
    )
    connection.execute_rows(
        "DELETE FROM consumer_offsets WHERE consumer = %(consumer)s AND (%(uuid)s::text IS NULL "
        "OR topic_id = (SELECT id FROM topics WHERE uuid = %(uuid)s::text)) " + chosen,
        {"partition text": partitions},
        {"consumer": consumer, "uuid": topic_uuid},
    )


def list_consumers(connection: Connection, consumers_max: int, after: str | None) -> list[str]:
    """Return the named consumers, by name; see `OffsetRegistry.list_consumers`."""
    greater: LiteralString = "" if after is None else "AND consumer_offsets.consumer > %s::text "
    rows = connection.execute(
        "SELECT DISTINCT consumer_offsets.consumer FROM consumer_offsets "
        "JOIN topics ON topics.id = consumer_offsets.topic_id "
        f"WHERE topics.namespace_id IS NOT NULL {greater}"
        "ORDER BY consumer_offsets.consumer LIMIT %s::bigint",
        (*([] if after is None else [after]), max(0, consumers_max)),
    ).fetchall()
    return [consumer for (consumer,) in rows]
