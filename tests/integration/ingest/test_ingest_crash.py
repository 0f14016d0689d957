"""A pipeline killed at each of its steps, and started again: every row is there once."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import fix_ingest
import pytest
from fix_ingest import Ingest, Pipeline, write_jsonl
from forked_commands import FORKED

from wings_core.queue.sqlite import SqliteQueue

if TYPE_CHECKING:
    from wings_server.testing import RunningServer
    from wings_spark.ingest.settings import SourceSettings

POINTS = ("receive", "claim", "stage", "publish", "acknowledge", "done")
"""After the first four, and before and after the messages are acknowledged."""

SECONDS_MAX = 150.0

_PROGRAM = f"""{FORKED}
import os, signal, sys
sys.path.insert(0, {str(Path(fix_ingest.__file__).parent)!r})
from fix_ingest import Ingest, Pipeline
from wings_spark.ingest.settings import SourceSettings

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def dies(it, name, before=False):
    call = getattr(it, name)
    def dying(*args, **kwargs):
        if before:
            die()
        found = call(*args, **kwargs)
        die()
    vars(it)[name] = dying

text, point = sys.argv[1:]
pipeline = Pipeline(SourceSettings.model_validate_json(text))
if point == "receive":
    dies(pipeline.queue, "receive")
claim = pipeline.claim()
if point == "claim":
    die()
results = pipeline.read(claim)
if point == "stage":
    die()
if point == "publish":
    dies(pipeline.connections.client, "publish")
if point == "acknowledge":
    dies(pipeline.queue, "acknowledge", before=True)
if point == "done":
    dies(pipeline.queue, "acknowledge")
pipeline.committer.commit(claim, results)
"""


def run_and_die(settings: "SourceSettings", point: str) -> None:
    """Run a pipeline in a process that is killed at a point, and see that it was."""
    process = subprocess.run(
        [sys.executable, "-c", _PROGRAM, settings.model_dump_json(), point],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert process.returncode == -signal.SIGKILL, process.stderr[-2_000:]


@pytest.mark.parametrize("point", POINTS)
def test_a_pipeline_killed_at_any_step_writes_each_row_once(
    ingest: Ingest, server: "RunningServer", point: str
) -> None:
    ingest.create({"n": "int64"})
    queue = SqliteQueue(ingest.path / "queue.sqlite")
    files = [write_jsonl(ingest.path / f"{i}.jsonl", range(i * 10, i * 10 + 10)) for i in range(4)]
    queue.send(str(path) for path in files)
    settings = ingest.source(
        queue={"visibility_seconds": 3, "wait_seconds": 0.2}, limits={"files_per_trigger": 3}
    )
    run_and_die(settings, point)
    published = point in ("publish", "acknowledge", "done")
    assert len(ingest.numbers()) == (30 if published else 0)
    assert queue.remaining == (1 if point == "done" else 4)

    pipeline = Pipeline(settings)
    try:
        # What was claimed is in the journal; what was only received comes again in three seconds.
        assert pipeline.connections.journal.last == (0 if point == "receive" else 1)
        while queue.remaining:
            pipeline.drain()
            pipeline.coordinator.extend_and_renew()
        pipeline.drain()
    finally:
        pipeline.close()
        queue.close()
    assert ingest.numbers() == list(range(40))
    assert server.server.log.stages.of_topic(ingest.wings.topic(ingest.topic).uuid) == []
    counts = ingest.wings.count_shards(settings.name)
    assert (counts.open, counts.finished, counts.position) == (0, 4, 40)
