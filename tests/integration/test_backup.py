"""Backups of a real server, and what is restored of them, compared row by row."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from backup_world import back_up, fill, maintain, rows, rows_of, seen
from fix_commands import Command
from flight_calls import act, create_topic
from token_calls import ROOT, client_of, names_of, new_token

import wings_client
from wings_client import Client
from wings_core.backup.repository import Repository, begin_of_id
from wings_core.backup.restore import restore
from wings_core.check import check_directory
from wings_core.contracts.tickets import METADATA_FILE, BackupFiles, BackupRead
from wings_core.limits import Limits
from wings_core.model import ShardProgress
from wings_core.times import format_timestamp
from wings_server.testing import RunningServer, running_server

QUIET = Limits(maintenance_seconds=100_000)
"""Maintenance works when it is asked."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with running_server(tmp_path / "data", limits=QUIET) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    with wings_client.connect(server.flight) as connected:
        fill(connected)
        yield connected


def test_what_is_restored_is_what_there_was(
    server: RunningServer,
    client: Client,
    tmp_path: Path,
    command: Command,
) -> None:
    before = seen(client)
    status, out, err = command("backup", tmp_path / "dest", "--endpoint", server.flight)
    assert (status, err) == (0, ""), err
    client.push("plain", rows(50_000, 10))  # After it.
    status, out, err = command("restore", tmp_path / "dest", "--data-dir", tmp_path / "restored")
    assert (status, err) == (0, ""), err
    assert "with 3 topics" in out
    report = check_directory(tmp_path / "restored")
    assert report.ok, report.problems
    with (
        running_server(tmp_path / "restored", limits=QUIET) as again,
        wings_client.connect(again.flight) as restored,
    ):
        assert seen(restored) == before
        # Members get what was not finished, and nothing that was.
        (delivery,) = restored.acquire_messages("workers", "plain", "other", max_messages=10)
        assert delivery.offsets == list(range(30, 40))
        assert delivery.delivery_count == 2
        # An idempotent producer goes on with its next sequence, and a repeat is recognised.
        with restored.producer("orders", producer_id="one") as producer:
            producer.send(rows(100, 10))
        assert (
            seen(restored)["tenants/default/namespaces/default/topics/orders"]
            == (before["tenants/default/namespaces/default/topics/orders"])
        )
        with restored.producer("orders", producer_id="one", sequence=1) as producer:
            producer.send(rows(110, 10))
        assert len(rows_of(restored, "orders", "key-0")) == 40
        # The log that was backed up goes on beside it.
        client.acknowledge_messages("workers", "plain", "member", [])
        assert len(rows_of(client, "plain")) == 20_015


def test_a_time_is_restored_from_the_first_backup_after_it(
    client: Client, tmp_path: Path, command: Command
) -> None:
    dest = tmp_path / "dest"
    before = rows_of(client, "plain")
    first = back_up(client, dest)
    client.push("plain", rows(50_000, 10))
    client.alter_topic("plain", {"retention_bytes": 1})
    maintain(client)
    assert rows_of(client, "plain") != before
    back_up(client, dest)
    damaged = f"{begin_of_id(first.at_us - 1)}-00000000"
    (dest / "backups" / f"{damaged}.json").write_text("{")  # It is before the time.
    until = format_timestamp(first.at_us)
    status, out, err = command(
        "restore", dest, "--data-dir", tmp_path / "restored", "--until", until
    )
    assert (status, err) == (0, ""), err
    assert f"the log of {until}" in out
    with (
        running_server(tmp_path / "restored", limits=QUIET) as again,
        wings_client.connect(again.flight) as restored,
    ):
        assert rows_of(restored, "plain") == before


READ: dict[str, Callable[[str], bytes]] = {
    "backup-files": lambda backup: BackupFiles(backup=backup).to_bytes(),
    "backup-read": lambda backup: BackupRead(backup=backup, file=METADATA_FILE, end=100).to_bytes(),
}


def test_tokens_are_restored_and_only_an_operator_reads_what_a_backup_is_of(
    tmp_path: Path, command: Command
) -> None:
    with running_server(tmp_path / "data", root_token=ROOT) as server:
        with client_of(server.flight, ROOT) as root:
            create_topic(root, "t", ["n: int64"])
            operator = new_token(root, "operator", "admin=*")
            reader = new_token(root, "reader", "read=*", "write=*", "share=*", "admin=tenants/*")
            backup = act(root, "backup-begin")["backup"]
        for ticket in READ.values():
            with (
                client_of(server.flight, reader) as client,
                pytest.raises(flight.FlightUnauthorizedError, match="has no right"),
            ):
                client.do_get(flight.Ticket(ticket(backup))).read_all()
            with client_of(server.flight, operator) as client:
                assert client.do_get(flight.Ticket(ticket(backup))).read_all().num_columns
        arguments = ("backup", tmp_path / "dest", "--endpoint", server.flight, "--token-file")
        for name, token in (("reader", reader), ("operator", operator)):
            (tmp_path / name).write_text(token)
        status, _, err = command(*arguments, tmp_path / "reader")
        assert (status, "has no right to admin" in err) == (1, True), err
        assert not list((tmp_path / "dest").glob("backups/*"))
        status, _, err = command(*arguments, tmp_path / "operator")
        assert status == 0, err
    restore = ("restore", tmp_path / "dest", "--data-dir", tmp_path / "restored")
    assert command(*restore)[0] == 0
    with running_server(tmp_path / "restored") as again:
        with (
            client_of(again.flight, None) as client,
            pytest.raises(flight.FlightUnauthenticatedError),
        ):
            act(client, "list-namespaces")
        with client_of(again.flight, reader) as client:
            assert names_of(act(client, "list-topics"), "topic")
            with pytest.raises(flight.FlightUnauthorizedError):
                act(client, "token-list")
        with client_of(again.flight, operator) as client:
            assert set(names_of(act(client, "token-list"), "name")) == {"operator", "reader"}


