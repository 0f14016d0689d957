"""What a replica keeps durably, and the SQLite file that it keeps it in.

Tombstones and counts are kept as ranges. A tombstone that touches the start of its partition is
folded into `start_offset`, so a partition that is worked off in order is one row.
"""

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from wings_core.errors import Internal
from wings_core.metadata.sqlite.writer import Writer
from wings_core.partitions import Partition
from wings_core.share.model import ShareKey

Row = tuple[int, int, int]
"""`(first, last, count)`; the count of a tombstone is 0."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Until when a replica may have granted holds of a group, which a restart forgets."""

    boot_id: str
    expires_at: float
    """By the clock of that boot."""
    ttl_seconds: float
    """No hold was granted for longer than this."""


@dataclass(slots=True)
class StoredPartition:
    """All that is durable of one partition of a group."""

    key: ShareKey
    start_offset: int
    finished: list[Row] = field(default_factory=list)
    counts: list[Row] = field(default_factory=list)


@dataclass(slots=True)
class PartitionWrite:
    """What is to change in one partition: ranges by their first offset."""

    key: ShareKey
    start_offset: int
    finished_removed: list[int] = field(default_factory=list)
    finished_added: list[Row] = field(default_factory=list)
    counts_removed: list[int] = field(default_factory=list)
    counts_added: list[Row] = field(default_factory=list)


class HoldStore(Protocol):
    """Durable ranges of one replica; its calls do not overlap."""

    @property
    def is_stale(self) -> bool:
        """Whether a write failed that may have been done: then `load` tells what is there."""
        ...

    def check(self) -> None:
        """Make sure that this object alone writes what is stored; never waits.

        Raises:
            Unavailable: It is not certain at the moment, or not so any more.
        """
        ...

    def load(self) -> list[StoredPartition]:
        """Return all partitions; called before anything is written, and when `is_stale`.

        Raises:
            WingsError: They cannot be read.
        """
        ...

    def marks(self) -> dict[str, Mark]:
        """Return the marks of all groups, by UUID."""
        ...

    def write(self, writes: Sequence[PartitionWrite], marks: dict[str, Mark | None]) -> None:
        """Make changes, and marks of groups (None: no more), durable in one transaction.

        Raises:
            WingsError: Nothing was changed, and nothing of it will be there after a restart; or,
                where `is_stale` says so from now on, that is not known.
        """
        ...

    def forget(self, group_uuid: str) -> None:
        """Delete all of a group durably."""
        ...

    def close(self) -> None:
        """Close the store."""
        ...


