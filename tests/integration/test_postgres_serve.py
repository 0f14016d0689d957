"""`wings serve` over PostgreSQL: killed under load, nothing acknowledged is lost or doubled."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
from fix_postgres import PASSWORD, PostgresServer
from flight_calls import create_topic, get, numbers, push

from wings_core.data_directory import DataDirectory
from wings_core.deployments import OneDirectory
from wings_core.log import Log
from wings_server.testing import ServerProcess, server_process

BATCHES = 10
"""Acknowledged between one kill and the next."""


class Load:
    """A producer that pushes numbered batches of one row, and after a fault goes on."""

    def __init__(self) -> None:
        self.server = ""
        self.acknowledged = 0
        """The batches before this one are acknowledged, at offsets of the same numbers."""
        self._stop = threading.Event()
        self._changed = threading.Condition()

    def run(self) -> None:
        pause = threading.Event()
        while not self._stop.is_set():
            try:
                with flight.FlightClient(self.server) as client:
                    while not self._stop.is_set():
                        self._push(client)
            except (flight.FlightError, pa.ArrowException, OSError):
                pause.wait(0.05)  # The server is gone, or its metadata.

    def _push(self, client: flight.FlightClient) -> None:
        number = self.acknowledged
        rows = numbers(number)
        (answer,) = push(client, "orders", rows, producer_id="p", sequence=number)
        assert answer["committed"][0]["start_offset"] == number
        with self._changed:
            self.acknowledged += 1
            self._changed.notify_all()

    def go_on(self) -> None:
        """Wait for some more batches."""
        wanted = self.acknowledged + BATCHES
        with self._changed:
            assert self._changed.wait_for(lambda: self.acknowledged >= wanted, 60)

    def stop(self) -> None:
        self._stop.set()


def serve(url: str, directory: Path) -> AbstractContextManager[ServerProcess]:
    return server_process(directory, environment={"WINGS_METADATA_URL": url})


def check(url: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "wings_client.cli", "check", str(directory)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "WINGS_METADATA_URL": url},
    )


def test_a_node_and_its_postgres_are_killed_under_load(
    earnest_postgres: PostgresServer, tmp_path: Path
) -> None:
    directory = tmp_path / "data"
    postgres, url = earnest_postgres, earnest_postgres.new_database()
    load = Load()
    said = ""
    with ThreadPoolExecutor(1) as threads:
        running = None
        for kills in range(2):
            with serve(url, directory) as server:
                load.server = server.flight
                if running is None:
                    with server.client() as client:
                        create_topic(client, "orders", ["n: int64"])
                    running = threads.submit(load.run)
                try:
                    load.go_on()
                    if kills == 1:
                        # The node goes on by itself once its metadata is back.
                        postgres.kill()
                        postgres.start()
                        load.go_on()
                        load.stop()
                        running.result(60)
                        with server.client() as client:
                            answer = get(client, kind="scan", topic="orders")
                        assert answer.column("n") == list(range(load.acknowledged))
                except BaseException:
                    load.stop()
                    raise
                server.kill()
                said += server.stderr
        checked = check(url, directory)
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert f"{load.acknowledged:,} rows" in checked.stdout
    assert PASSWORD not in said + checked.stdout + checked.stderr


def test_a_node_says_why_it_cannot_start_over_postgres(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    with DataDirectory.open(own) as directory:
        Log.open(OneDirectory(directory)).close()
    wrong = f"mysql://wings:{PASSWORD}@127.0.0.1/db"
    for url, data_dir, reason in (
        (wrong, tmp_path / "new", "expected postgresql://"),
        (postgres.new_database(), own, "has its metadata in metadata.sqlite"),
    ):
        command = [sys.executable, "-m", "wings_client.cli", "serve", "--data-dir", str(data_dir)]
        command += ["--flight", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        done = subprocess.run(
            command,
            env={**os.environ, "WINGS_METADATA_URL": url},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode != 0
        assert reason in done.stderr
        assert PASSWORD not in done.stdout + done.stderr
