"""Files that a queue announces become messages once: the pipeline's parts, without Spark."""

import gzip
import json
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from fix_files import ReadSizes
from fix_ingest import Ingest, MakeSource, Pipeline, Start, write_jsonl

from wings_client import Client, ShardState
from wings_core.errors import Internal, InvalidArgument, TopicNotFound, Unavailable, WingsError
from wings_core.queue.coordinator import VisibilityExtender
from wings_core.queue.journal import Fate, Outcome
from wings_core.queue.sqlite import SqliteQueue
from wings_core.queue.state import Phase
from wings_spark.ingest import status
from wings_spark.ingest.settings import SourceSettings

if TYPE_CHECKING:
    from fix_aws import Aws

arrow: Any = pa
LONG = 60.0


def fates(outcome: Outcome | None) -> list[Fate]:
    assert outcome is not None
    return [file.fate for file in outcome.files]


def retry_now(pipeline: Pipeline) -> None:
    """Let files that failed be tried again at once."""
    state: Any = vars(pipeline.coordinator)["_local"]
    for local in state.files.values():
        local.not_before = 0.0


def lose(directory: Path) -> None:
    """Let the visibility of all messages of the test's queue end."""
    with closing(sqlite3.connect(directory / "queue.sqlite", isolation_level=None)) as connection:
        connection.execute("UPDATE messages SET visible_at = 0")


# Exactly once.


def test_ten_files_and_two_duplicates_give_exactly_their_rows(ingest: Ingest, topic: str) -> None:
    files = [write_jsonl(ingest.path / f"{i}.jsonl", range(i * 10, i * 10 + 10)) for i in range(10)]
    ingest.queue.send(str(path) for path in [*files[:5], files[2], *files[5:], files[7]])
    pipeline = ingest.pipeline(limits={"files_per_trigger": 4})
    outcomes = pipeline.drain()
    assert ingest.numbers() == list(range(100))
    assert sum(outcome.rows for outcome in outcomes) == 100
    assert ingest.queue.remaining == 0


def test_an_empty_queue_gives_nothing_and_is_waited_for(ingest: Ingest, topic: str) -> None:
    pipeline = ingest.pipeline(queue={"wait_seconds": 0.2})
    assert pipeline.drain() == []
    assert ingest.numbers() == []
    assert pipeline.connections.journal.last == 0


def test_the_same_file_twice_in_one_receive_is_read_once_and_both_are_acknowledged(
    ingest: Ingest, topic: str
) -> None:
    path = write_jsonl(ingest.path / "a.jsonl", range(3))
    ingest.queue.send([str(path), str(path)])
    pipeline = ingest.pipeline()
    claim = pipeline.claim()
    assert claim is not None
    assert (len(claim.files), len(claim.messages)) == (1, 2)
    pipeline.drain()
    assert ingest.numbers() == [0, 1, 2]
    assert ingest.queue.remaining == 0


def test_the_message_of_a_finished_file_is_acknowledged_and_dropped(
    ingest: Ingest, topic: str
) -> None:
    path = write_jsonl(ingest.path / "a.jsonl", range(3))
    ingest.queue.send([str(path)])
    ingest.drain()
    ingest.queue.send([str(path)])
    other = ingest.pipeline(checkpoint="another")
    assert other.claim() is None
    assert ingest.queue.remaining == 0
    assert ingest.numbers() == [0, 1, 2]


def test_the_message_of_another_owner_is_left_alone(ingest: Ingest, topic: str) -> None:
    path = write_jsonl(ingest.path / "a.jsonl", range(3))
    settings = ingest.source()
    ingest.wings.open_shards(settings.name, "another-pipeline", [str(path)])
    ingest.queue.send([str(path)])
    assert ingest.start(settings).claim() is None
    assert ingest.queue.remaining == 1
    assert ingest.numbers() == []
    (shard,) = ingest.wings.list_shards(settings.name)
    assert shard.token == "another-pipeline"


def test_a_stale_owner_is_replaced_and_its_late_publish_is_fenced(
    ingest: Ingest, topic: str
) -> None:
    path = write_jsonl(ingest.path / "a.jsonl", range(10))
    ingest.queue.send([str(path)])
    limits = {"rows_per_file": 4, "commit_timeout_seconds": 1}
    old = ingest.pipeline(limits=limits)
    assert fates(old.step()) == [Fate.PARTIAL]
    claim = old.claim()
    assert claim is not None
    late = old.read(claim)  # It goes on reading, and is very slow from here on.
    lose(ingest.path)
    new = ingest.pipeline(checkpoint="new", limits=limits)
    while (found := new.claim()) is None:
        lose(ingest.path)  # Until twice the commit timeout has passed.
    assert found.files[0].position == 4
    assert fates(old.committer.commit(claim, late)) == [Fate.FENCED]
    assert ingest.numbers() == [0, 1, 2, 3]
    new.drain()
    assert ingest.numbers() == list(range(10))


def test_two_pipelines_on_one_queue_write_each_file_once(ingest: Ingest, topic: str) -> None:
    files = [write_jsonl(ingest.path / f"{i}.jsonl", range(i * 10, i * 10 + 10)) for i in range(12)]
    ingest.queue.send(str(path) for path in [*files, *files])
    pipelines = [
        ingest.pipeline(checkpoint=name, limits={"files_per_trigger": 3}) for name in ("one", "two")
    ]
    errors: list[BaseException] = []

    def run(pipeline: Pipeline) -> None:
        try:
            pipeline.drain()
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=run, args=(pipeline,)) for pipeline in pipelines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert errors == []
    lose(ingest.path)  # What one left to the other comes again, and finds its file finished.
    ingest.drain(checkpoint="three")
    assert ingest.numbers() == list(range(120))
    assert ingest.queue.remaining == 0


def test_a_message_lost_in_mid_read_is_read_once(ingest: Ingest, topic: str) -> None:
    path = write_jsonl(ingest.path / "a.jsonl", range(5))
    ingest.queue.send([str(path)])
    pipeline = ingest.pipeline()
    claim = pipeline.claim()
    assert claim is not None
    results = pipeline.read(claim)
    lose(ingest.path)
    other = ingest.pipeline(checkpoint="other")
    assert other.claim() is None  # It gets the message, and the file is ours.
    pipeline.committer.commit(claim, results)
    assert ingest.numbers() == list(range(5))
    assert ingest.queue.remaining == 1
    lose(ingest.path)
    assert other.claim() is None
    assert ingest.queue.remaining == 0
    assert ingest.numbers() == list(range(5))


