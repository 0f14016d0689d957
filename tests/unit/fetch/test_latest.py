"""What followers are handed of the last commit is what they would read, and nothing is left out."""

import gc
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any, cast

import pyarrow as pa
import pytest
from arrow_strategies import batches
from hypothesis import given

from wings_core.data_directory import DataDirectory
from wings_core.deployments import OneDirectory
from wings_core.fetch.chunks import Chunk
from wings_core.fetch.fetcher import UNLIMITED, Cancel, Cursor, Fetcher
from wings_core.fetch.selection import Selection
from wings_core.fetch.state import FetchState
from wings_core.ingest.group_commit import GroupCommit
from wings_core.ingest.pending import PushStream
from wings_core.ingest.prepare import Preparer, PushOptions
from wings_core.latest import BYTES_MAX, Latest
from wings_core.log import Log
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.model import CommitResult, Sequence, StageEntry, Topic
from wings_core.names import TopicName
from wings_core.partitions import UNPARTITIONED
from wings_core.schema_changes import SchemaChange
from wings_core.times import Deadline

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


class Looks:
    """A registry that counts the looks at the index, and may do more after a commit."""

    def __init__(self, registry: OffsetRegistry) -> None:
        self._registry = registry
        self.count = 0
        self.after_commit: Callable[[], None] = lambda: None

    def commit(self, *args: Any, **kwargs: Any) -> list[CommitResult]:
        results = self._registry.commit(*args, **kwargs)
        self.after_commit()
        return results

    def __getattr__(self, name: str) -> Any:
        self.count += name == "locate"
        return getattr(self._registry, name)


class Process:
    """What pushes and follows at one process: two over the same log know nothing of each other."""

    def __init__(self, log: Log) -> None:
        latest = Latest()
        self.log = log
        self.looks = Looks(log.registry)
        registry = cast("OffsetRegistry", self.looks)
        self.group = GroupCommit(log.store, registry, log.limits, inline=log.drain, latest=latest)
        self.fetcher = Fetcher(log.store, registry, log.limits, log.versions, latest)

    def push(self, topic: Topic, rows: pa.RecordBatch, options: PushOptions | None = None) -> None:
        options = options or PushOptions(UNPARTITIONED)
        prepared = Preparer(topic, self.log.limits).prepare(rows, options)
        pending = self.group.submit(PushStream(), prepared, awaited=True)
        pending.outcomes()

    def take(self, cursor: Cursor) -> list[Chunk]:
        state = FetchState(Deadline.never(), UNLIMITED, UNLIMITED)
        return [chunk for chunk in self.fetcher.take(cursor, state) if chunk.batch.num_rows]

    def close(self) -> None:
        self.group.close()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    path: Path = tmp_path_factory.mktemp("log")
    with (
        DataDirectory.open(path / "data") as directory,
        closing(Log.open(OneDirectory(directory))) as opened,
    ):
        yield opened


@pytest.fixture
def process(log: Log) -> Iterator[Process]:
    with closing(Process(log)) as made:
        yield made


_names = (TopicName.parse(f"t{number}") for number in count())


def new_topic(log: Log, schema: pa.Schema = SCHEMA) -> Topic:
    return log.admin.create_topic(next(_names), schema)


def follower(topic: Topic, offset: int = 0, columns: list[str] | None = None) -> Cursor:
    return Cursor(topic, UNPARTITIONED, offset, Selection.of(topic, columns))


def rows(*values: int, text: str = "") -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(values, pa.int64()), "text": [text] * len(values)})


def values_of(chunks: list[Chunk]) -> list[int]:
    return [value.as_py() for chunk in chunks for value in chunk.batch.column("n")]


@given(batch=batches())
def test_rows_are_handed_on_as_they_are_read(log: Log, batch: pa.RecordBatch) -> None:
    topic = new_topic(log, batch.schema)
    with closing(Process(log)) as process:
        cursor = follower(topic)
        assert process.take(cursor) == []
        looks = process.looks.count
        process.push(topic, batch)
        chunks = process.take(cursor)
        if batch.num_rows:
            assert process.looks.count == looks
    read = Process.take(_reader(log), follower(topic))
    assert len(chunks) == len(read)
    for handed, expected in zip(chunks, read, strict=True):
        assert handed.batch.schema.equals(expected.batch.schema, check_metadata=True)
        assert handed.batch.equals(expected.batch) or _has_nan(batch)
        assert handed[1:] == expected[1:]
        handed.batch.validate(full=True)


def _reader(log: Log) -> Process:
    """Return what only reads, out of pages."""
    reader = Process.__new__(Process)
    reader.fetcher = Fetcher(log.store, log.registry, log.limits, log.versions)
    return reader


def _has_nan(batch: pa.RecordBatch) -> bool:
    return "nan" in str(batch.to_pylist())


def _list_of(name: str, *, nullable: bool) -> pa.DataType:
    return pa.list_(pa.field(name, pa.int64(), nullable=nullable))


@pytest.mark.parametrize(
    "field",
    [
        pa.field("n", _list_of("item", nullable=True), metadata={"comment": "the producer's"}),
        pa.field("n", _list_of("item", nullable=True), nullable=False),
        pa.field("n", _list_of("item", nullable=False)),
        pa.field("n", _list_of("element", nullable=True)),
    ],
)
def test_rows_are_handed_on_with_the_schema_of_the_topic_not_the_producers(
    process: Process, field: "pa.Field[Any]"
) -> None:
    topic = new_topic(process.log, pa.schema([("n", _list_of("item", nullable=True))]))
    cursor = follower(topic)
    process.take(cursor)
    looks = process.looks.count
    schema = pa.schema([field], {"pandas": "{}"})
    process.push(topic, pa.record_batch([pa.array([[1, 2]], field.type)], schema=schema))
    (chunk,) = process.take(cursor)
    assert process.looks.count == looks
    assert chunk.batch.schema.equals(topic.schema, check_metadata=True)
    assert chunk.batch.to_pydict() == {"n": [[1, 2]]}


