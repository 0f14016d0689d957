"""How every store of `Transactions` fences producers, and ends what they staged and collected."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from fix_metadata import (
    DAY,
    SECOND,
    A,
    B,
    MetadataUnderTest,
    batch_of,
    offsets_of,
)

from wings_core.errors import (
    FencedMember,
    InvalidArgument,
    OffsetOutOfRange,
    PublishFenced,
    StageNotFound,
    TopicNotFound,
    WingsError,
)
from wings_core.metadata import stages as rules
from wings_core.metadata.maintenance import MaintenanceLease
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.metadata.sqlite.database import SqliteConnection
from wings_core.metadata.waiting import Wake
from wings_core.model import (
    CommitResult,
    ConsumerCommit,
    GroupChange,
    GroupMember,
    MemberEpoch,
    PartitionSequence,
    Position,
    ProducerEpoch,
    PublishedTopicRange,
    PublishResult,
    Rejected,
    StagedBatch,
    Topic,
    TransactionState,
)
from wings_core.partitions import SLOTS, Partition, mask_of
from wings_core.times import Deadline

MINUTE_MS = 60_000
EVERY = mask_of(range(SLOTS))


def range_of(topic: Topic, partition: Partition, start: int, end: int) -> PublishedTopicRange:
    return PublishedTopicRange(topic.name, partition, start, end)


def rejection_of(result: CommitResult) -> WingsError:
    assert isinstance(result, Rejected)
    return result.error


def purge_all(metadata: MetadataUnderTest) -> None:
    while metadata.registry.purge(1_000):
        pass


def save_member(metadata: MetadataUnderTest, name: str, epoch: int, topic: Topic) -> None:
    """Make a member the only one of the group `group`, with all slots of a topic."""
    lease = metadata.opened.maintenance.acquire_lease("consumer-groups/1", "one", 10)
    assert lease is not None
    held = {topic.uuid: EVERY}
    topics = frozenset({topic.uuid})
    member = GroupMember(name, epoch, epoch - 1, topics, None, 6_000, held, held, held)
    groups = metadata.opened.consumer_groups
    gone = tuple(each.member for each in groups.load("group").members)
    change = GroupChange(epoch, (member,), gone)
    assert groups.save(MaintenanceLease("consumer-groups/1", "one", lease), "group", change)


def write(
    metadata: MetadataUnderTest,
    producer: ProducerEpoch,
    topic: Topic,
    partition: Partition,
    rows: int = 1,
    sequence: int | None = None,
) -> CommitResult:
    """Stage rows in a transaction of the name `t`, as one stream of many does."""
    batch = batch_of(
        topic,
        {partition: rows},
        stage=rules.stage_entry("t", producer, topic.uuid, partition),
    )
    if sequence is not None:
        numbers = (str(producer.producer_id), producer.epoch, sequence)
        batch.partition_sequence = PartitionSequence(*numbers)
    (result,) = metadata.registry.commit([batch])
    return result


def begin(
    metadata: MetadataUnderTest, *partitions: tuple[Topic, Partition], timeout_ms: int = MINUTE_MS
) -> ProducerEpoch:
    producer = metadata.transactions.join("t", timeout_ms)
    metadata.transactions.add_partitions("t", producer, partitions)
    return producer


def state_of(metadata: MetadataUnderTest) -> str:
    found = metadata.transactions.find("t")
    assert found is not None
    assert (found.deadline is not None) == (found.state == TransactionState.OPEN)
    return found.state


def committed(metadata: MetadataUnderTest, consumer: str) -> list[tuple[Partition, int, str]]:
    return [
        (each.partition, each.offset, each.note) for each in metadata.registry.get_offsets(consumer)
    ]


def test_a_commit_shows_rows_of_many_topics_and_offsets_of_many_consumers_at_once(
    metadata: MetadataUnderTest,
) -> None:
    one, two = metadata.create_topic("key"), metadata.create_topic("key")
    metadata.push(one, 5, A)
    producer = begin(metadata, (one, A), (one, B), (two, A))
    assert write(metadata, producer, one, A, 2) == StagedBatch(
        rules.stage_entry("t", producer, one.uuid, A).stage, 2, 100, 0
    )
    result = write(metadata, producer, one, A, 3)
    assert isinstance(result, StagedBatch)
    assert result.rows_before == 2
    for topic, partition in ((one, B), (two, A)):
        assert isinstance(write(metadata, producer, topic, partition), StagedBatch)
    transactions = metadata.transactions
    transactions.add_offsets("t", producer, ConsumerCommit("g", ((one, A, 2),), notes=("old",)))
    transactions.add_offsets("t", producer, ConsumerCommit("g", ((one, A, 3),), notes=("new",)))
    transactions.add_offsets("t", producer, ConsumerCommit("h", ((one, A, 5), (one, B, 0))))
    assert [each.offset for each in transactions.pending("g")] == [3]
    metadata.push(one, 1, A)
    metadata.reopen()
    transactions = metadata.transactions
    assert offsets_of(metadata.registry, one, A) == [(0, 4), (5, 5)]
    assert offsets_of(metadata.registry, two, A) == committed(metadata, "g") == []
    published = transactions.end("t", producer, commit=True)
    assert set(published.committed) == {
        range_of(one, A, 6, 10),
        range_of(one, B, 0, 0),
        range_of(two, A, 0, 0),
    }
    assert offsets_of(metadata.registry, one, A, 6) == [(6, 7), (8, 10)]
    assert committed(metadata, "g") == [(A, 3, "new")]
    assert committed(metadata, "h") == [(A, 5, ""), (B, 0, "")]
    assert transactions.pending("g") == metadata.stages.of_topic(one.uuid) == []
    assert state_of(metadata) == TransactionState.COMMITTED


def test_an_end_may_be_repeated_and_not_reversed(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    producer = metadata.transactions.join("t", MINUTE_MS)
    for commit in (True, False):
        with pytest.raises(StageNotFound):  # Nothing is open.
            metadata.transactions.end("t", producer, commit=commit)
    for commit in (True, False):
        metadata.transactions.add_partitions("t", producer, [(topic, A)])
        write(metadata, producer, topic, A)
        metadata.transactions.end("t", producer, commit=commit)
        again = metadata.transactions.end("t", producer, commit=commit)
        assert again == PublishResult((), replayed=True)
        with pytest.raises(StageNotFound):
            metadata.transactions.end("t", producer, commit=not commit)
    assert offsets_of(metadata.registry, topic, A) == [(0, 0)]
    purge_all(metadata)
    assert metadata.registry.live_folios() == {"folio-1"}


def test_an_abort_leaves_nothing(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    producer = begin(metadata, (topic, A))
    write(metadata, producer, topic, A)
    metadata.transactions.add_offsets("t", producer, ConsumerCommit("g", ((topic, A, 0),)))
    metadata.transactions.end("t", producer, commit=False)
    purge_all(metadata)
    assert metadata.registry.live_folios() == set()
    assert metadata.transactions.pending("g") == committed(metadata, "g") == []
    assert state_of(metadata) == TransactionState.ABORTED


def test_a_batch_outside_of_its_transaction_is_refused(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    producer = begin(metadata, (topic, A))
    assert isinstance(rejection_of(write(metadata, producer, topic, B)), StageNotFound)
    write(metadata, producer, topic, A)
    metadata.transactions.end("t", producer, commit=True)
    assert isinstance(rejection_of(write(metadata, producer, topic, A)), StageNotFound)
    metadata.transactions.add_partitions("t", producer, [(topic, A)])
    assert isinstance(write(metadata, producer, topic, A), StagedBatch)  # The next transaction.


def test_numbers_of_rows_go_on_through_transactions(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    producer = begin(metadata, (topic, A))
    assert isinstance(write(metadata, producer, topic, A, 2, sequence=0), StagedBatch)
    metadata.transactions.end("t", producer, commit=False)
    metadata.transactions.add_partitions("t", producer, [(topic, A)])
    for _ in range(2):  # Once and its repeat.
        assert isinstance(write(metadata, producer, topic, A, 3, sequence=2), StagedBatch)
    assert isinstance(write(metadata, producer, topic, A, 1, sequence=6), Rejected)
    metadata.transactions.end("t", producer, commit=True)
    assert offsets_of(metadata.registry, topic, A) == [(0, 2)]
    later = begin(metadata, (topic, A))
    assert isinstance(write(metadata, later, topic, A, 1, sequence=0), StagedBatch)


def test_who_joins_fences_those_before_and_aborts_their_transaction(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic("key")
    first = begin(metadata, (topic, A))
    write(metadata, first, topic, A)
    metadata.transactions.add_offsets("t", first, ConsumerCommit("g", ((topic, A, 0),)))
    metadata.reopen()
    transactions = metadata.transactions
    second = transactions.join("t", MINUTE_MS)
    assert second == ProducerEpoch(first.producer_id, first.epoch + 1)
    assert state_of(metadata) == TransactionState.NONE
    assert transactions.pending("g") == []
    assert isinstance(rejection_of(write(metadata, first, topic, A)), StageNotFound)
    nothing = ConsumerCommit("g", ())
    for call in (
        lambda: transactions.add_partitions("t", first, [(topic, A)]),
        lambda: transactions.add_offsets("t", first, nothing),
        lambda: transactions.end("t", first, commit=True),
        lambda: transactions.join("t", MINUTE_MS, first),
    ):
        with pytest.raises(PublishFenced) as caught:
            call()
        assert caught.value.epoch == second.epoch
    for name, other in (("t", ProducerEpoch(7, 0)), ("unknown", second)):
        with pytest.raises(PublishFenced) as caught:
            transactions.add_offsets(name, other, nothing)
        assert caught.value.epoch is None
    transactions.add_partitions("t", second, [(topic, A)])
    assert isinstance(write(metadata, second, topic, A), StagedBatch)


def test_a_holder_that_joins_again_gets_the_next_epoch_once(metadata: MetadataUnderTest) -> None:
    transactions = metadata.transactions
    first = transactions.join("t", MINUTE_MS)
    second = transactions.join("t", MINUTE_MS, first)
    assert transactions.join("t", MINUTE_MS, first) == second
    assert second == ProducerEpoch(first.producer_id, first.epoch + 1)
    transactions.add_offsets("t", second, ConsumerCommit("g", ()))
    with pytest.raises(PublishFenced):  # The next life has gone on.
        transactions.join("t", MINUTE_MS, first)


def test_epochs_end_with_another_id(
    metadata: MetadataUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wings_core.metadata.store import transactions as store

    monkeypatch.setattr(store, "EPOCH_MAX", 1)
    producers = [metadata.transactions.join("t", MINUTE_MS) for _ in range(3)]
    assert [each.epoch for each in producers] == [0, 1, 0]
    assert len({each.producer_id for each in producers}) == 2


def test_a_transaction_is_aborted_by_a_clock_that_was_set_back_too(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic("key")
    producer = begin(metadata, (topic, A), timeout_ms=2_000)
    write(metadata, producer, topic, A)
    metadata.clock.time -= 3_600 * SECOND
    metadata.transactions.expire(10)
    metadata.clock.time += SECOND
    assert metadata.transactions.expire(10) == 0
    metadata.clock.time += SECOND
    assert metadata.transactions.expire(10) == 1
    assert metadata.stages.of_topic(topic.uuid) == []


def test_late_transactions_are_looked_for_among_open_ones_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[str] = []
    execute = SqliteConnection.execute

    def explained(self: SqliteConnection, query: str, params: Any = None) -> sqlite3.Cursor:
        rows = execute(self, f"EXPLAIN QUERY PLAN {query}", params).fetchall()
        plans.extend(detail for *_, detail in rows)
        return execute(self, query, params)

    with SqliteMetadata(tmp_path / "metadata.db") as store:
        monkeypatch.setattr(SqliteConnection, "execute", explained)
        assert store.transactions.expire(10) == 0
    assert plans == ["SEARCH transactions USING INDEX transactions_open (deadline>?)"]


def test_a_transaction_past_its_deadline_is_aborted_and_its_producer_fenced(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic("key")
    producer = begin(metadata, (topic, A), timeout_ms=2_000)
    write(metadata, producer, topic, A)
    metadata.clock.time += SECOND
    assert metadata.transactions.expire(10) == 0
    metadata.transactions.add_partitions("t", producer, [(topic, B)])  # Does not begin anew.
    metadata.clock.time += SECOND
    assert metadata.transactions.expire(10) == 1
    assert metadata.transactions.expire(10) == 0
    assert metadata.stages.of_topic(topic.uuid) == []
    with pytest.raises(PublishFenced):
        metadata.transactions.end("t", producer, commit=True)
    next_life = metadata.transactions.join("t", MINUTE_MS, producer)
    assert next_life == ProducerEpoch(producer.producer_id, producer.epoch + 1)


def test_stages_of_an_open_transaction_are_not_swept(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    producer = begin(metadata, (topic, A))
    write(metadata, producer, topic, A)
    metadata.clock.time += DAY
    assert metadata.stages.sweep(1, 10) == 0
    metadata.transactions.end("t", producer, commit=True)
    assert offsets_of(metadata.registry, topic, A) == [(0, 0)]


def test_a_commit_wakes_those_who_wait(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    producer = begin(metadata, (topic, A))
    write(metadata, producer, topic, A)
    wake = Wake()
    with metadata.registry.watch([Position(topic.uuid, A, 0)], wake.notify):
        metadata.transactions.end("t", producer, commit=True)
        assert wake.wait(Deadline.after(30).remaining())


def test_what_is_of_a_deleted_topic_falls_away(metadata: MetadataUnderTest) -> None:
    one, two = metadata.create_topic("key"), metadata.create_topic("key")
    producer = begin(metadata, (one, A), (two, A))
    for topic in (one, two):
        write(metadata, producer, topic, A)
        metadata.transactions.add_offsets("t", producer, ConsumerCommit("g", ((topic, A, 0),)))
    metadata.admin.delete_topic(one.name)
    published = metadata.transactions.end("t", producer, commit=True)
    assert published.committed == (range_of(two, A, 0, 0),)
    assert [each.topic for each in metadata.registry.get_offsets("g")] == [two.name]
    with pytest.raises(TopicNotFound):
        metadata.transactions.add_partitions("t", producer, [(one, A)])


def test_offsets_are_checked_when_they_are_added(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    producer = metadata.transactions.join("t", MINUTE_MS)
    with pytest.raises(OffsetOutOfRange):
        metadata.transactions.add_offsets("t", producer, ConsumerCommit("g", ((topic, A, 1),)))
    assert state_of(metadata) == TransactionState.NONE
    metadata.push(topic, 1, A)
    metadata.transactions.add_offsets("t", producer, ConsumerCommit("g", ((topic, A, 1),)))
    assert state_of(metadata) == TransactionState.OPEN


def test_a_member_that_lost_its_partitions_commits_nothing(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    save_member(metadata, "one", 2, topic)
    producer = begin(metadata, (topic, A))
    write(metadata, producer, topic, A)
    with pytest.raises(FencedMember):
        metadata.transactions.add_offsets("t", producer, ConsumerCommit("group", ((topic, A, 0),)))
    offsets = ConsumerCommit("group", ((topic, A, 0),), MemberEpoch("one", 2))
    metadata.transactions.add_offsets("t", producer, offsets)
    save_member(metadata, "two", 3, topic)
    with pytest.raises(FencedMember):
        metadata.transactions.end("t", producer, commit=True)
    assert offsets_of(metadata.registry, topic, A) == []
    assert state_of(metadata) == TransactionState.OPEN
    metadata.transactions.end("t", producer, commit=False)


def test_a_name_that_nobody_uses_is_forgotten(metadata: MetadataUnderTest) -> None:
    metadata.transactions.join("t", MINUTE_MS)
    metadata.clock.time += 89 * DAY
    purge_all(metadata)
    assert metadata.transactions.find("t") is not None
    metadata.clock.time += 2 * DAY
    purge_all(metadata)
    assert metadata.transactions.find("t") is None


def test_what_cannot_be_is_refused(
    metadata: MetadataUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wings_core.metadata.store import transactions as store

    transactions = metadata.transactions
    for name, timeout_ms in (
        ("", 1),
        ("x" * 257, 1),
        ("a\0b", 1),
        ("t", 0),
        ("t", rules.TIMEOUT_MS_MAX + 1),
    ):
        with pytest.raises(InvalidArgument):
            transactions.join(name, timeout_ms)
    topic = metadata.create_topic("key")
    producer = transactions.join("t", rules.TIMEOUT_MS_MAX)
    with pytest.raises(InvalidArgument):
        transactions.add_partitions("t", producer, [(topic, Partition('"' + "x" * 100 + '"'))])
    monkeypatch.setattr(store, "PARTITIONS_MAX", 1)
    with pytest.raises(InvalidArgument):
        transactions.add_partitions("t", producer, [(topic, A), (topic, B)])
    with pytest.raises(InvalidArgument):
        transactions.add_offsets("t", producer, ConsumerCommit("g", ((topic, A, 0), (topic, B, 0))))
    assert state_of(metadata) == TransactionState.NONE
