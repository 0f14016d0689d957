"""Share groups: messages acquired and accepted durably, embedded and with three replicas.

By the coordinator, called as the server calls it; `share_streams` measures all of it.
"""

import itertools
import sqlite3
import tempfile
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pyarrow as pa

from benchmarks.harness import Row, at_least, compare, median_seconds
from wings_core.fetch.fetcher import Cancel
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.model import (
    CommitBatch,
    LeasedRange,
    PageAddress,
    ShareConfig,
    ShareGroup,
    StoredPage,
    Topic,
)
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.partitions import UNPARTITIONED
from wings_core.share.coordinator.coordinator import Coordinator, Replicas, ShareSource
from wings_core.share.model import Acknowledgement, AcquireRequest
from wings_core.share.remote.link import RemoteLink
from wings_core.share.replica.replica import Replica
from wings_core.share.replica.sqlite_store import SqliteHoldStore
from wings_core.times import Deadline
from wings_server.testing import hold_process

BATCH = 500
SECONDS = 1.5
RUNS = 3
BACKLOG = 10_000_000
IN_FLIGHT = 100_000
SINGLES = 200
"""Calls of a run; those of all runs are fewer than the shortest backlog."""
RATE_MIN = 30_000


def run() -> Iterator[Row]:
    """Measure rates, and the cost of one acquire against backlog and ranges in flight."""
    with _bench(replicas=0) as bench:
        yield _rate("embedded, batches of 500, one worker", bench, BATCH, 1, RATE_MIN)
        yield _rate("embedded, batches of 500, four workers", bench, BATCH, 4, RATE_MIN)
        yield _rate("embedded, one by one, one worker", bench, 1, 1, 100)
        yield _rate("embedded, one by one, four workers", bench, 1, 4, 100)
        yield compare(
            "acquire and accept one, embedded: against a synced SQLite commit",
            "ms",
            10.0,
            lambda: bench.single_ms(bench.group(BACKLOG)),
            bench.commit_ms,
            runs=RUNS,
            more_is_better=False,
        )
        short, long = bench.group(1_000), bench.group(BACKLOG)
        yield compare(
            "acquire and accept one: 10,000,000 messages of backlog against 1,000",
            "ms",
            1.2,
            lambda: bench.single_ms(long),
            lambda: bench.single_ms(short),
            runs=RUNS,
            more_is_better=False,
        )
        full, empty = bench.group(BACKLOG), bench.group(BACKLOG)
        for _ in range(IN_FLIGHT):
            bench.acquire(full, 1)
        yield compare(
            "acquire and accept one: 100,000 ranges in flight against none",
            "ms",
            1.5,
            lambda: bench.single_ms(full),
            lambda: bench.single_ms(empty),
            runs=RUNS,
            more_is_better=False,
        )
    with _bench(replicas=3) as bench:
        yield _rate("three replicas, batches of 500, one worker", bench, BATCH, 1, 10_000)
        yield _rate("three replicas, batches of 500, four workers", bench, BATCH, 4, 10_000)
        yield _rate("three replicas, one by one, one worker", bench, 1, 1, 50)
        yield _rate("three replicas, one by one, four workers", bench, 1, 4, 50)


class _Bench:
    """A coordinator over a log of metadata alone."""

    def __init__(self, metadata: SqliteMetadata, coordinator: Coordinator, directory: Path) -> None:
        self._metadata = metadata
        self._coordinator = coordinator
        self._numbers = itertools.count()
        self._probe = sqlite3.connect(directory / "probe.sqlite", isolation_level=None)
        self._probe.execute("PRAGMA journal_mode=WAL")
        self._probe.execute("PRAGMA synchronous=FULL")
        self._probe.execute("CREATE TABLE t (n INTEGER)")

    def group(self, messages: int) -> ShareGroup:
        """Return a new group at the beginning of a new topic of so many messages."""
        number = next(self._numbers)
        name = DEFAULT_NAMESPACE.topic(f"t{number}")
        topic: Topic = self._metadata.admin.create_topic(
            name, pa.schema([pa.field("n", pa.int64())]), None
        )
        page = StoredPage(UNPARTITIONED, messages, PageAddress("folio", 0, 100))
        self._metadata.registry.commit([CommitBatch(0, topic.uuid, (page,))])
        config = ShareConfig(
            start="earliest", in_flight_max=1_000_000, lock_duration_ms=12 * 3_600_000
        )
        group = ShareGroup(f"g{number}", f"group-{number}", topic, config)
        self._coordinator.positions.create(group)
        return group

    def acquire(self, group: ShareGroup, messages: int) -> list[LeasedRange]:
        deadline = Deadline.after(10)
        return self._coordinator.acquire(
            AcquireRequest(group, "m", UNPARTITIONED, messages, messages), deadline, Cancel()
        )

    def work(self, group: ShareGroup, messages: int) -> int:
        """Acquire and accept once; return how many messages."""
        ranges = self.acquire(group, messages)
        entries = [Acknowledgement.of(leased, "accept") for leased in ranges]
        results = self._coordinator.acknowledge(group, "m", entries)
        assert not any(results), results
        return sum(leased.messages for leased in ranges)

    def single_ms(self, group: ShareGroup) -> float:
        return median_seconds(lambda: self.work(group, 1), SINGLES) * 1e3

    def commit_ms(self) -> float:
        return (
            median_seconds(lambda: self._probe.execute("INSERT INTO t VALUES (1)"), SINGLES) * 1e3
        )

    def rate(self, messages: int, workers: int) -> float:
        """Return messages a second, by so many workers of one group."""
        group, done = self.group(BACKLOG), [0] * workers
        ends = time.perf_counter() + SECONDS

        def work(number: int) -> None:
            while time.perf_counter() < ends:
                done[number] += self.work(group, messages)

        started = time.perf_counter()
        threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(done) / (time.perf_counter() - started)

    def close(self) -> None:
        self._probe.close()
        self._coordinator.close()


@contextmanager
def _bench(replicas: int) -> Generator[_Bench]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        metadata = stack.enter_context(SqliteMetadata(directory / "metadata.sqlite"))
        if replicas:
            processes = [
                stack.enter_context(hold_process(directory / f"holds-{number}"))
                for number in range(replicas)
            ]
            targets = [process.address for process in processes]
            links = [RemoteLink(target) for target in targets]
            opened = Replicas(links)
        else:
            store = SqliteHoldStore(directory / "holds.sqlite")
            replica = stack.enter_context(closing(Replica(lambda: store)))
            opened = Replicas(own=replica)
        source = ShareSource(metadata.registry, lambda _, positions: dict(positions))
        coordinator = Coordinator(opened, source)
        yield stack.enter_context(closing(_Bench(metadata, coordinator, directory)))


def _rate(name: str, bench: _Bench, messages: int, workers: int, bound: float) -> Row:
    values = [bench.rate(messages, workers) for _ in range(RUNS)]
    return at_least(f"messages acquired and accepted: {name}", "messages/s", bound, values)