def test_a_message_is_extended_while_its_file_is_read_and_once_more_when_it_was(
    ingest: Ingest, topic: str
) -> None:
    ingest.queue.send([str(write_jsonl(ingest.path / "a.jsonl", range(5)))])
    limits = {"commit_timeout_seconds": 500}
    pipeline = ingest.pipeline(queue={"visibility_seconds": 6}, limits=limits)
    claim = pipeline.claim()
    assert claim is not None
    extended: list[float] = []
    enough = threading.Event()
    extend = pipeline.queue.extend

    def noted(receipt: str, visibility_seconds: float) -> float | None:
        extended.append(visibility_seconds)
        enough.set()
        return extend(receipt, visibility_seconds)

    vars(pipeline.queue)["extend"] = noted
    extender = VisibilityExtender(pipeline.coordinator)
    assert enough.wait(LONG)
    results = pipeline.read(claim)
    extender.close()
    assert set(extended) == {6.0}
    pipeline.committer.commit(claim, results)
    assert extended[-1] == 1_000.0
    pipeline.coordinator.finish_claims()
    assert pipeline.coordinator.count(Phase.IN_PROGRESS) == 0
    assert ingest.queue.remaining == 0


def test_messages_are_extended_again_after_an_error_of_any_kind(ingest: Ingest, topic: str) -> None:
    ingest.queue.send([str(write_jsonl(ingest.path / f"{n}.jsonl", range(5))) for n in range(2)])
    pipeline = ingest.pipeline(queue={"visibility_seconds": 8})
    claim = pipeline.claim()
    assert claim is not None
    broken = threading.Event()
    failed, extended = threading.Semaphore(0), threading.Semaphore(0)
    extend = pipeline.queue.extend

    def failing(receipt: str, visibility_seconds: float) -> float | None:
        if broken.is_set():
            failed.release()
            raise RuntimeError("no error of ours")
        extended.release()
        return extend(receipt, visibility_seconds)

    vars(pipeline.queue)["extend"] = failing
    broken.set()
    extender = VisibilityExtender(pipeline.coordinator)
    extender.check(0.0)
    for _ in range(2):
        assert failed.acquire(timeout=LONG)
    extender.check(LONG)
    with pytest.raises(Internal, match="no error of ours"):
        extender.check(0.0)
    broken.clear()
    for _ in range(2):
        assert extended.acquire(timeout=LONG)
    extender.close()
    extender.check(0.0)
    assert pipeline.coordinator.lost == 0
    del topic


def test_a_message_that_was_not_extended_in_time_is_lost_and_its_file_read_once(
    ingest: Ingest, topic: str
) -> None:
    ingest.queue.send([str(write_jsonl(ingest.path / "a.jsonl", range(5)))])
    pipeline = ingest.pipeline(queue={"visibility_seconds": 1})
    claim = pipeline.claim()
    assert claim is not None

    def unreachable(receipt: str, visibility_seconds: float) -> float | None:
        raise Unavailable(f"{receipt} {visibility_seconds}")

    vars(pipeline.queue)["extend"] = unreachable
    while not pipeline.coordinator.lost:
        with suppress(Unavailable):
            pipeline.coordinator.extend_and_renew()
    vars(pipeline.coordinator)["_renewed_at"] = None
    pipeline.coordinator.extend_and_renew()  # A lost message is not extended again; the rest is.
    assert pipeline.coordinator.lost == 1
    lose(ingest.path)
    pipeline.committer.commit(claim, pipeline.read(claim))
    pipeline.drain()
    assert ingest.numbers() == list(range(5))
    assert ingest.queue.remaining == 0


def test_once_a_file_was_read_its_message_is_not_extended_by_the_reader(
    ingest: Ingest, topic: str
) -> None:
    ingest.queue.send([str(write_jsonl(ingest.path / "a.jsonl", range(5)))])
    pipeline = ingest.pipeline(queue={"visibility_seconds": 1})
    claim = pipeline.claim()
    assert claim is not None
    pipeline.connections.journal.mark_read(claim.number)
    lose(ingest.path)
    pipeline.coordinator.extend_and_renew()
    assert pipeline.coordinator.count(Phase.AWAITING_COMMIT) == 1
    assert len(ingest.queue.receive(1, LONG)) == 1  # It was not hidden again.


# Large files, batches and limits.


def test_a_file_larger_than_one_batch_goes_on_where_it_stood(ingest: Ingest, topic: str) -> None:
    ingest.queue.send([str(write_jsonl(ingest.path / "a.jsonl", range(25)))])
    pipeline = ingest.pipeline(limits={"rows_per_file": 10})
    outcomes = pipeline.drain()
    assert [fates(outcome) for outcome in outcomes] == [
        [Fate.PARTIAL], [Fate.PARTIAL], [Fate.FINISHED],
    ]  # fmt: skip
    assert ingest.numbers() == list(range(25))
    assert ingest.queue.remaining == 0


def test_a_file_that_ends_with_a_batch_is_finished_with_it(ingest: Ingest, topic: str) -> None:
    ingest.queue.send([str(write_jsonl(ingest.path / "a.jsonl", range(20)))])
    outcomes = ingest.drain(limits={"rows_per_file": 10})
    assert [fates(outcome) for outcome in outcomes] == [[Fate.PARTIAL], [Fate.FINISHED]]
    assert ingest.numbers() == list(range(20))


def test_files_of_many_batches_of_rows_are_staged_whole(ingest: Ingest, topic: str) -> None:
    table = arrow.table({"n": range(200_000)})
    pyarrow.parquet.write_table(table, ingest.path / "a.parquet", row_group_size=30_000)
    ingest.queue.send([str(ingest.path / "a.parquet")])
    ingest.drain()
    assert ingest.numbers() == list(range(200_000))


def test_a_claim_is_bounded_by_files_and_bytes(ingest: Ingest, topic: str) -> None:
    for index in range(6):
        path = write_jsonl(ingest.path / f"{index}.jsonl", range(10))
        ingest.queue.send([json.dumps({"uri": str(path), "size": 100})])
    pipeline = ingest.pipeline(limits={"files_per_trigger": 4, "bytes_per_trigger": 250})
    assert [len(outcome.files) for outcome in pipeline.drain()] == [2, 2, 2]


# Poison.


