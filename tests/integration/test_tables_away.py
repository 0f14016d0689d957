"""Topics that are tables, whose catalog is away: it refuses, or takes calls and never answers."""

import socket
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pyarrow.flight as flight
import pytest
from catalog_servers import server_with_catalog
from flight_calls import act, numbers, push
from held_address import held_address

import wings_client
from wings_core.limits import Limits
from wings_server.testing import RunningServer, running_server

pytest.importorskip("pyiceberg")
import wings_core.tables.catalog as opening

TABLE = {"tier_after_ms": 0, "table": "iceberg", "segment_bytes": 1}


@dataclass
class Silent:
    """A server that takes calls and never answers."""

    address: str
    calls: int = 0


@contextmanager
def silence() -> Generator[Silent]:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        silent = Silent(f"127.0.0.1:{listener.getsockname()[1]}")

        def take() -> None:
            while True:
                try:
                    taken, _ = listener.accept()
                except OSError:
                    return
                silent.calls += 1
                stack.callback(taken.close)

        thread = threading.Thread(target=take)
        thread.start()
        try:
            yield silent
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def assert_the_topic_works(server: RunningServer) -> None:
    with flight.FlightClient(server.flight) as plain, wings_client.connect(server.flight) as client:
        fields = [{"name": "n", "type": "int64"}]
        act(plain, "create-topic", topic="t", schema={"fields": fields}, config=TABLE)
        push(plain, "t", numbers(1, 2, 3))
        assert act(plain, "maintain", topic="t")["failures"] == 1
        client.push(client.topic("t"), {"n": [4]})
        assert client.scan("t").read_all()["n"].to_pylist() == [1, 2, 3, 4]
        assert client.snapshot("t").read_all().sort_by("n")["n"].to_pylist() == [1, 2, 3, 4]
        told = act(plain, "describe-topic", topic="t")["table"]
        assert (told["metadata_location"], told["rows"], told["lag_rows"]) == (None, 0, 4)
        with pytest.raises(wings_client.InvalidArgument, match="does not reach its catalog"):
            client.table("t")
        metrics = httpx.get(f"{server.http}/metrics").text
        assert 'wings_table_lag_rows{table="default.t"} 3.0' in metrics, "the lag of no commit"


def test_a_topic_whose_catalog_never_answers_is_read_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "ANSWER_SECONDS_MAX", 0.2)
    with silence() as silent, server_with_catalog(tmp_path, f"http://{silent.address}") as server:
        assert_the_topic_works(server)
        assert silent.calls == 1, "descriptions waited for it too"


def test_a_topic_whose_catalog_refuses_is_read_and_written(tmp_path: Path) -> None:
    with held_address() as address, server_with_catalog(tmp_path, f"http://{address}") as server:
        assert_the_topic_works(server)


def test_a_table_is_told_of_by_metadata_while_its_catalog_is_away(tmp_path: Path) -> None:
    """The file of the catalog is taken away, and brought back."""
    limits = Limits(maintenance_seconds=100_000)
    file, elsewhere = tmp_path / "iceberg.sqlite", tmp_path / "elsewhere"
    with running_server(tmp_path, limits=limits) as server, server.client() as client:
        fields = [{"name": "n", "type": "int64"}]
        act(client, "create-topic", topic="t", schema={"fields": fields}, config=TABLE)
        push(client, "t", numbers(1, 2, 3))
        act(client, "maintain", topic="t")
        push(client, "t", numbers(4))
    file.rename(elsewhere)
    file.mkdir()
    with running_server(tmp_path, limits=limits) as server, server.client() as client:
        assert act(client, "maintain", topic="t")["failures"] == 1
        told = act(client, "describe-topic", topic="t")["table"]
        assert (told["metadata_location"], told["rows"], told["lag_rows"]) == (None, 3, 1)
        file.rmdir()
        elsewhere.rename(file)
        assert act(client, "maintain", topic="t")["failures"] == 0
        told = act(client, "describe-topic", topic="t")["table"]
        assert (told["rows"], told["lag_rows"]) == (4, 0)
        assert told["metadata_location"] is not None
