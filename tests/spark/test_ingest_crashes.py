"""`wings ingest run`, killed at steps of a batch and started again each time."""

import contextlib
import json
import signal
import subprocess
import threading
from collections.abc import Callable, Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from fix_ingest import DEADLY, numbers, write_jsonl
from fix_ingest_run import Run, StartRun

from wings_client import Client
from wings_core.errors import Unavailable
from wings_core.model import PublishResult, ShardProgress
from wings_core.queue.sqlite import SqliteQueue
from wings_server.testing import RunningServer

pytestmark = pytest.mark.spark

SECONDS_MAX = 300.0
"""For one run, on a busy machine."""

POINTS = ("receive", "claim", "stage", "publish", "acknowledge")
"""After the first four, and before the messages are acknowledged."""

FILES = 5
ROWS = 40


@contextlib.contextmanager
def trapped(
    server: RunningServer, point: str, run: Run, sprung: threading.Event
) -> Generator[None]:
    """Kill a run from within the server, so that it is exactly at a point of its second batch.

    What the pipeline asks of the server tells where it is: it opens what it received, asks whether
    a claim of its journal was published, publishes what it staged, and looks at the shards before
    it acknowledges.
    """
    log = server.server.log
    shards, stages = log.shards, log.stages
    opening, getting, publish, abort = shards.open, shards.get, stages.publish, stages.abort
    batches: list[int] = []

    def reach(reached: str, *, in_batch: int = 2) -> None:
        """Spring the trap if the run is there; what a dead run still asks for is refused."""
        if not sprung.is_set() and reached == point and len(batches) == in_batch:
            run.kill()
            sprung.set()
        if sprung.is_set():
            raise Unavailable("the pipeline is dead")

    def trapped_open(source: str, token: str, found: Sequence[str]) -> Any:
        reach("receive", in_batch=1)
        return opening(source, token, found)

    def trapped_abort(
        writer: str, found: Sequence[str], batch: int | None = None, prefix: str | None = None
    ) -> Any:
        if batch is not None:
            reach("claim", in_batch=1)
        return abort(writer, found, batch, prefix)

    def trapped_publish(
        writer: str,
        batch: int,
        found: Sequence[str],
        moved: Sequence[ShardProgress] = (),
        **named: Any,
    ) -> PublishResult:
        batches.append(batch)
        reach("stage")
        published = publish(writer, batch, found, moved, **named)
        reach("publish")
        return published

    def trapped_get(source: str, found: Sequence[str]) -> Any:
        reach("acknowledge")
        return getting(source, found)

    patched = cast("Any", log)
    patched.shards.open, patched.shards.get = trapped_open, trapped_get
    patched.stages.publish, patched.stages.abort = trapped_publish, trapped_abort
    try:
        yield
    finally:
        patched.shards.open, patched.shards.get = opening, getting
        patched.stages.publish, patched.stages.abort = publish, abort


def crash(
    start_run: StartRun,
    server: RunningServer,
    client: Client,
    queue: SqliteQueue,
    directory: Path,
    points: Sequence[str],
) -> None:
    """Kill a pipeline at these points, start it again each time, and look at what is there."""
    sent = 0
    for point in points:
        for index in range(sent, sent + FILES):
            rows = range(index * ROWS, (index + 1) * ROWS)
            path = write_jsonl(directory / f"{index}.jsonl", rows)
            queue.send([str(path), str(path)])
        sent += FILES
        run = start_run()
        sprung = threading.Event()
        with trapped(server, point, run, sprung):
            assert sprung.wait(SECONDS_MAX), f"{point}: {run.said}"
            server.wait_for_calls(0)
        assert run.process.returncode == -signal.SIGKILL, run.said
        assert len(numbers(client, "numbers")) < sent * ROWS
    run = start_run()
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


@pytest.fixture
def crashes(
    start_run: StartRun,
    source_server: RunningServer,
    source_client: Client,
    queue: SqliteQueue,
    tmp_path: Path,
) -> Callable[[Sequence[str]], None]:
    """`crash` with all but the points."""
    return partial(crash, start_run, source_server, source_client, queue, tmp_path)


# `tests/integration/ingest/test_ingest_crash.py` kills the same parts without Spark, in seconds.
@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", POINTS)
def test_a_pipeline_killed_at_any_step_writes_each_row_once(
    crashes: Callable[[Sequence[str]], None], point: str
) -> None:
    crashes([point])


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_pipeline_killed_at_one_step_after_another_writes_each_row_once(
    crashes: Callable[[Sequence[str]], None],
) -> None:
    crashes(POINTS)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_file_that_kills_sparks_workers_is_given_up_and_its_neighbours_go_on(
    start_run: StartRun, source_client: Client, queue: SqliteQueue, tmp_path: Path
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(DEADLY)
    with (tmp_path / "numbers.toml").open("a") as settings:
        settings.write("max_delivery_attempts = 2\n")
    for index, name in enumerate(("a", "poison", "z")):
        rows = range(index * ROWS, (index + 1) * ROWS)
        queue.send([str(write_jsonl(tmp_path / f"{name}.jsonl", rows))])
    run = start_run(PYTHONPATH=str(tmp_path / "site"))
    while source_client.count_shards("numbers").dead == 0 or queue.remaining:
        with pytest.raises(subprocess.TimeoutExpired):
            run.process.wait(0.2)  # It goes on.
    run.process.send_signal(signal.SIGINT)
    run.process.wait(SECONDS_MAX)
    assert numbers(source_client, "numbers") == [*range(ROWS), *range(2 * ROWS, 3 * ROWS)]
    (dead,) = source_client.list_shards("numbers", "dead")
    assert (Path(dead.shard).name, dead.failures) == ("poison.jsonl", 2)
    assert dead.error == "the process that read it ended"
