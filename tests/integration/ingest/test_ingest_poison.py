"""Files that end the process that reads them: retried, dead in the end, and no harm to others."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fix_ingest import DEADLY, MakeSource, Pipeline, Start, numbers, write_jsonl
from forked_commands import FORKED

from wings_client import Client
from wings_core.errors import Unavailable
from wings_core.queue.journal import Claim, Fate, FileResult
from wings_core.queue.sqlite import SqliteQueue
from wings_spark.ingest.plan import FileSection, PlannedWork, planned
from wings_spark.ingest.read_file import FileReader, FileReading
from wings_spark.ingest.writer import carry_out

if TYPE_CHECKING:
    from wings_spark.ingest.settings import SourceSettings

SECONDS_MAX = 150.0

_PROGRAM = f"""{FORKED}{DEADLY}
import sys
from wings_spark.ingest.plan import PlannedWork
from wings_spark.ingest.settings import SourceSettings
from wings_spark.ingest.writer import carry_out

settings, work = sys.argv[1:]
carry_out(SourceSettings.model_validate_json(settings), [PlannedWork.model_validate_json(work)])
"""


@pytest.fixture
def pipeline(source: MakeSource, start: Start) -> Pipeline:
    """A pipeline with two attempts at a file."""
    return start(source(limits={"max_delivery_attempts": 2}))


def die(settings: "SourceSettings", work: PlannedWork) -> None:
    """Carry out a work with a poison file in a process, and see that it is killed."""
    process = subprocess.run(
        [sys.executable, "-c", _PROGRAM, settings.model_dump_json(), work.model_dump_json()],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert process.returncode == -signal.SIGKILL, process.stderr[-2_000:]


def work_of(pipeline: Pipeline, claim: Claim) -> PlannedWork:
    (work,) = planned(claim, pipeline.connections.journal.token, 1, pipeline.settings)
    return work


def results_of(pipeline: Pipeline, work: PlannedWork) -> list[FileResult]:
    (done,) = carry_out(pipeline.settings, [work])
    return list(done.results)


def send_files(queue: SqliteQueue, directory: Path) -> None:
    names = ["a.jsonl", "poison.jsonl", "z.jsonl"]
    queue.send(str(write_jsonl(directory / name, range(i, i + 1))) for i, name in enumerate(names))


def test_a_file_that_kills_its_worker_has_failed_and_its_neighbours_go_on(
    wings: Client, pipeline: Pipeline, queue: SqliteQueue, new_topic_id: str, tmp_path: Path
) -> None:
    wings.create_topic(new_topic_id, {"n": "int64"})
    send_files(queue, tmp_path)
    for fate in (Fate.FAILED, Fate.DEAD):
        while (claim := pipeline.claim()) is None:
            pass  # Until it may be tried again.
        work = work_of(pipeline, claim)
        die(pipeline.settings, work)
        # Spark has another worker do the same.
        outcome = pipeline.committer.commit(claim, results_of(pipeline, work))
        fates = {Path(file.shard).name: file.fate for file in outcome.files}
        assert fates["poison.jsonl"] is fate
        assert numbers(wings, new_topic_id) == [0, 2]
        pipeline.coordinator.finish_claims()
    (dead,) = wings.list_shards(pipeline.settings.name, "dead")
    assert (Path(dead.shard).name, dead.failures) == ("poison.jsonl", 2)
    assert dead.error == "the process that read it ended"
    assert queue.remaining == 0


def test_a_file_at_which_the_whole_pipeline_ended_is_read_again_but_not_for_ever(
    wings: Client, pipeline: Pipeline, queue: SqliteQueue, new_topic_id: str, tmp_path: Path
) -> None:
    wings.create_topic(new_topic_id, {"n": "int64"})
    send_files(queue, tmp_path)
    claim = pipeline.claim()
    assert claim is not None
    for _ in range(2):
        die(pipeline.settings, work_of(pipeline, claim))  # Each is planned anew.
    results = results_of(pipeline, work_of(pipeline, claim))
    assert [result.permanent for result in results] == [False, True, False]
    outcome = pipeline.committer.commit(claim, results)
    assert [file.fate for file in outcome.files] == [Fate.FINISHED, Fate.DEAD, Fate.FINISHED]
    assert "ended 2 times" in (outcome.files[1].error or "")
    assert numbers(wings, new_topic_id) == [0, 2]


def test_a_file_is_not_to_blame_for_one_end_of_the_pipeline(
    wings: Client, pipeline: Pipeline, queue: SqliteQueue, new_topic_id: str, tmp_path: Path
) -> None:
    wings.create_topic(new_topic_id, {"n": "int64"})
    send_files(queue, tmp_path)
    claim = pipeline.claim()
    assert claim is not None
    die(pipeline.settings, work_of(pipeline, claim))
    outcome = pipeline.committer.commit(claim, pipeline.read(claim))
    assert {file.fate for file in outcome.files} == {Fate.FINISHED}
    assert numbers(wings, new_topic_id) == [0, 1, 2]


def test_each_of_several_files_that_kill_their_workers_is_found_out(
    wings: Client, pipeline: Pipeline, queue: SqliteQueue, new_topic_id: str, tmp_path: Path
) -> None:
    wings.create_topic(new_topic_id, {"n": "int64"})
    names = ["a.jsonl", "poison-1.jsonl", "m.jsonl", "poison-2.jsonl", "z.jsonl"]
    queue.send(str(write_jsonl(tmp_path / name, range(i, i + 1))) for i, name in enumerate(names))
    claim = pipeline.claim()
    assert claim is not None
    work = work_of(pipeline, claim)
    for _ in range(2):
        die(pipeline.settings, work)
    results = results_of(pipeline, work)
    assert [result.error is not None for result in results] == [False, True, False, True, False]
    # A run that ends before it comes to the second one forgets neither.
    again = [work_of(pipeline, claim) for _ in range(2)]
    die(pipeline.settings, again[0])
    results = results_of(pipeline, again[1])
    assert [result.permanent for result in results] == [False, True, False, False, False]
    pipeline.committer.commit(claim, results)
    assert numbers(wings, new_topic_id) == [0, 2, 3, 4]


def test_no_file_is_to_blame_for_a_server_that_fails_while_it_is_read(
    wings: Client,
    pipeline: Pipeline,
    queue: SqliteQueue,
    new_topic_id: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wings.create_topic(new_topic_id, {"n": "int64"})
    queue.send([str(write_jsonl(tmp_path / f"{n}.jsonl", range(n, n + 1))) for n in range(2)])
    claim = pipeline.claim()
    assert claim is not None
    batches = FileReader.batches

    def unreachable(self: FileReader, section: FileSection, reading: FileReading) -> Any:
        if section.file.uri.endswith("1.jsonl"):
            raise Unavailable("the store is down")
        return batches(self, section, reading)

    work = work_of(pipeline, claim)
    for _ in range(3):
        with monkeypatch.context() as patched:
            patched.setattr(FileReader, "batches", unreachable)
            with pytest.raises(Unavailable, match="is down"):
                carry_out(pipeline.settings, [work])
    outcome = pipeline.committer.commit(claim, results_of(pipeline, work))
    assert [file.fate for file in outcome.files] == [Fate.FINISHED, Fate.FINISHED]
    assert numbers(wings, new_topic_id) == [0, 1]


def test_what_marks_that_a_file_was_begun_does_not_stay(
    wings: Client, pipeline: Pipeline, queue: SqliteQueue, new_topic_id: str, tmp_path: Path
) -> None:
    wings.create_topic(new_topic_id, {"n": "int64"})
    send_files(queue, tmp_path)
    claim = pipeline.claim()
    assert claim is not None
    work = work_of(pipeline, claim)
    results = results_of(pipeline, work)
    assert wings.abort("anybody", (), prefix=work.marks).deleted == ()
    die(pipeline.settings, work)
    pipeline.committer.commit(claim, results)
    assert wings.abort("anybody", (), prefix=work.marks).deleted == ()
    assert wings.abort("anybody", (), prefix="ingest.").deleted == ()
