"""Packing: the small batches of a flush share pages, and read back as they were pushed."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from wings_core.check import check_log
from wings_core.errors import BatchTooLarge
from wings_core.ingest.group_commit import GroupCommit
from wings_core.ingest.pack import Packer
from wings_core.ingest.pending import Pending, PushStream
from wings_core.ingest.prepare import (
    SHARED_PAGE_BYTES,
    SMALL_BYTES_MAX,
    PreparedBatch,
    Preparer,
    PushOptions,
)
from wings_core.ingest.route import bytes_of_runs
from wings_core.limits import Limits
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.model import Accepted, PageAddress, Rejected, Topic
from wings_core.names import TopicName
from wings_core.partitions import Partition
from wings_core.storage.codecs import Wanted, read_pages
from wings_core.storage.segments import SegmentStore

SCHEMA = pa.schema([("key", pa.int32()), ("n", pa.int64()), ("text", pa.string())])

LARGE = SMALL_BYTES_MAX // 8
"""Rows of a batch that is no small one."""


class Rig:
    """A log whose flushes a test makes, batch by batch."""

    def __init__(self, path: Path) -> None:
        self.metadata = SqliteMetadata(path / "metadata.sqlite")
        self.store = SegmentStore(path / "segments", segment_bytes_max=1 << 24)
        # Nothing flushes before the first outcome is asked for.
        self.group = GroupCommit(self.store, self.metadata.registry, Limits())
        self.topics = {
            key: self.metadata.admin.create_topic(
                TopicName.parse(f"t-{key or 'none'}"), SCHEMA, key
            )
            for key in (None, "key")
        }

    def prepare(
        self, topic: Topic, keys: Sequence[int], first: int, timestamp: int | None = None
    ) -> PreparedBatch:
        numbers = range(first, first + len(keys))
        rows = pa.record_batch(
            [
                pa.array(keys, pa.int32()),
                pa.array(numbers, pa.int64()),
                pa.array([f"row {number}" for number in numbers]),
            ],
            schema=SCHEMA,
        )
        options = PushOptions(timestamp=timestamp)
        return Preparer(topic, Limits()).prepare(rows, options)

    def flush(self, batches: Sequence[PreparedBatch]) -> list[Pending]:
        pending = [self.group.submit(PushStream(), batch, awaited=True) for batch in batches]
        for each in pending:
            each.outcome()
        return pending

    def rows(self, topic: Topic, partition: Partition) -> list[tuple[int, int, int]]:
        """Return key, number and timestamp of each row of a partition, through locations."""
        found: list[tuple[int, int, int]] = []
        offset = 0
        registry = self.metadata.registry
        while locations := registry.locate(topic.uuid, partition, offset, 1_000).locations:
            for rows, timestamp, _ in read_pages(self.store, topic, locations, Wanted()):
                assert isinstance(timestamp, int)
                keys: list[Any] = rows["key"].to_pylist()
                numbers: list[Any] = rows["n"].to_pylist()
                values = zip(keys, numbers, strict=True)
                found += [(key, number, timestamp) for key, number in values]
            offset = locations[-1].end_offset + 1
        return found

    def pages(self, topic: Topic) -> set[PageAddress]:
        """Return the pages that a topic's rows lie in."""
        registry = self.metadata.registry
        return {
            location.address
            for state in registry.partition_states(topic.uuid)
            for location in registry.locate(topic.uuid, state.partition, 0, 1 << 40).locations
        }

    def close(self) -> None:
        self.group.close()
        self.store.close()
        self.metadata.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


def test_small_batches_of_a_flush_are_one_page_and_one_location(rig: Rig) -> None:
    topic = rig.topics[None]
    batches = [rig.prepare(topic, [0] * count, 10 * count) for count in (1, 3, 2)]
    flush = Packer().pack(batches)
    assert [page.rows for page in flush.pages] == [6]
    rig.flush(batches)
    located = rig.metadata.registry.locate(topic.uuid, Partition("null"), 0, 100).locations
    assert sum(location.rows for location in located) == 6
    assert [number for _, number, _ in rig.rows(topic, Partition("null"))] == [
        *(10, 30, 31, 32, 20, 21)
    ]


