"""Transactions in a database: each method but `expire` is one transaction of the database."""

import secrets
from collections.abc import Sequence
from itertools import groupby
from typing import LiteralString

from wings_core.errors import InvalidArgument
from wings_core.metadata.checks import check_id, check_partition
from wings_core.metadata.interfaces import Transactions
from wings_core.metadata.stages import (
    EPOCH_MAX,
    PARTITIONS_MAX,
    after_prefix,
    check_join,
    check_producer,
    is_ended,
    stage_entry,
    stage_prefix,
)
from wings_core.metadata.store.consumers import check_offsets, commit_offsets, find_entries
from wings_core.metadata.store.database import Connection, DatabasePart, Lock, of_ends
from wings_core.metadata.store.stages import (
    PublishOutcome,
    delete_stages,
    move_stages,
    stages_of_prefix,
)
from wings_core.metadata.store.topics import require_topic_ids
from wings_core.model import (
    CommittedOffset,
    ConsumerCommit,
    MemberEpoch,
    ProducerEpoch,
    PublishResult,
    Topic,
    Transaction,
    TransactionState,
    named_topic,
)
from wings_core.names import NamespaceName, TopicName
from wings_core.partitions import Partition

_OFFSETS: LiteralString = """
SELECT namespaces.tenant, namespaces.name, topics.name, topics.uuid, given.consumer,
    given.member, given.member_epoch, given.partition, given."offset", given.note
FROM transaction_offsets AS given JOIN topics ON topics.id = given.topic_id
JOIN namespaces ON namespaces.id = topics.namespace_id
"""
"""A deleted topic has no namespace, so it falls out of the join."""


