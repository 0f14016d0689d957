"""The connections to one SQLite database: one that writes and a few that read.

Thousands of threads call in. They wait for a connection in the order in which they came, and no
longer than a named bound. A reader sees what was committed when its statement began, and neither
waits for the writer nor holds it up. The writer comes with a cache of the rows that the last
commits read and wrote; the next one need not read them.
"""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from wings_core.errors import Internal
from wings_core.metadata.judge import PageDraft, PartitionDraft, ProducerDraft
from wings_core.metadata.sqlite.writer import (
    FOREIGN_LOCK_SECONDS_MAX,
    SqliteWriter,
    discard,
    translated,
)
from wings_core.metadata.store.database import FairPool
from wings_core.partitions import Partition

WRITER_WAIT_SECONDS_MAX = 30.0
"""How long a call waits for the writer before it is refused with `Unavailable`."""

READER_WAIT_SECONDS_MAX = 30.0
"""How long a call waits for a reader before it is refused with `Unavailable`."""

READERS_MAX = 4
"""Connections that read; each is opened at its first use."""

READER_CACHE_KIB = 4 * 1024
"""Pages of the database that each reader keeps in memory."""


T = TypeVar("T")


class _SqliteReader:
    """A connection that reads, or the place for one."""

    __slots__ = ("connection",)

    def __init__(self) -> None:
        self.connection: sqlite3.Connection | None = None


class SqliteConnections:
    """Lends the connections to one database.

    Args:
        path: The database; created by the first write, unless `read_only`.
        read_only: Never write. A database that no process has open is then read without any
            trace; beside a running server only SQLite's index of its log is shared.
        connection_type: The class of the connections, for tests that inject faults.
    """

    def __init__(
        self,
        path: Path,
        *,
        read_only: bool = False,
        connection_type: type[sqlite3.Connection] = sqlite3.Connection,
    ) -> None:
        self.commit_cache = CommitCache()
        """Touched only by the thread that has the writer, but for its `tail`."""
        self._read_only = read_only
        self._connection_type = connection_type
        self._reader_uri = f"{path.absolute().as_uri()}?mode=ro"
        if read_only and not path.with_name(f"{path.name}-wal").exists():
            # No process has it open: SQLite need not create the files that processes share.
            self._reader_uri += "&immutable=1"
        self._writers = FairPool(
            "the writer of metadata", [SqliteWriter(path, connection_type)], WRITER_WAIT_SECONDS_MAX
        )
        self._readers = FairPool(
            "a reader of metadata",
            [_SqliteReader() for _ in range(READERS_MAX)],
            READER_WAIT_SECONDS_MAX,
        )

    def acquire_writer(self) -> SqliteWriter:
        """Return the writer, which the caller must release; blocks while another thread has it.

        Raises:
            Unavailable: The writer did not come free in time, or closed.
            Internal: Opened for reading only.
        """
        if self._read_only:
            raise Internal("metadata was opened for reading only")
        return self._writers.acquire()

    def release_writer(self, writer: SqliteWriter) -> None:
        """Pass the writer to the caller that has waited longest."""
        self._writers.release(writer)

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run statements on a connection that reads; cursors must be closed or run to their end.

        Raises:
            Unavailable: None came free in time, or closed.
            Internal: SQLite failed.
        """
        reader = self._readers.acquire()
        try:
            if reader.connection is None:
                reader.connection = self._open_reader()
            return work(reader.connection)
        except BaseException as error:
            in_transaction = reader.connection is not None and reader.connection.in_transaction
            if in_transaction or isinstance(error, sqlite3.Error):
                # Whatever its state: the next borrower opens another.
                discard(reader.connection)
                reader.connection = None
            if isinstance(error, sqlite3.Error):
                raise translated(error) from error
            raise
        finally:
            self._readers.release(reader)

    def close(self) -> None:
        """Close all connections, waiting for those in use for the usual time."""
        for reader in self._readers.close():
            discard(reader.connection)
        for writer in self._writers.close():
            writer.close()

    def _open_reader(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._reader_uri,
            uri=True,
            timeout=FOREIGN_LOCK_SECONDS_MAX,
            isolation_level=None,
            check_same_thread=False,
            factory=self._connection_type,
        )
        connection.execute(f"PRAGMA cache_size=-{READER_CACHE_KIB}")
        return connection


PARTITIONS_CACHED_MAX = 65_536
"""Partitions remembered; beyond it the cache starts anew."""

FOLIOS_CACHED_MAX = 64

PRODUCERS_CACHED_MAX = 65_536
"""Producers remembered; beyond it the cache starts anew."""

TAIL_PAGES_MAX = 64
"""Most pages kept as the log's tail; a larger commit leaves none."""


