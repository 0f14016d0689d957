"""Old messages in the remote store: the same before, during and after, whatever ends halfway."""

import itertools
import os
import random
import re
import sqlite3
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.dataset as dataset
import pyarrow.flight as flight
import pytest
from flight_calls import (
    Answer,
    act,
    create_topic,
    error_of,
    get,
    put_stream,
    read_answer,
    ticket_of,
)

from wings_core.data_directory import DataDirectory
from wings_core.deployments import OneDirectory, Parts
from wings_core.errors import OffsetOutOfRange
from wings_core.fetch.cursors import PartitionCursor
from wings_core.fetch.fetcher import Cancel, Read
from wings_core.fetch.state import FetchState
from wings_core.ingest.pending import PushStream
from wings_core.ingest.prepare import Preparer, PushOptions
from wings_core.limits import Limits
from wings_core.log import Log
from wings_core.maintain import Maintainer, MaintenanceReport, maintainer, tiering, workers
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.model import TopicConfig
from wings_core.names import TopicName
from wings_core.partitions import UNPARTITIONED
from wings_core.storage.open import open_storage
from wings_core.times import Deadline, format_timestamp
from wings_server.testing import (
    RunningServer,
    metadata_process,
    running_server,
    server_process,
)

pytestmark = pytest.mark.usefixtures("pushes_to_storage")

FIELDS = ["n: int64", "text: string"]
SEGMENT_BYTES = 64 * 1024
START = 1_600_000_000_000_000
SCHEMA = pa.schema([("n", pa.int64())])
SMALL = Limits(inline_bytes_max=0, segment_bytes_max=SEGMENT_BYTES, maintenance_seconds=3_600)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with running_server(tmp_path / "data", limits=SMALL, remote=str(tmp_path / "remote")) as run:
        yield run


def rows(first: int, count: int = 10) -> pa.RecordBatch:
    values = range(first, first + count)
    return pa.record_batch(
        {"n": pa.array(values, pa.int64()), "text": [f"text {value}" for value in values]}
    )


