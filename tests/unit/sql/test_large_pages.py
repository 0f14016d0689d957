"""Large pages are handed on as they are, up to the first that is not."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from wings_core.data_directory import DataDirectory
from wings_core.deployments import OneDirectory
from wings_core.errors import ResourceExhausted, StorageCorrupt
from wings_core.fetch import fetcher
from wings_core.fetch.fetcher import Cancel, Cursor
from wings_core.fetch.selection import Selection
from wings_core.ingest.pending import PushStream
from wings_core.ingest.prepare import Preparer, PushOptions
from wings_core.limits import Limits
from wings_core.log import Log
from wings_core.model import Location, Topic
from wings_core.names import TopicName
from wings_core.partitions import UNPARTITIONED
from wings_core.schema_changes import SchemaChange
from wings_core.sql import Sql, large_pages
from wings_core.storage.codecs import Wanted, read_pages

NAME = TopicName.parse("numbers")
LARGE = large_pages.LARGE_ROWS_MIN


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with (
        DataDirectory.open(tmp_path / "data") as directory,
        closing(Log.open(OneDirectory(directory), Limits(maintenance_seconds=1e6))) as log,
    ):
        log.admin.create_topic(NAME, pa.schema([("n", pa.int64()), ("text", pa.string())]))
        yield log


def push(log: Log, *rows: int) -> Topic:
    """Push pages of so many rows, each with its own number."""
    topic = log.admin.get_topic(NAME)
    first = sum(state.next_offset for state in log.registry.partition_states(topic.uuid))
    for count in rows:
        batch: Any = {"n": range(first, first + count), "text": ["row"] * count}
        if len(topic.schema) > 2:
            batch["added"] = [1] * count
        prepared = Preparer(topic, log.limits).prepare(
            pa.record_batch(batch, schema=topic.schema), PushOptions()
        )
        log.group_commit.submit(PushStream(), prepared, awaited=True).accepted()
        first += count
    return topic


def large(log: Log, topic: Topic, offset: int, stop: int) -> list[tuple[int, int]]:
    """Return the offsets of the chunks of large pages."""
    cursor = Cursor(topic, UNPARTITIONED, offset, Selection.of(topic, ["n"]))
    found: list[tuple[int, int]] = []
    for some in large_pages.large_pages(log.fetcher, log.store, log.limits, cursor, stop, Cancel()):
        for batch, start, end, size in some:
            assert batch.column(0).to_pylist() == list(range(start, end + 1))
            assert size > 0
            found.append((start, end))
        assert cursor.offset == found[-1][1] + 1
    return found


def total(log: Log) -> int:
    with closing(Sql(log)) as sql:
        query = sql.open("select sum(n) as total from numbers", lambda _: None)
        (row,) = (row for batch in query.batches() for row in batch.to_pylist())
    return int(row["total"])


def test_pages_are_handed_on_up_to_the_first_that_is_small(log: Log) -> None:
    topic = push(log, LARGE, LARGE + 1, LARGE - 1, LARGE)
    pages = [(0, LARGE - 1), (LARGE, 2 * LARGE)]
    assert large(log, topic, 0, 4 * LARGE) == pages
    assert large(log, topic, LARGE, 4 * LARGE) == pages[1:]
    assert large(log, topic, 1, 4 * LARGE) == [], "it begins within a page"
    assert large(log, topic, 0, 2 * LARGE) == pages[:1], "it stops within a page"
    assert large(log, topic, 3 * LARGE, 4 * LARGE) == [(3 * LARGE, 4 * LARGE - 1)]
    assert total(log) == sum(range(4 * LARGE))


def test_many_pages_are_looked_up_some_at_a_time(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = push(log, *[LARGE] * 6)
    monkeypatch.setattr(large_pages, "LOCATE_ROWS_MAX", LARGE)
    monkeypatch.setattr(fetcher, "READ_AHEAD_SECONDS", 0)
    assert len(large(log, topic, 0, 6 * LARGE)) == 6


def test_pages_of_an_earlier_version_of_the_schema_are_left_to_a_scan(log: Log) -> None:
    push(log, LARGE)
    log.admin.alter_schema(NAME, SchemaChange(add=pa.schema([("added", pa.int64())])))
    topic = push(log, LARGE)
    assert large(log, topic, 0, 2 * LARGE) == []
    assert large(log, topic, LARGE, 2 * LARGE) == [(LARGE, 2 * LARGE - 1)]
    assert total(log) == sum(range(2 * LARGE))


def test_a_page_that_is_somewhere_else_by_now_is_read_there(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = push(log, LARGE, LARGE, LARGE)

    def moved(store: Any, of: Topic, pages: list[Location], wanted: Wanted) -> Iterator[Any]:
        yield from read_pages(store, of, pages[:1], wanted)
        raise StorageCorrupt("its segment is missing")

    monkeypatch.setattr(large_pages, "read_pages", moved)
    assert large(log, topic, 0, 3 * LARGE) == [(0, LARGE - 1)]
    assert total(log) == sum(range(3 * LARGE))


def test_a_damaged_page_is_told_of(log: Log, tmp_path: Path) -> None:
    push(log, LARGE)
    topic = push(log, LARGE)
    (page,) = log.registry.locate(topic.uuid, UNPARTITIONED, LARGE, 1).locations
    path = tmp_path / "data" / "segments" / page.address.folio
    with path.open("r+b") as file:
        file.seek(page.address.position + page.address.length // 4)
        file.write(b"\xff" * 64)
    assert large(log, topic, 0, 2 * LARGE) == [(0, LARGE - 1)]
    with pytest.raises(StorageCorrupt):
        total(log)


def test_a_cancelled_read_ends_between_pages(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = push(log, LARGE, LARGE)
    monkeypatch.setattr(fetcher, "READ_AHEAD_SECONDS", 0)
    cancel = Cancel()
    cursor = Cursor(topic, UNPARTITIONED, 0, Selection.of(topic, ["n"]))
    read = large_pages.large_pages(log.fetcher, log.store, log.limits, cursor, 2 * LARGE, cancel)
    next(read)
    cancel.cancel(ResourceExhausted("enough"))
    with pytest.raises(ResourceExhausted, match="enough"):
        next(read)
