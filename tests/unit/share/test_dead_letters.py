"""Dead letters and their redrive, on a real log."""

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fix_calls import Calls
from fix_share import asking

from wings_core.data_directory import DataDirectory
from wings_core.deployments import OneDirectory
from wings_core.errors import (
    AlreadyExists,
    GroupNotFound,
    InvalidArgument,
    InvalidFilter,
    SchemaMismatch,
    Unavailable,
)
from wings_core.fetch.cursors import PartitionCursor
from wings_core.fetch.fetcher import Cancel, Read
from wings_core.ingest.pending import PushStream
from wings_core.ingest.prepare import Preparer, PushOptions
from wings_core.limits import Limits
from wings_core.log import Log
from wings_core.metadata.store.groups import DatabaseGroups
from wings_core.model import ShareConfig, ShareGroup, Topic
from wings_core.names import TopicName
from wings_core.partitions import UNPARTITIONED, Partition
from wings_core.share.dead_letters import writer as dead_letters
from wings_core.share.dead_letters.redrive import Redriver
from wings_core.share.dead_letters.writer import (
    DEAD_LETTER_SCHEMA,
    DeadLetterWriter,
    open_dead_letter_topic,
)
from wings_core.share.delivery.record_fetcher import LogSource, RecordFetcher, RecordSource
from wings_core.share.model import ArchivedRange
from wings_core.times import Deadline

SCHEMA = pa.schema([pa.field("key", pa.string()), pa.field("n", pa.int64())])
DLQ = TopicName.parse("dead")