def push_small(client: flight.FlightClient, topic: str, pushes: int, first: int = 0) -> None:
    """Push batches of ten rows, each with a timestamp of its own, a millisecond apart."""
    numbers = range(first // 10, first // 10 + pushes)
    with put_stream(client, rows(0).schema, topic) as stream:
        for number in numbers:
            time = format_timestamp(START + 1_000 * number)
            stream.send(rows(10 * number), timestamp=time)
        for _ in numbers:
            answer = stream.answer()
            assert answer is not None
            assert "committed" in answer


def scan(client: flight.FlightClient, topic: str, **keys: Any) -> Answer:
    return get(client, kind="scan", topic=topic, system_columns=True, **keys)


def tier(client: flight.FlightClient, topic: str, **config: Any) -> dict[str, int]:
    act(client, "alter-topic", topic=topic, config={"tier_after_ms": 0, **config})
    return act(client, "maintain", topic=topic)


@pytest.fixture
def topic(client: flight.FlightClient, new_topic_id: str) -> str:
    create_topic(client, new_topic_id, FIELDS)
    return new_topic_id


def test_rows_offsets_and_timestamps_are_the_same_after_as_before(
    client: flight.FlightClient, topic: str
) -> None:
    push_small(client, topic, 500)
    before = scan(client, topic)
    report = tier(client, topic, segment_bytes=8 * 1024)
    # Small merged pages were merged again with those after them.
    assert report["pages_merged"] >= 500
    assert report["segments"] > 10
    after = scan(client, topic)
    assert after.table.equals(before.table)
    assert (after.end, after.next_offset) == (before.end, before.next_offset)
    (state,) = act(client, "partition-states", topic=topic)
    assert (state["log_start_offset"], state["next_offset"]) == (0, 5_000)
    for offset in (0, 1, 639, 640, 2_500, 4_999):
        answer = get(client, topic=topic, offset=offset, max_messages=7, system_columns=True)
        assert answer.table.equals(before.table.slice(offset, 7))


def test_columns_and_filters_read_merged_pages_alike(
    client: flight.FlightClient, topic: str
) -> None:
    push_small(client, topic, 300)
    tier(client, topic)
    push_small(client, topic, 20, first=3_000)
    assert get(client, kind="scan", topic=topic, columns=["text"]).column("text") == [
        f"text {value}" for value in range(3_200)
    ]
    found = scan(client, topic, columns=["text", "n"], filter="n % 100 = 7")
    assert found.column("n") == list(range(7, 3_200, 100))
    assert found.column("__offset") == found.column("n")


def test_times_are_found_within_merged_pages(client: flight.FlightClient, topic: str) -> None:
    push_small(client, topic, 200)
    tier(client, topic)
    start = START
    for time, offset in (
        (start - 5, 0),
        (start, 0),
        (start + 1, 10),
        (start + 77_000, 770),
        (start + 77_001, 780),
        (start + 199_000, 1_990),
        (start + 199_001, 2_000),
    ):
        found = act(client, "offset-for-timestamp", topic=topic, timestamp=format_timestamp(time))
        assert found == {"offset": offset}
    place = {"timestamp": format_timestamp(start + 77_001)}
    assert scan(client, topic, offset=place).ranges[0][0] == 780


def test_a_share_group_begins_at_its_time_within_a_merged_page(
    client: flight.FlightClient, topic: str
) -> None:
    push_small(client, topic, 200)
    tier(client, topic)
    start = {"timestamp": format_timestamp(START + 77_001)}
    created = act(client, "share-create", topic=topic, group="late", config={"start": start})
    (partition,) = created["partitions"]
    assert partition["start_offset"] == 780


def test_anybody_reads_the_segments(
    server: RunningServer, client: flight.FlightClient, topic: str, tmp_path: Path
) -> None:
    push_small(client, topic, 300)
    tier(client, topic, segment_bytes=16 * 1024)
    live = server.server.log.registry.live_folios()
    files = sorted(tmp_path / "remote" / folio for folio in live if folio.endswith(".arrow"))
    assert len(files) >= 2
    table = dataset.dataset(files, format="ipc").to_table()
    expected = scan(client, topic).table
    assert table.equals(expected.select(["n", "text", "__timestamp"]).combine_chunks())


def test_a_long_scan_that_began_before_ends_whole(
    server: RunningServer, client: flight.FlightClient, topic: str
) -> None:
    push_small(client, topic, 3_000)
    expected = scan(client, topic).table
    readers = [client.do_get(ticket_of(kind="scan", topic=topic, columns=["n"])) for _ in range(3)]
    first = [reader.read_chunk() for reader in readers]
    tier(client, topic)
    _delete_unused(server.server.log)
    assert not list((server.data_dir / "segments").glob("*.segment"))[1:]
    for reader, chunk in zip(readers, first, strict=True):
        assert chunk.data is not None
        rest = read_answer(reader).column("n")
        assert chunk.data.column("n").to_pylist() + rest == expected["n"].to_pylist()


def test_a_reader_of_pages_that_moved_finds_them_where_they_are(
    server: RunningServer, client: flight.FlightClient, topic: str
) -> None:
    push_small(client, topic, 1_200)
    log = server.server.log
    found = log.admin.get_topic(TopicName.parse(topic))
    before = scan(client, topic).table
    stop = threading.Event()
    begun = threading.Semaphore(0)

    def read() -> int:
        scans = 0
        with flight.FlightClient(server.flight) as own:
            while not stop.is_set():
                assert scan(own, topic).table.equals(before)
                scans += 1
                begun.release()
        return scans

    with ThreadPoolExecutor(2) as readers:
        results = [readers.submit(read) for _ in range(2)]
        assert all(begun.acquire(timeout=60) for _ in range(4))  # The second of each at the least.
        act(
            client, "alter-topic", topic=topic, config={"tier_after_ms": 0, "segment_bytes": 65_536}
        )
        log.maintainer.run(log.admin.get_topic(found.name))
        _delete_unused(log)
        stop.set()
        assert all(result.result() > 0 for result in results)


def test_few_messages_at_a_time_are_merged_with_those_that_come_later_but_not_each_time(
    client: flight.FlightClient, topic: str, server: RunningServer
) -> None:
    passes, count = 70, 30
    wide = pa.record_batch({"n": range(count), "text": ["wide, and the same again " * 80] * count})
    reports: list[dict[str, int]] = []
    for _ in range(passes):
        with put_stream(client, wide.schema, topic) as stream:
            stream.push(wide)
        reports.append(tier(client, topic))
    uuid = act(client, "describe-topic", topic=topic)["uuid"]
    (state,) = server.server.log.maintenance.tier_states(uuid)
    assert (state.remote, state.rows) == (True, passes * count)
    assert state.pages < 15
    # Each row was written once, and then again for each level that it came to.
    rewritten = sum(report["rows_merged"] for report in reports)
    assert passes * count < rewritten <= 3 * passes * count
    stored = server.server.log.storage.remote.objects.counts.snapshot()["put"].bytes
    assert stored < passes * wide.nbytes / 2
    assert scan(client, topic).column("n") == [*range(count)] * passes


def test_by_default_only_what_is_an_hour_old_moves_to_a_remote_store(
    client: flight.FlightClient, topic: str
) -> None:
    with put_stream(client, rows(0).schema, topic) as stream:
        stream.push(rows(0))
    assert act(client, "maintain")["pages_merged"] == 0
    create_topic(client, f"{topic}-old", FIELDS)
    push_small(client, f"{topic}-old", 3)
    assert act(client, "maintain")["pages_merged"] == 3


def test_without_a_remote_store_nothing_moves_unless_told_so(tmp_path: Path) -> None:
    with running_server(tmp_path) as server, flight.FlightClient(server.flight) as client:
        create_topic(client, "t", FIELDS)
        push_small(client, "t", 10)
        assert act(client, "maintain")["pages_merged"] == 0
        assert tier(client, "t")["pages_merged"] == 10
        assert scan(client, "t").column("n") == list(range(100))
    # What was merged stays there when a remote store is given later.
    with (
        running_server(tmp_path, remote=str(tmp_path / "remote")) as server,
        flight.FlightClient(server.flight) as client,
    ):
        assert scan(client, "t").column("n") == list(range(100))
        push_small(client, "t", 10, first=100)
        tier(client, "t")
        assert scan(client, "t").column("n") == list(range(200))
        assert list((tmp_path / "remote").rglob("*.arrow"))


def test_without_a_remote_store_segments_go_where_new_pages_of_all_nodes_are(
    tmp_path: Path,
) -> None:
    data, hot, expected = tmp_path / "data", tmp_path / "hot", list(range(200))
    with (
        running_server(data, hot=str(hot)) as server,
        flight.FlightClient(server.flight) as client,
    ):
        create_topic(client, "t", FIELDS)
        push_small(client, "t", 20)
        assert act(client, "maintain")["pages_merged"] == 0
        assert tier(client, "t")["pages_merged"] == 20
        assert scan(client, "t").column("n") == expected
        (folio,) = server.server.log.registry.live_folios()
        assert (hot / folio).is_file()
        assert not (data / "merged").exists()
    # They stay there when a remote store is given later.
    with (
        running_server(data, remote=str(tmp_path / "remote")) as server,
        flight.FlightClient(server.flight) as client,
    ):
        assert scan(client, "t").column("n") == expected


def test_segments_in_s3_are_read_as_those_in_a_directory(tmp_path: Path, s3_url: str) -> None:
    with (
        running_server(tmp_path, remote=s3_url, limits=SMALL) as server,
        flight.FlightClient(server.flight) as client,
    ):
        create_topic(client, "t", FIELDS)
        push_small(client, "t", 300)
        before = scan(client, "t").table
        assert tier(client, "t")["pages_merged"] == 300
        assert scan(client, "t").table.equals(before)
    with running_server(tmp_path) as server, flight.FlightClient(server.flight) as client:
        assert scan(client, "t").table.equals(before)
        act(client, "alter-topic", topic="t", config={"retention_bytes": 1, "tier_after_ms": 0})
        push_small(client, "t", 1, first=3_000)
        assert act(client, "maintain")["pages_expired"] > 0


def test_a_flipped_byte_in_a_segment_is_an_error_that_names_it(
    server: RunningServer, client: flight.FlightClient, topic: str, tmp_path: Path
) -> None:
    push_small(client, topic, 300)
    tier(client, topic, segment_bytes=16 * 1024)
    live = server.server.log.registry.live_folios()
    files = sorted(tmp_path / "remote" / folio for folio in live if folio.endswith(".arrow"))
    data = bytearray(files[0].read_bytes())
    data[len(data) // 2] ^= 1
    files[0].write_bytes(data)
    with pytest.raises(flight.FlightError) as caught:
        scan(client, topic)
    error = error_of(caught.value)
    assert error["code"] == "STORAGE_CORRUPT"
    assert error["folio"].endswith(files[0].name)
    after = int(pa.ipc.open_file(str(files[1])).schema.metadata[b"wings.start_offset"])
    assert scan(client, topic, offset=after).column("n") == list(range(after, 3_000))


def test_a_segment_that_is_missing_is_an_error_that_names_it(
    client: flight.FlightClient, topic: str, tmp_path: Path
) -> None:
    push_small(client, topic, 100)
    tier(client, topic)
    (file,) = (tmp_path / "remote").rglob("*.arrow")
    file.unlink()
    with pytest.raises(flight.FlightError) as caught:
        scan(client, topic)
    assert error_of(caught.value)["code"] == "STORAGE_CORRUPT"
    assert error_of(caught.value)["folio"].endswith(file.name)


class CrashError(BaseException):
    """The process ended here, as far as the log is concerned."""


def crashing(target: Any, method: str, *, calls: int, after: bool) -> None:
    """Let the n-th call of a method be the last thing that is done, or not be done any more."""
    real: Callable[..., Any] = getattr(target, method)
    made = 0

    def call(*arguments: Any, **options: Any) -> Any:
        nonlocal made
        made += 1
        if made < calls:
            return real(*arguments, **options)
        if after and made == calls:
            real(*arguments, **options)
        raise CrashError

    setattr(target, method, call)


STEPS = {
    "before the segment is put": ("objects", "put", 1, False),
    "after the segment is put": ("objects", "put", 1, True),
    "after the first pages are replaced": ("maintenance", "replace", 1, True),
    "before the last pages are replaced": ("maintenance", "replace", 3, False),
    "after the last pages are replaced": ("maintenance", "replace", 3, True),
    "before the lease is given back": ("maintenance", "release_lease", 1, False),
    "before the second segment is put": ("objects", "put", 2, False),
}


@contextmanager
def opened(directory: Path) -> Generator[Log]:
    with DataDirectory.open(directory) as locked:
        log = Log.open(OneDirectory(locked), SMALL)
        try:
            yield log
        finally:
            log.close()


def read_log(log: Log, topic: str) -> list[int]:
    found = log.admin.get_topic(TopicName.parse(topic))
    state = FetchState(Deadline.after(0), 1, 1_000_000)
    chunks = log.fetcher.fetch(found, UNPARTITIONED, 0, state, Cancel())
    table = pa.Table.from_batches([batch for batch, _, _ in chunks], found.schema)
    return cast("list[int]", table["n"].to_pylist())


def _delete_unused(log: Log) -> None:
    """Give back now what the reclaimer gives back in the background."""
    unused = sorted(log.store.folios() - log.registry.live_folios())
    for folio in log.registry.retire(unused):
        log.store.delete(folio)


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_loses_nothing_and_doubles_nothing(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiering, "REPLACED_PAGES", 1)  # A transaction for each merged page.
    with (
        running_server(tmp_path, limits=SMALL) as server,
        flight.FlightClient(server.flight) as client,
    ):
        create_topic(client, "t", FIELDS)
        with put_stream(client, rows(0).schema, "t") as stream:
            for number in range(8):
                stream.push(rows(30_000 * number, 30_000))
    part, method, calls, after = STEPS[step]
    name, expected = TopicName.parse("t"), list(range(240_000))
    with opened(tmp_path) as log:
        # Four pages a segment, two of them a transaction.
        size = log.registry.partition_state(log.admin.get_topic(name).uuid, UNPARTITIONED).bytes
        log.admin.alter_topic(name, TopicConfig(tier_after_ms=0, segment_bytes=size // 2 - 1))
        target = log.maintenance if part == "maintenance" else log.storage.remote.objects
        crashing(target, method, calls=calls, after=after)
        with pytest.raises(CrashError):
            log.maintainer.run()
        assert read_log(log, "t") == expected
    with opened(tmp_path) as log:
        assert read_log(log, "t") == expected
        # The lease of the one that crashed has not ended; so take it as another node would, later.
        _end_leases(tmp_path)
        log.maintainer.run()
        assert read_log(log, "t") == expected
        (tiers,) = log.maintenance.tier_states(log.admin.get_topic(name).uuid)
        assert (tiers.remote, tiers.rows) == (True, 240_000)
        stored = {each.name for each in log.storage.remote.objects.list()}
        assert {folio for folio in log.registry.live_folios() if "/" in folio} <= stored


def _end_leases(directory: Path) -> None:
    with closing(sqlite3.connect(directory / "metadata.sqlite", timeout=30)) as database, database:
        database.execute("UPDATE leases SET expires_at = 0")


def test_what_was_put_and_never_committed_is_deleted_after_its_grace(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        objects = log.storage.remote.objects
        old, young = (log.storage.remote.name("topic", offset) for offset in (0, 1))
        for name in (old, young):
            objects.put(name, [b"left over"])
        os.utime(tmp_path / "merged" / old, (0, 0))
        _delete_unused(log)
        assert {each.name for each in objects.list()} == {young}


def test_a_segment_that_a_crash_left_half_written_is_deleted_some_time(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.storage.remote.objects.put(log.storage.remote.name("topic", 0), [b"whole"])
    old, young = (tmp_path / "merged/segments/topic" / f".put-{name}" for name in ("1", "2"))
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    with opened(tmp_path):
        assert not old.exists()
        assert young.exists()


def test_two_nodes_that_maintain_a_partition_do_it_once(tmp_path: Path) -> None:
    with (
        running_server(tmp_path, limits=SMALL) as server,
        flight.FlightClient(server.flight) as client,
    ):
        create_topic(client, "t", FIELDS)
        push_small(client, "t", 400)
        act(client, "alter-topic", topic="t", config={"tier_after_ms": 0})
        log = server.server.log
        other = Log(Parts(log.metadata, log.storage), SMALL)
        with ThreadPoolExecutor(2) as both:
            reports = list(both.map(Maintainer.run, (log.maintainer, other.maintainer)))
        other.maintainer.close()
        assert sum(report.pages_merged for report in reports) == 400
        assert sum(report.failures for report in reports) == 0
        assert scan(client, "t").column("n") == list(range(4_000))


def test_a_partition_that_a_node_works_on_is_left_to_it(tmp_path: Path) -> None:
    with (
        running_server(tmp_path, limits=SMALL) as server,
        flight.FlightClient(server.flight) as client,
    ):
        create_topic(client, "t", FIELDS)
        push_small(client, "t", 40)
        act(client, "alter-topic", topic="t", config={"tier_after_ms": 0})
        log = server.server.log
        other = Log(Parts(log.metadata, log.storage), SMALL)
        put, reports = log.storage.remote.objects.put, list[MaintenanceReport]()

        def put_while_the_other_looks(name: str, parts: Any) -> None:
            reports.append(other.maintainer.run())
            put(name, parts)

        log.storage.remote.objects.put = put_while_the_other_looks
        assert act(client, "maintain")["pages_merged"] == 40
        (report,) = reports
        assert (report.partitions_busy, report.segments) == (1, 0)
        log.storage.remote.objects.put = put
        other.maintainer.close()
        assert scan(client, "t").column("n") == list(range(400))


def test_a_scan_that_retention_passes_is_told_where_the_log_starts_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = SMALL.model_copy(update={"wire_rows_max": 20, "page_cache_bytes_max": 1})
    with (
        running_server(tmp_path, limits=limits, remote=str(tmp_path / "remote")) as server,
        flight.FlightClient(server.flight) as client,
    ):
        create_topic(client, "t", FIELDS)
        push_small(client, "t", 60)
        tier(client, "t", segment_bytes=1)
        push_small(client, "t", 300, first=600)
        log = server.server.log
        topic = log.admin.get_topic(TopicName.parse("t"))
        read = Read.of(topic, [PartitionCursor(UNPARTITIONED, 0, 3_600)])
        chunks = log.fetcher.scan(read, Cancel())
        came = list(itertools.islice(chunks, 3))
        act(client, "alter-topic", topic="t", config={"tier_after_ms": None, "retention_bytes": 1})
        act(client, "maintain")
        _delete_unused(log)
        for path in (tmp_path / "remote" / "segments").rglob("*.arrow"):
            path.unlink()  # As when its grace is over.
        with pytest.raises(OffsetOutOfRange) as caught:
            came.extend(chunks)
        assert caught.value.facts["log_start_offset"] == 3_590
        # What came before it is a whole piece of the log.
        rows = [n for chunk in came for n in chunk.batch.column("n").to_pylist()]
        assert rows == list(range(len(rows)))
        assert len(rows) < 3_590


def test_pages_that_another_node_drops_meanwhile_are_no_failure(tmp_path: Path) -> None:
    with (
        running_server(tmp_path, limits=SMALL) as server,
        flight.FlightClient(server.flight) as client,
    ):
        create_topic(client, "t", FIELDS)
        push_small(client, "t", 5)
        act(client, "alter-topic", topic="t", config={"tier_after_ms": 0})
        log = server.server.log
        look = log.registry.partition_states

        def look_and_drop(topic_uuid: str, **options: Any) -> Any:
            states = look(topic_uuid, **options)
            log.maintenance.expire(
                topic_uuid, UNPARTITIONED, age_us=None, bytes_kept=1, pages_max=2
            )
            return states

        log.registry.partition_states = look_and_drop
        assert act(client, "maintain")["failures"] == 0
        log.registry.partition_states = look
        assert act(client, "maintain")["pages_merged"] == 3


def test_a_partition_that_cannot_be_merged_keeps_no_other_from_it(tmp_path: Path) -> None:
    with (
        running_server(tmp_path, limits=SMALL) as server,
        flight.FlightClient(server.flight) as client,
    ):
        for topic in ("a", "b"):
            create_topic(client, topic, FIELDS)
            push_small(client, topic, 5)
            act(client, "alter-topic", topic=topic, config={"tier_after_ms": 0})
        objects = server.server.log.storage.remote.objects
        put, calls = objects.put, []

        def fail_once(name: str, parts: Any) -> None:
            calls.append(name)
            if len(calls) == 1:
                raise pa.ArrowInvalid("it cannot be merged")
            put(name, parts)

        objects.put = fail_once
        report = act(client, "maintain")
        assert (report["failures"], report["pages_merged"]) == (1, 5)
        assert act(client, "maintain")["pages_merged"] == 5


def test_a_put_that_takes_longer_than_the_lease_is_committed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "LEASE_SECONDS", 0.03)
    now = START
    metadata = SqliteMetadata(tmp_path / "clocked.sqlite", clock=lambda: now)
    acquire = metadata.maintenance.acquire_lease
    many = threading.Event()
    calls = 0

    def acquire_later(name: str, holder: str, seconds: float) -> int | None:
        """Let most of what a lease lasts pass before each call."""
        nonlocal now, calls
        now, calls = now + round(seconds * 600_000), calls + 1
        if calls > 10:
            many.set()
        return acquire(name, holder, seconds)

    metadata.maintenance.acquire_lease = acquire_later
    with DataDirectory.open(tmp_path / "data") as opened:
        storage = open_storage(opened, SMALL, store_id=lambda: metadata.store_id)
        with closing(Log(Parts(metadata, storage), SMALL)) as log:
            config = TopicConfig(tier_after_ms=0)
            name = TopicName.parse("t")
            topic = log.admin.create_topic(name, SCHEMA, config=config)
            batch = pa.record_batch({"n": pa.array(range(10), pa.int64())})
            prepared = Preparer(topic, SMALL).prepare(batch, PushOptions())
            log.group_commit.submit(PushStream(), prepared, awaited=True).accepted()
            put = log.storage.remote.objects.put

            def put_slowly(name: str, parts: Any) -> None:
                assert many.wait(60)
                put(name, parts)

            log.storage.remote.objects.put = put_slowly
            assert log.maintainer.run(topic).pages_merged == 1
            assert read_log(log, "t") == list(range(10))


@pytest.mark.parametrize(("bytes_max", "at_once"), [(1, 1), (1 << 30, 3)])
def test_no_more_is_merged_at_once_than_there_is_room_for(
    server: RunningServer,
    client: flight.FlightClient,
    new_topic_id: str,
    monkeypatch: pytest.MonkeyPatch,
    bytes_max: int,
    at_once: int,
) -> None:
    monkeypatch.setattr(tiering, "MERGING_BYTES_MAX", bytes_max)
    for number in range(3):
        create_topic(client, f"{new_topic_id}-{number}", FIELDS)
        push_small(client, f"{new_topic_id}-{number}", 5)
        config = {"tier_after_ms": 0}
        act(client, "alter-topic", topic=f"{new_topic_id}-{number}", config=config)
    objects = server.server.log.storage.remote.objects
    put, together = objects.put, threading.Barrier(at_once)
    running: list[str] = []
    most = 0

    def put_together(name: str, parts: Any) -> None:
        nonlocal most
        running.append(name)
        most = max(most, len(running))
        together.wait(60)
        put(name, parts)
        running.remove(name)

    objects.put = put_together
    assert act(client, "maintain")["pages_merged"] == 15
    assert most == at_once


def test_a_partition_whose_segment_is_put_slowly_holds_up_no_other(
    server: RunningServer, client: flight.FlightClient, new_topic_id: str
) -> None:
    slow, fast = f"{new_topic_id}-a", f"{new_topic_id}-b"
    for topic in (slow, fast):
        create_topic(client, topic, FIELDS)
        push_small(client, topic, 5)
        act(client, "alter-topic", topic=topic, config={"tier_after_ms": 0})
    objects = server.server.log.storage.remote.objects
    put, others_done = objects.put, threading.Event()
    slow_uuid = act(client, "describe-topic", topic=slow)["uuid"]

    def put_after_the_others(name: str, parts: Any) -> None:
        if slow_uuid in name:
            assert others_done.wait(60)
        put(name, parts)
        others_done.set()

    objects.put = put_after_the_others
    assert act(client, "maintain")["pages_merged"] == 10


def test_whoever_asks_for_maintenance_waits_for_what_another_does(
    server: RunningServer, client: flight.FlightClient, topic: str
) -> None:
    push_small(client, topic, 5)
    act(client, "alter-topic", topic=topic, config={"tier_after_ms": 0})
    log = server.server.log
    found = log.admin.get_topic(TopicName.parse(topic))
    objects = log.storage.remote.objects
    put, begun, go_on = objects.put, threading.Event(), threading.Event()

    def put_when_told(name: str, parts: Any) -> None:
        begun.set()
        assert go_on.wait(60)
        put(name, parts)

    objects.put = put_when_told
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(log.maintainer.run, found)
        assert begun.wait(30)
        second = threads.submit(log.maintainer.run, found)
        go_on.set()
        reports = [first.result(), second.result()]
    assert [report.pages_merged for report in reports] == [5, 0]
    assert not any(report.partitions_busy for report in reports)


def test_a_long_turn_is_gone_on_with_after_the_others(
    client: flight.FlightClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintainer, "TURN_SECONDS", 0.0)
    push_small(client, topic, 100)
    report = tier(client, topic, segment_bytes=4_096)
    assert (report["partitions"], report["rows_merged"]) == (1, 1_000)
    assert report["segments"] > 1


def test_killed_again_and_again_while_it_merges_it_loses_and_doubles_nothing(
    tmp_path: Path,
) -> None:
    environment = {
        "WINGS_LIMITS__MAINTENANCE_SECONDS": "0.01",
        "WINGS_LIMITS__SEGMENT_BYTES_MAX": str(SEGMENT_BYTES),
    }
    acked = 0
    choice = random.Random(7)
    for _ in range(2):
        with (
            server_process(tmp_path, environment=environment) as server,
            flight.FlightClient(server.flight) as client,
        ):
            act(
                client,
                "create-topic",
                topic="t",
                schema={"fields": [{"name": "n", "type": "int64"}]},
                config={"tier_after_ms": 0, "segment_bytes": 4_096},
                if_not_exists=True,
            )
            (state,) = act(client, "partition-states", topic="t")
            assert state["next_offset"] in (acked, acked + 10)
            acked = state["next_offset"]
            _end_leases(tmp_path)
            with suppress(flight.FlightError), put_stream(client, SCHEMA, "t") as stream:
                for _ in range(choice.randrange(30, 90)):
                    values = range(acked, acked + 10)
                    stream.push(pa.record_batch({"n": pa.array(values, pa.int64())}))
                    acked += 10
            server.kill()
    with server_process(tmp_path) as server, flight.FlightClient(server.flight) as client:
        found = get(client, kind="scan", topic="t")
        assert found.column("n") == list(range(acked))
        _end_leases(tmp_path)
        act(client, "maintain")
        assert get(client, kind="scan", topic="t").column("n") == list(range(acked))


def test_the_command_line_maintains_and_shows_tiers(
    server: RunningServer, client: flight.FlightClient, topic: str
) -> None:
    push_small(client, topic, 20)
    act(client, "alter-topic", topic=topic, config={"tier_after_ms": 0})

    def wings(*arguments: str) -> str:
        command = [sys.executable, "-m", "wings_client.cli", *arguments]
        return subprocess.check_output([*command, "--endpoint", server.flight], text=True)

    assert "20 merged into 1 segments" in wings("maintain", topic)
    push_small(client, topic, 3, first=200)
    shown = wings("topic", "describe", topic)
    assert "hot tier: 30 messages in 3 pages" in shown
    assert "remote tier: 200 messages in 1 pages" in shown
    metrics = urllib.request.urlopen(f"{server.http}/metrics").read().decode()
    assert "wings_maintenance_merged_pages_total 20.0" in metrics
    assert "wings_maintenance_passes_total 1.0" in metrics
    seconds = metrics.partition("\nwings_maintenance_seconds_total ")[2].partition("\n")[0]
    assert float(seconds) > 0
    full = f"tenants/default/namespaces/default/topics/{topic}"
    for tier, pages, messages in (("hot", 3, 30), ("remote", 1, 200)):
        labels = f'{{tier="{tier}",topic="{full}"}}'
        assert f"wings_tier_pages{labels} {pages}.0" in metrics
        assert f"wings_tier_rows{labels} {messages}.0" in metrics
        assert f"wings_tier_bytes{labels} " in metrics


def test_merged_pages_are_located_in_order(
    server: RunningServer, client: flight.FlightClient, topic: str
) -> None:
    push_small(client, topic, 100)
    tier(client, topic, segment_bytes=4_096)
    push_small(client, topic, 5, first=1_000)
    log = server.server.log
    found = log.admin.get_topic(TopicName.parse(topic))
    located = log.registry.locate(found.uuid, UNPARTITIONED, 0, 10_000).locations
    assert located[0].start_offset == 0
    for page, after in pairwise(located):
        assert page.end_offset + 1 == after.start_offset
        assert page.timestamp <= after.earliest_timestamp


def maintain_stopped(data_dir: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "wings_client.cli", "maintain", "--data-dir", str(data_dir)]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)


def test_the_command_line_maintains_a_directory_without_a_server(tmp_path: Path) -> None:
    data, remote = tmp_path / "data", str(tmp_path / "remote")
    with (
        running_server(data, limits=SMALL, remote=remote) as server,
        flight.FlightClient(server.flight) as client,
    ):
        for topic in ("moved", "dropped"):
            create_topic(client, topic, FIELDS)
            push_small(client, topic, 300)
        act(client, "alter-topic", topic="moved", config={"tier_after_ms": 0})
        act(client, "alter-topic", topic="dropped", config={"retention_bytes": 1})
        # A server that holds the directory is named, and nothing is done.
        held = maintain_stopped(data)
        assert (held.returncode, held.stdout) == (1, "")
        assert f"is in use by another server, process {os.getpid()}" in held.stderr
        before = scan(client, "moved")
    # As a server leaves it that was killed while it worked on the partition.
    with closing(SqliteMetadata(data / "metadata.sqlite")) as metadata:
        uuid = metadata.admin.get_topic(TopicName.parse("moved")).uuid
        token = metadata.maintenance.acquire_lease(f"{uuid} {UNPARTITIONED}", "killed", 3_600)
        assert token is not None
    files = len(list((data / "segments").iterdir()))
    done = maintain_stopped(data)
    assert (done.returncode, done.stderr) == (0, "")
    assert "dropped: 299 pages dropped, 1 merged into 1 segments" in done.stdout
    assert "moved: 0 pages dropped, 300 merged into 1 segments" in done.stdout
    assert len(list((data / "segments").iterdir())) < files
    assert re.search(r"[1-9]\d* files not in use deleted", done.stdout)
    again = maintain_stopped(data, "moved")
    assert "moved: 0 pages dropped, 0 merged into 0 segments" in again.stdout
    with running_server(data) as server, flight.FlightClient(server.flight) as client:
        assert scan(client, "moved").table.equals(before.table)
        assert scan(client, "dropped").column("n") == list(range(2_990, 3_000))


def test_a_directory_that_cannot_be_maintained_by_itself_is_told_so(tmp_path: Path) -> None:
    nothing = maintain_stopped(tmp_path / "none")
    assert nothing.returncode == 1
    assert "does not exist" in nothing.stderr
    assert not (tmp_path / "none").exists()
    with (
        metadata_process(tmp_path / "metadata") as metadata,
        server_process(tmp_path / "pages", flags=("--metadata", metadata.address)) as node,
        flight.FlightClient(node.flight) as client,
    ):
        create_topic(client, "t", FIELDS)
        push_small(client, "t", 1)
    pages, alone = (maintain_stopped(tmp_path / name) for name in ("pages", "metadata"))
    assert (pages.returncode, alone.returncode) == (1, 1)
    assert "has no metadata: it belongs to nodes" in pages.stderr
    assert "lacks 1 files with messages" in alone.stderr