def test_the_only_batch_of_a_flush_is_the_page_that_it_would_share_with_others(rig: Rig) -> None:
    """It is encoded on a way of its own; the encoder is one topic's, whichever came before."""
    packer = Packer()
    topic = rig.topics[None]
    for batch in (rig.prepare(topic, [0, 0], 5), rig.prepare(rig.topics["key"], [3], 0)) * 2:
        page = packer.only_page(batch)
        (shared,) = Packer().pack([batch]).pages
        assert page is not None
        assert b"".join(page.parts) == b"".join(shared.parts)
    assert packer.only_page(rig.prepare(topic, [], 0)) is None
    assert packer.only_page(rig.prepare(rig.topics["key"], [3, 4], 0)) is None
    assert packer.only_page(rig.prepare(topic, [0] * LARGE, 0)) is None


def test_batches_of_a_partition_are_neighbours_and_keep_their_order(rig: Rig) -> None:
    topic = rig.topics["key"]
    batches = [rig.prepare(topic, [key], number) for number, key in enumerate([7, 8, 7, 9, 8, 7])]
    pending = [rig.group.submit(PushStream(), batch, awaited=True) for batch in batches]
    for each in pending:
        assert isinstance(each.outcome(), Accepted)
    assert [number for _, number, _ in rig.rows(topic, Partition("7"))] == [0, 2, 5]
    assert [number for _, number, _ in rig.rows(topic, Partition("8"))] == [1, 4]
    assert [number for _, number, _ in rig.rows(topic, Partition("9"))] == [3]