class DatabaseTransactions(DatabasePart, Transactions):
    """See `Transactions`."""

    def join(self, name: str, timeout_ms: int, held: ProducerEpoch | None = None) -> ProducerEpoch:
        """Begin the next life of a name's producer; see `Transactions.join`."""
        check_join(name, timeout_ms)
        fresh = secrets.randbits(62)

        def work(connection: Connection) -> ProducerEpoch:
            found = _lock(connection, name)
            now = self._database.lease_now(connection)
            if found is None:
                return _write_life(connection, name, ProducerEpoch(fresh, 0), -1, timeout_ms, now)
            current = _producer_of(found)
            if held is not None and held != current:
                before = ProducerEpoch(current.producer_id, _last_epoch(connection, name))
                if held == before and found.deadline is None:
                    return current  # Its answer was lost, or a transaction expired.
                check_producer(name, held, found)
            _delete(connection, found)
            after = _next_life(current, fresh)
            last = -1 if held is None else held.epoch
            return _write_life(connection, name, after, last, timeout_ms, now)

        return self._database.write(work)

    def add_partitions(
        self, name: str, producer: ProducerEpoch, partitions: Sequence[tuple[Topic, Partition]]
    ) -> None:
        """Begin the stages of partitions; see `Transactions.add_partitions`."""
        check_id("the transaction's name", name)
        stages: dict[str, str] = {}
        for topic, partition in partitions:
            check_partition(partition, self._database.partition_bytes_max)
            stages[stage_entry(name, producer, topic.uuid, partition).stage] = topic.uuid
        names, topic_uuids = sorted(stages), sorted(set(stages.values()))

        def work(connection: Connection) -> None:
            self._open(connection, name, producer)
            connection.share_lock(Lock.TOPICS, topic_uuids)
            topic_ids = require_topic_ids(connection, topic_uuids)
            connection.execute_rows(
                "INSERT INTO stages (name, topic_id, writing, rows, bytes, pages, changed_at) "
                "SELECT given.name, given.topic_id, %(writing)s, 0, 0, 0, %(now)s::bigint "
                "FROM {given} WHERE true ON CONFLICT (name) DO NOTHING",
                {
                    "name text": names,
                    "topic_id bigint": [topic_ids[stages[stage]] for stage in names],
                },
                {"writing": name, "now": self._database.lease_now(connection)},
            )
            _check_count(len(_stages(connection, producer)))

        self._database.write(work)

    def add_offsets(self, name: str, producer: ProducerEpoch, offsets: ConsumerCommit) -> None:
        """Store offsets to be committed with the transaction; see `Transactions.add_offsets`."""
        check_id("the transaction's name", name)
        check_offsets(offsets, self._database.partition_bytes_max)
        member = offsets.member

        def work(connection: Connection) -> None:
            self._open(connection, name, producer)
            if not offsets.offsets:
                return
            columns, check_ends = find_entries(connection, offsets)
            connection.execute_rows(
                "INSERT INTO transaction_offsets (name, consumer, topic_id, partition, "
                'member, member_epoch, "offset", note) SELECT %(name)s, %(consumer)s, '
                "given.topic_id, given.partition, %(member)s, %(epoch)s::bigint, "
                'given."offset", given.note FROM {given} WHERE true '
                "ON CONFLICT (name, consumer, topic_id, partition) DO UPDATE "
                'SET "offset" = excluded."offset", note = excluded.note, '
                "member = excluded.member, member_epoch = excluded.member_epoch",
                columns,
                {
                    "name": name,
                    "consumer": offsets.consumer,
                    "member": "" if member is None else member.member,
                    "epoch": -1 if member is None else member.epoch,
                },
            )
            row = connection.execute(
                "SELECT count(*) FROM transaction_offsets WHERE name = %s", (name,)
            ).fetchone()
            assert row is not None
            check_ends()
            _check_count(row[0])

        self._database.write(work)

    def end(self, name: str, producer: ProducerEpoch, *, commit: bool) -> PublishResult:
        """End the open transaction; see `Transactions.end`."""
        check_id("the transaction's name", name)

        def work(connection: Connection) -> PublishOutcome:
            found = check_producer(name, producer, _lock(connection, name))
            if is_ended(found, commit=commit):
                return PublishOutcome(PublishResult((), replayed=True), {})
            outcome = PublishOutcome(PublishResult(()), {})
            if commit:
                now = self._database.now()
                commits = _commits(connection, name)
                topics = {topic.uuid for each in commits for topic, _, _ in each.offsets}
                outcome = move_stages(connection, _live_stages(connection, producer), topics, now)
                for each in commits:
                    commit_offsets(connection, each, now)
            _delete(connection, found)
            state = TransactionState.COMMITTED if commit else TransactionState.ABORTED
            connection.execute(
                "UPDATE transactions SET state = %s, deadline = NULL, changed_at = %s::bigint "
                "WHERE name = %s",
                (state.value, self._database.lease_now(connection), name),
            )
            return outcome

        return self._database.write(work, lambda outcome: of_ends(outcome.ends)).published

    def expire(self, transactions_max: int) -> int:
        """Abort transactions past their deadline; see `Transactions.expire`."""
        names = self._database.read(
            lambda connection: connection.execute(
                # The first condition has SQLite look at open ones alone, by their index.
                "SELECT name FROM transactions WHERE deadline > 0 AND (deadline <= %(now)s::bigint "
                "OR deadline > %(now)s::bigint + timeout_ms * 1000) "
                "ORDER BY deadline LIMIT %(most)s::bigint",
                {"now": self._database.lease_now(connection), "most": transactions_max},
            ).fetchall()
        )
        for (name,) in names:
            self._expire(name)
        return len(names)

    def find(self, name: str) -> Transaction | None:
        """Return a name's last transaction; see `Transactions.find`."""
        check_id("the transaction's name", name)
        return self._database.read(lambda connection: _find(connection, name))

    def pending(self, consumer: str) -> list[CommittedOffset]:
        """Return what open transactions will commit; see `Transactions.pending`."""
        check_id("the consumer's name", consumer)
        rows = self._database.read(
            lambda connection: connection.execute(
                _OFFSETS + 'WHERE given.consumer = %s ORDER BY 1, 2, 3, 8, given."offset"',
                (consumer,),
            ).fetchall()
        )
        return [
            CommittedOffset(
                TopicName(NamespaceName(tenant, namespace), topic), partition, offset, 0, note
            )
            for tenant, namespace, topic, _, _, _, _, partition, offset, note in rows
        ]

    def _expire(self, name: str) -> None:
        fresh = secrets.randbits(62)

        def work(connection: Connection) -> None:
            found = _lock(connection, name)
            now = self._database.lease_now(connection)
            if found is None or found.deadline is None:
                return  # Another process was faster, or the producer.
            if found.deadline > now:
                # The clock may have been set back since it began.
                latest = min(found.deadline, now + found.timeout_ms * 1_000)
                connection.execute(
                    "UPDATE transactions SET deadline = %s::bigint WHERE name = %s", (latest, name)
                )
                return
            _delete(connection, found)
            after = _next_life(_producer_of(found), fresh)
            _write_life(connection, name, after, found.epoch, found.timeout_ms, now)

        self._database.write(work)

    def _open(self, connection: Connection, name: str, producer: ProducerEpoch) -> None:
        """Check the producer, and open a transaction where none is open."""
        found = check_producer(name, producer, _lock(connection, name))
        if found.deadline is not None:
            return
        now = self._database.lease_now(connection)
        connection.execute(
            "UPDATE transactions SET state = %s, deadline = %s::bigint, changed_at = %s::bigint "
            "WHERE name = %s",
            (TransactionState.OPEN.value, now + found.timeout_ms * 1_000, now, name),
        )