_TABLES = (
    # The writer of `wings_core.metadata.sqlite.writer` makes its fences here.
    "CREATE TABLE IF NOT EXISTS fences (id INTEGER PRIMARY KEY, mark INTEGER NOT NULL) STRICT",
    """
    CREATE TABLE IF NOT EXISTS partitions (
        id INTEGER PRIMARY KEY,
        group_uuid TEXT NOT NULL,
        topic_uuid TEXT NOT NULL,
        partition TEXT NOT NULL,
        start_offset INTEGER NOT NULL,
        UNIQUE (group_uuid, topic_uuid, partition)
    ) STRICT
    """,
    """
    CREATE TABLE IF NOT EXISTS finished (
        partition_id INTEGER NOT NULL,
        first INTEGER NOT NULL,
        last INTEGER NOT NULL,
        count INTEGER NOT NULL,
        PRIMARY KEY (partition_id, first)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TABLE IF NOT EXISTS counts (
        partition_id INTEGER NOT NULL,
        first INTEGER NOT NULL,
        last INTEGER NOT NULL,
        count INTEGER NOT NULL,
        PRIMARY KEY (partition_id, first)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE TABLE IF NOT EXISTS marks (group_uuid TEXT PRIMARY KEY, mark TEXT NOT NULL) STRICT",
)

MIGRATIONS: Sequence[Sequence[str]] = (_TABLES,)
"""Each brings the file from the version before it (its index) to the next."""


class SqliteHoldStore:
    """The store in an SQLite file of its own, synced fully at each write.

    Args:
        path: The file; made if it is missing. One process has it open.
        connection_type: The class of the connection, for tests that inject faults.

    Raises:
        Internal: It cannot be opened, or a newer version of Wings wrote it.
    """

    def __init__(
        self, path: Path, connection_type: type[sqlite3.Connection] = sqlite3.Connection
    ) -> None:
        self._writer = Writer(path, connection_type)
        self._ids: dict[ShareKey, int] = {}
        try:
            with self._writer.transaction() as connection:
                with closing(connection.execute("PRAGMA user_version")) as cursor:
                    (version,) = cursor.fetchone()
                if version > len(MIGRATIONS):
                    raise Internal(
                        f"{path} has format {version}; this Wings reads up to {len(MIGRATIONS)}"
                    )
                for migration in MIGRATIONS[version:]:
                    for statement in migration:
                        connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        except BaseException:
            self._writer.close()
            raise

    @property
    def is_stale(self) -> bool:
        """Never: what becomes of a write is always known."""
        return False

    def check(self) -> None:
        """Do nothing: the data directory is locked."""

    def load(self) -> list[StoredPartition]:
        """Return all partitions; called before anything is written."""
        with self._writer.transaction() as connection:
            rows = connection.execute(
                "SELECT id, group_uuid, topic_uuid, partition, start_offset FROM partitions"
            ).fetchall()
            loaded: list[StoredPartition] = []
            for number, group_uuid, topic_uuid, partition, start_offset in rows:
                key = ShareKey(group_uuid, topic_uuid, Partition(partition))
                self._ids[key] = number
                finished = _ranges(connection, "finished", number)
                counts = _ranges(connection, "counts", number)
                loaded.append(StoredPartition(key, start_offset, finished, counts))
        return loaded

    def marks(self) -> dict[str, Mark]:
        """Return the marks of all groups, by UUID."""
        with self._writer.transaction() as connection:
            rows = connection.execute("SELECT group_uuid, mark FROM marks").fetchall()
        return {group_uuid: Mark(*json.loads(text)) for group_uuid, text in rows}

    def write(self, writes: Sequence[PartitionWrite], marks: dict[str, Mark | None]) -> None:
        """Make changes and marks durable in one transaction.

        Raises:
            WingsError: Nothing was changed.
        """
        new: dict[ShareKey, int] = {}
        with self._writer.transaction() as connection:
            for write in writes:
                number = self._ids.get(write.key)
                if number is None:
                    number = new[write.key] = _create(connection, write)
                else:
                    connection.execute(
                        "UPDATE partitions SET start_offset = ? WHERE id = ? AND start_offset != ?",
                        (write.start_offset, number, write.start_offset),
                    )
                _change(
                    connection, "finished", number, write.finished_removed, write.finished_added
                )
                _change(connection, "counts", number, write.counts_removed, write.counts_added)
            for group_uuid, mark in marks.items():
                if mark is None:
                    connection.execute("DELETE FROM marks WHERE group_uuid = ?", (group_uuid,))
                    continue
                text = json.dumps([mark.boot_id, mark.expires_at, mark.ttl_seconds])
                connection.execute("INSERT OR REPLACE INTO marks VALUES (?, ?)", (group_uuid, text))
        self._ids.update(new)

    def forget(self, group_uuid: str) -> None:
        """Delete all of a group durably."""
        with self._writer.transaction() as connection:
            for table in ("finished", "counts"):
                connection.execute(
                    f"DELETE FROM {table} WHERE partition_id IN "
                    "(SELECT id FROM partitions WHERE group_uuid = ?)",
                    (group_uuid,),
                )
            connection.execute("DELETE FROM partitions WHERE group_uuid = ?", (group_uuid,))
            connection.execute("DELETE FROM marks WHERE group_uuid = ?", (group_uuid,))
        for key in [key for key in self._ids if key.group_uuid == group_uuid]:
            del self._ids[key]

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


def _ranges(connection: sqlite3.Connection, table: str, number: int) -> list[Row]:
    return connection.execute(
        f"SELECT first, last, count FROM {table} WHERE partition_id = ? ORDER BY first", (number,)
    ).fetchall()


def _create(connection: sqlite3.Connection, write: PartitionWrite) -> int:
    key = write.key
    cursor = connection.execute(
        "INSERT INTO partitions (group_uuid, topic_uuid, partition, start_offset) "
        "VALUES (?, ?, ?, ?)",
        (key.group_uuid, key.topic_uuid, key.partition, write.start_offset),
    )
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def _change(
    connection: sqlite3.Connection, table: str, number: int, removed: list[int], added: list[Row]
) -> None:
    if removed:
        connection.executemany(
            f"DELETE FROM {table} WHERE partition_id = ? AND first = ?",
            [(number, first) for first in removed],
        )
    if added:
        connection.executemany(
            f"INSERT INTO {table} VALUES (?, ?, ?, ?)", [(number, *row) for row in added]
        )
