"""What small pushes leave in metadata is drained into storage, and stays the same log."""

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fix_metadata import Clock, RemoteOverSqlite
from waiting import until

from wings_core.check import check_directory
from wings_core.data_directory import DataDirectory
from wings_core.deployments import OneDirectory
from wings_core.errors import ResourceExhausted, StorageCorrupt, Unavailable
from wings_core.fetch.cursors import PartitionCursor
from wings_core.fetch.fetcher import Cancel, Read
from wings_core.fetch.state import FetchState
from wings_core.ingest.pending import PushStream
from wings_core.ingest.prepare import SMALL_ROWS_MAX, Preparer, PushOptions
from wings_core.limits import Limits
from wings_core.log import Log
from wings_core.maintain import drain
from wings_core.metadata.remote import RemoteMetadata
from wings_core.model import Location, PageAddress, PageFormat, Topic
from wings_core.names import TopicName
from wings_core.partitions import UNPARTITIONED, Partition
from wings_core.storage.codecs import Wanted, read_pages
from wings_core.storage.interfaces import EncodedPage
from wings_core.times import Deadline, now_us

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])
SOON = Limits(maintenance_seconds=1e6)
LIMITS = SOON.model_copy(update={"inline_seconds": 1e6})
"""A log is drained when a test says so."""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[DataDirectory]:
    with DataDirectory.open(tmp_path / "data") as opened:
        yield opened


@pytest.fixture
def log(directory: DataDirectory) -> Iterator[Log]:
    log = Log.open(OneDirectory(directory), LIMITS)
    yield log
    log.close()


def topic_of(log: Log, name: str = "t", key: str | None = None) -> Topic:
    return log.admin.create_topic(TopicName.parse(name), SCHEMA, key)


def push(log: Log, topic: Topic, first: int, rows: int = 1, key: str = "a") -> None:
    numbers = range(first, first + rows)
    columns = [pa.array([key] * rows), pa.array(numbers, pa.int64())]
    prepared = Preparer(topic, log.limits).prepare(
        pa.record_batch(columns, schema=SCHEMA), PushOptions()
    )
    log.group_commit.submit(PushStream(), prepared, awaited=True).accepted()


def error_of_push(log: Log, topic: Topic) -> ResourceExhausted:
    with pytest.raises(ResourceExhausted) as refused:
        push(log, topic, 0)
    return refused.value


def drained(log: Log) -> bool:
    assert log.drain is not None
    return log.drain.run()


def locations(log: Log, topic: Topic, partition: Partition = UNPARTITIONED) -> tuple[Location, ...]:
    return tuple(log.registry.locate(topic.uuid, partition, 0, 1 << 40).locations)


def formats(log: Log, topic: Topic) -> list[PageFormat]:
    return [page.format for page in locations(log, topic)]


def rows_of(
    log: Log, topic: Topic, partition: Partition = UNPARTITIONED
) -> list[tuple[Any, Any, Any]]:
    """Return the offset, the number and the timestamp of every row."""
    found: list[tuple[Any, Any, Any]] = []
    pages = locations(log, topic, partition)
    for page, read in zip(
        pages, read_pages(log.store, topic, pages, Wanted(timestamps=True)), strict=True
    ):
        times = read.timestamps
        is_one = isinstance(times, int)
        each = [times] * page.rows if is_one else times.cast(pa.int64()).to_pylist()
        rows = enumerate(zip(read.rows.column(1).to_pylist(), each, strict=True), page.start_offset)
        found += [(offset, number, time) for offset, (number, time) in rows]
    return found


def test_rows_offsets_and_timestamps_are_the_same_after_as_before(log: Log) -> None:
    topic = topic_of(log)
    for number in range(20):
        push(log, topic, number)
    assert set(formats(log, topic)) == {PageFormat.INLINE}
    before = rows_of(log, topic)
    assert [row[:2] for row in before] == [(number, number) for number in range(20)]
    assert drained(log)
    assert formats(log, topic) == [PageFormat.DRAINED]
    assert rows_of(log, topic) == before
    assert log.maintenance.inline_backlog(1).bytes == 0
    assert log.drain is not None
    assert log.drain.backlog_bytes == 0


def test_after_a_drain_on_demand_another_node_may_drain_soon(log: Log) -> None:
    push(log, topic_of(log), 0)
    assert drained(log)
    # The lease is given up where nothing is to be drained.
    until(lambda: log.maintenance.acquire_lease(drain.LEASE, "another", 1.0) is not None)


def test_a_check_meanwhile_finds_the_pages_where_they_are_now(
    directory: DataDirectory, log: Log
) -> None:
    topic = topic_of(log)
    for number in range(20):
        push(log, topic, number)

    def change(pages: int) -> None:
        if pages == 1:
            assert drained(log)
        if pages == 10:
            log.admin.delete_topic(topic.name)
            log.registry.purge(100)

    report = check_directory(directory.path, progress=change)
    assert (report.problems, report.pages) == ((), 20)