def test_a_poison_file_is_given_up_after_its_attempts_and_its_neighbours_go_on(
    ingest: Ingest, topic: str
) -> None:
    good = write_jsonl(ingest.path / "good.jsonl", range(3))
    bad = ingest.path / "bad.jsonl"
    bad.write_text('{"n": 7}\n{"n": "seven"}\n')
    ingest.queue.send([str(bad), str(good)])
    letters = f"{topic}-dead"
    settings = ingest.source(limits={"max_delivery_attempts": 3}, dead_letters={"topic": letters})
    pipeline = ingest.start(settings)
    outcome = pipeline.step()
    assert fates(outcome) == [Fate.FAILED, Fate.FINISHED]
    assert ingest.numbers() == [0, 1, 2]
    assert pipeline.step() is None  # Not at once.
    retry_now(pipeline)
    assert fates(pipeline.step()) == [Fate.FAILED]
    pipeline.coordinator.finish_claims()
    retry_now(pipeline)
    assert fates(pipeline.step()) == [Fate.DEAD]
    assert pipeline.drain() == []
    assert ingest.queue.remaining == 0
    (dead,) = ingest.wings.list_shards(settings.name, "dead")
    assert (dead.shard, dead.failures) == (str(bad), 3)
    assert dead.error is not None
    assert ":2" in dead.error
    (row,) = ingest.wings.scan(letters).read_all().to_pylist()
    assert (row["uri"], row["attempts"], row["error"]) == (str(bad), 3, dead.error)
    assert ingest.numbers() == [0, 1, 2]


def test_what_a_repeated_commit_says_of_files_that_were_given_up_is_that(
    ingest: Ingest, topic: str
) -> None:
    (ingest.path / "bad.jsonl").write_text('{"n": "seven"}\n')
    good = write_jsonl(ingest.path / "good.jsonl", range(3))
    ingest.queue.send([str(ingest.path / "bad.jsonl"), str(good)])
    pipeline = ingest.pipeline(limits={"max_delivery_attempts": 1})
    claim = pipeline.claim()
    assert claim is not None
    results = pipeline.read(claim)
    first = pipeline.committer.commit(claim, results)
    # As after a crash before it was noted.
    (pipeline.connections.journal.directory / "claims" / "1.done").unlink()
    again = pipeline.committer.commit(claim, results)
    assert fates(again) == fates(first) == [Fate.DEAD, Fate.FINISHED]
    assert [file.error for file in again.files] == [file.error for file in first.files]
    assert again.rows == first.rows == 3
    del topic


def test_a_file_that_was_mended_is_read_when_it_is_retried(ingest: Ingest, topic: str) -> None:
    bad = ingest.path / "bad.jsonl"
    bad.write_text('{"n": "seven"}\n')
    ingest.queue.send([str(bad)])
    settings = ingest.source(limits={"max_delivery_attempts": 1})
    pipeline = ingest.start(settings)
    pipeline.drain()
    write_jsonl(bad, range(2))
    assert status.retry(settings, None) == [str(bad)]
    assert status.retry(settings, [str(bad), "nowhere"]) == [str(bad)]  # Nothing has read it yet.
    pipeline.drain()
    assert ingest.numbers() == [0, 1]
    assert status.retry(settings, None) == []
    assert ingest.queue.remaining == 0


def test_the_message_of_a_retry_opens_a_file_once_however_often_it_is_delivered(
    ingest: Ingest, topic: str
) -> None:
    bad = ingest.path / "bad.jsonl"
    bad.write_text('{"n": "seven"}\n')
    ingest.queue.send([str(bad)])
    settings = ingest.source(limits={"max_delivery_attempts": 1})
    pipeline = ingest.start(settings)
    pipeline.drain()
    assert status.retry(settings, None) == [str(bad)]
    (message,) = ingest.queue.receive(10, 60.0)
    ingest.queue.acknowledge([message.receipt])
    ingest.queue.send([message.body])
    assert [fates(outcome) for outcome in pipeline.drain()] == [[Fate.DEAD]]
    ingest.queue.send([message.body])  # It is delivered twice.
    write_jsonl(bad, range(2))
    assert pipeline.drain() == []
    assert ingest.queue.remaining == 0
    assert ingest.numbers() == []
    assert status.retry(settings, None) == [str(bad)]
    pipeline.drain()
    assert ingest.numbers() == [0, 1]


def test_a_retry_that_comes_before_the_death_is_noted_is_not_lost(
    ingest: Ingest, topic: str
) -> None:
    bad = ingest.path / "bad.jsonl"
    bad.write_text('{"n": "seven"}\n')
    ingest.queue.send([str(bad)])
    settings = ingest.source(limits={"max_delivery_attempts": 1})
    pipeline = ingest.start(settings)
    claim = pipeline.claim()
    assert claim is not None
    pipeline.committer.commit(claim, pipeline.read(claim))
    write_jsonl(bad, range(2))
    assert status.retry(settings, None) == [str(bad)]
    receive: Any = vars(type(pipeline.coordinator))["_receive"]
    receive(pipeline.coordinator)  # The outcome has not been noted.
    pipeline.drain()
    assert ingest.numbers() == [0, 1]
    assert ingest.queue.remaining == 0


def test_a_file_whose_name_looks_like_a_version_of_another_is_read_too(
    ingest: Ingest, topic: str
) -> None:
    plain = write_jsonl(ingest.path / "a.jsonl", range(2))
    odd = write_jsonl(ingest.path / "a.jsonl#v1", range(2, 4))
    same = f"{ingest.path}/./{plain.name}".replace("/./", "//")
    ingest.queue.send(
        json.dumps(about)
        for about in (
            {"uri": str(plain), "version": "v1"},
            {"uri": str(odd)},
            {"uri": same, "version": "v1"},
        )
    )
    files = {"dedup_key": "uri+version", "format": "jsonl"}
    ingest.drain(files=files)
    assert ingest.numbers() == [0, 1, 2, 3]
    assert ingest.queue.remaining == 0


def test_a_message_that_was_not_understood_does_not_hinder_the_retry_of_files(
    ingest: Ingest, topic: str
) -> None:
    path = str(ingest.path / "late.jsonl")
    ingest.queue.send(["nonsense", path])
    settings = ingest.source(limits={"max_delivery_attempts": 1})
    pipeline = ingest.start(settings)
    assert fates(pipeline.step()) == [Fate.DEAD, Fate.DEAD]
    assert status.retry(settings, None) == [path]
    pipeline.coordinator.finish_claims()
    assert ingest.queue.pending() == 1
    del topic


