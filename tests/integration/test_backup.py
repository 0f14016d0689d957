"""Backups of a real server, and what is restored of them, compared row by row."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from backup_world import command, fill, rows, rows_of, seen

import wings_client
from wings_client import Client
from wings_core.check import check_directory
from wings_core.limits import Limits
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


@pytest.fixture
def wings(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    return command(monkeypatch)


def test_what_is_restored_is_what_there_was(
    server: RunningServer,
    client: Client,
    tmp_path: Path,
    wings: Callable[..., tuple[int, str, str]],
) -> None:
    before = seen(client)
    status, out, err = wings("backup", tmp_path / "dest", "--endpoint", server.flight)
    assert (status, err) == (0, ""), err
    client.push("plain", rows(50_000, 10))  # After it.
    status, out, err = wings("restore", tmp_path / "dest", "--data-dir", tmp_path / "restored")
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