class Setting:
    """A log with a topic of 20 messages, `n` being the offset, and what writes dead letters."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.topic = self.create("orders")
        for first in (0, 7):
            self.push(self.topic, range(first, 7 if first == 0 else 20))
        self.records = RecordFetcher(LogSource(log.fetcher, log.registry))
        self.group = self.group_with()

    def create(self, name: str) -> Topic:
        return self.log.admin.create_topic(TopicName.parse(name), SCHEMA)

    def push(self, topic: Topic, numbers: Sequence[int], key: str = "k") -> None:
        batch = pa.record_batch(
            {"key": [f"{key}{n}" for n in numbers], "n": pa.array(numbers, pa.int64())},
            schema=SCHEMA,
        )
        prepared = Preparer(topic, self.log.limits).prepare(batch, PushOptions())
        self.log.group_commit.submit(PushStream(), prepared, awaited=True).accepted()

    def group_with(self, **config: Any) -> ShareGroup:
        keys = {"dlq_topic": "dead", **config}
        return ShareGroup("billing", "uuid-1", self.topic, ShareConfig.model_validate(keys))

    def writer(self, records: RecordFetcher | None = None) -> DeadLetterWriter:
        return DeadLetterWriter(
            self.log.admin, self.log.group_commit, self.log.limits, records or self.records
        )

    def letter(self, first: int, last: int, **keys: Any) -> ArchivedRange:
        values: dict[str, Any] = {"delivery_count": 5, "cause": "delivery_limit", "reason": None}
        values |= keys
        return ArchivedRange(self.topic.name, UNPARTITIONED, first, last, **values)

    def read(self, name: TopicName) -> list[dict[str, Any]]:
        """Return all rows of an unpartitioned topic."""
        topic = self.log.admin.get_topic(name)
        state = self.log.registry.partition_state(topic.uuid, UNPARTITIONED)
        read = Read.of(topic, [PartitionCursor(UNPARTITIONED, 0, state.next_offset)])
        chunks = self.log.fetcher.scan(read, Cancel())
        return [row for chunk in chunks for row in chunk.batch.to_pylist()]

    def redriver(self) -> Redriver:
        log = self.log
        return Redriver(log.admin, log.registry, log.fetcher, log.group_commit, log.limits)


@pytest.fixture
def setting(tmp_path: Path) -> Generator[Setting]:
    with DataDirectory.open(tmp_path / "data") as directory:
        log = Log.open(OneDirectory(directory), Limits())
        opened = Setting(log)
        try:
            yield opened
        finally:
            opened.records.close()
            log.close()


def payload_of(row: dict[str, Any]) -> dict[str, Any]:
    (found,) = pa.ipc.read_record_batch(pa.py_buffer(row["payload"]), SCHEMA).to_pylist()
    return found


def test_a_dead_letter_tells_of_its_message_and_holds_it(setting: Setting) -> None:
    letter = setting.letter(6, 8, cause="rejected", reason="no such customer", delivery_count=2)
    setting.writer().begin(setting.group, [letter]).finish()
    rows = setting.read(DLQ)
    assert [row["source_offset"] for row in rows] == [6, 7, 8]
    assert [payload_of(row) for row in rows] == [{"key": f"k{n}", "n": n} for n in (6, 7, 8)]
    (first, *_) = rows
    assert first["source_topic"] == str(setting.topic.name)
    assert first["source_partition"] == "null"
    assert first["share_group"] == "billing"
    assert first["delivery_count"] == 2
    assert first["reason"] == "rejected"
    assert first["error"] == "no such customer"
    assert first["message_timestamp"] <= first["dead_lettered_at"]


def test_a_dead_letter_is_written_once_however_often_it_is_begun(setting: Setting) -> None:
    setting.writer().begin(setting.group, [setting.letter(3, 9)]).finish()
    # As after a crash before the tombstone: by another writer, in other ranges.
    again = [setting.letter(2, 4), setting.letter(5, 11, delivery_count=6)]
    setting.writer().begin(setting.group, again).finish()
    offsets = [row["source_offset"] for row in setting.read(DLQ)]
    assert sorted(offsets) == [2, 3, 4, 5, 6, 7, 8, 9, 10, 11]


def test_two_groups_each_have_their_own_dead_letter(setting: Setting) -> None:
    other = ShareGroup("other", "uuid-2", setting.topic, setting.group.config)
    for group in (setting.group, other):
        setting.writer().begin(group, [setting.letter(3, 3)]).finish()
    assert [row["share_group"] for row in setting.read(DLQ)] == ["billing", "other"]


def test_more_letters_than_a_piece_are_all_written(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "PIECE_MESSAGES", 2)
    monkeypatch.setattr(dead_letters, "AHEAD_MAX", 2)
    letters = [setting.letter(0, 10), setting.letter(12, 18)]
    setting.writer().begin(setting.group, letters).finish()
    rows = setting.read(DLQ)
    assert [row["source_offset"] for row in rows] == [*range(11), *range(12, 19)]
    assert all(payload_of(row)["n"] == row["source_offset"] for row in rows)


def test_a_group_that_copies_no_payloads_has_none_in_its_letters(setting: Setting) -> None:
    group = setting.group_with(dlq_copy_payload=False)
    setting.writer().begin(group, [setting.letter(3, 3)]).finish()
    (row,) = setting.read(DLQ)
    assert (row["payload"], row["source_offset"]) == (None, 3)


def test_a_message_that_is_gone_leaves_a_letter_without_payload(setting: Setting) -> None:
    setting.writer().begin(setting.group, [setting.letter(18, 21)]).finish()
    rows = setting.read(DLQ)
    assert [row["payload"] is None for row in rows] == [False, False, True, True]


class Failing(RecordSource):
    def read(
        self, topic: Topic, partition: Partition, offset: int, stop_offset: int
    ) -> list[pa.RecordBatch]:
        raise Unavailable("the remote tier cannot be reached")


def test_letters_wait_for_rows_that_cannot_be_read_for_now(setting: Setting) -> None:
    records = RecordFetcher(Failing())
    try:
        pending = setting.writer(records).begin(setting.group, [setting.letter(3, 3)])
        with pytest.raises(Unavailable, match="remote tier"):
            pending.finish()
    finally:
        records.close()
    assert setting.read(DLQ) == []
    setting.writer().begin(setting.group, [setting.letter(3, 3)]).finish()
    (row,) = setting.read(DLQ)
    assert payload_of(row)["n"] == 3


def test_the_topic_of_dead_letters_is_created_or_checked(setting: Setting) -> None:
    admin, source = setting.log.admin, setting.topic.name
    created = open_dead_letter_topic(admin, DLQ, source)
    assert created.schema.equals(DEAD_LETTER_SCHEMA)
    assert open_dead_letter_topic(admin, DLQ, source) == created
    with pytest.raises(SchemaMismatch, match="no topic of dead letters"):
        open_dead_letter_topic(admin, setting.create("other").name, source)
    with pytest.raises(InvalidArgument, match="its own"):
        open_dead_letter_topic(admin, source, source)


def test_a_redrive_sends_letters_back_once(setting: Setting) -> None:
    setting.writer().begin(setting.group, [setting.letter(3, 6)]).finish()
    setting.writer().begin(setting.group, [setting.letter(9, 9, cause="rejected")]).finish()
    redriven = setting.redriver().redrive(DLQ, "reason = 'rejected'", 0, 10_000)
    assert (redriven.redriven, redriven.already, redriven.next_offset) == (1, 0, 5)
    assert [row["n"] for row in setting.read(setting.topic.name)][20:] == [9]
    again = setting.redriver().redrive(DLQ, None, 0, 10_000)
    assert (again.redriven, again.already, again.without_payload) == (4, 1, 0)
    assert [row["n"] for row in setting.read(setting.topic.name)][20:] == [9, 3, 4, 5, 6]


def test_a_redrive_looks_at_a_bounded_number_of_letters(setting: Setting) -> None:
    setting.writer().begin(setting.group, [setting.letter(0, 9)]).finish()
    first = setting.redriver().redrive(DLQ, None, 0, 4)
    assert (first.redriven, first.next_offset, first.log_end_offset) == (4, 4, 10)
    rest = setting.redriver().redrive(DLQ, None, first.next_offset, 100)
    assert (rest.redriven, rest.next_offset) == (6, 10)
    assert setting.redriver().redrive(DLQ, None, 99, 100).next_offset == 10


def test_letters_that_cannot_be_sent_back_are_told_of(setting: Setting) -> None:
    group = setting.group_with(dlq_copy_payload=False)
    setting.writer().begin(group, [setting.letter(1, 1)]).finish()
    setting.writer().begin(setting.group, [setting.letter(2, 2)]).finish()
    setting.log.delete_topic(setting.topic.name)
    redriven = setting.redriver().redrive(DLQ, None, 0, 100)
    assert (redriven.redriven, redriven.without_payload, redriven.failed) == (0, 1, 1)
    assert "no topic" in redriven.failures[0]


@pytest.mark.parametrize("marked", [True, False])
def test_letters_are_not_sent_to_a_topic_that_was_created_again_with_other_columns(
    setting: Setting, marked: bool, calls: Calls
) -> None:
    def without_mark(_: bytes, row: pa.RecordBatch) -> bytes:
        return row.serialize().to_pybytes()

    if not marked:
        calls.change(dead_letters, "payload_of", without_mark)
    setting.writer().begin(setting.group, [setting.letter(1, 1)]).finish()
    assert setting.redriver().redrive(DLQ, None, 0, 100).redriven == 1, "while it is there"
    setting.writer().begin(setting.group, [setting.letter(2, 3)]).finish()
    setting.log.delete_topic(setting.topic.name)
    others = pa.schema([pa.field("key", pa.string()), pa.field("n", pa.float64())])
    setting.log.admin.create_topic(setting.topic.name, others)
    redriven = setting.redriver().redrive(DLQ, None, 1, 100)
    assert (redriven.redriven, redriven.failed) == (0, 2)
    assert "other columns" in redriven.failures[0]
    assert setting.read(setting.topic.name) == []


def test_letters_are_sent_to_a_topic_that_was_created_again_with_the_same_columns(
    setting: Setting,
) -> None:
    setting.writer().begin(setting.group, [setting.letter(2, 3)]).finish()
    setting.log.delete_topic(setting.topic.name)
    setting.create("orders")
    assert setting.redriver().redrive(DLQ, None, 0, 100).redriven == 2
    assert [row["n"] for row in setting.read(setting.topic.name)] == [2, 3]


def test_a_letter_that_is_too_large_does_not_keep_others_from_being_sent_back(
    setting: Setting,
) -> None:
    setting.push(setting.topic, [20], key="k" * 5_000)
    setting.writer().begin(setting.group, [setting.letter(20, 20), setting.letter(3, 3)]).finish()
    log = setting.log
    limits = Limits(batch_bytes_max=1_024)
    redriver = Redriver(log.admin, log.registry, log.fetcher, log.group_commit, limits)
    redriven = redriver.redrive(DLQ, None, 0, 100)
    assert (redriven.redriven, redriven.failed) == (1, 1)
    assert "bytes" in redriven.failures[0]


def test_a_redrive_of_something_else_is_refused(setting: Setting) -> None:
    with pytest.raises(SchemaMismatch):
        setting.redriver().redrive(setting.topic.name, None, 0, 100)
    open_dead_letter_topic(setting.log.admin, DLQ, setting.topic.name)
    with pytest.raises(InvalidFilter):
        setting.redriver().redrive(DLQ, "nonsense(", 0, 100)


def test_a_partitioned_topic_gets_its_messages_back_where_they_belong(setting: Setting) -> None:
    topic = setting.log.admin.create_topic(TopicName.parse("keyed"), SCHEMA, "key")
    setting.push(topic, [1, 2])
    group = ShareGroup("billing", "uuid-3", topic, setting.group.config)
    letter = ArchivedRange(topic.name, Partition('"k2"'), 0, 0, 1, "rejected", None)
    setting.writer().begin(group, [letter]).finish()
    (row,) = setting.read(DLQ)
    assert (row["source_partition"], payload_of(row)) == ('"k2"', {"key": "k2", "n": 2})
    assert setting.redriver().redrive(DLQ, None, 0, 100).redriven == 1
    assert setting.log.registry.partition_state(topic.uuid, Partition('"k2"')).next_offset == 2


# Groups of which it is not known whether metadata took them. ######################################

ORDERS = TopicName.parse("orders")


def push(log: Log, *numbers: int) -> None:
    batch = pa.record_batch({"n": pa.array(numbers, pa.int64())})
    prepared = Preparer(log.admin.get_topic(ORDERS), log.limits).prepare(batch, PushOptions())
    log.group_commit.submit(PushStream(), prepared, awaited=True).accepted()


@pytest.mark.parametrize("taken", [True, False])
def test_a_group_that_metadata_may_have_taken_is_served_where_it_has_from_its_start_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    create = DatabaseGroups.create

    def lose_answer(groups: DatabaseGroups, group: ShareGroup, **options: Any) -> ShareGroup:
        if taken:
            create(groups, group, **options)
        raise Unavailable("no answer", in_doubt=True)

    with DataDirectory.open(tmp_path) as directory:
        log = Log.open(OneDirectory(directory))
        try:
            log.admin.create_topic(ORDERS, pa.schema([pa.field("n", pa.int64())]))
            push(log, 0, 1, 2)
            with monkeypatch.context() as patched:
                patched.setattr(DatabaseGroups, "create", lose_answer)
                with pytest.raises(Unavailable):
                    log.shares.create(ORDERS, "billing", ShareConfig())
            if taken:
                with pytest.raises(AlreadyExists):
                    log.shares.create(ORDERS, "billing", ShareConfig())
            else:
                with pytest.raises(GroupNotFound):
                    log.shares.find(ORDERS, "billing")
            group = log.shares.create(ORDERS, "billing", ShareConfig(), if_not_exists=True)
            push(log, 3)
            (leased,) = log.shares.coordinator.acquire(
                asking(group, 10, member="one"), Deadline.after(20), Cancel()
            )
            assert (leased.start_offset, leased.end_offset) == (3, 3)
        finally:
            log.close()