def test_a_large_batch_of_many_small_partitions_shares_pages_of_bounded_size(rig: Rig) -> None:
    topic = rig.topics["key"]
    keys = [number % 1_000 for number in range(LARGE)]
    batch = rig.prepare(topic, keys, 0)
    rig.flush([batch])
    pages = rig.pages(topic)
    assert len(pages) == -(-batch.bytes // SHARED_PAGE_BYTES)
    assert all(page.length < 2 * SHARED_PAGE_BYTES for page in pages)
    for key in (0, 1, 999):
        expected = list(range(key, LARGE, 1_000))
        assert [number for _, number, _ in rig.rows(topic, Partition(str(key)))] == expected


def test_a_large_batch_of_few_large_partitions_has_a_page_for_each(rig: Rig) -> None:
    topic = rig.topics["key"]
    keys = [number % 2 for number in range(8 * LARGE)]
    rig.flush([rig.prepare(topic, keys, 0)])
    assert len(rig.pages(topic)) == 2


def test_a_partitions_bytes_are_those_of_its_slices(rig: Rig) -> None:
    topic = rig.topics["key"]
    keys = [number % 7 for number in range(LARGE)]
    rig.flush([rig.prepare(topic, keys, 0)])
    states = rig.metadata.registry.partition_states(topic.uuid)
    assert sum(state.bytes for state in states) == sum(page.length for page in rig.pages(topic))


def test_bytes_are_those_of_a_partitions_own_rows(rig: Rig) -> None:
    """Else retention by bytes would drop small rows for the size of their neighbours."""
    topic = rig.topics["key"]
    text = "x" * 10_000
    wide = pa.record_batch(
        [pa.array([1, 2, 2, 2], pa.int32()), pa.nulls(4, pa.int64()), pa.array([text, *"abc"])],
        schema=SCHEMA,
    )
    preparer = Preparer(topic, Limits())
    rig.flush([preparer.prepare(wide, PushOptions()), rig.prepare(topic, [2], 0)])
    one, two = (state.bytes for state in rig.metadata.registry.partition_states(topic.uuid))
    assert one > 10_000
    assert two < 1_000


def test_a_small_part_of_large_buffers_is_not_kept_with_them(rig: Rig) -> None:
    topic = rig.topics[None]
    large = rig.prepare(topic, [0] * 4 * LARGE, 0).parts[0]
    part = Preparer(topic, Limits()).prepare(large.slice(5, 1), PushOptions())
    assert [page.rows for page in part.pages] == [1]
    assert part.bytes < 1_000


def test_a_limit_counts_a_slices_own_rows(rig: Rig) -> None:
    topic = rig.topics[None]
    large = rig.prepare(topic, [0] * 100, 0).parts[0]
    preparer = Preparer(topic, Limits(batch_bytes_max=100))
    assert preparer.prepare(large.slice(5, 1), PushOptions()).parts[0].num_rows == 1
    with pytest.raises(BatchTooLarge):
        preparer.prepare(large.slice(0, 50), PushOptions())


NESTED: list[tuple[pa.DataType, list[object]]] = [
    (pa.int8(), [1, 2, None, 4]),
    (pa.bool_(), [True, None, False, True]),
    (pa.large_string(), ["a" * 100, None, "", "b"]),
    (pa.binary(3), [b"abc", None, b"def", b"ghi"]),
    (pa.list_(pa.string()), [["a" * 50, "b"], [], None, ["c"]]),
    (pa.large_list(pa.int64()), [[1, 2, 3], None, [], [4]]),
    (pa.struct([("s", pa.string()), ("n", pa.int32())]), [{"s": "x" * 70, "n": 1}, None, {}, {}]),
    (pa.map_(pa.string(), pa.int64()), [[("a", 1)], [], None, [("b", 2)]]),
    (pa.decimal128(10, 2), [None, None, None, None]),
    (pa.null(), [None, None, None, None]),
]


@pytest.mark.parametrize(("data_type", "values"), NESTED, ids=str)
@pytest.mark.parametrize("skip", [0, 1])
def test_runs_have_about_the_bytes_of_their_rows(
    data_type: pa.DataType, values: list[object], skip: int
) -> None:
    make: Any = pa.array
    array = make([values[-1]] * skip + values, type=data_type)
    rows = pa.RecordBatch.from_arrays([array], names=["c"]).slice(skip)
    counted = bytes_of_runs(rows, [(Partition("1"), 1), (Partition("2"), 3)])
    own = [rows.slice(0, 1).nbytes, rows.slice(1, 3).nbytes]
    if pa.types.is_map(data_type):  # By the average.
        assert sum(counted) <= sum(own) + 32
    else:
        assert all(abs(ours - theirs) <= 32 for ours, theirs in zip(counted, own, strict=True))


def test_a_refused_batch_leaves_a_gap_in_its_page_alone(rig: Rig) -> None:
    topic = rig.topics[None]
    good = [rig.prepare(topic, [0, 0], 0), rig.prepare(topic, [0], 9)]
    far_ahead = 1 << 60
    bad = rig.prepare(topic, [0, 0, 0], 100, timestamp=far_ahead)
    outcomes = [each.outcome() for each in rig.flush([good[0], bad, good[1]])]
    assert [isinstance(outcome, Rejected) for outcome in outcomes] == [False, True, False]
    assert [number for _, number, _ in rig.rows(topic, Partition("null"))] == [0, 1, 9]
    assert check_log(rig.metadata, rig.store).ok


@st.composite
def flushes(draw: st.DrawFn) -> list[list[tuple[str | None, list[int], int | None]]]:
    """Draw flushes of batches: the topic's key, the key of each row, the producer's time."""
    batch = st.tuples(
        st.sampled_from([None, "key"]),
        st.one_of(
            st.lists(st.integers(0, 5), max_size=6),
            st.integers(2, 40).map(lambda keys: [n % keys for n in range(LARGE)]),
        ),
        st.one_of(st.none(), st.integers(1, 1 << 40)),
    )
    return draw(st.lists(st.lists(batch, min_size=1, max_size=6), min_size=1, max_size=4))


@given(flushes())
@settings(max_examples=examples(8, 1_000))
def test_what_is_packed_reads_back_as_it_was_pushed(
    tmp_path_factory: pytest.TempPathFactory,
    drawn: list[list[tuple[str | None, list[int], int | None]]],
) -> None:
    rig = Rig(tmp_path_factory.mktemp("log"))
    expected: dict[tuple[str | None, str], list[tuple[int, int, int]]] = {}
    number = 0
    for flush in drawn:
        batches: list[PreparedBatch] = []
        for key, keys, timestamp in flush:
            batches.append(rig.prepare(rig.topics[key], keys, number, timestamp))
            number += len(keys)
        pushed = number - sum(len(keys) for _, keys, _ in flush)
        for (key, keys, _), pending in zip(flush, rig.flush(batches), strict=True):
            outcome = pending.outcome()
            assert isinstance(outcome, Accepted)
            times = {found.partition: found.timestamp for found in outcome.committed}
            for each in keys:
                partition = "null" if key is None else str(each)
                rows = expected.setdefault((key, partition), [])
                rows.append((each, pushed, times[Partition(partition)]))
                pushed += 1
    for (key, partition), rows in expected.items():
        assert rig.rows(rig.topics[key], Partition(partition)) == rows
    report = check_log(rig.metadata, rig.store)
    assert report.ok, [str(problem) for problem in report.problems]
    rig.close()