class _Message(bytearray):
    """Bytes that can be referred to weakly."""


def test_the_message_that_a_batch_came_in_is_not_kept_with_its_rows(process: Process) -> None:
    topic = new_topic(process.log)
    cursor = follower(topic)
    process.take(cursor)
    message = _Message(rows(1).serialize().to_pybytes())
    message += bytes(4 * 1024 * 1024)  # The client's metadata, for one.
    kept = weakref.ref(message)
    process.push(topic, pa.ipc.read_record_batch(pa.py_buffer(message), SCHEMA))
    del message
    gc.collect()
    assert kept() is None
    looks = process.looks.count
    assert values_of(process.take(cursor)) == [1]
    assert process.looks.count == looks


def test_a_follower_that_is_behind_reads_all_there_is_at_once(process: Process) -> None:
    topic = new_topic(process.log)
    behind = follower(topic)
    process.take(behind)
    for value in range(5):
        process.push(topic, rows(value))
    chunks = process.take(behind)
    assert values_of(chunks) == list(range(5))
    assert len(chunks) == 1


def test_a_repeat_with_other_rows_is_not_handed_on(process: Process) -> None:
    topic = new_topic(process.log)
    first, repeat = follower(topic), follower(topic)
    process.take(first)
    options = PushOptions(UNPARTITIONED, Sequence("p", 0))
    process.push(topic, rows(1), options)
    assert values_of(process.take(first)) == [1]
    process.push(topic, rows(2), options)
    assert process.take(first) == []
    assert values_of(process.take(repeat)) == [1]


def test_what_is_staged_is_not_handed_on(process: Process) -> None:
    topic = new_topic(process.log)
    cursor = follower(topic)
    process.take(cursor)
    entry = StageEntry("s", "w", first=True)
    process.push(topic, rows(1), PushOptions(UNPARTITIONED, stage=entry))
    assert process.take(cursor) == []


def test_rows_of_a_later_version_are_read_in_that_of_the_follower(process: Process) -> None:
    topic = new_topic(process.log)
    cursor = follower(topic)
    process.take(cursor)
    field = pa.field("later", pa.int64())
    change = SchemaChange(add=pa.schema([field]))
    later = process.log.admin.alter_schema(topic.name, change)
    process.push(later, rows(1).append_column(field, pa.array([7])))
    (chunk,) = process.take(cursor)
    assert chunk.batch.schema.equals(topic.schema)
    assert values_of([chunk]) == [1]


def test_followers_of_some_columns_get_these_alone(process: Process) -> None:
    topic = new_topic(process.log)
    every, some = follower(topic), follower(topic, columns=["n"])
    process.take(every)
    process.take(some)
    process.push(topic, rows(1, 2))
    assert [chunk.batch.schema.names for chunk in process.take(some)] == [["n"]]
    assert values_of(process.take(every)) == [1, 2]


def test_many_bytes_are_read_out_of_their_page(process: Process) -> None:
    topic = new_topic(process.log)
    cursor = follower(topic)
    process.take(cursor)
    looks = process.looks.count
    process.push(topic, rows(1, text="x" * BYTES_MAX))
    assert values_of(process.take(cursor)) == [1]
    assert process.looks.count > looks


def test_what_another_process_appends_right_after_is_not_missed(process: Process) -> None:
    topic = new_topic(process.log)
    cursor = follower(topic)
    process.take(cursor)
    with closing(Process(process.log)) as other:
        process.looks.after_commit = lambda: other.push(topic, rows(2))
        process.push(topic, rows(1))
    state = FetchState(Deadline.after(30), UNLIMITED, UNLIMITED)
    found = process.fetcher.read(cursor, state, Cancel())
    assert [values_of([chunk]) for chunk in islice(found, 2)] == [[1], [2]]
    assert not state.deadline.passed


@pytest.mark.parametrize(
    "seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 40))]
)
def test_a_follower_misses_nothing_whoever_pushes(log: Log, seed: int) -> None:
    """One process hands on what is pushed to it; another pushes to the same log meanwhile."""
    pushes = 60
    topic = new_topic(log)
    with closing(Process(log)) as own, closing(Process(log)) as other:
        pushers = [own, other, own]

        def push(number: int) -> None:
            chance = Random(seed * 10 + number)
            for value in range(pushes):
                many = chance.choice([1, 1, 1, 20])
                pushers[number].push(topic, rows(*[number * 1_000 + value] * many))

        def follow() -> list[tuple[int, int, list[int]]]:
            found: list[tuple[int, int, list[int]]] = []
            state = FetchState(Deadline.after(60), UNLIMITED, UNLIMITED)
            seen: set[int] = set()
            for chunk in own.fetcher.read(follower(topic), state, Cancel()):
                values = values_of([chunk])
                found.append((chunk.start_offset, chunk.end_offset, values))
                seen.update(values)
                if len(seen) == pushes * len(pushers):
                    break
            return found

        with ThreadPoolExecutor(len(pushers) + 1) as threads:
            following = threads.submit(follow)
            for pushed in [threads.submit(push, number) for number in range(len(pushers))]:
                pushed.result()
            found = following.result()
    expected = values_of(_reader(log).take(follower(topic)))
    assert [value for _, _, values in found for value in values] == expected
    offset = 0
    for start, end, values in found:
        assert (start, end) == (offset, offset + len(values) - 1)
        offset = end + 1
