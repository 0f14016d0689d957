"""Backups and restores that are disturbed, killed or damaged, and those of a part of a log."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from backup_world import back_up, fill, maintain, rows, rows_of, seen
from fix_calls import Calls

import wings_client
from wings_client import Client
from wings_core.backup import backups
from wings_core.backup.backups import BACKUPS_MAX
from wings_core.backup.repository import KeptPart, Repository
from wings_core.backup.restore import restore
from wings_core.check import check_directory
from wings_core.contracts.share import AcknowledgementEntry
from wings_core.data_directory import DataDirectory
from wings_core.errors import InvalidArgument, ResourceExhausted, StorageCorrupt, TopicNotFound
from wings_core.limits import Limits
from wings_core.times import parse_timestamp
from wings_server.testing import RunningServer, running_server

LIMITS = Limits(maintenance_seconds=100_000, inline_bytes_max=0, segment_bytes_max=20_000)
"""Maintenance works when it is asked; each push is a page in a file, and there are many files."""

WAIT_SECONDS = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with running_server(tmp_path / "data", limits=LIMITS) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    with wings_client.connect(server.flight) as connected:
        yield connected


@pytest.fixture
def dest(tmp_path: Path) -> Path:
    return tmp_path / "dest"


def restored(dest: Path, into: Path, **keys: Any) -> Path:
    """Restore the newest backup, and check the directory."""
    repository = Repository.open(str(dest))
    restore(repository, repository.newest(), into, **keys)
    report = check_directory(into)
    assert report.ok, report.problems
    return into


def seen_in(directory: Path, look: Callable[[Client], Any] = seen) -> Any:
    """Serve a directory, and return what can be seen of it."""
    with (
        running_server(directory, limits=LIMITS) as again,
        wings_client.connect(again.flight) as found,
    ):
        return look(found)


def test_the_second_backup_copies_what_is_new_and_a_pruned_repository_is_whole(
    client: Client, dest: Path, tmp_path: Path
) -> None:
    fill(client)
    first = back_up(client, dest)
    assert first.copied_bytes > sum(file.size for file in first.folios)
    second = back_up(client, dest)
    assert second.folios == first.folios
    assert second.copied_bytes < 1024 * 1024 * 2, "pieces of the databases at most"
    files = {each.name: each.size for each in Repository.open(str(dest)).objects.list("folios")}
    client.push("plain", rows(90_000, 5_000))
    third = back_up(client, dest)
    now = {each.name: each.size for each in Repository.open(str(dest)).objects.list("folios")}
    assert now.items() > files.items()
    added = sum(now.values()) - sum(files.values())
    assert added == sum(file.size for file in third.folios) - sum(
        file.size for file in second.folios
    )
    before = seen(client)
    assert list(Repository.open(str(dest)).problems([first, second, third])) == []
    deleted, _ = Repository.open(str(dest)).prune(1)
    assert deleted == 2
    assert Repository.open(str(dest)).manifests() == [third.backup]
    assert list(Repository.open(str(dest)).problems([third])) == []
    assert seen_in(restored(dest, tmp_path / "restored")) == before


class Disturbed(Repository):
    """A repository whose server is disturbed after the snapshot, before any file is copied."""

    disturb: Callable[[], None]

    def kept(self) -> dict[str, dict[int, KeptPart]]:
        self.disturb()
        return super().kept()


def test_a_backup_is_of_its_moment_whatever_is_pushed_merged_dropped_and_deleted_meanwhile(
    server: RunningServer, client: Client, dest: Path, tmp_path: Path
) -> None:
    fill(client)
    client.create_topic("merged", pa.schema([("n", pa.int64())]), config={"tier_after_ms": 0})
    for first in range(0, 50, 10):
        client.push("merged", {"n": list(range(first, first + 10))})
    client.create_topic("short", pa.schema([("n", pa.int64())]))
    client.push("short", {"n": [1, 2, 3]})
    before = seen(client)
    files = {path.name for path in server.data_dir.glob("segments/*")}

    def disturb() -> None:
        client.push("orders", rows(500, 100))
        client.delete_topic("plain")
        client.alter_topic("short", {"retention_ms": 1})
        time.sleep(0.002)  # So that what is there is older than that.
        maintain(client)
        client.push("merged", {"n": [50]})
        server.server.log.reclaimer.run()

    Repository.open(str(dest), create=True)
    disturbed = Disturbed(Repository.open(str(dest)).objects)
    disturbed.disturb = disturb
    back_up(client, disturbed)
    assert seen(client) != before
    assert seen_in(restored(dest, tmp_path / "restored")) == before
    # When it has ended, what nothing refers to goes.
    server.server.log.reclaimer.run()
    assert not files <= {path.name for path in server.data_dir.glob("segments/*")}
    assert not list(server.data_dir.glob("backup-*"))


def test_files_that_a_table_alone_refers_to_are_not_missed(
    server: RunningServer, client: Client, dest: Path, tmp_path: Path
) -> None:
    fill(client)
    config = {"table": "iceberg", "segment_format": "parquet", "tier_after_ms": 0}
    client.create_topic("table", pa.schema([("n", pa.int64())]), config=config)
    client.push("table", {"n": [1, 2, 3]})
    maintain(client)
    log = server.server.log
    client.delete_topic("table")
    log.reclaimer.run()
    # Until the table is dropped it refers to a file whose pages the log has forgotten.
    (topic_uuid,) = log.metadata.tables.tables()
    assert log.metadata.tables.segments(topic_uuid)
    before = seen(client)
    back_up(client, dest)
    assert seen_in(restored(dest, tmp_path / "restored")) == before


def killed(arguments: list[str], is_far_enough: Callable[[], bool]) -> int:
    """Run `wings` in a process of its own, and kill it when it has come so far."""
    with subprocess.Popen([sys.executable, "-m", "wings_client.cli", *arguments]) as child:
        until = time.monotonic() + WAIT_SECONDS
        while child.poll() is None and not is_far_enough():
            assert time.monotonic() < until
            time.sleep(0.001)
        child.kill()
        return child.wait()


def count(directory: Path) -> int:
    return sum(path.is_file() for path in directory.rglob("*"))


@pytest.mark.parametrize("files", [1, pytest.param(12, marks=pytest.mark.soak)])
def test_a_backup_that_is_killed_is_none_and_the_next_uses_what_it_copied(
    server: RunningServer, client: Client, dest: Path, tmp_path: Path, files: int
) -> None:
    fill(client)
    for first in range(30):
        client.push("plain", rows(1_000 * first, 1_000))
    before = seen(client)
    arguments = ["backup", str(dest), "--endpoint", server.flight]
    repository = Repository.open(str(dest), create=True)
    killed(arguments, lambda: len(list(repository.objects.list("folios"))) >= files)
    if not repository.manifests():  # Else it was quicker than this test.
        left = sum(each.size for each in repository.objects.list("folios"))
        assert left
        with pytest.raises(InvalidArgument, match="no finished backup"):
            repository.newest()
        made = back_up(client, dest)
        databases = sum(file.size for file in made.databases)
        assert made.copied_bytes <= databases + sum(file.size for file in made.folios) - left
    assert seen_in(restored(dest, tmp_path / "restored")) == before


@pytest.mark.parametrize("files", [1, pytest.param(5, marks=pytest.mark.soak)])
def test_a_restore_that_is_killed_leaves_nothing_that_a_server_takes_and_begins_anew(
    client: Client, dest: Path, tmp_path: Path, files: int
) -> None:
    fill(client)
    for first in range(30):
        client.push("plain", rows(1_000 * first, 1_000))
    before = seen(client)
    back_up(client, dest)
    into = tmp_path / "restored"
    killed(["restore", str(dest), "--data-dir", str(into)], lambda: count(into) > files)
    if not (into / "FORMAT").exists():
        with pytest.raises(InvalidArgument, match="run `wings restore` again"):
            DataDirectory.open(into)
        restored(dest, into)
    assert seen_in(into) == before


def test_what_is_damaged_is_named_and_not_restored(
    client: Client, dest: Path, tmp_path: Path
) -> None:
    fill(client)
    manifest = back_up(client, dest)
    repository = Repository.open(str(dest))
    damaged = [
        (manifest.folios[0].name, dest / manifest.folios[0].parts[0].object),
        ("metadata.sqlite", dest / manifest.databases[0].parts[0].object),
    ]
    for name, path in damaged:
        sound = path.read_bytes()
        for broken in (sound[:-1], sound[:50] + bytes([sound[50] ^ 1]) + sound[51:], None):
            path.unlink()
            if broken is not None:
                path.write_bytes(broken)
            (problem,) = repository.problems([manifest])
            assert name in problem
            assert str(path.relative_to(dest)) in problem
            into = tmp_path / "damaged"
            with pytest.raises(StorageCorrupt, match=name):
                restore(repository, manifest, into)
            assert not (into / "FORMAT").exists()
            path.write_bytes(sound)
    path = dest / "backups" / f"{manifest.backup}.json"
    text = path.read_text()
    path.write_text(text.replace('"start": 0', '"start": 1', 1))
    with pytest.raises(StorageCorrupt, match=manifest.backup):
        repository.newest()
    path.write_text(text)
    restored(dest, tmp_path / "damaged")  # What was left there is no hindrance.


def test_a_part_that_was_cut_off_is_copied_again(client: Client, dest: Path) -> None:
    fill(client)
    manifest = back_up(client, dest)
    path = dest / manifest.folios[0].parts[0].object
    path.write_bytes(path.read_bytes()[:-1])
    again = back_up(client, dest)
    assert list(Repository.open(str(dest)).problems([again])) == []


def test_a_place_with_other_things_is_refused(client: Client, dest: Path, tmp_path: Path) -> None:
    fill(client)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    with pytest.raises(InvalidArgument, match="not empty: it holds file"):
        back_up(client, tmp_path / "other")
    manifest = back_up(client, dest)
    repository = Repository.open(str(dest))
    with pytest.raises(InvalidArgument, match="not empty: it holds file"):
        restore(repository, manifest, tmp_path / "other")
    later = manifest.model_copy(update={"format": 2, "wings": "9.0"})
    with pytest.raises(InvalidArgument, match=r"Wings 9\.0, which took it"):
        restore(repository, later, tmp_path / "later")
    later = manifest.model_copy(update={"metadata_version": 1_000})
    with pytest.raises(InvalidArgument, match="metadata of version 1000"):
        restore(repository, later, tmp_path / "later")
    assert not (tmp_path / "later").exists()
    with pytest.raises(TopicNotFound, match="nothing"):
        restore(repository, manifest, tmp_path / "named", ["nothing"])


def test_topics_are_restored_alone(client: Client, dest: Path, tmp_path: Path) -> None:
    fill(client)
    before = seen(client)
    back_up(client, dest)
    name = "tenants/default/namespaces/default/topics/orders"
    into = restored(dest, tmp_path / "restored", topics=["orders"])
    assert seen_in(into) == {name: before[name], "offsets": before["offsets"]}


@pytest.mark.parametrize("merged", [False, True])
def test_a_log_is_restored_as_it_was_at_a_time(
    client: Client, dest: Path, tmp_path: Path, merged: bool
) -> None:
    schema = pa.schema([("k", pa.string()), ("n", pa.int64())])
    client.create_topic("events", schema, partition_key="k", config={"tier_after_ms": 0})
    client.create_topic("later", schema)
    client.create_share_group("workers", "events", {"start": "earliest"})
    for number in range(10):
        for key in ("a", "b") if number < 6 else ("a", "c"):
            client.push(
                "events",
                {"k": [key] * 3, "n": [number] * 3},
                timestamp=f"2026-01-01T00:00:{number:02}Z",
            )
    with client.producer("events", producer_id="p") as producer:
        producer.send(pa.record_batch({"k": ["a"], "n": pa.array([99])}, schema=schema))
    client.push("later", {"k": ["x"], "n": [1]})
    client.commit_offsets("reader", "events", {"a": 29, "b": 2, "c": 4})
    deliveries = client.acquire_messages("workers", "events", "m", max_messages=100)
    client.acknowledge_messages(
        "workers",
        "events",
        "m",
        [
            AcknowledgementEntry(
                partition=each.partition,
                first=each.start_offset,
                last=each.end_offset,
                lease=each.lease,
                type="accept",
            )
            for each in deliveries
        ],
    )
    if merged:
        maintain(client)
    back_up(client, dest)
    until = parse_timestamp("2026-01-01T00:00:06.5Z")
    into = restored(dest, tmp_path / "restored", until=until)

    def look(found: Client) -> None:
        for key, numbers in (("a", range(7)), ("b", range(6)), ("c", [6])):
            read = rows_of(found, "events", key)
            assert [row["n"] for row in read] == [n for n in numbers for _ in range(3)]
            assert [row["__offset"] for row in read] == list(range(len(read)))
        assert rows_of(found, "later") == []
        offsets = {each.partition: each.offset for each in found.committed_offsets("reader")}
        assert offsets == {"a": 21, "b": 2, "c": 3}
        # What comes now is finished by no group, and follows in offset and time.
        found.push("events", {"k": ["a", "c"], "n": [100, 100]})
        got = found.acquire_messages("workers", "events", "m", max_messages=100)
        assert sorted((each.partition, each.offsets) for each in got) == [("a", [21]), ("c", [3])]
        # The producer's batch went with the cut, and is taken again.
        with found.producer("events", producer_id="p") as producer:
            producer.send(pa.record_batch({"k": ["a"], "n": pa.array([99])}, schema=schema))
        assert [row["n"] for row in rows_of(found, "events", "a")][-2:] == [100, 99]

    seen_in(into, look)


def test_no_more_backups_begin_at_once_than_may_run(server: RunningServer, calls: Calls) -> None:
    """A backup counts from before its databases are copied, which takes long."""
    copying, all_copy = threading.Semaphore(0), threading.Event()
    log = server.server.log

    def wait_for_all(*_: object) -> None:
        copying.release()
        assert all_copy.wait(WAIT_SECONDS)

    calls.before(backups, "take_snapshot", wait_for_all)
    with ThreadPoolExecutor(BACKUPS_MAX + 1) as threads:
        begun = [threads.submit(log.backups.begin) for _ in range(BACKUPS_MAX)]
        for _ in begun:
            assert copying.acquire(timeout=WAIT_SECONDS)
        one_more = threads.submit(log.backups.begin)
        one_more.add_done_callback(lambda _: copying.release())
        assert copying.acquire(timeout=WAIT_SECONDS), "it was refused, or copies too"
        all_copy.set()
        assert isinstance(one_more.exception(WAIT_SECONDS), ResourceExhausted)
        for each in begun:
            assert log.backups.end(str(each.result(WAIT_SECONDS)["backup"]))
    assert log.backups.end(str(log.backups.begin()["backup"])), "their places are free again"


def test_a_backup_that_has_begun_counts_once(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, calls: Calls
) -> None:
    """Another begins as the first one's databases have just been copied."""
    monkeypatch.setattr(backups, "BACKUPS_MAX", 2)
    log = server.server.log
    begun: list[str] = []

    def begin(*_: object) -> None:
        begun.append(str(log.backups.begin()["backup"]))

    calls.after(backups, "take_snapshot", begin, times=1)
    begun.append(str(log.backups.begin()["backup"]))
    for each in begun:
        assert log.backups.end(each)
