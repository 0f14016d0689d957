"""`examples/spark_pipeline.py`, killed at every step of a batch and started again each time."""

import contextlib
import importlib
import signal
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from fix_ingest_run import Run, start_session

import wings_client
from wings_client import Client
from wings_core.errors import Unavailable
from wings_core.model import CommitBatch, CommitResult, PublishResult, ShardProgress
from wings_server.testing import RunningServer, running_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.soak]  # Every point takes a start of Spark.

EXAMPLES = Path(__file__).parents[2] / "examples"
BATCH_ROWS = 600
SECONDS_MAX = 120.0
"""For one run of the pipeline, on a busy machine."""

POINTS = (
    "before stage",
    "in a task",
    "after stage",
    "after publish",
    "before the checkpoint's commit",
)
"""Where a run is killed, in the order of a batch."""


PROGRAM = """
import os, runpy, sys
from pathlib import Path

from wings_spark.ingest.fork_server import fork_server

del sys.argv[0]
sys.path[0] = str(Path(sys.argv[0]).parent)
with fork_server() as launcher:
    os.environ["WORKERS_LAUNCH"] = str(launcher.with_name("launch"))
    runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs an example whose workers are forked as those of other tests, but in its own session."""


@dataclass
class Trap:
    """Kills a run at one point, from within the server, so that it is exactly there."""

    point: str
    pipeline: Run
    published: list[int] = field(default_factory=list[int])
    """Batches that were published by this run, with rows."""
    sprung: threading.Event = field(default_factory=threading.Event)
    _once: threading.Lock = field(default_factory=threading.Lock)

    def spring(self, point: str) -> bool:
        """Kill the run, if it is to be killed here; tell whether it was, now or before."""
        with self._once:
            if point == self.point and not self.sprung.is_set():
                self.pipeline.kill()
                self.sprung.set()
            return self.sprung.is_set()

    def stop_java(self) -> None:
        """Let the driver's Java go no further: it cannot write its checkpoint any more."""
        self.pipeline.signal(signal.SIGSTOP, "java")


@contextlib.contextmanager
def trapped(server: RunningServer, trap: Trap) -> Generator[None]:
    """Set a trap in the server's metadata."""
    log = server.server.log
    commit, publish = log.registry.commit, log.stages.publish

    def trapped_commit(batches: Sequence[CommitBatch], **named: Any) -> list[CommitResult]:
        stages = any(batch.stage is not None for batch in batches)
        if stages and trap.spring("before stage"):
            raise Unavailable("the client is dead")
        results = commit(batches, **named)
        if stages:
            trap.spring("in a task")
        return results

    def trapped_publish(
        writer: str,
        batch: int,
        stages: Sequence[str],
        shards: Sequence[ShardProgress] = (),
        **named: Any,
    ) -> PublishResult:
        if not stages:
            return publish(writer, batch, stages, shards, **named)
        if trap.spring("after stage"):
            raise Unavailable("the client is dead")
        if trap.point == POINTS[-1]:
            trap.stop_java()
        published = publish(writer, batch, stages, shards, **named)
        trap.published.append(batch)
        trap.spring("after publish")
        if trap.point == POINTS[-1]:
            trap.sprung.set()  # Once it is answered; Java will never hear of it.
        return published

    patched = cast("Any", log)
    patched.registry.commit, patched.stages.publish = trapped_commit, trapped_publish
    try:
        yield
    finally:
        patched.registry.commit, patched.stages.publish = commit, publish


