"""`examples/spark_pipeline.py` in one session, failing at every step of a batch.

What is killed, not failed, is in `test_pipeline_crashes`; that takes a start of Spark each time.
"""

import contextlib
import importlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.errors import PySparkException

import wings_client
from wings_client import Client
from wings_core.errors import Internal
from wings_core.model import CommitBatch, CommitResult, PublishResult, ShardProgress
from wings_server.testing import RunningServer, running_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

EXAMPLES = Path(__file__).parents[2] / "examples"
BATCH_ROWS = 600

POINTS = (
    "before stage",
    "in a task",
    "after stage",
    "after publish",
    "before the checkpoint's commit",
)
"""Where a run fails, in the order of a batch; each in a batch of its own."""


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example as a module."""
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("spark_pipeline")


@dataclass
class Faults:
    """Fails every call of one kind, from when a point was reached until the run has ended."""

    point: str
    commits: Path
    """Of the checkpoint."""
    reached: bool = False
    published: list[int] = field(default_factory=list[int])
    """Batches that were published, with rows."""

    def check(self, point: str) -> None:
        if point == self.point:
            self.reached = True
            raise Internal("failed on purpose")

    def hide_commits(self) -> None:
        """Put a file where Spark writes what it has committed."""
        if self.point == POINTS[-1]:
            self.reached = True
            self.commits.rename(self.commits.with_name("hidden"))
            self.commits.touch()

    def show_commits(self) -> None:
        hidden = self.commits.with_name("hidden")
        if hidden.exists():
            self.commits.unlink()
            hidden.rename(self.commits)


@contextlib.contextmanager
def failing(server: RunningServer, faults: Faults) -> Generator[None]:
    """Put faults into the server's metadata."""
    log = server.server.log
    commit, publish = log.registry.commit, log.stages.publish

    def failing_commit(batches: Sequence[CommitBatch], **named: Any) -> list[CommitResult]:
        if any(batch.stage is not None for batch in batches):
            faults.check("before stage")
            if faults.reached:
                raise Internal("failed on purpose")
            results = commit(batches, **named)
            # The first task has staged its rows, and gets no answer; no other gets so far.
            faults.check("in a task")
            return results
        return commit(batches, **named)

    def failing_publish(
        writer: str,
        batch: int,
        stages: Sequence[str],
        shards: Sequence[ShardProgress] = (),
        **named: Any,
    ) -> PublishResult:
        if not stages:
            return publish(writer, batch, stages, shards, **named)
        faults.check("after stage")
        published = publish(writer, batch, stages, shards, **named)
        faults.published.append(batch)
        faults.hide_commits()
        faults.check("after publish")
        return published

    patched = cast("Any", log)
    patched.registry.commit, patched.stages.publish = failing_commit, failing_publish
    try:
        yield
    finally:
        patched.registry.commit, patched.stages.publish = commit, publish
        faults.show_commits()


def rows_of(client: Client, topic: str) -> list[tuple[Any, ...]]:
    return sorted(
        tuple(row.values())
        for partition in client.partitions(topic)
        for batch in client.scan(topic, partition.partition)
        for row in batch.to_pylist()
    )


# A task that fails is in `test_write_stream` too; the other steps are in the soak tests.
@pytest.mark.parametrize(
    "points",
    [
        ("after stage", "before the checkpoint's commit"),
        pytest.param(POINTS, marks=pytest.mark.soak),
    ],
    ids=["two steps", "all steps"],
)
def test_a_pipeline_that_fails_at_steps_of_a_batch_writes_what_an_undisturbed_one_does(
    spark: "SparkSession", example: Any, tmp_path: Path, points: Sequence[str]
) -> None:
    with running_server() as server, wings_client.connect(server.flight) as client:
        topic = client.create_topic(example.FLIGHTS, example.flights.SCHEMA)
        rows = BATCH_ROWS * (len(points) + 2)
        client.push(topic, example.flights.generate(rows, batch_rows=400))
        for target in ("undisturbed", "failed"):
            client.create_topic(target, example.COLUMNS, "origin")
        example.run(spark, server.flight, "undisturbed", tmp_path / "undisturbed", rows)
        expected = rows_of(client, "undisturbed")
        # All but the last weeks, which are not complete.
        assert len({week for _, week, *_ in expected}) > 45

        checkpoint = tmp_path / "failed"
        for point in points:
            faults = Faults(point, checkpoint / "commits")
            with failing(server, faults), pytest.raises(PySparkException):
                example.run(spark, server.flight, "failed", checkpoint, BATCH_ROWS)
            assert faults.reached
            # In the topic or not, the batch is not in the checkpoint.
            assert len(faults.published) == (point in POINTS[-2:])
            for batch in faults.published:
                assert not (faults.commits / str(batch)).exists()
        example.run(spark, server.flight, "failed", checkpoint, BATCH_ROWS)
        assert rows_of(client, "failed") == expected