def test_a_missing_file_is_waited_for_and_given_up(ingest: Ingest, topic: str) -> None:
    path = ingest.path / "late.jsonl"
    ingest.queue.send([str(path), str(ingest.path / "never.jsonl")])
    pipeline = ingest.pipeline(limits={"max_delivery_attempts": 2})
    assert fates(pipeline.step()) == [Fate.FAILED, Fate.FAILED]
    write_jsonl(path, range(2))
    pipeline.coordinator.finish_claims()
    retry_now(pipeline)
    assert fates(pipeline.step()) == [Fate.FINISHED, Fate.DEAD]
    assert ingest.numbers() == [0, 1]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_a_file_cut_off_in_mid_row_gives_no_row(ingest: Ingest, topic: str, name: str) -> None:
    whole = write_jsonl(ingest.path / "whole", range(1_000)).read_bytes()
    if name.endswith(".gz"):
        data = gzip.compress(whole)[:-20]
    elif name.endswith(".parquet"):
        pyarrow.parquet.write_table(arrow.table({"n": range(9)}), ingest.path / "p")
        data = (ingest.path / "p").read_bytes()[:-9]
    else:
        data = whole[:-5]
    (ingest.path / name).write_bytes(data)
    ingest.queue.send([str(ingest.path / name)])
    outcome = ingest.pipeline(limits={"max_delivery_attempts": 1}).step()
    assert fates(outcome) == [Fate.DEAD]
    assert ingest.numbers() == []


def test_a_csv_file_cut_off_in_mid_row_gives_no_row(ingest: Ingest) -> None:
    ingest.create({"n": "int64", "m": "int64"})
    (ingest.path / "a.csv").write_text("n,m\n1,2\n3")
    ingest.queue.send([str(ingest.path / "a.csv")])
    assert fates(ingest.pipeline(limits={"max_delivery_attempts": 1}).step()) == [Fate.DEAD]
    assert ingest.numbers() == []


def test_a_malformed_notification_is_given_up_at_once_and_a_test_event_acknowledged(
    wings: Client, source: MakeSource, start: Start, queue: SqliteQueue, topic: str, tmp_path: Path
) -> None:
    queue.send(["not JSON", json.dumps({"Event": "s3:TestEvent"})])
    settings = source(queue={"messages": "s3-events"})
    pipeline = start(settings)
    assert fates(pipeline.step()) == [Fate.DEAD]
    assert queue.remaining == 0
    (dead,) = wings.list_shards(settings.name, "dead")
    assert dead.error is not None
    assert "not JSON" in dead.error
    del tmp_path


# Formats, columns and rows that do not fit.


def test_all_formats_are_read_compressed_or_not(ingest: Ingest, topic: str) -> None:
    def numbered(first: int) -> pa.Table:
        return arrow.table({"n": range(first, first + 10)})

    lines = "".join(json.dumps({"n": n}) + "\n" for n in range(10))
    (ingest.path / "a.jsonl").write_text(lines)
    (ingest.path / "b.jsonl.gz").write_bytes(gzip.compress(lines.replace(": ", ": 1").encode()))
    pyarrow.csv.write_csv(numbered(20), ingest.path / "c.csv")
    with arrow.CompressedOutputStream(str(ingest.path / "d.csv.zst"), "zstd") as file:
        pyarrow.csv.write_csv(numbered(30), file)
    pyarrow.parquet.write_table(numbered(40), ingest.path / "e.parquet", compression="zstd")
    with arrow.ipc.new_file(str(ingest.path / "f.arrow"), numbered(50).schema) as file:
        file.write_table(numbered(50))
    (ingest.path / "g.jsonl").write_bytes(b"")
    ingest.queue.send(str(path) for path in sorted(ingest.path.glob("?.*")))
    ingest.drain()
    assert ingest.numbers() == list(range(60))
    assert ingest.queue.remaining == 0


def test_rows_tell_where_they_come_from(ingest: Ingest) -> None:
    columns = {"n": "int64", "source_file": "string", "source_row": "int64", "version": "string"}
    ingest.create(columns)
    path = write_jsonl(ingest.path / "a.jsonl", range(10, 15))
    ingest.queue.send([json.dumps({"uri": str(path), "version": "v7"})])
    lineage = {"file": "source_file", "offset": "source_row", "version": "version"}
    ingest.drain(files={"lineage": lineage}, limits={"rows_per_file": 2})
    rows = ingest.rows()
    about = path.stat()
    read = f"{about.st_size}-{about.st_mtime_ns}"  # Not what the message says.
    assert rows == [
        {"n": 10 + row, "source_file": str(path), "source_row": row, "version": read}
        for row in range(5)
    ]


BAD_JSON = b'{"n": 0, "t": "2026-01-01T00:00:00Z"}\n{"n": "x"}\n{oops\n{"n": 3}\n{"m": 4}\n'
BAD_CSV = b"n,t\n0,2026-01-01T00:00:00Z\nx,2026-01-01T00:00:00Z\n2,never\n3,\n4,y\n"
RAGGED = b'n,s\n\n0\n1,a\n2,a,b\n3,"x\ny"\n4\n5\n' + b"6,b\n" * 2 + b"8,c,d\n"


@pytest.mark.parametrize(("name", "data"), [("a.jsonl", BAD_JSON), ("a.csv", BAD_CSV)])
def test_rows_that_do_not_fit_are_kept_as_text_in_their_place(
    ingest: Ingest, name: str, data: bytes
) -> None:
    columns = {"n": "int64", "t": "timestamp[us, tz=UTC]", "rescued": "string"}
    ingest.create(columns)
    (ingest.path / name).write_bytes(data)
    ingest.queue.send([str(ingest.path / name)])
    outcomes = ingest.drain(files={"rescued_column": "rescued"})
    rows = ingest.rows()
    assert [row["n"] for row in rows] == [0, None, None, 3, None]
    assert [row["rescued"] is None for row in rows] == [True, False, False, True, False]
    assert '"x"' in rows[1]["rescued"]
    assert outcomes[0].files[0].rescued == 3


@pytest.mark.parametrize("block_bytes", [10, 1_000])
def test_ragged_rows_of_csv_are_kept_as_text_in_their_places(
    ingest: Ingest, read_sizes: ReadSizes, block_bytes: int
) -> None:
    read_sizes(block=block_bytes)
    columns = {"n": "int64", "s": "string", "rescued": "string", "row": "int64"}
    ingest.create(columns)
    (ingest.path / "a.csv").write_bytes(RAGGED)
    ingest.queue.send([str(ingest.path / "a.csv")])
    files = {"rescued_column": "rescued", "lineage": {"offset": "row"}}
    (outcome,) = ingest.drain(files=files)
    assert fates(outcome) == [Fate.FINISHED], outcome
    rows = ingest.rows()
    assert [row["row"] for row in rows] == list(range(9))
    assert [row["n"] for row in rows] == [None, 1, None, 3, None, None, 6, 6, None]
    assert [row["rescued"] for row in rows] == [
        "0", None, "2,a,b", None, "4", "5", None, None, "8,c,d",
    ]  # fmt: skip
    assert outcome.files[0].rescued == 5


