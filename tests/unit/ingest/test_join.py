"""Joined batches: small ones of a stream are committed as one, and answered one by one."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from wings_core.contracts.put import results_to_json
from wings_core.ingest.group_commit import FlushReport, GroupCommit
from wings_core.ingest.pending import Pending, PushStream
from wings_core.ingest.prepare import (
    JOINED_BATCHES_MAX,
    SHARED_PAGE_BYTES,
    SHARED_PAGE_ROWS,
    SMALL_ROWS_MAX,
    PreparedBatch,
    Preparer,
    PushOptions,
)
from wings_core.limits import Limits
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.model import Rejected, Sequence, StageEntry
from wings_core.names import TopicName
from wings_core.partitions import Partition
from wings_core.storage.codecs import Wanted, read_pages
from wings_core.storage.segments import SegmentStore

SCHEMA = pa.schema([("key", pa.int32()), ("n", pa.int64())])

Answer = dict[str, Any]


class Rig:
    """A log with a keyed topic and one without a key, whose flushes a test begins."""

    def __init__(self, path: Path, limits: Limits | None = None, *, lingers: bool = False) -> None:
        self.metadata = SqliteMetadata(path / "metadata.sqlite")
        self.store = SegmentStore(path / "segments", segment_bytes_max=1 << 24)
        self.reports: list[FlushReport] = []
        self.group = GroupCommit(
            self.store,
            self.metadata.registry,
            limits or Limits(),
            self.reports.append,
            lingers=lingers,
        )
        admin = self.metadata.admin
        self.plain = admin.create_topic(TopicName.parse("plain"), SCHEMA)
        self.keyed = admin.create_topic(TopicName.parse("keyed"), SCHEMA, "key")

    def prepare(self, keys: list[int], first: int, options: PushOptions) -> PreparedBatch:
        numbers = range(first, first + len(keys))
        arrays = [pa.array(keys, pa.int32()), pa.array(numbers, pa.int64())]
        topic = self.keyed if options.partition is None else self.plain
        rows = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
        return Preparer(topic, Limits()).prepare(rows, options)

    def submit(self, stream: PushStream, batch: PreparedBatch) -> Pending:
        return self.group.submit(stream, batch, awaited=True)

    def rows(self, partition: Partition) -> list[int]:
        """Return the numbers of a partition: `null` is that of the topic without a key."""
        topic = self.plain if partition == PLAIN else self.keyed
        located = self.metadata.registry.locate(topic.uuid, partition, 0, 1 << 40).locations
        pages = read_pages(self.store, topic, located, Wanted())
        numbers: list[Any] = [each for rows, _, _ in pages for each in rows["n"].to_pylist()]
        return numbers

    def close(self) -> None:
        self.group.close()
        self.store.close()
        self.metadata.close()


PLAIN = Partition("null")
VISIBLE = PushOptions(PLAIN)


def answers_of(pending: Pending) -> list[Answer]:
    """Return the answers to all batches that were joined, numbered from 0."""
    rows = [part.num_rows for part in pending.batch.parts]
    return [json.loads(answer) for answer in results_to_json(0, pending.outcomes(), rows)]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


def test_small_batches_of_a_stream_are_one_decision_and_have_an_answer_each(rig: Rig) -> None:
    stream = PushStream()
    pending = [rig.submit(stream, rig.prepare([0] * n, 10 * n, VISIBLE)) for n in (1, 3, 2)]
    assert len(set(map(id, pending))) == 1
    ranges = [answer["committed"][0] for answer in answers_of(pending[0])]
    assert [(each["start_offset"], each["end_offset"]) for each in ranges] == [
        (0, 0),
        (1, 3),
        (4, 5),
    ]
    assert len({each["timestamp"] for each in ranges}) == 1
    assert rig.rows(PLAIN) == [10, 30, 31, 32, 20, 21]
    assert [report.batches for report in rig.reports] == [3]
    assert rig.group.pending_bytes == 0


def test_rows_alone_are_joined_as_their_batch_would_be(rig: Rig) -> None:
    stream = PushStream()
    first = rig.submit(stream, rig.prepare([0], 0, VISIBLE))
    batch = rig.prepare([0, 0], 1, VISIBLE)
    (rows,) = batch.parts
    assert rig.group.join(stream, rows, batch.bytes, PLAIN, None, None) is first
    assert rig.group.pending_bytes == first.batch.pending_bytes
    assert rig.group.join(PushStream(), rows, batch.bytes, PLAIN, None, None) is None
    ends = [answer["committed"][0]["end_offset"] for answer in answers_of(first)]
    assert (ends, rig.rows(PLAIN)) == ([0, 2], [0, 1, 2])
    assert rig.group.join(stream, rows, batch.bytes, PLAIN, None, None) is None
    assert rig.group.pending_bytes == 0


def test_nothing_is_joined_with_what_a_flush_took(rig: Rig) -> None:
    stream = PushStream()
    first = rig.submit(stream, rig.prepare([0], 0, VISIBLE))
    first.outcome()
    second = rig.submit(stream, rig.prepare([0], 1, VISIBLE))
    assert second is not first
    assert answers_of(second)[0]["committed"][0]["start_offset"] == 1


OTHERS = {
    "a time of its own": ([1], PushOptions(PLAIN, timestamp=5)),
    "a sequence": ([1], PushOptions(PLAIN, Sequence("p", 0))),
    "an expected offset": ([1], PushOptions(PLAIN, expected_offset=1)),
    "a stage": ([1], PushOptions(PLAIN, stage=StageEntry("s", "w", first=True))),
    "no row": ([], PushOptions(PLAIN)),
    "another topic": ([1], PushOptions()),
    "many rows": ([1] * SHARED_PAGE_BYTES, PushOptions(PLAIN)),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_a_batch_that_could_have_another_outcome_is_not_joined(
    rig: Rig, other: tuple[list[int], PushOptions]
) -> None:
    stream = PushStream()
    keys, options = other
    batches = [
        rig.prepare([1], 0, VISIBLE),
        rig.prepare(keys, 1, options),
        rig.prepare([1], 2, VISIBLE),
    ]
    pending = [rig.submit(stream, batch) for batch in batches[:2]]
    (rows,) = batches[2].parts
    if options.partition == PLAIN and options.stage is None:  # A stream is of one topic and stage.
        assert rig.group.join(stream, rows, batches[2].bytes, PLAIN, None, None) is None
    pending.append(rig.submit(stream, batches[2]))
    assert len(set(map(id, pending))) == 3
    assert not any(isinstance(each.outcome(), Rejected) for each in pending)


def test_batches_of_several_partitions_are_one_decision_and_have_an_answer_each(rig: Rig) -> None:
    stream = PushStream()
    keys = [1, 1, 2, 1, 3]
    pending = [
        rig.submit(stream, rig.prepare([key], place, PushOptions(sequence=Sequence("p", place))))
        for place, key in enumerate(keys)
    ]
    assert len(set(map(id, pending))) == 1
    ranges = [answer["committed"][0] for answer in answers_of(pending[0])]
    assert [(each["partition"], each["start_offset"]) for each in ranges] == [
        *((1, 0), (1, 1), (2, 0), (1, 2), (3, 0))
    ]
    assert rig.rows(Partition("1")) == [0, 1, 3]
    pages = {
        location.address
        for partition in ("1", "2", "3")
        for location in rig.metadata.registry.locate(
            rig.keyed.uuid, Partition(partition), 0, 10
        ).locations
    }
    assert len(pages) == 1
    again = PushStream()
    repeated = rig.submit(
        again, rig.prepare([2], 2, PushOptions(sequence=Sequence("p", 2)))
    ).accepted()
    assert repeated.replayed
    assert repeated.committed[0].partition == "2"


def test_a_sequence_that_leaves_a_gap_refuses_only_itself_and_what_follows(rig: Rig) -> None:
    stream = PushStream()
    for place, key in enumerate((1, 2)):
        rig.submit(stream, rig.prepare([key], place, PushOptions(sequence=Sequence("p", place))))
    late = PushOptions(sequence=Sequence("p", 3))
    pending = rig.submit(stream, rig.prepare([3], 3, late))
    assert isinstance(pending.outcome(), Rejected)
    assert (rig.rows(Partition("1")), rig.rows(Partition("2"))) == ([0], [1])


def test_rows_of_another_stream_are_not_joined(rig: Rig) -> None:
    one, other = PushStream(), PushStream()
    pending = [
        rig.submit(stream, rig.prepare(keys, number, PushOptions()))
        for number, (stream, keys) in enumerate(
            [(one, [1]), (one, [1]), (one, [2]), (other, [2]), (one, [1, 2]), (one, [2])]
        )
    ]
    assert pending[0] is pending[1] is pending[2]
    assert len(set(map(id, pending))) == 4
    assert not any(isinstance(result, Rejected) for each in pending for result in each.outcomes())
    assert rig.rows(Partition("1")) == [0, 1, 4]
    assert rig.rows(Partition("2")) == [2, 3, 5, 5]


def test_no_more_are_joined_than_the_bounds_allow(rig: Rig) -> None:
    stream = PushStream()
    count = 2 * JOINED_BATCHES_MAX + 1
    batch = rig.prepare([0], 0, VISIBLE)
    pending = [rig.submit(stream, rig.prepare([0], n, VISIBLE)) for n in range(count)]
    kinds = list(dict.fromkeys(pending))
    assert [len(each.batch.parts) for each in kinds] == [JOINED_BATCHES_MAX] * 2 + [1]
    assert rig.group.pending_bytes == count * batch.pending_bytes
    large = SHARED_PAGE_BYTES // batch.bytes // 5
    stream = PushStream()
    joined = [rig.submit(stream, rig.prepare([0] * large, 0, VISIBLE)) for _ in range(6)]
    assert len(set(map(id, joined))) == 2
    assert max(each.batch.bytes for each in joined) <= SHARED_PAGE_BYTES
    joined[-1].outcome()


def test_rows_without_bytes_share_no_page_beyond_its_rows(rig: Rig) -> None:
    """Of each row that is moved by the drain a timestamp is in memory, whatever else it has."""
    schema = pa.schema([("n", pa.null())])
    topic = rig.metadata.admin.create_topic(TopicName.parse("nulls"), schema)
    preparer = Preparer(topic, Limits())

    def submit(stream: PushStream, rows: int) -> Pending:
        batch = pa.RecordBatch.from_arrays([pa.nulls(rows)], schema=schema)
        return rig.submit(stream, preparer.prepare(batch, VISIBLE))

    many, few, others = PushStream(), PushStream(), [PushStream() for _ in range(5)]
    pending = [submit(many, SMALL_ROWS_MAX + 1) for _ in range(2)]
    pending += [submit(few, SMALL_ROWS_MAX) for _ in range(5)]
    pending += [submit(each, SMALL_ROWS_MAX) for each in others]
    assert [len(each.batch.parts) for each in dict.fromkeys(pending)] == [1, 1, 4, *[1] * 6]
    pending[-1].outcome()
    located = rig.metadata.registry.locate(topic.uuid, PLAIN, 0, 1 << 40).locations
    pages: Counter[Any] = Counter()
    for each in located:
        pages[each.address] += each.rows
    assert max(pages.values()) <= SHARED_PAGE_ROWS
    assert pages.total() == sum(
        part.num_rows for each in dict.fromkeys(pending) for part in each.batch.parts
    )


def test_what_refuses_one_of_them_refuses_all(rig: Rig) -> None:
    stream = PushStream()
    rig.metadata.admin.delete_topic(rig.plain.name)
    pending = [rig.submit(stream, rig.prepare([0], n, VISIBLE)) for n in range(3)]
    answers = answers_of(pending[0])
    assert [answer["batch"] for answer in answers] == [0, 1, 2]
    assert {answer["error"]["code"] for answer in answers} == {"TOPIC_NOT_FOUND"}


def test_joined_batches_are_gathered_until_they_are_enough(tmp_path: Path) -> None:
    limits = Limits(object_flush_seconds=60, object_flush_bytes=20_000)
    rig = Rig(tmp_path, limits, lingers=True)
    stream = PushStream()
    pending = rig.submit(stream, rig.prepare([0], 0, VISIBLE))
    while not pending.done and rig.submit(stream, rig.prepare([0], 1, VISIBLE)) is pending:
        pass
    assert not isinstance(pending.outcome(), Rejected)  # Or it would be waited for a minute.
    rig.close()


pushes = st.tuples(
    st.integers(0, 2),
    st.lists(st.integers(0, 2), max_size=4),
    st.sampled_from([None, None, "time", "sequence", "gap"]),
    st.booleans(),
)
"""The stream, the key of each row, a condition, and whether the topic has the key."""


def options_of(condition: str | None, producer: str) -> PushOptions:
    match condition:
        case "time":
            return PushOptions(timestamp=7)
        case "sequence":
            return PushOptions(sequence=Sequence(producer, 0))
        case "gap":
            return PushOptions(sequence=Sequence(producer, 1))
        case _:
            return PushOptions()


@given(st.lists(st.lists(pushes, min_size=1, max_size=12), min_size=1, max_size=4))
@settings(max_examples=examples(15, 1_000), deadline=None)
def test_each_batch_is_where_its_answer_says_and_a_stream_ends_at_a_refusal(
    tmp_path_factory: pytest.TempPathFactory,
    flushes: list[list[tuple[int, list[int], str | None, bool]]],
) -> None:
    rig = Rig(tmp_path_factory.mktemp("log"))
    streams = [PushStream() for _ in range(3)]
    refused: set[int] = set()
    first = flush_number = 0
    found: dict[Partition, dict[int, int]] = {}
    for flush in flushes:
        sent: list[tuple[int, Pending, list[tuple[Partition, int]]]] = []
        for number, keys, condition, keyed in flush:
            options = options_of(condition, f"p-{flush_number}-{len(sent)}")
            options.partition = None if keyed else PLAIN
            batch = rig.prepare(keys, first, options)
            rows = [
                (Partition(str(key)) if keyed else PLAIN, first + index)
                for index, key in enumerate(keys)
            ]
            first += len(keys)
            sent.append((number, rig.submit(streams[number], batch), rows))
        flush_number += 1
        last: dict[int, tuple[Pending, Iterator[Answer]]] = {}
        for number, pending, rows in sent:
            if number not in last or last[number][0] is not pending:
                last[number] = (pending, iter(answers_of(pending)))
            answer = next(last[number][1])
            if "error" in answer:
                refused.add(number)
                continue
            assert number not in refused, "a batch after a refused one was committed"
            for part in answer["committed"]:
                partition = Partition(json.dumps(part["partition"]))
                own = [value for name, value in rows if name == partition]
                assert part["end_offset"] - part["start_offset"] + 1 == len(own)
                at = found.setdefault(partition, {})
                at.update(enumerate(own, part["start_offset"]))
            assert len(answer["committed"]) == len({name for name, _ in rows})
    for partition, at in found.items():
        assert rig.rows(partition) == [at[offset] for offset in range(len(at))]
    rig.close()
