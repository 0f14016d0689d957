"""`wings ingest run`, killed at steps of a batch and started again each time."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from fix_ingest import numbers, write_jsonl

import wings_client
from wings_core.errors import Unavailable
from wings_core.model import Published, ShardProgress
from wings_core.queue.sqlite import SqliteQueue
from wings_server.testing import RunningServer, running_server

pytestmark = pytest.mark.spark

SECONDS_MAX = 150.0
"""For one run, on a busy machine."""

POINTS = ("claimed", "staged", "published")

FILES = 5
ROWS = 40

SOURCE = """
name = "numbers"
checkpoint = "checkpoint"

[queue]
kind = "sqlite"
path = "queue.sqlite"
visibility_seconds = 2
wait_seconds = 0.2

[target]
endpoint = "{endpoint}"
topic = "numbers"

[limits]
files_per_trigger = 2
trigger_seconds = 0.2
rows_per_file = 30
"""


@dataclass
class Run:
    """One run of the command, with Java and Python workers below it."""

    process: "subprocess.Popen[bytes]"
    output: Path

    def members(self) -> list[int]:
        """Return the ids of all processes of the run."""
        found: list[int] = []
        for directory in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # It ended meanwhile.
                fields = (directory / "stat").read_text().rsplit(")", 1)[1].split()
                if int(fields[3]) == self.process.pid and fields[0] != "Z":
                    found.append(int(directory.name))
        return found

    def kill(self) -> None:
        """End all processes as a crash of the machine would, and wait until they are gone."""
        while members := self.members():  # A process may have forked meanwhile.
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait()

    @property
    def said(self) -> str:
        return self.output.read_text(errors="replace")[-4_000:]


@pytest.fixture
def start(tmp_path: Path) -> Generator[Callable[..., Run]]:
    """Start the command on a source; what still runs at the end is killed."""
    started: list[Run] = []

    def run(*flags: str) -> Run:
        path = tmp_path / f"output-{len(started)}"
        command = [sys.executable, "-m", "wings_client.cli", "ingest", "run"]
        command += ["--source", str(tmp_path / "numbers.toml"), "--master", "local[2]", *flags]
        with path.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # So that all its processes can be found.
                env=os.environ | {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"},
            )
        started.append(Run(process, path))
        return started[-1]

    yield run
    for each in started:
        each.kill()


@contextlib.contextmanager
def trapped(
    server: RunningServer, point: str, run: Run, sprung: threading.Event
) -> Generator[None]:
    """Kill a run from within the server, so that it is exactly at a point of its second batch."""
    log = server.server.log
    opening, publish = log.shards.open, log.stages.publish
    batches: list[int] = []

    def spring() -> None:
        run.kill()
        sprung.set()

    def trapped_open(source: str, token: str, shards: Sequence[str]) -> Any:
        found = opening(source, token, shards)
        if point == "claimed" and batches and not sprung.is_set():
            spring()
        return found

    def trapped_publish(
        writer: str, batch: int, stages: Sequence[str], shards: Sequence[ShardProgress] = ()
    ) -> Published:
        batches.append(batch)
        if sprung.is_set() or (point == "staged" and len(batches) > 1):
            if not sprung.is_set():
                spring()
            raise Unavailable("the pipeline is dead")
        published = publish(writer, batch, stages, shards)
        if point == "published" and len(batches) > 1:
            spring()
        return published

    patched = cast("Any", log)
    patched.shards.open, patched.stages.publish = trapped_open, trapped_publish
    try:
        yield
    finally:
        patched.shards.open, patched.stages.publish = opening, publish


def crash(start: Callable[..., Run], directory: Path, points: Sequence[str]) -> None:
    """Kill a pipeline at these points, start it again each time, and look at what is there."""
    queue = SqliteQueue(directory / "queue.sqlite")
    with running_server() as server, wings_client.connect(server.flight) as client:
        client.create_topic("numbers", {"n": "int64"})
        text = SOURCE.format(endpoint=server.flight)
        assert tomllib.loads(text)["name"] == "numbers"
        (directory / "numbers.toml").write_text(text)
        sent = 0
        for point in points:
            for index in range(sent, sent + FILES):
                path = write_jsonl(
                    directory / f"{index}.jsonl", range(index * ROWS, (index + 1) * ROWS)
                )
                queue.send([str(path), str(path)])
            sent += FILES
            run = start()
            sprung = threading.Event()
            with trapped(server, point, run, sprung):
                assert sprung.wait(SECONDS_MAX), f"{point}: {run.said}"
                server.wait_for_calls(0)
            assert run.process.returncode == -signal.SIGKILL, run.said
            assert len(numbers(client, "numbers")) < sent * ROWS
        run = start()
        while client.partitions("numbers")[0].next_offset < sent * ROWS or queue.remaining:
            with pytest.raises(subprocess.TimeoutExpired):
                run.process.wait(0.2)  # It goes on.
        run.process.send_signal(signal.SIGINT)
        run.process.wait(SECONDS_MAX)
        assert numbers(client, "numbers") == list(range(sent * ROWS))
        counts = client.count_shards("numbers")
        assert (counts.open, counts.finished, counts.position) == (0, sent, sent * ROWS)
        told = [json.loads(line) for line in run.said.splitlines() if line.startswith('{"batch"')]
        assert all(each["rows"] > 0 for each in told)
    queue.close()


@pytest.mark.soak  # `tests/integration/test_ingest_crash.py` kills the same parts without Spark.
@pytest.mark.timeout(600)
def test_a_pipeline_killed_after_its_publish_writes_each_row_once(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    crash(start, tmp_path, ["published"])


@pytest.mark.soak  # Every point takes a start of Spark.
@pytest.mark.timeout(1800)
def test_a_pipeline_killed_at_any_step_writes_each_row_once(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    crash(start, tmp_path, POINTS)
