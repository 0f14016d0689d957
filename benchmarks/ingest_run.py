"""`wings ingest run` as a process: its start, and many small files."""

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import wings_client
from benchmarks.harness import Row, at_most
from wings_core.queue.sqlite import SqliteQueue
from wings_server.testing import server_process

if TYPE_CHECKING:
    from wings_client import Client

FILES = 2_000
ROWS = 10
"""Of each file."""

RUNS = 3
SECONDS_MAX = 300.0
"""For one step."""

SOURCE = """
name = "small"
checkpoint = "checkpoint"
[queue]
kind = "sqlite"
path = "queue.sqlite"
[target]
endpoint = "{endpoint}"
topic = "small"
[files]
dedup_key = "uri+version"
"""


def run() -> Iterator[Row]:
    """Measure seconds to the first message of a process, and for `FILES` files of `ROWS` rows."""
    with (
        server_process() as server,
        wings_client.connect(server.flight) as client,
        tempfile.TemporaryDirectory(prefix="wings-bench-") as name,
    ):
        directory = Path(name)
        client.create_topic("small", {"n": "int64"})
        (directory / "small.toml").write_text(SOURCE.format(endpoint=server.flight))
        paths = [directory / f"{number}.jsonl" for number in range(FILES)]
        for path in paths:
            path.write_text("".join(f'{{"n": {row}}}\n' for row in range(ROWS)))
        queue = SqliteQueue(directory / "queue.sqlite")
        starts: list[float] = []
        for _ in range(RUNS):
            began = time.perf_counter()
            with _running(directory):
                _bring(client, queue, paths[:1])
                starts.append(time.perf_counter() - began)
        yield at_most("wings ingest run, to its first message", "s", 15, starts)
        with _running(directory):
            _bring(client, queue, paths[:1])
            many = [_bring(client, queue, paths) for _ in range(RUNS)]
        yield at_most(f"wings ingest run, {FILES:,} files of {ROWS} rows", "s", FILES / 50, many)
        queue.close()


@contextmanager
def _running(directory: Path) -> Generator[None]:
    command = [sys.executable, "-m", "wings_client.cli", "ingest", "run", "--source"]
    process = subprocess.Popen([*command, str(directory / "small.toml")], stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(SECONDS_MAX)


def _bring(client: "Client", queue: SqliteQueue, paths: list[Path]) -> float:
    """Announce files, and wait until all of their rows are there; returns the seconds."""
    (state,) = client.partitions("small")
    wanted = state.next_offset + len(paths) * ROWS
    began = time.perf_counter()
    version = str(time.time_ns())
    queue.send(f'{{"uri": "{path}", "version": "{version}", "size": 90}}' for path in paths)
    client.fetch("small", offset=wanted - 1, timeout=SECONDS_MAX)
    return time.perf_counter() - began
