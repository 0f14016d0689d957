"""Consumer groups in a database: each method is one transaction."""

from collections.abc import Sequence
from functools import lru_cache

from wings_core.errors import FencedMember
from wings_core.metadata.checks import check_id, check_text
from wings_core.metadata.interfaces import ConsumerGroups
from wings_core.metadata.maintenance import MaintenanceLease
from wings_core.metadata.store.database import Connection, DatabasePart
from wings_core.metadata.store.maintenance import is_held
from wings_core.model import (
    GroupChange,
    GroupMember,
    MemberEpoch,
    StoredGroup,
    Topic,
    TopicConfig,
)
from wings_core.partitions import Partition
from wings_core.slots import slot_of

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


def check_fence(
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
    return TopicConfig.model_validate_json(config).kafka is not None


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