def test_values_of_parquet_that_do_not_fit_are_kept_as_text(ingest: Ingest) -> None:
    ingest.create({"n": "int32", "rescued": "string"})
    pyarrow.parquet.write_table(arrow.table({"n": [1, 1 << 40, 3]}), ingest.path / "a.parquet")
    ingest.queue.send([str(ingest.path / "a.parquet")])
    ingest.drain(files={"rescued_column": "rescued"})
    rows = ingest.rows()
    assert [row["n"] for row in rows] == [1, None, 3]
    assert json.loads(rows[1]["rescued"]) == {"n": 1 << 40}


def write_columns(path: Path, columns: dict[str, list[Any]]) -> Path:
    """Write a file of the format that its name says."""
    table = arrow.table(columns)
    if path.suffix == ".csv":
        pyarrow.csv.write_csv(table, path)
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path)
    elif path.suffix == ".arrow":
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in table.to_pylist()))
    return path


@pytest.mark.parametrize("ending", ["csv", "parquet", "arrow", "jsonl"])
def test_columns_are_found_by_name_and_missing_ones_are_null(ingest: Ingest, ending: str) -> None:
    fields = {"n": "int32", "l": "list<item: int64>", "s": "string", "required": "bool not null"}
    ingest.create(fields)
    good = write_columns(
        ingest.path / f"a.{ending}", {"s": ["x", "y"], "required": [True, False], "n": [1, 2]}
    )
    bad = write_columns(ingest.path / f"b.{ending}", {"n": [3]})
    more = write_columns(ingest.path / f"c.{ending}", {"required": [True], "x": [3]})
    ingest.queue.send([str(good), str(bad), str(more)])
    pipeline = ingest.pipeline(limits={"max_delivery_attempts": 1})
    outcome = pipeline.step()
    assert fates(outcome) == [Fate.FINISHED, Fate.DEAD, Fate.DEAD]
    assert outcome is not None
    assert "required" in str(outcome.files[1].error)
    assert "'x'" in str(outcome.files[2].error)
    assert ingest.rows() == [
        {"n": 1, "l": None, "s": "x", "required": True},
        {"n": 2, "l": None, "s": "y", "required": False},
    ]


@pytest.mark.parametrize("ending", ["csv", "parquet", "arrow", "jsonl"])
def test_new_columns_are_rescued_and_the_known_ones_are_filled(ingest: Ingest, ending: str) -> None:
    ingest.create({"n": "int64", "s": "string", "rescued": "string"})
    columns = {"n": [1, 2, 3], "x": ["a", None, "c"], "s": ["p", "q", "r"]}
    ingest.queue.send([str(write_columns(ingest.path / f"a.{ending}", columns))])
    (outcome,) = ingest.drain(files={"rescued_column": "rescued"})
    rows = ingest.rows()
    assert [(row["n"], row["s"]) for row in rows] == [(1, "p"), (2, "q"), (3, "r")]
    texts = [row["rescued"] and json.loads(row["rescued"]) for row in rows]
    assert texts[0] == {"x": "a"}
    assert texts[1] in (None, {"x": None})  # In JSON, the row has the name.
    assert texts[2] == {"x": "c"}
    assert outcome.files[0].rescued in (2, 3)


@pytest.mark.parametrize("ending", ["csv", "parquet", "arrow", "jsonl"])
def test_a_topic_evolves_by_the_new_columns_of_files(ingest: Ingest, ending: str) -> None:
    ingest.create({"n": "int64", "s": "string"})
    first = write_columns(ingest.path / f"a.{ending}", {"n": [1], "x": [0.5]})
    second = write_columns(ingest.path / f"b.{ending}", {"n": [2], "y": ["new"], "s": ["t"]})
    ingest.queue.send([str(first), str(second)])
    ingest.drain(files={"on_new_columns": "evolve"})
    assert ingest.wings.topic(ingest.topic).schema.names[:2] == ["n", "s"]
    rows = ingest.rows()
    assert sorted(rows, key=lambda row: row["n"]) == [
        {"n": 1, "s": None, "x": 0.5, "y": None},
        {"n": 2, "s": "t", "x": None, "y": "new"},
    ]


def test_a_row_with_a_line_separator_that_does_not_fit_is_one_text(ingest: Ingest) -> None:
    ingest.create({"n": "int64", "s": "string", "rescued": "string"})
    text = "a\u2028b\u0085c"
    (ingest.path / "a.csv").write_text(f"n,s\nx,{text}\n2,d\n", encoding="utf-8")
    ingest.queue.send([str(ingest.path / "a.csv")])
    ingest.drain(files={"rescued_column": "rescued"})
    rows = ingest.rows()
    assert [row["n"] for row in rows] == [None, 2]
    assert json.loads(rows[0]["rescued"]) == {"n": "x", "s": text}


def test_csv_for_a_column_that_texts_cannot_be_fails_as_a_file(ingest: Ingest) -> None:
    ingest.create({"n": "int64", "d": "duration[us]", "rescued": "string"})
    (ingest.path / "a.csv").write_text("n,d\n1,2\n")
    write_jsonl(ingest.path / "b.jsonl", range(2))
    ingest.queue.send([str(ingest.path / "a.csv"), str(ingest.path / "b.jsonl")])
    files = {"rescued_column": "rescued"}
    pipeline = ingest.pipeline(files=files, limits={"max_delivery_attempts": 1})
    assert fates(pipeline.step()) == [Fate.DEAD, Fate.FINISHED]


@pytest.mark.parametrize(
    ("columns", "key", "problem"),
    [
        ({"n": "int64"}, None, "needs a column 'rescued'"),
        ({"n": "int64", "rescued": "int64"}, None, "of type string"),
        ({"n": "int64 not null", "rescued": "string"}, None, "must not be null"),
        ({"n": "int64", "rescued": "string"}, "n", "partition key"),
        ({"n": "int64", "rescued": "string not null"}, None, "must be nullable"),
    ],
)
def test_a_topic_that_cannot_take_what_a_source_asks_for_is_refused(
    ingest: Ingest, columns: dict[str, str], key: str | None, problem: str
) -> None:
    from wings_spark.ingest.run import check

    ingest.create(columns, key)
    with pytest.raises(InvalidArgument, match=problem):
        check(ingest.source(files={"rescued_column": "rescued"}))