def test_small_partitions_share_a_page_and_stay_apart(log: Log) -> None:
    topic = topic_of(log, key="k")
    keys = [f'"key {number}"' for number in range(30)]
    for turn in range(3):
        for number, key in enumerate(keys):
            push(log, topic, 100 * number + turn, key=key.strip('"'))
    before = {key: rows_of(log, topic, Partition(key)) for key in keys}
    assert drained(log)
    pages = [locations(log, topic, Partition(key)) for key in keys]
    assert all(len(page) == 1 for page in pages)
    assert len({page[0].address for page in pages}) == 1
    assert sum(page[0].bytes for page in pages) == pages[0][0].address.length
    assert {key: rows_of(log, topic, Partition(key)) for key in keys} == before


def test_partitions_of_topics_that_grow_in_turn_share_a_page_of_each_topic(log: Log) -> None:
    topics = [topic_of(log, name, key="k") for name in ("one", "two")]
    for number in range(10):
        for topic in topics:
            push(log, topic, number, key=f"key {number}")
    assert drained(log)
    for topic in topics:
        keys = [Partition(f'"key {number}"') for number in range(10)]
        pages = [page for key in keys for page in locations(log, topic, key)]
        assert len({page.address for page in pages}) == 1
        assert [rows_of(log, topic, key)[0][:2] for key in keys] == [(0, n) for n in range(10)]


def test_large_pushes_between_small_ones_stay_where_they_are(log: Log) -> None:
    topic = topic_of(log)
    push(log, topic, 0)
    push(log, topic, 1)
    push(log, topic, 2, rows=20_000)
    push(log, topic, 20_002)
    inline, plain = PageFormat.INLINE, PageFormat.PLAIN
    assert formats(log, topic) == [inline, inline, plain, inline]
    before = rows_of(log, topic)
    assert drained(log)
    assert formats(log, topic) == [PageFormat.DRAINED, plain, PageFormat.DRAINED]
    assert rows_of(log, topic) == before


def test_many_rows_of_few_bytes_are_not_kept_inline(log: Log) -> None:
    schema = pa.schema([("n", pa.null())])
    topic = log.admin.create_topic(TopicName.parse("nulls"), schema)
    for rows in (drain.INLINE_ROWS_MAX + 1, SMALL_ROWS_MAX):
        batch = pa.RecordBatch.from_arrays([pa.nulls(rows)], schema=schema)
        prepared = Preparer(topic, log.limits).prepare(batch, PushOptions(UNPARTITIONED))
        log.group_commit.submit(PushStream(), prepared, awaited=True).accepted()
    assert formats(log, topic) == [PageFormat.PLAIN, PageFormat.INLINE]


def test_no_more_rows_are_moved_at_a_time_than_a_round_has(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "ROUND_ROWS", 100)
    topic = topic_of(log)
    for number in range(5):
        push(log, topic, 50 * number, rows=50)
    before = rows_of(log, topic)
    assert drained(log)
    assert [page.rows for page in locations(log, topic)] == [100, 100, 50]
    assert rows_of(log, topic) == before


def test_what_a_crash_left_is_drained_after_the_next_start(
    directory: DataDirectory, log: Log
) -> None:
    topic = topic_of(log)
    push(log, topic, 0)
    before = rows_of(log, topic)
    log.close()
    with closing(Log.open(OneDirectory(directory), SOON)) as again:
        until(lambda: formats(again, topic) == [PageFormat.DRAINED])
        assert rows_of(again, topic) == before