def test_schemas_shards_stages_and_dead_letters_are_restored(
    server: RunningServer, tmp_path: Path
) -> None:
    with wings_client.connect(server.flight) as client:
        client.create_topic("grown", {"n": "int32"})
        client.push("grown", {"n": [1, 2]})
        client.alter_schema("grown", add={"note": "string"}, widen={"n": "int64"})
        client.push("grown", {"n": [2**40, 4], "note": ["x", None]})
        client.create_share_group("workers", "grown", {"start": "earliest", "dlq_topic": "dead"})
        with client.share_consumer("workers", "grown", timeout=60) as consumer:
            held = next(consumer)
            consumer.reject(held, rows=[0], reason="bad")
            consumer.accept(held, rows=[2])
        client.open_shards("files", "me", ["one", "two"])
        with client.stage("grown", "staged") as stage:
            stage.write({"n": [5], "note": ["staged"]})
        staged = stage.close()
        with client.stage("grown", "published") as stage:
            stage.write({"n": [6], "note": ["published"]})
        progress = [ShardProgress("files", "one", "me", 0, 10)]
        published = client.publish("writer", 1, [stage.close()], progress)
        back_up(client, tmp_path / "dest")
        before = look(client)
    repository = Repository.open(str(tmp_path / "dest"))
    restore(repository, repository.newest(), tmp_path / "restored")
    with (
        running_server(tmp_path / "restored", limits=QUIET) as again,
        wings_client.connect(again.flight) as restored,
    ):
        assert look(restored) == before
        old = restored.scan("grown", schema_version=1).schema
        assert old == pa.schema([("n", pa.int32())])
        # A publish that was made is known, one that was not goes on from where its shard stands.
        assert restored.publish("writer", 1, [], progress).committed == published.committed
        moved = [ShardProgress("files", "one", "me", 10, 20)]
        assert restored.publish("writer", 2, [staged.stage], moved).committed
        assert restored.list_shards("files")[0].position == 20
        assert restored.fetch("grown", offset=5).table["note"].to_pylist() == ["staged"]
        rows_left: set[object] = set()
        with restored.share_consumer("workers", "grown", timeout=60) as consumer:
            while 6 not in rows_left:  # The last one; what was finished would come before it.
                rows_left.update(next(consumer).batch.column("n").to_pylist())
        assert rows_left == {2, 4, 5, 6}


def look(client: Client) -> object:
    """Return what can be seen of topics that grew, their shards, and dead letters."""
    return (
        [(topic.name, topic.schema, topic.schema_version) for topic in client.topics()],
        rows_of(client, "grown"),
        rows_of(client, "dead"),
        client.list_shards("files"),
        client.share_group("workers", "grown"),
    )


# Backups of a log whose messages are in object stores, kept in one, restored into a directory. ####

LIMITS = Limits(maintenance_seconds=100_000, inline_bytes_max=0, object_flush_seconds=0.0)


@pytest.mark.parametrize("segment_format", ["arrow", "parquet"])
def test_what_lay_in_object_stores_lies_in_the_restored_directory(
    s3_url: str, tmp_path: Path, segment_format: str
) -> None:
    hot, remote, dest = (f"{s3_url}/{segment_format}-{name}" for name in ("hot", "remote", "dest"))
    schema = pa.schema([("n", pa.int64())])
    with (
        running_server(tmp_path / "data", limits=LIMITS, hot=hot, remote=remote) as server,
        wings_client.connect(server.flight) as client,
    ):
        fill(client)
        config = {"tier_after_ms": 0, "segment_format": segment_format}
        client.create_topic("merged", schema, config=config)
        for first in range(0, 30, 10):
            client.push("merged", {"n": list(range(first, first + 10))})
        maintain(client)
        client.push("merged", {"n": [30]})
        before = seen(client)
        repository = Repository.open(dest, create=True)
        first = back_up(client, repository)
        names = {file.name.rpartition(".")[2] for file in first.folios}
        assert names == {"folio", "arrow" if segment_format == "arrow" else "parquet"}
        second = back_up(client, repository)
        assert second.folios == first.folios
        client.push("merged", {"n": [31]})
    restore(repository, first, tmp_path / "restored")
    report = check_directory(tmp_path / "restored")
    assert report.ok, report.problems
    assert not (tmp_path / "restored" / "HOT").exists()
    with (
        running_server(tmp_path / "restored", limits=LIMITS) as again,
        wings_client.connect(again.flight) as restored,
    ):
        assert seen(restored) == before
        restored.push("plain", rows(70_000, 10))