def test_what_is_not_there_is_told_before_anything_is_received(ingest: Ingest, aws: "Aws") -> None:
    from wings_spark.ingest.run import check

    ingest.queue.send(["/a"])
    with pytest.raises(TopicNotFound, match=ingest.topic):
        check(ingest.source())
    ingest.create({"n": "int64"})
    ingest.wings.create_topic(f"{ingest.topic}-dead", {"n": "int64"})
    with pytest.raises(WingsError, match="dead"):
        check(ingest.source(dead_letters={"topic": f"{ingest.topic}-dead"}))
    check(ingest.source(dead_letters={"topic": f"{ingest.topic}-letters"}))
    assert ingest.wings.topic(f"{ingest.topic}-letters").schema.names[:2] == ["source", "uri"]
    found = ingest.source().model_dump(mode="json", exclude_none=True)
    url = aws.create_queue(ingest.topic)
    for url_there, problem in ((url, None), (f"{url}-not", "no queue")):
        found["queue"] = {"kind": "sqs", "url": url_there, "endpoint": aws.endpoint}
        found["files"] = {"allowed_prefixes": []}
        settings = SourceSettings.parse(found, "test")
        if problem is None:
            check(settings)
            continue
        with pytest.raises(InvalidArgument, match=problem):
            check(settings)
    assert ingest.queue.pending() == 1


def test_messages_may_carry_the_data_themselves(ingest: Ingest, topic: str) -> None:
    ingest.queue.send(['{"n": 1}\n{"n": 2}', '{"n": 3}', "[]", '{"n": "bad"}'])
    settings = ingest.source(
        queue={"messages": "payloads"},
        limits={"max_delivery_attempts": 1},
        dead_letters={"topic": f"{topic}-dead"},
    )
    ingest.start(settings).drain()
    assert ingest.numbers() == [1, 2, 3]
    assert ingest.queue.remaining == 0
    (row,) = ingest.wings.scan(f"{topic}-dead").read_all().to_pylist()
    assert row["payload"] == '{"n": "bad"}'


# Directories, versions, buckets.


def test_a_directory_is_watched_and_a_file_that_is_overwritten_read_again(
    ingest: Ingest, topic: str
) -> None:
    files = ingest.path / "files"
    files.mkdir()
    write_jsonl(files / "a.jsonl", range(2))
    settings = ingest.source()
    found = settings.model_dump(mode="json", exclude_none=True)
    found["queue"] = {"kind": "directory", "path": str(files), "wait_seconds": 0}
    settings = SourceSettings.parse(found, "test")
    pipeline = ingest.start(settings)
    vars(pipeline.queue)["_scan_seconds"] = 0
    pipeline.drain()
    write_jsonl(ingest.path / "new", range(2, 5)).rename(files / "a.jsonl")
    pipeline.drain()
    assert ingest.numbers() == [0, 1, 2, 3, 4]
    assert pipeline.drain() == []
    again = ingest.start(settings)
    assert again.drain() == []


def test_a_version_that_was_overwritten_before_it_was_read_gives_nothing(
    ingest: Ingest, topic: str
) -> None:
    files = ingest.path / "files"
    files.mkdir()
    write_jsonl(files / "a.jsonl", range(2))
    found = ingest.source().model_dump(mode="json", exclude_none=True)
    found["queue"] = {"kind": "directory", "path": str(files), "wait_seconds": 0}
    pipeline = ingest.start(SourceSettings.parse(found, "test"))
    vars(pipeline.queue)["_scan_seconds"] = 0
    claim = pipeline.claim()
    assert claim is not None
    write_jsonl(ingest.path / "new", range(2, 5)).rename(files / "a.jsonl")
    pipeline.committer.commit(claim, pipeline.read(claim))
    pipeline.drain()
    assert ingest.numbers() == [2, 3, 4]


def test_notifications_of_a_bucket_are_read_and_what_is_there_already_is_backfilled(
    ingest: Ingest, topic: str, aws: "Aws"
) -> None:
    bucket = topic
    s3 = aws.client("s3")
    s3.create_bucket(Bucket=bucket)
    for index, key in enumerate(["a b+c.jsonl", "größe/日 1.jsonl", "old.jsonl"]):
        data = write_jsonl(ingest.path / "x", range(index * 2, index * 2 + 2)).read_bytes()
        s3.put_object(Bucket=bucket, Key=key, Body=data)
    url = aws.create_queue(topic)
    found = ingest.source().model_dump(mode="json", exclude_none=True)
    found["queue"] = {"kind": "sqs", "url": url, "endpoint": aws.endpoint, "wait_seconds": 0}
    found["files"] = {"endpoint": aws.endpoint, "allowed_prefixes": [f"s3://{bucket}"]}
    settings = SourceSettings.parse(found, "test")
    records = [
        {"s3": {"bucket": {"name": bucket}, "object": {"key": key}}}
        for key in ("a+b%2Bc.jsonl", "gr%C3%B6%C3%9Fe/%E6%97%A5+1.jsonl")
    ]
    sqs = aws.client("sqs")
    sqs.send_message(QueueUrl=url, MessageBody=json.dumps({"Records": records}))
    sqs.send_message(QueueUrl=url, MessageBody=json.dumps({"Event": "s3:TestEvent"}))
    pipeline = ingest.start(settings)
    pipeline.drain()
    assert ingest.numbers() == [0, 1, 2, 3]
    assert status.backfill(settings, f"s3://{bucket}/") == 3
    pipeline.drain()
    assert ingest.numbers() == [0, 1, 2, 3, 4, 5]
    assert pipeline.queue.pending() == 0
    for place, problem in ((f"s3://{bucket}-not/", "may read"), (str(ingest.path), "may read")):
        with pytest.raises(InvalidArgument, match=problem):
            status.backfill(settings, place)
    found["files"]["allowed_prefixes"] = [f"s3://{bucket}-not"]
    with pytest.raises(InvalidArgument, match=f"s3://{bucket}-not/"):
        status.backfill(SourceSettings.parse(found, "test"), f"s3://{bucket}-not/")