class CommitCache:
    """Ids of topics and folios, and where partitions and producers stand, as of the last commit.

    Right because one process at a time writes to a database, and every transaction of it that is
    not a commit makes the cache forget. Touched only while its thread holds the writer, but for
    `tail`.
    """

    def __init__(self) -> None:
        self.topic_ids: dict[str, int] = {}
        self.folio_ids: dict[str, int] = {}
        self.producers: dict[tuple[int, str], int] = {}
        """The sequence that each uses next, by topic id and producer id."""
        self.tail: tuple[Mapping[str, int], Sequence[PageDraft]] = ({}, ())
        """Pages that the last commit appended, and its topics' ids by UUID. Replaced and never
        changed, so any thread may look: it sees the log as it was after that commit."""
        self.sink: Callable[[Sequence[tuple[str, Sequence[Any]]]], None] | None = None
        """Is given what was noted of a transaction once that is durable; see `notes`."""
        self._noted: list[tuple[str, Sequence[Any]]] = []
        self._partitions: dict[tuple[int, Partition], PartitionDraft] = {}
        self._learnt: (
            tuple[
                Mapping[str, int],
                Mapping[str, int],
                Mapping[tuple[int, Partition], PartitionDraft],
                Mapping[tuple[int, str], ProducerDraft],
                Sequence[PageDraft],
            ]
            | None
        ) = None

    def has_partition(self, topic_id: int, partition: Partition) -> bool:
        """Tell whether it is known where a partition stands."""
        return (topic_id, partition) in self._partitions

    def partition(self, topic_id: int, partition: Partition) -> PartitionDraft | None:
        """Return a draft of a partition as it stands, which the caller may change."""
        known = self._partitions.get((topic_id, partition))
        return None if known is None else known.copy()

    def note(self, table: str, rows: Sequence[Any]) -> None:
        """Note rows that a transaction wrote, which must not change."""
        if self.sink is not None and rows:
            self._noted.append((table, rows))

    def learn(
        self,
        topic_ids: Mapping[str, int],
        folio_ids: Mapping[str, int],
        partitions: Mapping[tuple[int, Partition], PartitionDraft],
        producers: Mapping[tuple[int, str], ProducerDraft],
        pages: Sequence[PageDraft],
    ) -> None:
        """Say what a transaction read and wrote, to be kept by `confirm`."""
        self._learnt = (topic_ids, folio_ids, partitions, producers, pages)

    def confirm(self) -> None:
        """Keep what was learnt; call it once the transaction is durable."""
        if self._noted and self.sink is not None:
            self.sink(self._noted)
            self._noted = []
        if self._learnt is None:
            return
        topic_ids, folio_ids, partitions, producers, pages = self._learnt
        self._learnt = None
        self.tail = (topic_ids, pages if len(pages) <= TAIL_PAGES_MAX else ())
        self.topic_ids.update(topic_ids)
        self.folio_ids.update(folio_ids)
        self._partitions.update(partitions)
        for key, producer in producers.items():
            self.producers[key] = producer.next_sequence
        if (
            len(self._partitions) > PARTITIONS_CACHED_MAX
            or len(self.folio_ids) > FOLIOS_CACHED_MAX
            or len(self.producers) > PRODUCERS_CACHED_MAX
        ):
            self.forget()

    def hide_tail(self) -> None:
        """Have who looks for the log's tail ask the database; call it before each COMMIT.

        Between that and `confirm` the database shows more: who saw it there must not find less.
        """
        self.tail = ({}, ())

    def forget(self) -> None:
        """Start anew: after a transaction that failed, and before one that is not a commit."""
        self._noted = []
        self._learnt = None
        self.tail = ({}, ())
        self.topic_ids.clear()
        self.folio_ids.clear()
        self.producers.clear()
        self._partitions.clear()
