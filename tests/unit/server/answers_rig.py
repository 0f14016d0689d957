"""A stream of small batches over a real log, without Flight."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.flight as flight

from wings_core.ingest.group_commit import FlushReport, GroupCommit
from wings_core.ingest.pending import PushStream
from wings_core.ingest.prepare import Preparer, PushOptions
from wings_core.limits import Limits
from wings_core.memory import MemoryBudget
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.names import TopicName
from wings_core.partitions import UNPARTITIONED
from wings_core.storage.segments import SegmentStore
from wings_server.flight.put_turns import Answers
from wings_server.metrics import Metrics

SCHEMA = pa.schema([("n", pa.int64())])


def _at_once() -> None:
    pass


class Writer:
    """A client that reads its answers.

    Attributes:
        before: Called before each answer is written, on the thread that writes it.
    """

    def __init__(self) -> None:
        self.before: Callable[[], object] = _at_once
        self.count = 0
        self.written = threading.Semaphore(0)

    def write(self, answer: pa.Buffer) -> None:
        del answer
        self.before()
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
        self.other = ThreadPoolExecutor(1)

    def add(self, batches: int = 1) -> None:
        """Submit batches as the reader does, but have them answered only once all are there."""
        rows = pa.RecordBatch.from_arrays([pa.array([1], pa.int64())], schema=SCHEMA)
        options = PushOptions(UNPARTITIONED)
        pending = [
            self.group.submit(self.stream, self.preparer.prepare(rows, options), awaited=True)
            for _ in range(batches)
        ]
        for each in pending:
            self.answers.add(each)

    def submit(self, batches: int) -> None:
        """Add batches, and have another thread answer them where none does."""
        self.add(batches)
        if self.answers.take_turn():
            self.other.submit(self.answers.write_due)

    def await_answers(self, count: int) -> None:
        for _ in range(count):
            assert self.writer.written.acquire(timeout=20)

    def close(self) -> None:
        self.answers.finish()
        self.other.shutdown()
        self.group.close()
        self.store.close()
        self.metadata.close()