def in_bucket(
    source: MakeSource, aws: "Aws", name: str, **changes: Any
) -> tuple[SourceSettings, Callable[[str], None]]:
    """Make a bucket with a queue of its notifications; return the source, and how to send one."""
    aws.client("s3").create_bucket(Bucket=name)
    url = aws.create_queue(name)
    found = source(**changes).model_dump(mode="json", exclude_none=True)
    found["queue"] = {"kind": "sqs", "url": url, "endpoint": aws.endpoint, "wait_seconds": 0}
    found["files"] = {
        "endpoint": aws.endpoint,
        "allowed_prefixes": [f"s3://{name}"],
        **changes.get("files", {}),
    }

    def send(body: str) -> None:
        aws.client("sqs").send_message(QueueUrl=url, MessageBody=body)

    return SourceSettings.parse(found, "test"), send


def test_versions_of_a_bucket_are_files_of_their_own(
    ingest: Ingest, topic: str, aws: "Aws"
) -> None:
    settings, send = in_bucket(ingest.source, aws, topic, files={"dedup_key": "uri+version"})
    s3 = aws.client("s3")
    s3.put_bucket_versioning(Bucket=topic, VersioningConfiguration={"Status": "Enabled"})
    objects: list[dict[str, Any]] = []
    for index in range(3):
        data = write_jsonl(ingest.path / "x", range(index * 2, index * 2 + 2)).read_bytes()
        put = s3.put_object(Bucket=topic, Key="a.jsonl", Body=data)
        objects.append({"key": "a.jsonl", "versionId": put["VersionId"], "size": len(data)})
    # Each version is read as it was, though it has been overwritten; announced twice, it is one.
    for about in (objects[0], objects[1], objects[0]):
        record = {"s3": {"bucket": {"name": topic}, "object": about}}
        send(json.dumps({"Records": [record]}))
    pipeline = ingest.start(settings)
    pipeline.drain()
    assert ingest.numbers() == [0, 1, 2, 3]
    # What is listed is the newest version alone, by the same name as notifications have it.
    assert status.backfill(settings, f"s3://{topic}/") == 1
    send(json.dumps({"Records": [{"s3": {"bucket": {"name": topic}, "object": objects[2]}}]}))
    pipeline.drain()
    assert ingest.numbers() == [0, 1, 2, 3, 4, 5]
    shards = {shard.shard for shard in ingest.wings.list_shards(settings.name)}
    assert shards == {f"s3://{topic}/a.jsonl#{about['versionId']}" for about in objects}


def test_by_uri_alone_an_object_that_is_overwritten_is_not_read_again(
    ingest: Ingest, topic: str, aws: "Aws"
) -> None:
    settings, send = in_bucket(ingest.source, aws, topic)
    pipeline = ingest.start(settings)
    for index in range(2):
        data = write_jsonl(ingest.path / "x", range(index, index + 1)).read_bytes()
        put = aws.client("s3").put_object(Bucket=topic, Key="a.jsonl", Body=data)
        about = {"key": "a.jsonl", "eTag": put["ETag"].strip('"')}
        send(json.dumps({"Records": [{"s3": {"bucket": {"name": topic}, "object": about}}]}))
        pipeline.drain()
    assert ingest.numbers() == [0]


def test_an_object_that_was_overwritten_gives_its_new_version_alone(
    ingest: Ingest, topic: str, aws: "Aws"
) -> None:
    settings, send = in_bucket(ingest.source, aws, topic, files={"dedup_key": "uri+version"})
    for index in range(2):
        data = write_jsonl(ingest.path / "x", range(index, index + 1)).read_bytes()
        put = aws.client("s3").put_object(Bucket=topic, Key="a.jsonl", Body=data)
        about = {"key": "a.jsonl", "eTag": put["ETag"].strip('"')}
        send(json.dumps({"Records": [{"s3": {"bucket": {"name": topic}, "object": about}}]}))
    ingest.start(settings).drain()
    assert ingest.numbers() == [1]


