"""A directory that an earlier version wrote is opened, read, checked, written to and merged on."""

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from earlier_directories import unpack_earlier

import wings_client
from wings_client import Client
from wings_core.check import check_directory, check_log
from wings_core.data_directory import DataDirectory
from wings_core.limits import Limits
from wings_core.metadata.open import open_metadata
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.model import (
    Accepted,
    CommitBatch,
    CommittedRange,
    PageAddress,
    PageFormat,
    Sequence,
    SeriesResults,
    ShardProgress,
    StoredPage,
)
from wings_core.names import TopicName
from wings_core.partitions import UNPARTITIONED
from wings_core.storage.open import open_storage
from wings_server.testing import RunningServer, running_server

KEPT = Limits(maintenance_seconds=100_000, stage_seconds_max=1e9)
"""Pages are merged only when the test says so, and the stage is not swept, however old it is."""

PAGES = """
SELECT topics.name, partitions.value, pages.end_offset, pages.format
FROM pages JOIN partitions ON partitions.id = pages.partition_id
JOIN topics ON topics.id = partitions.topic_id ORDER BY 1, 2, 3
"""


@pytest.fixture
def expected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Unpack a copy in the current directory; return what its version read from it."""
    unpack_earlier("before_page_formats", tmp_path)
    monkeypatch.chdir(tmp_path)  # The path of its remote store is relative.
    return json.loads((tmp_path / "expected.json").read_text())


@pytest.fixture
def server(expected: dict[str, Any]) -> Iterator[RunningServer]:
    with running_server(Path("data"), limits=KEPT) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    with wings_client.connect(server.flight) as connected:
        yield connected


def formats() -> list[tuple[str, str, int, PageFormat]]:
    with closing(sqlite3.connect("data/metadata.sqlite")) as connection:
        return [(*row[:3], PageFormat(row[3])) for row in connection.execute(PAGES)]


def rows_of(client: Client, topic: str) -> list[list[Any]]:
    table = client.scan(topic, system_columns=True).read_all()
    times = table.column("__timestamp").cast(pa.int64())
    table = table.set_column(table.num_columns - 1, "__timestamp", times)
    # Of many partitions it tells which, as earlier versions did not.
    table = table.select([name for name in table.column_names if name != "__partition"])
    return ordered([*row.values()] for row in table.to_pylist())


def ordered(rows: Iterable[list[Any]]) -> list[list[Any]]:
    """Sort rows by offset: between partitions there is no order."""
    return sorted(rows, key=lambda row: (row[-2], row[0]))


def check() -> None:
    """See to it that `wings check` finds nothing wrong."""
    with (
        DataDirectory.open_read_only("data") as directory,
        closing(open_metadata(directory, read_only=True)) as metadata,
    ):
        store = open_storage(directory, KEPT).store
        with closing(store):
            report = check_log(metadata, store)
    assert report.ok, report.problems
    assert report.stages == 1


def merged(server: RunningServer, topic: str) -> int:
    log = server.server.log
    return log.maintainer.run(log.admin.get_topic(TopicName.parse(topic))).pages_merged


def test_every_page_has_the_format_that_it_was_written_in(
    expected: dict[str, Any], server: RunningServer
) -> None:
    named = [
        (*row, PageFormat.SEGMENT if is_merged else PageFormat.PLAIN)
        for *row, is_merged in expected["merged"]
    ]
    assert formats() == named
    assert {row[3] for row in named} == {PageFormat.PLAIN, PageFormat.SEGMENT}


def test_rows_are_read_and_checked_then_more_are_written_and_merged(
    expected: dict[str, Any], server: RunningServer, client: Client
) -> None:
    rows = {topic: ordered(found) for topic, found in expected["rows"].items()}
    assert {topic: rows_of(client, topic) for topic in rows} == rows
    client.push("orders", {"id": [1_000], "note": ["new"]}, timestamp="2024-01-02T00:00:00Z")
    client.push("flights", {"origin": ["OAK"], "delay": [0.5]}, timestamp="2024-01-02T00:00:00Z")
    pages = len(formats())
    assert merged(server, "orders") >= 4
    assert merged(server, "flights") >= 7
    assert len(formats()) < pages
    assert all(row[3] is PageFormat.SEGMENT for row in formats() if row[0] != "dead")
    for topic, before in rows.items():
        after = rows_of(client, topic)
        assert len(after) == len(before) + 1
        assert [row for row in after if row in before] == before
    server.stop()
    check()


def test_what_metadata_held_beside_pages_goes_on(expected: dict[str, Any], client: Client) -> None:
    offsets = client.committed_offsets("reader")
    assert {(each.topic.split("/")[-1], each.partition): each.offset for each in offsets} == {
        ("orders", None): 45,
        ("flights", "DEN"): 7,
        ("flights", "OAK"): 3,
    }
    with client.producer("orders", producer_id="till", sequence=2) as producer:
        producer.send({"id": [1_000], "note": ["third"]})
    shards = {shard.shard: shard.position for shard in client.list_shards("files")}
    assert shards == {"one.csv": 77, "two.csv": 0}
    progress = ShardProgress("files", "one.csv", "me", 77, 80)
    published = client.publish("import", 5, ["pending"], [progress])
    assert [each.end_offset - each.start_offset + 1 for each in published.committed] == [5]
    assert rows_of(client, "orders")[-1][1] == "order 169"


def test_a_repeat_gets_what_its_version_stored_of_it(expected: dict[str, Any]) -> None:
    with closing(sqlite3.connect("data/metadata.sqlite")) as connection:
        rows = connection.execute(
            "SELECT uuid, sequence, committed, committed_at FROM producer_results "
            "JOIN topics ON topics.id = topic_id WHERE producer_id = 'till' ORDER BY sequence"
        ).fetchall()
    assert [row[1] for row in rows] == [0, 1]
    page = StoredPage(UNPARTITIONED, 60, PageAddress("folio", 0, 100))
    series = CommitBatch(0, rows[0][0], (page,), Sequence("till", 0), series=(20, 20, 20))
    with SqliteMetadata(Path("data/metadata.sqlite"), clock=lambda: rows[-1][3]) as metadata:
        (result,) = metadata.registry.commit([series])
    assert isinstance(result, SeriesResults)
    *repeats, _ = result.each
    assert repeats == [
        Accepted(tuple(CommittedRange(**each) for each in json.loads(row[2])), replayed=True)
        for row in rows
    ]


def test_a_share_group_delivers_what_is_left(expected: dict[str, Any], client: Client) -> None:
    assert client.share_group("billing", "orders").partitions[0].lag == expected["lag"]
    assert client.fetch("dead", offset=0).num_rows == expected["dead_letters"]
    delivered: list[Any] = []
    with client.share_consumer("billing", "orders", timeout=60) as consumer:
        while 164 not in delivered:  # The last one; what was finished would come before it.
            delivery = next(consumer)
            counted = delivery.start_offset < 20
            assert delivery.delivery_count == (2 if counted else 1)
            delivered += delivery.batch.column("id").to_pylist()
            consumer.accept(delivery)
    assert delivered == [*range(11, 165)]


def test_what_the_journal_of_an_earlier_version_has_is_there_and_goes_on(tmp_path: Path) -> None:
    unpack_earlier("with_a_journal", tmp_path)
    expected = json.loads((tmp_path / "expected.json").read_text())
    data = tmp_path / "data"
    with running_server(data, limits=KEPT) as server, wings_client.connect(server.flight) as client:

        def rows() -> dict[str, list[int]]:
            keyed = {key: client.scan("keyed", key).read_all() for key in "ab"}
            found = {"plain": client.scan("plain").read_all(), **keyed}
            return {name: table.column("n").to_pylist() for name, table in found.items()}

        assert rows() == expected["rows"]
        last = expected["sequence"] - 1
        key = "ab"[last % 2]
        with client.producer("keyed", producer_id="till", sequence=last) as producer:
            producer.send({"k": [key], "n": [last]})  # It was pushed already.
            producer.send({"k": [key], "n": [1_000]})
        expected["rows"][key].append(1_000)
        assert server.server.log.drain is not None
        assert server.server.log.drain.run()
        assert rows() == expected["rows"]
    assert check_directory(data).ok
    with closing(sqlite3.connect(data / "metadata.sqlite")) as connection:
        assert not connection.execute(
            "SELECT 1 FROM sqlite_schema WHERE name = 'journal'"
        ).fetchall()