@pytest.mark.parametrize("step", ["write", "replace_all", "after"])
def test_a_drain_that_ends_at_any_step_loses_and_doubles_nothing(
    directory: DataDirectory, log: Log, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    topic = topic_of(log)
    for number in range(5):
        push(log, topic, number)
    before = rows_of(log, topic)
    fault = Unavailable("as if the process had ended")

    def fail(*_: object) -> None:
        raise fault

    replace_all = type(log.maintenance).replace_all

    def late(*arguments: object) -> None:
        replace_all(*arguments)  # pyright: ignore[reportArgumentType]
        raise fault

    with monkeypatch.context() as broken:
        if step == "write":
            broken.setattr(type(log.store), "write", fail)
        else:
            replaced = fail if step == "replace_all" else late
            broken.setattr(type(log.maintenance), "replace_all", replaced)
        with pytest.raises(Unavailable):
            drained(log)
        assert rows_of(log, topic) == before
    log.close()
    with closing(Log.open(OneDirectory(directory), LIMITS)) as again:
        assert rows_of(again, topic) == before
        assert drained(again)
        assert formats(again, topic) == [PageFormat.DRAINED]
        assert rows_of(again, topic) == before


def test_a_reader_that_located_pages_before_a_drain_reads_on(log: Log) -> None:
    topic = topic_of(log)
    for number in range(5):
        push(log, topic, number)
    old = locations(log, topic)
    assert drained(log)
    # From memory too: those that are drained would take it up for minutes.
    with pytest.raises(StorageCorrupt) as gone:
        list(read_pages(log.store, topic, old, Wanted()))
    assert gone.value.facts["missing"] is True  # At which a reader looks again.


def test_a_node_looks_again_for_pages_that_another_has_drained(tmp_path: Path) -> None:
    with ExitStack() as opened:
        service = RemoteOverSqlite(tmp_path / "metadata.sqlite", Clock(now_us()))
        opened.callback(service.close)

        def node() -> Log:
            pages = opened.enter_context(DataDirectory.open(tmp_path / "data", "pages"))
            metadata = RemoteMetadata(str(service.service.address))
            log = Log.open(OneDirectory(pages, metadata), LIMITS)
            opened.callback(log.close)
            return log

        writer, reader = node(), node()
        topic = topic_of(writer)
        push(writer, topic, 7)
        read = Read.of(topic, [PartitionCursor(UNPARTITIONED, 0)])
        # What another reader of the node found since serves this one too.
        assert formats(reader, topic) == [PageFormat.INLINE]
        reader.registry.locate(topic.uuid, UNPARTITIONED, 0, 1)
        assert drained(writer)
        state = FetchState(Deadline.after(30.0), 1, 1)
        (chunk,) = reader.fetcher.read(read, state, Cancel())
        assert chunk.batch.column(1).to_pylist() == [7]


def damage(log: Log, tmp_path: Path, folio: str, statement: str, *values: bytes) -> None:
    """Change an inline folio in the database, and have it read again."""
    where = " WHERE folio_id = (SELECT id FROM folios WHERE name = ?)"
    with closing(sqlite3.connect(tmp_path / "data" / "metadata.sqlite")) as database, database:
        assert database.execute(statement + where, (*values, folio)).rowcount == 1
    assert log.storage.inline is not None
    log.storage.inline.forget(folio)


def test_a_damaged_page_is_corrupt_for_its_rows_alone_and_holds_up_no_other(
    log: Log, tmp_path: Path
) -> None:
    topics = [topic_of(log, name) for name in ("one", "two")]
    for number in range(3):
        for topic in topics:
            push(log, topic, number)
    bad = locations(log, topics[0])[1]
    data = log.registry.read_inline([bad.address.folio])[bad.address.folio]
    spoilt = bytearray(data)
    spoilt[bad.address.position + bad.address.length // 2] ^= 0xFF
    damage(log, tmp_path, bad.address.folio, "UPDATE inline_folios SET data = ?", bytes(spoilt))
    before = rows_of(log, topics[1])
    assert drained(log)
    assert formats(log, topics[0]) == [
        PageFormat.DRAINED,
        PageFormat.INLINE,
        PageFormat.DRAINED,
    ]
    assert formats(log, topics[1]) == [PageFormat.DRAINED]
    assert rows_of(log, topics[1]) == before
    with pytest.raises(StorageCorrupt) as told:
        list(read_pages(log.store, topics[0], [bad], Wanted()))
    assert told.value.facts == {"folio": bad.address.folio, "position": bad.address.position}


def test_a_folio_that_is_gone_without_its_pages_ends_the_drain(log: Log, tmp_path: Path) -> None:
    topic = topic_of(log)
    push(log, topic, 0)
    damage(log, tmp_path, locations(log, topic)[0].address.folio, "DELETE FROM inline_folios")
    assert not drained(log)  # It is tried again after a pause.
    assert formats(log, topic) == [PageFormat.INLINE]


def test_where_storage_takes_nothing_small_pushes_go_on_to_a_bound_and_all_recovers(
    directory: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = SOON.model_copy(update={"inline_bytes_max": 10_000, "inline_seconds": 0.01})
    with closing(Log.open(OneDirectory(directory), limits)) as log:
        topic = topic_of(log)
        full = ResourceExhausted("the disk is full")

        def fail(self: object, pages: list[EncodedPage]) -> list[PageAddress]:
            raise full

        with monkeypatch.context() as broken:
            broken.setattr(type(log.store), "write", fail)
            pushed, refusals = 0, 0
            while refusals < 20:
                try:
                    push(log, topic, pushed)
                    pushed += 1
                except ResourceExhausted as error:
                    refusals += "disk is full" in error.message
                    threading.Event().wait(0.01)
            assert "the limit is 10000" in error_of_push(log, topic).message
            assert 5 < pushed < 200
            assert [row[:2] for row in rows_of(log, topic)] == [(n, n) for n in range(pushed)]
        end = time.monotonic() + 60
        while True:
            try:
                push(log, topic, pushed)
            except ResourceExhausted:  # Until what waits has been moved, and the drain knows.
                assert time.monotonic() < end
                threading.Event().wait(0.01)
            else:
                break
        assert [row[:2] for row in rows_of(log, topic)] == [(n, n) for n in range(pushed + 1)]
