"""Joined batches with sequences: each is judged by itself, over every store of metadata."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fix_metadata import DAY, SCHEMA, MetadataUnderTest, remote_in_soak
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from wings_core import model
from wings_core.contracts.put import results_to_json
from wings_core.ingest.group_commit import GroupCommit
from wings_core.ingest.pending import Pending, PushStream
from wings_core.ingest.prepare import Preparer, PushOptions
from wings_core.limits import Limits
from wings_core.metadata.repeats import RESULTS_KEPT_MAX
from wings_core.model import PartitionSequence, StageEntry
from wings_core.partitions import UNPARTITIONED
from wings_core.storage.codecs import Wanted, read_pages
from wings_core.storage.segments import SegmentStore

Answer = dict[str, Any]
Offsets = tuple[int, int]


class Rig:
    """A topic whose flushes a test begins; metadata may be opened again in between."""

    def __init__(self, metadata: MetadataUnderTest, path: Path) -> None:
        self.metadata = metadata
        self.topic = metadata.create_topic()
        self.store = SegmentStore(path, segment_bytes_max=1 << 24)
        self.open()

    def open(self) -> None:
        self.group = GroupCommit(self.store, self.metadata.registry, Limits())

    def reopen(self) -> None:
        self.group.close()
        self.metadata.reopen()
        self.open()

    def submit(self, stream: PushStream, values: Sequence[int], options: PushOptions) -> Pending:
        rows = pa.RecordBatch.from_pylist([{"key": "k", "n": n} for n in values], schema=SCHEMA)
        prepared = Preparer(self.topic, Limits()).prepare(rows, options)
        return self.group.submit(stream, prepared, awaited=True)

    def push(self, stream: PushStream, producer: str, number: int, *values: int) -> Pending:
        sequence = model.Sequence(producer, number)
        return self.submit(stream, values, PushOptions(UNPARTITIONED, sequence))

    def rows(self) -> list[int]:
        located = self.metadata.registry.locate(self.topic.uuid, UNPARTITIONED, 0, 1 << 40)
        pages = read_pages(self.store, self.topic, located.locations, Wanted())
        values: list[Any] = [n for rows, _, _ in pages for n in rows["n"].to_pylist()]
        return values

    def close(self) -> None:
        self.group.close()
        self.store.close()


@pytest.fixture
def rig(metadata: MetadataUnderTest, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(metadata, tmp_path / "segments")
    yield made
    made.close()


def answers_of(pending: Pending) -> list[Answer]:
    rows = [part.num_rows for part in pending.batch.parts]
    return [json.loads(answer) for answer in results_to_json(0, pending.outcomes(), rows)]


def offsets_of(answer: Answer) -> Offsets:
    (part,) = answer["committed"]
    return part["start_offset"], part["end_offset"]


def test_batches_whose_sequences_follow_each_other_are_joined(rig: Rig) -> None:
    stream = PushStream()
    run = [rig.push(stream, "p", number, *[number] * (1 + number)) for number in range(4)]
    assert len(set(map(id, run))) == 1
    answers = answers_of(run[0])
    assert [answer["batch"] for answer in answers] == [0, 1, 2, 3]
    assert [offsets_of(answer) for answer in answers] == [(0, 0), (1, 2), (3, 5), (6, 9)]
    assert rig.rows() == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]


def test_a_repeat_of_one_of_them_gets_its_own_offsets_alone(rig: Rig) -> None:
    stream = PushStream()
    (first,) = {rig.push(stream, "p", number, number, number) for number in range(3)}
    answers = answers_of(first)
    for _ in range(2):
        for number in (2, 0, 1):
            again = rig.push(PushStream(), "p", number, number, number)
            assert answers_of(again)[0]["committed"] == answers[number]["committed"]
        rig.reopen()
    assert rig.rows() == [0, 0, 1, 1, 2, 2]


def test_a_run_may_begin_with_repeats(rig: Rig) -> None:
    for number in range(3):
        rig.push(PushStream(), "p", number, number).outcomes()
    rig.reopen()
    stream = PushStream()
    (run,) = {rig.push(stream, "p", number, number) for number in range(1, 6)}
    assert [offsets_of(answer) for answer in answers_of(run)] == [(n, n) for n in range(1, 6)]
    assert rig.rows() == [0, 1, 2, 3, 4, 5]


def test_two_streams_of_a_producer_may_push_the_same_run_in_one_flush(rig: Rig) -> None:
    one, other = PushStream(), PushStream()
    runs = [rig.push(one, "p", number, number) for number in range(3)]
    runs += [rig.push(other, "p", number, number) for number in range(1, 5)]
    first, second = dict.fromkeys(runs)
    assert [offsets_of(answer) for answer in answers_of(first)] == [(0, 0), (1, 1), (2, 2)]
    assert [offsets_of(answer) for answer in answers_of(second)] == [(n, n) for n in range(1, 5)]
    assert rig.rows() == [0, 1, 2, 3, 4]


def test_of_a_run_that_has_a_gap_what_came_before_it_is_committed(rig: Rig) -> None:
    stream = PushStream()
    runs = list(dict.fromkeys(rig.push(stream, "p", number, number) for number in (0, 1, 3, 4, 2)))
    assert [len(run.batch.parts) for run in runs] == [2, 2, 1]
    assert [offsets_of(answer) for answer in answers_of(runs[0])] == [(0, 0), (1, 1)]
    for run in runs[1:]:
        for answer in answers_of(run):
            error = answer["error"]
            assert error["code"] == "OUT_OF_ORDER_SEQUENCE"
            assert (error["sequence"], error["expected_sequence"]) == (3, 2)
    assert rig.rows() == [0, 1]
    assert offsets_of(answers_of(rig.push(PushStream(), "p", 2, 2))[0]) == (2, 2)


def test_a_run_that_begins_beyond_what_is_remembered_is_refused_as_a_whole(rig: Rig) -> None:
    stream = PushStream()
    count = RESULTS_KEPT_MAX + 3
    (run,) = {rig.push(stream, "p", number, number) for number in range(count)}
    assert [offsets_of(answer) for answer in answers_of(run)] == [(n, n) for n in range(count)]
    stream = PushStream()
    (late,) = {rig.push(stream, "p", number, number) for number in range(1, count + 1)}
    assert {answer["error"]["sequence"] for answer in answers_of(late)} == {1}
    stream = PushStream()
    (again,) = {rig.push(stream, "p", number, number) for number in range(3, count + 1)}
    assert [offsets_of(each) for each in answers_of(again)] == [(n, n) for n in range(3, count + 1)]
    assert rig.rows() == list(range(count + 1))


def test_results_that_end_in_mid_run_refuse_what_comes_after(rig: Rig) -> None:
    clock = rig.metadata.clock
    for number in range(4):
        # Of a clock that was set back: the later ones are forgotten first.
        clock.time -= DAY
        rig.push(PushStream(), "p", number, number).outcomes()
    clock.time += 8 * DAY
    stream = PushStream()
    (run,) = {rig.push(stream, "p", number, number) for number in range(6)}
    answers = answers_of(run)
    assert [offsets_of(answer) for answer in answers[:2]] == [(0, 0), (1, 1)]
    assert {answer["error"]["sequence"] for answer in answers[2:]} == {2}
    assert rig.rows() == [0, 1, 2, 3]


def test_batches_of_two_producers_or_without_a_number_are_not_joined(rig: Rig) -> None:
    stream = PushStream()
    pending = [
        rig.push(stream, "p", 0, 0),
        rig.push(stream, "q", 1, 1),
        rig.submit(stream, [2], PushOptions(UNPARTITIONED)),
        rig.push(stream, "p", 0, 3),
    ]
    assert len(set(map(id, pending))) == 4


def test_batches_of_a_stage_are_joined_and_answered_with_their_shares(rig: Rig) -> None:
    stream = PushStream()
    pending = [
        rig.submit(
            stream, [number] * (1 + number), PushOptions(UNPARTITIONED, stage=entry_of(number))
        )
        for number in range(3)
    ]
    assert len(set(map(id, pending))) == 1
    staged = [answer["staged"] for answer in answers_of(pending[0])]
    assert [(each["stage"], each["rows"]) for each in staged] == [("s", 1), ("s", 2), ("s", 3)]
    (stage,) = rig.metadata.stages.of_topic(rig.topic.uuid)
    assert (stage.rows, stage.bytes) == (6, sum(each["bytes"] for each in staged))
    rig.metadata.stages.publish("writer", 0, ["s"])
    assert rig.rows() == [0, 1, 1, 2, 2, 2]


def entry_of(number: int) -> StageEntry:
    return StageEntry("s", "writing", first=number == 0)


def test_batches_of_two_stages_are_not_joined(rig: Rig) -> None:
    stream = PushStream()
    entries = [
        StageEntry("s", "w", first=True),
        StageEntry("t", "w", first=True),
        None,
        StageEntry("t", "w", first=False),
    ]
    pending = [
        rig.submit(stream, [0], PushOptions(UNPARTITIONED, stage=entry)) for entry in entries
    ]
    assert len(set(map(id, pending))) == 4


@dataclass
class Model:
    """All results of each producer, by the time of their commit; what the log has."""

    rows: list[int] = field(default_factory=list[int])
    results: dict[str, list[tuple[Offsets, int]]] = field(
        default_factory=dict[str, list[tuple[Offsets, int]]]
    )

    def next(self, producer: str) -> int:
        return len(self.results.get(producer, ()))

    def judge(self, producer: str, number: int, values: list[int], now: int) -> Offsets | None:
        """Say what a batch gets, and do it; None: it is refused."""
        results = self.results.setdefault(producer, [])
        if number != len(results):
            kept = max(0, len(results) - RESULTS_KEPT_MAX) <= number < len(results)
            known = kept and results[number][1] > now - 7 * DAY
            return results[number][0] if known else None
        got = len(self.rows), len(self.rows) + len(values) - 1
        self.rows += values
        results.append((got, now))
        return got


@dataclass(frozen=True)
class Run:
    """Batches of a stream; the number of the first is relative to what would be right."""

    producer: str
    ahead: int
    rows: list[int]
    jumps_at: int | None
    """The batch that leaves out a number."""


RUNS = st.builds(
    Run,
    producer=st.sampled_from("pq"),
    ahead=st.sampled_from([0, 0, 0, -1, -2, -5, 1]),
    rows=st.lists(st.integers(1, 2), min_size=1, max_size=6),
    jumps_at=st.none() | st.none() | st.integers(0, 5),
)
STEPS = st.lists(
    st.lists(RUNS, min_size=1, max_size=4) | st.sampled_from(["reopen", "days"]), max_size=10
)


@remote_in_soak
@pytest.mark.hypothesis
def test_each_batch_of_a_run_is_judged_as_if_it_were_alone(
    metadata: MetadataUnderTest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    @settings(max_examples=examples(4, 40) if metadata.is_slow else examples(8, 200))
    @given(steps=STEPS)
    def agree(steps: list[list[Run] | str]) -> None:
        rig = Rig(metadata, tmp_path_factory.mktemp("segments"))
        try:
            check_steps(rig, steps)
        finally:
            rig.close()

    agree()


def check_steps(rig: Rig, steps: list[list[Run] | str]) -> None:
    expected = Model()
    value = 0
    for step in steps:
        if step == "reopen":
            rig.reopen()
            continue
        if isinstance(step, str):
            rig.metadata.clock.time += 3 * DAY
            continue
        flush: dict[Pending, list[tuple[str, int, list[int]]]] = {}
        ahead: dict[str, int] = {}
        for run in step:
            stream = PushStream()
            number = max(0, expected.next(run.producer) + run.ahead + ahead.get(run.producer, 0))
            for index, count in enumerate(run.rows):
                number += index == run.jumps_at
                values = list(range(value, value + count))
                value += count
                pending = rig.push(stream, run.producer, number, *values)
                flush.setdefault(pending, []).append((run.producer, number, values))
                number += 1
            ahead[run.producer] = number - expected.next(run.producer)
        check_flush(rig, flush, expected)
    assert rig.rows() == expected.rows


def check_flush(
    rig: Rig, flush: dict[Pending, list[tuple[str, int, list[int]]]], expected: Model
) -> None:
    refused = set[int]()
    for pending, batches in flush.items():
        stream = pending.stream.number
        for answer, batch in zip(answers_of(pending), batches, strict=True):
            got = None
            if stream not in refused:
                got = expected.judge(*batch, rig.metadata.clock.time)
            if got is None:
                refused.add(stream)
                assert answer["error"]["code"] == "OUT_OF_ORDER_SEQUENCE"
            else:
                assert offsets_of(answer) == got


def test_batches_with_numbers_of_their_partition_are_judged_one_by_one(rig: Rig) -> None:
    stream = PushStream()
    pushed = [
        rig.submit(
            stream, [first] * 2, PushOptions(partition_sequence=PartitionSequence("p", 0, first))
        )
        for first in (0, 2, 2, 4)
    ]
    answers = [answers_of(pending)[0] for pending in pushed]
    assert [offsets_of(answer) for answer in answers] == [(0, 1), (2, 3), (2, 3), (4, 5)]
    assert rig.rows() == [0, 0, 2, 2, 4, 4]
