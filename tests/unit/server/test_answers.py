"""The thread that answers a stream: it gathers what its answers bring for one flush."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from wings_core.errors import Internal
from wings_core.ingest.group_commit import FlushReport, GroupCommit, PushStream
from wings_core.ingest.prepare import Preparer, PushOptions
from wings_core.limits import Limits
from wings_core.memory import MemoryBudget
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.names import TopicName
from wings_core.partitions import UNPARTITIONED
from wings_core.storage.segments import SegmentStore
from wings_server.flight.do_put import Answers
from wings_server.metrics import Metrics

SCHEMA = pa.schema([("n", pa.int64())])


class Writer:
    """A client that reads its answers."""

    def __init__(self) -> None:
        self.count = 0
        self.written = threading.Semaphore(0)

    def write(self, answer: pa.Buffer) -> None:
        del answer
        self.count += 1
        self.written.release()


class Rig:
    """A stream of small batches over a real log, and the thread that answers them."""

    def __init__(self, path: Path) -> None:
        self.metadata = SqliteMetadata(path / "metadata.sqlite")
        self.store = SegmentStore(path / "segments", segment_bytes_max=1 << 20)
        self.reports: list[FlushReport] = []
        limits = Limits()
        self.group = GroupCommit(self.store, self.metadata.registry, limits, self.reports.append)
        topic = self.metadata.admin.create_topic(TopicName.parse("t"), SCHEMA)
        self.preparer = Preparer(topic, limits)
        self.stream = PushStream(returns=True)
        self.writer = Writer()
        room = MemoryBudget(0, limits.batch_bytes_max).room()
        writer = cast("flight.FlightMetadataWriter", cast("Any", self.writer))
        self.answers = Answers(writer, self.stream, Metrics(), room)

    def submit(self, batches: int) -> None:
        """Submit batches as the reader does, but have them answered only once all are there."""
        rows = pa.RecordBatch.from_arrays([pa.array([1], pa.int64())], schema=SCHEMA)
        options = PushOptions(UNPARTITIONED)
        pending = [
            self.group.submit(self.stream, self.preparer.prepare(rows, options), awaited=True)
            for _ in range(batches)
        ]
        for each in pending:
            self.answers.add(each)

    def await_answers(self, count: int) -> None:
        for _ in range(count):
            assert self.writer.written.acquire(timeout=20)

    def close(self) -> None:
        self.answers.finish()
        self.group.close()
        self.store.close()
        self.metadata.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


def patient(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Have the thread wait without an end for what it gathers; returns what tells that it waits."""
    waits = threading.Semaphore(0)

    def seconds() -> float:
        waits.release()
        return 3600.0

    monkeypatch.setattr(rig.answers, "_gather_seconds", seconds)
    return waits


def test_what_many_answers_bring_is_gathered_for_one_flush(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = patient(rig, monkeypatch)
    rig.submit(8)
    rig.await_answers(8)
    assert waits.acquire(timeout=20)
    for _ in range(6):  # Three quarters of what was answered.
        rig.submit(1)
    rig.await_answers(6)
    assert [report.batches for report in rig.reports] == [8, 6]


def test_what_is_gathered_is_committed_where_the_stream_ends(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = patient(rig, monkeypatch)
    rig.submit(8)
    rig.await_answers(8)
    assert waits.acquire(timeout=20)
    rig.submit(2)
    rig.answers.finish()
    assert rig.writer.count == 10
    assert [report.batches for report in rig.reports] == [8, 2]


def test_a_batch_that_stays_alone_is_not_waited_with(rig: Rig) -> None:
    for count in range(1, 4):
        rig.submit(1)
        rig.await_answers(1)
        assert [report.batches for report in rig.reports] == [1] * count


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_fails_is_not_waited_for(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(answer: pa.Buffer) -> None:
        raise TypeError(f"a fault of ours at {answer}")

    monkeypatch.setattr("wings_server.flight.do_put.ANSWERS_WAITING_MAX", 2)
    monkeypatch.setattr(rig.writer, "write", fail)
    raised: Future[str] = Future()

    def submit() -> None:
        try:
            for _ in range(4):
                rig.submit(1)
        except Internal as error:
            raised.set_result(error.message)

    threading.Thread(target=submit, daemon=True).start()
    assert "ended by a fault" in raised.result(20)