def _lock(connection: Connection, name: str) -> Transaction | None:
    """Return a name's last transaction, and keep other transactions from it."""
    connection.take_lock(Lock.WRITERS, (f"transaction/{name}",))
    return _find(connection, name)


def _find(connection: Connection, name: str) -> Transaction | None:
    row = connection.execute(
        "SELECT name, producer_id, epoch, state, timeout_ms, deadline FROM transactions "
        "WHERE name = %s",
        (name,),
    ).fetchone()
    return None if row is None else Transaction(*row)


def _last_epoch(connection: Connection, name: str) -> int:
    row = connection.execute(
        "SELECT last_epoch FROM transactions WHERE name = %s", (name,)
    ).fetchone()
    assert row is not None
    return row[0]


def _next_life(current: ProducerEpoch, fresh: int) -> ProducerEpoch:
    if current.epoch >= EPOCH_MAX:
        return ProducerEpoch(fresh, 0)
    return ProducerEpoch(current.producer_id, current.epoch + 1)


def _write_life(
    connection: Connection,
    name: str,
    producer: ProducerEpoch,
    last_epoch: int,
    timeout_ms: int,
    now: int,
) -> ProducerEpoch:
    connection.execute(
        "INSERT INTO transactions (name, producer_id, epoch, last_epoch, state, timeout_ms, "
        "deadline, changed_at) VALUES (%s, %s::bigint, %s::bigint, %s::bigint, %s, %s::bigint, "
        "NULL, %s::bigint) ON CONFLICT (name) DO UPDATE SET producer_id = excluded.producer_id, "
        "epoch = excluded.epoch, last_epoch = excluded.last_epoch, state = excluded.state, "
        "timeout_ms = excluded.timeout_ms, deadline = NULL, changed_at = excluded.changed_at",
        (
            *(name, producer.producer_id, producer.epoch, last_epoch),
            *(TransactionState.NONE.value, timeout_ms, now),
        ),
    )
    return producer


def _delete(connection: Connection, found: Transaction) -> None:
    """Delete what a transaction has staged and collected, if anything is left."""
    if found.deadline is None:
        return
    delete_stages(connection, _stages(connection, _producer_of(found)))
    connection.execute("DELETE FROM transaction_offsets WHERE name = %s", (found.name,))


def _producer_of(found: Transaction) -> ProducerEpoch:
    return ProducerEpoch(found.producer_id, found.epoch)


def _stages(connection: Connection, producer: ProducerEpoch) -> list[str]:
    """Return the stages of a producer's open transaction, by id, at most one too many."""
    return stages_of_prefix(connection, stage_prefix(producer), PARTITIONS_MAX + 1)


def _live_stages(connection: Connection, producer: ProducerEpoch) -> list[str]:
    """Return those stages whose topic was not deleted."""
    prefix = stage_prefix(producer)
    rows = connection.execute(
        "SELECT stages.name FROM stages JOIN topics ON topics.id = stages.topic_id "
        "WHERE topics.deleted_at IS NULL AND stages.name >= %s AND stages.name < %s "
        "ORDER BY stages.name",
        (prefix, after_prefix(prefix)),
    ).fetchall()
    return [name for (name,) in rows]


def _commits(connection: Connection, name: str) -> list[ConsumerCommit]:
    """Return the offsets that a transaction collected, by consumer and member."""
    rows = connection.execute(
        _OFFSETS + "WHERE given.name = %s ORDER BY given.consumer, given.member, "
        "given.member_epoch, given.topic_id, given.partition",
        (name,),
    ).fetchall()
    commits: list[ConsumerCommit] = []
    for (consumer, member, epoch), found in groupby(rows, key=lambda row: row[4:7]):
        offsets: list[tuple[Topic, Partition, int]] = []
        notes: list[str] = []
        for tenant, namespace, topic, uuid, _, _, _, partition, offset, note in found:
            full_name = TopicName(NamespaceName(tenant, namespace), topic)
            offsets.append((named_topic(full_name, uuid), partition, offset))
            notes.append(note)
        held = MemberEpoch(member, epoch) if member else None
        commits.append(ConsumerCommit(consumer, tuple(offsets), held, tuple(notes)))
    return commits


def _check_count(count: int) -> None:
    if count > PARTITIONS_MAX:
        raise InvalidArgument(f"a transaction has at most {PARTITIONS_MAX} partitions and offsets")
