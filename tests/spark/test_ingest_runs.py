"""`wings ingest run` as a service: it starts again by itself, and ends when it is asked to."""

import contextlib
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from fix_ingest import numbers, write_jsonl
from fix_ingest_run import Run, StartRun
from held_address import held_address

from wings_client import Client
from wings_core.queue.sqlite import SqliteQueue

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SECONDS_MAX = 300.0
"""For one step, on a busy machine."""

ROWS = 20

JAVA_TRACES = ("Exception in thread", "\tat ", "Traceback", "Thread State", "ERROR ", "WARN ")


def bring(client: Client, queue: SqliteQueue, run: Run, directory: Path, number: int) -> None:
    """Announce the file of a number, and wait until a run has read it."""
    rows = range(number * ROWS, (number + 1) * ROWS)
    queue.send([str(write_jsonl(directory / f"{number}.jsonl", rows))])
    while client.partitions("numbers")[0].next_offset < rows.stop or queue.remaining:
        wait_a_little(run)


def kill(run: Run, *words: str) -> None:
    """Kill the process of a run whose command line has all these words; there is one."""
    found = [pid for pid in run.members() if all(word in command_of(pid) for word in words)]
    assert len(found) == 1, (words, [command_of(pid) for pid in run.members()])
    os.kill(found[0], signal.SIGKILL)


def wait_for_metric(run: Run, address: str, line: str) -> None:
    """Wait until a run serves a figure: it looks at its batches every second."""
    while True:
        with urllib.request.urlopen(f"http://{address}/metrics") as answer:
            if line in answer.read().decode():
                return
        wait_a_little(run)


def wait_a_little(run: Run) -> None:
    """Wait, and see that a run goes on."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.process.wait(0.2)
    assert run.process.returncode is None, run.said


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):  # It ended meanwhile.
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        return words.replace(b"\0", b" ").decode(errors="replace")
    return ""


@pytest.fixture
def address() -> Iterator[str]:
    """Where a run serves its figures: it starts for so long that another could take the port."""
    with held_address() as held:
        yield held


@pytest.mark.parametrize(
    "java_again", [False, pytest.param(True, marks=pytest.mark.soak)]
)  # It is a start of Spark more.
def test_a_run_starts_again_by_itself_and_ends_in_order_on_sigterm(
    source_client: Client,
    queue: SqliteQueue,
    start_run: StartRun,
    tmp_path: Path,
    address: str,
    java_again: bool,
) -> None:
    with (tmp_path / "numbers.toml").open("a") as settings:
        settings.write(f'[metrics]\nlisten = "{address}"\n')
    run = start_run()
    bring(source_client, queue, run, tmp_path, 0)
    wait_for_metric(run, address, 'wings_ingest_rows_total{source="numbers"} 20.0')
    kill(run, "python_streaming_source_runner")
    bring(source_client, queue, run, tmp_path, 1)
    assert "it starts again in 1 s" in run.said
    wait_for_metric(run, address, 'wings_ingest_restarts_total{source="numbers"} 1.0')
    wait_for_metric(run, address, 'wings_ingest_pending_messages{source="numbers"} 0.0')
    if java_again:
        kill(run, "org.apache.spark.deploy.SparkSubmit")
        bring(source_client, queue, run, tmp_path, 2)
        assert "Java ended, and Spark with it" in run.said
    run.process.send_signal(signal.SIGTERM)
    assert run.process.wait(SECONDS_MAX) == 0, run.said
    files = 3 if java_again else 2
    assert run.said.splitlines()[-1].startswith(f'{{"batch": {files}'), "it ends without a word"
    assert not any(each in run.said for each in JAVA_TRACES), run.said
    assert numbers(source_client, "numbers") == list(range(files * ROWS))


@pytest.mark.soak  # It takes a start of Spark, and what tells the reason has tests of its own.
def test_a_run_whose_topic_is_deleted_ends_with_the_reason_as_the_last_line(
    source_client: Client, queue: SqliteQueue, start_run: StartRun, tmp_path: Path
) -> None:
    run = start_run()
    bring(source_client, queue, run, tmp_path, 0)
    source_client.delete_topic("numbers")
    queue.send([str(write_jsonl(tmp_path / "1.jsonl", range(ROWS)))])
    assert run.process.wait(SECONDS_MAX) == 1, run.said
    last = run.said.splitlines()[-1]
    assert last.startswith("wings: "), run.said
    assert "numbers" in last
    assert not any(each in run.said for each in JAVA_TRACES), run.said


def test_a_run_that_is_starting_ends_at_once_on_sigterm(
    source_client: Client, start_run: StartRun, tmp_path: Path
) -> None:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\nexec sleep 600\n")  # So Spark is starting for as long.
    java.chmod(0o700)
    run = start_run(JAVA_HOME=str(java.parents[1]))
    while "sleep" not in run.members().values():
        wait_a_little(run)
    run.process.send_signal(signal.SIGTERM)
    assert run.process.wait(SECONDS_MAX) == 0, run.said
    assert run.said.splitlines() == ["wings: starting Spark"]
    assert source_client.count_shards("numbers").open == 0
