"""Metadata under test: every implementation, with a clock that a test sets."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from fix_postgres import PostgresServer, empty_schema

from wings_core.metadata.interfaces import (
    Admin,
    Groups,
    Metadata,
    OffsetRegistry,
    Shards,
    Stages,
)
from wings_core.metadata.postgres import PostgresMetadata
from wings_core.metadata.remote import RemoteMetadata
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.model import (
    Accepted,
    CommitBatch,
    CommitResult,
    CommittedRange,
    ExpectedOffset,
    PageAddress,
    Rejected,
    Sequence,
    Staged,
    StageEntry,
    StoredPage,
    Topic,
)
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.partitions import UNPARTITIONED, Partition

SECOND = 1_000_000
HOUR = 3600 * SECOND
DAY = 24 * HOUR
NOON = 1_800_000_000 * SECOND
"""When the clock of a test starts, in microseconds since the epoch."""

SCHEMA = pa.schema([pa.field("key", pa.string()), pa.field("n", pa.int64())])
A, B, C = Partition('"a"'), Partition('"b"'), Partition('"c"')


@dataclass(slots=True)
class Clock:
    """Stands until a test moves it."""

    time: int = NOON

    def __call__(self) -> int:
        return self.time


@dataclass(slots=True)
class MetadataUnderTest:
    """One implementation, opened on a store of its own."""

    open: Callable[[Clock], Metadata]
    """Opens the same store each time."""
    clock: Clock = field(default_factory=Clock)
    opened: Metadata = field(init=False)
    topics_created: int = 0
    is_slow: bool = False
    """Whether a call takes milliseconds; what is judged is the same in all."""
    across_a_network: bool = False
    """Whether a watch hears of commits a while after they return, several at once."""

    def __post_init__(self) -> None:
        self.opened = self.open(self.clock)

    @property
    def admin(self) -> Admin:
        return self.opened.admin

    @property
    def registry(self) -> OffsetRegistry:
        return self.opened.registry

    @property
    def stages(self) -> Stages:
        return self.opened.stages

    @property
    def groups(self) -> Groups:
        return self.opened.groups

    @property
    def shards(self) -> Shards:
        return self.opened.shards

    def reopen(self) -> None:
        """Close the store and open it again, as a restart does."""
        self.opened.close()
        self.opened = self.open(self.clock)

    def create_topic(self, partition_key: str | None = None) -> Topic:
        """Create a topic of a name of its own."""
        self.topics_created += 1
        name = DEFAULT_NAMESPACE.topic(f"topic-{self.topics_created}")
        return self.admin.create_topic(name, SCHEMA, partition_key)

    def stage(
        self,
        topic: Topic,
        stage: str,
        *batches: dict[Partition, int],
        timestamp: int | None = None,
        folio: str = "folio-1",
    ) -> None:
        """Stage batches of so many rows for each partition, as one stream does."""
        entry = StageEntry(stage, uuid4().hex, first=True)
        for rows in batches or ({UNPARTITIONED: 1},):
            batch = batch_of(topic, rows, timestamp=timestamp, folio=folio, stage=entry)
            (result,) = self.registry.commit([batch])
            if isinstance(result, Rejected):
                raise result.error
            assert result == Staged(stage, sum(rows.values()), 100 * len(rows))
            entry = StageEntry(stage, entry.writing, first=False)

    def push(
        self,
        topic: Topic,
        rows: int = 1,
        partition: Partition = UNPARTITIONED,
        *,
        timestamp: int | None = None,
    ) -> CommittedRange:
        """Commit a batch of one page."""
        batch = batch_of(topic, {partition: rows}, timestamp=timestamp)
        (committed,) = accepted(self.registry.commit([batch])[0])
        return committed


def batch_of(
    topic: Topic,
    rows: dict[Partition, int],
    *,
    stream: int = 0,
    sequence: tuple[str, int] | None = None,
    expected: tuple[Partition, int] | None = None,
    timestamp: int | None = None,
    folio: str = "folio-1",
    stage: StageEntry | None = None,
) -> CommitBatch:
    """Return a batch with a page of so many rows for each partition."""
    return CommitBatch(
        stream=stream,
        topic_uuid=topic.uuid,
        pages=tuple(
            StoredPage(partition, count, PageAddress(folio, position=index * 100, length=100))
            for index, (partition, count) in enumerate(rows.items())
        ),
        sequence=None if sequence is None else Sequence(*sequence),
        expected=None if expected is None else ExpectedOffset(*expected),
        timestamp=timestamp,
        stage=stage,
    )


def accepted(result: CommitResult) -> tuple[CommittedRange, ...]:
    """Return what an accepted batch got; raise the error of a rejected one."""
    if isinstance(result, Rejected):
        raise result.error
    assert isinstance(result, Accepted)
    return result.committed


def offsets_of(
    registry: OffsetRegistry, topic: Topic, partition: Partition = UNPARTITIONED, offset: int = 0
) -> list[tuple[int, int]]:
    """Return start and inclusive end of each page from an offset to the end of the log."""
    pages: list[tuple[int, int]] = []
    while located := registry.locate(topic.uuid, partition, offset, 1_000).locations:
        pages += [(location.start_offset, location.end_offset) for location in located]
        offset = pages[-1][1] + 1
    return pages


@contextmanager
def open_sqlite(directory: Path) -> Generator[MetadataUnderTest]:
    def open_metadata(clock: Clock) -> Metadata:
        return SqliteMetadata(directory / "metadata.db", clock=clock)

    metadata = MetadataUnderTest(open_metadata)
    try:
        yield metadata
    finally:
        metadata.opened.close()


class RemoteOverSqlite(RemoteMetadata):
    """A client of a metadata service in this process, which are opened and closed together."""

    def __init__(self, path: Path, clock: Callable[[], int]) -> None:
        from wings_server.metadata.service import MetadataService
        from wings_server.settings import Address

        self.served = SqliteMetadata(path, clock=clock)
        self.service = MetadataService(self.served, self.served.store_id, Address("127.0.0.1", 0))
        self.service.start()
        self.stopped = False
        super().__init__(str(self.service.address))

    def close(self) -> None:
        super().close()
        if not self.stopped:
            self.stopped = True
            self.service.stop(drain_seconds=0)
            self.served.close()


@contextmanager
def open_remote(directory: Path) -> Generator[MetadataUnderTest]:
    metadata = MetadataUnderTest(lambda clock: RemoteOverSqlite(directory / "metadata.db", clock))
    metadata.is_slow = metadata.across_a_network = True
    try:
        yield metadata
    finally:
        metadata.opened.close()


@contextmanager
def open_postgres(server: PostgresServer) -> Generator[MetadataUnderTest]:
    with empty_schema(server, NOON) as schema:

        def open_metadata(clock: Clock) -> Metadata:
            return PostgresMetadata(server.url, schema=schema, clock=clock)

        metadata = MetadataUnderTest(open_metadata)
        metadata.is_slow = True
        try:
            yield metadata
        finally:
            metadata.opened.close()


@pytest.fixture(params=["sqlite", "remote", "postgres"])
def metadata(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[MetadataUnderTest]:
    """Each implementation that the behaviour suite runs over, on a store of the test's own."""
    if request.param == "sqlite":
        opened = open_sqlite(tmp_path)
    elif request.param == "remote":
        opened = open_remote(tmp_path)
    else:
        opened = open_postgres(request.getfixturevalue("postgres"))
    with opened as under_test:
        yield under_test