@pytest.fixture
def start(quick_spark: dict[str, str], tmp_path: Path) -> Generator[Callable[[str], Run]]:
    """Start the example on a server; what still runs at the end is killed."""
    started: list[Run] = []

    def run(endpoint: str) -> Run:
        command = [sys.executable, "-c", PROGRAM, str(EXAMPLES / "spark_pipeline.py")]
        command += [
            "--endpoint",
            endpoint,
            "--checkpoint",
            str(tmp_path / "checkpoint"),
            "--target",
            "killed",
        ]
        command += ["--batch-rows", str(BATCH_ROWS)]
        output = tmp_path / f"output-{len(started)}"
        started.append(start_session(command, output, quick_spark))
        return started[-1]

    yield run
    for pipeline in started:
        pipeline.kill()


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example as a module."""
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("spark_pipeline")


def rows_of(client: Client, topic: str) -> list[tuple[Any, ...]]:
    return sorted(
        tuple(row.values())
        for partition in client.partitions(topic)
        for batch in client.scan(topic, partition.partition)
        for row in batch.to_pylist()
    )


@dataclass
class Crashes:
    """Runs the example beside an undisturbed one of the same flights."""

    spark: "SparkSession"
    example: Any
    start: Callable[[str], Run]
    directory: Path

    def run(self, points: Sequence[str], rows: int, partition_key: str | None) -> None:
        """Kill it at these points, one after another, and compare the results.

        Args:
            points: Where; after each it is started again.
            rows: Of the topic that is read: some for the batches of every five points.
            partition_key: Of that topic.
        """
        with running_server() as server, wings_client.connect(server.flight) as client:
            flights = self.example.flights
            topic = client.create_topic(self.example.FLIGHTS, flights.SCHEMA, partition_key)
            client.push(topic, flights.generate(rows, batch_rows=400))
            for target in ("undisturbed", "killed"):
                client.create_topic(target, self.example.COLUMNS, "origin")
            undisturbed = self.directory / "undisturbed"
            self.example.run(self.spark, server.flight, "undisturbed", undisturbed, rows)
            expected = rows_of(client, "undisturbed")
            # All but the last weeks, which are not complete.
            assert len({week for _, week, *_ in expected}) > 45

            for point in points:
                self._crash(server, client, point)
            # Where the last run was, with what it left, goes on who starts no Java of its own.
            checkpoint = self.directory / "checkpoint"
            self.example.run(self.spark, server.flight, "killed", checkpoint, BATCH_ROWS)
            assert rows_of(client, "killed") == expected

            # What the killed runs left behind went when their batches were published after all.
            assert server.server.log.stages.of_topic(client.topic("killed").uuid) == []

    def _crash(self, server: RunningServer, client: Client, point: str) -> None:
        """Start the example and kill it; see that it was killed there."""
        pipeline = self.start(server.flight)
        trap = Trap(point, pipeline)
        stages = server.server.log.stages
        uuid = client.topic("killed").uuid
        before = {stage.stage for stage in stages.of_topic(uuid)}
        with trapped(server, trap):
            assert trap.sprung.wait(SECONDS_MAX), f"{point}: {pipeline.said}"
            server.wait_for_calls(0)
            pipeline.kill()
        assert pipeline.process.returncode == -signal.SIGKILL, pipeline.said
        left = {stage.stage for stage in stages.of_topic(uuid)} - before
        if point in ("after publish", "before the checkpoint's commit"):
            (batch,) = trap.published
            assert not (self.directory / "checkpoint" / "commits" / str(batch)).exists()
            assert not left
        else:
            assert trap.published == []
            assert bool(left) == (point != "before stage")


@pytest.fixture
def crashes(
    spark: "SparkSession", example: Any, start: Callable[[str], Run], tmp_path: Path
) -> Crashes:
    return Crashes(spark, example, start, tmp_path)


@pytest.mark.timeout(600)
def test_a_pipeline_killed_at_every_step_writes_what_an_undisturbed_one_does(
    crashes: Crashes,
) -> None:
    crashes.run(POINTS, 3 * BATCH_ROWS, None)


@pytest.mark.timeout(3600)
def test_a_pipeline_killed_over_and_over_writes_what_an_undisturbed_one_does(
    crashes: Crashes,
) -> None:
    crashes.run(POINTS * 4, 12 * BATCH_ROWS, "origin")