def test_keys_of_all_kinds_are_read_or_given_up_and_harm_no_other(
    ingest: Ingest, topic: str, aws: "Aws"
) -> None:
    limits = {"max_delivery_attempts": 1}
    settings, send = in_bucket(ingest.source, aws, topic, limits=limits)
    good = [
        f"{'x' * 300}.jsonl", f"{'é' * 150}.jsonl", f"{'a/' * 100}b.jsonl", "100%20 %2F.jsonl",
        "q?x=1#y&z;=,:@$!.jsonl", "back\\slash.jsonl", "~*[]{}^|`\"'<>.jsonl", "no-ending",
        "x.jsonl.aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    ]  # fmt: skip
    bad = ["a//b.jsonl", "/lead.jsonl", "a/../b.jsonl", "./b.jsonl", "..", "tab	.jsonl"]
    s3 = aws.client("s3")
    for index, key in enumerate(good):
        s3.put_object(Bucket=topic, Key=key, Body=json.dumps({"n": index}).encode())
    for taken in ("lead.jsonl", "b.jsonl", "a/b.jsonl"):
        # What they must not be taken for.
        s3.put_object(Bucket=topic, Key=taken, Body=b'{"n": -1}')
    s3.put_object(Bucket=topic, Key="folder/", Body=b"")
    for key in [*good, *bad, "folder/"]:
        about = {"key": quote_plus(key)}
        send(json.dumps({"Records": [{"s3": {"bucket": {"name": topic}, "object": about}}]}))
    ingest.start(settings).drain()
    assert ingest.numbers() == list(range(len(good)))
    dead = {shard.shard: shard.error for shard in ingest.wings.list_shards(settings.name, "dead")}
    assert dead.keys() == {f"s3://{topic}/{key}" for key in bad}
    assert all(
        error is not None and ("cannot be read" in error or "'..'" in error)
        for error in dead.values()
    )


@pytest.mark.usefixtures("aws")  # For its credentials.
def test_a_store_that_is_out_of_reach_is_no_fault_of_its_files(
    ingest: Ingest, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wings_spark.ingest.stores.RETRY", {"max_retries": 0})
    ingest.queue.send([f"s3://{topic}/a.jsonl"])
    pipeline = ingest.pipeline(
        files={"endpoint": "http://127.0.0.1:1", "allowed_prefixes": [f"s3://{topic}"]}
    )
    claim = pipeline.claim()
    assert claim is not None
    with pytest.raises(Unavailable, match=r"a\.jsonl"):
        pipeline.read(claim)


def test_files_told_of_in_a_topic_are_read_by_a_share_group(ingest: Ingest, topic: str) -> None:
    told = f"{topic}-told"
    ingest.wings.create_topic(told, {"body": "string"})
    ingest.wings.create_share_group("files", told, {"start": "earliest"})
    paths = [write_jsonl(ingest.path / f"{i}.jsonl", range(i * 5, i * 5 + 5)) for i in range(3)]
    ingest.wings.push(told, {"body": [str(path) for path in [*paths, paths[0]]]})
    found = ingest.source().model_dump(mode="json", exclude_none=True)
    found["queue"] = {"kind": "share", "topic": told, "group": "files", "wait_seconds": 0.5}
    found["files"] = {"allowed_prefixes": [str(ingest.path)]}
    pipeline = ingest.start(SourceSettings.parse(found, "test"))
    pipeline.drain()
    assert ingest.numbers() == list(range(15))
    (state,) = ingest.wings.share_group("files", told).partitions
    assert (state.lag, state.in_flight) == (0, 0)


def tell_in_topic(
    client: Client, topic: str, path: Path, source: MakeSource, **changes: Any
) -> SourceSettings:
    """Tell of a file in a topic with a share group; return a source that has it as its queue."""
    told = f"{topic}-told"
    client.create_topic(told, {"body": "string"})
    config = {"start": "earliest", "lock_duration_ms": 4_000, "delivery_limit": 2}
    client.create_share_group("files", told, config)
    client.push(told, {"body": [str(path)]})
    found = source(**changes).model_dump(mode="json", exclude_none=True)
    found["queue"] = {"kind": "share", "topic": told, "group": "files", "wait_seconds": 0.25}
    found["files"] = {"allowed_prefixes": [str(path.parent)]}
    return SourceSettings.parse(found, "test")


def test_a_share_group_keeps_the_message_of_a_file_whose_owner_has_gone(
    ingest: Ingest, topic: str
) -> None:
    path = write_jsonl(ingest.path / "a.jsonl", range(3))
    limits = {"commit_timeout_seconds": 5}
    settings = tell_in_topic(ingest.wings, topic, path, ingest.source, limits=limits)
    ingest.wings.open_shards(settings.name, "another-pipeline", [str(path)])
    pipeline = ingest.start(settings)
    extender = VisibilityExtender(pipeline.coordinator)
    deadline = time.monotonic() + LONG
    while (claim := pipeline.claim()) is None:  # For twice the commit timeout: several locks.
        assert time.monotonic() < deadline
        (state,) = ingest.wings.share_group("files", f"{topic}-told").partitions
        assert state.lag == 1
    extender.close()
    pipeline.committer.commit(claim, pipeline.read(claim))
    assert ingest.numbers() == [0, 1, 2]
    (state,) = ingest.wings.share_group("files", f"{topic}-told").partitions
    assert (state.lag, state.in_flight) == (0, 0)


def test_a_message_of_a_share_group_is_held_while_the_owner_of_its_file_is_unknown(
    ingest: Ingest, topic: str
) -> None:
    path = write_jsonl(ingest.path / "a.jsonl", range(3))
    pipeline = ingest.start(tell_in_topic(ingest.wings, topic, path, ingest.source))
    shared = vars(pipeline.connections.shared)

    def unreachable(shards: Any, *_: object) -> Any:
        raise Unavailable(f"{shards}")

    shared["open"] = unreachable
    deadline = time.monotonic() + LONG
    while not pipeline.coordinator.count(Phase.NEW):
        assert time.monotonic() < deadline
        with suppress(Unavailable):
            assert pipeline.claim() is None
    del shared["open"]
    pipeline.connections.queue.close()  # It need not come again.
    vars(pipeline.coordinator)["_receive"] = lambda: None
    claim = pipeline.claim()
    assert claim is not None
    assert [file.uri for file in claim.files] == [str(path)]


def test_an_object_that_is_not_there_any_more_fails(ingest: Ingest, topic: str, aws: "Aws") -> None:
    aws.client("s3").create_bucket(Bucket=topic)
    ingest.queue.send([f"s3://{topic}/nothing.jsonl"])
    settings = ingest.source(
        files={"endpoint": aws.endpoint, "allowed_prefixes": [f"s3://{topic}"]},
        limits={"max_delivery_attempts": 1},
    )
    outcome = ingest.start(settings).step()
    assert fates(outcome) == [Fate.DEAD]
    (dead,) = ingest.wings.list_shards(settings.name, "dead")
    assert dead.error is not None
    assert "is not there" in dead.error


# Looking after it.


def test_a_status_has_figures(ingest: Ingest, topic: str) -> None:
    ingest.queue.send([str(write_jsonl(ingest.path / "a.jsonl", range(5)))])
    settings = ingest.source()
    ingest.start(settings).drain()
    ingest.queue.send(["/another"])
    found = status.figures(settings)
    assert found["files"] == {"open": 0, "finished": 1, "dead": 0, "rows": 5}
    assert found["pending_messages"] == 1
    assert found["last_batches"]["rows"] == 5
    assert found["last_batches"]["bytes"] > 0
    (shard,) = status.files_of_source(settings, "finished")
    assert shard.state is ShardState.FINISHED
    del topic


def test_old_files_are_forgotten_by_one_pipeline_at_a_time(ingest: Ingest, topic: str) -> None:
    ingest.queue.send(
        [str(write_jsonl(ingest.path / "a.jsonl", range(2))), str(ingest.path / "missing")]
    )
    limits = {"deduplication_seconds": 0.000001}
    pipeline, other = ingest.pipeline(limits=limits), ingest.pipeline(checkpoint="o", limits=limits)
    pipeline.step()
    assert [pipeline.coordinator.prune(), other.coordinator.prune()] == [1, 0]
    (left,) = ingest.wings.list_shards(pipeline.settings.name)
    assert left.shard == str(ingest.path / "missing")  # Open, and in use.


def test_one_process_runs_a_pipeline(source: MakeSource, start: Start, topic: str) -> None:
    first, second = start(source()), start(source())
    first.connections.journal.lock()
    with pytest.raises(Unavailable, match="runs already"):
        second.connections.journal.lock()
    first.connections.journal.unlock()
    second.connections.journal.lock()
    second.connections.journal.unlock()
    del topic


def test_a_claim_that_a_run_left_behind_is_not_done(ingest: Ingest, topic: str) -> None:
    pipeline = ingest.pipeline()
    for number in range(2):
        ingest.queue.send([str(write_jsonl(ingest.path / f"{number}.jsonl", range(2)))])
        assert pipeline.connections.journal.last_done == number
        claim = pipeline.claim()
        assert claim is not None
        assert pipeline.connections.journal.last == number + 1
        assert pipeline.connections.journal.last_done == number
        pipeline.committer.commit(claim, pipeline.read(claim))
    assert pipeline.connections.journal.last_done == 2
    del topic
