"""A replica's durable state in an SQLite file: each row with a checksum of its own.

SQLite notices damage to its trees and not damage to values in them. A tombstone that was never
written would lose messages in silence, so each row says what it must be, and a file with one that
is something else is not used: see `rebuild`.
"""

import json
import sqlite3
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from wings_core.errors import Internal, StorageCorrupt
from wings_core.metadata.sqlite.files import (
    FAULTS,
    add_row_checksum,
    integrity_problems,
    open_to_check,
    row_checksum,
)
from wings_core.metadata.sqlite.writer import FENCES, SqliteWriter, is_damage
from wings_core.partitions import Partition
from wings_core.share.model import ShareKey
from wings_core.share.replica.store import Mark, PartitionWrite, Row, StoredPartition

_TABLES = (
    FENCES,
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

_COLUMNS = {
    "partitions": "id, group_uuid, topic_uuid, partition, start_offset",
    "finished": "partition_id, first, last, count",
    "counts": "partition_id, first, last, count",
    "marks": "group_uuid, mark",
}
"""The columns that the checksum of a row is of, in the order of its parts."""

_CHECKSUMS = tuple(
    statement
    for table, columns in _COLUMNS.items()
    for statement in (
        f"ALTER TABLE {table} ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0",
        f"UPDATE {table} SET checksum = row_checksum({columns})",
    )
)

MIGRATIONS: Sequence[Sequence[str]] = (_TABLES, _CHECKSUMS)
"""Each brings the file from the version before it (its index) to the next."""


class SqliteHoldStore:
    """The store in an SQLite file of its own, synced fully at each write.

    Args:
        path: The file; made if it is missing. One process has it open.
        connection_type: The class of the connection, for tests that inject faults.

    Raises:
        StorageCorrupt: It is damaged.
        Internal: It cannot be opened, or a newer version of Wings wrote it.
        ResourceExhausted: The disk is full.
    """

    def __init__(
        self, path: Path, connection_type: type[sqlite3.Connection] = sqlite3.Connection
    ) -> None:
        self._path = path
        self._writer = SqliteWriter(path, connection_type, "holds")
        self._ids: dict[ShareKey, int] = {}
        self._is_damaged = False
        try:
            self._migrate()
        except BaseException:
            self._writer.close()
            raise

    @property
    def is_stale(self) -> bool:
        """Never: each write is known to be committed or not."""
        return False

    @property
    def is_lost(self) -> bool:
        """Whether the file was found damaged since it was opened: it is not to be used on."""
        return self._is_damaged

    def check(self) -> None:
        """Do nothing: the data directory is locked."""

    def load(self) -> list[StoredPartition]:
        """Return all partitions; called before anything is written.

        Raises:
            StorageCorrupt: A row is damaged.
        """
        with self._transaction() as connection:
            partitions = read_partitions(connection, self._damaged)
            self._ids = {stored.key: number for number, stored in partitions.items()}
        return list(partitions.values())

    def marks(self) -> dict[str, Mark]:
        """Return the marks of all groups, by UUID.

        Raises:
            StorageCorrupt: A mark is damaged.
        """
        with self._transaction() as connection:
            return read_marks(connection, self._damaged)

    def write(self, writes: Sequence[PartitionWrite], marks: dict[str, Mark | None]) -> None:
        """Make changes and marks durable in one transaction.

        Raises:
            WingsError: Nothing was changed.
        """
        new: dict[ShareKey, int] = {}
        try:
            with self._writer.transaction() as connection:
                self._write(connection, writes, marks, new)
        except Internal as error:
            self._raise_damage(error)
            raise
        if new:
            self._ids.update(new)

    def forget(self, group_uuid: str) -> None:
        """Delete all of a group durably."""
        with self._transaction() as connection:
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

    # Inside.

    def _write(
        self,
        connection: sqlite3.Connection,
        writes: Sequence[PartitionWrite],
        marks: dict[str, Mark | None],
        new: dict[ShareKey, int],
    ) -> None:
        for write in writes:
            number = self._ids.get(write.key)
            if number is None:
                number = new[write.key] = _create(connection, write)
            else:
                checksum = _partition_checksum(number, write.key, write.start_offset)
                connection.execute(
                    "UPDATE partitions SET start_offset = ?, checksum = ? "
                    "WHERE id = ? AND start_offset != ?",
                    (write.start_offset, checksum, number, write.start_offset),
                )
            if write.finished_removed or write.finished_added:
                _change(
                    connection, "finished", number, write.finished_removed, write.finished_added
                )
            if write.counts_removed or write.counts_added:
                _change(connection, "counts", number, write.counts_removed, write.counts_added)
        for group_uuid, mark in marks.items():
            if mark is None:
                connection.execute("DELETE FROM marks WHERE group_uuid = ?", (group_uuid,))
                continue
            text = json.dumps([mark.boot_id, mark.expires_at, mark.ttl_seconds])
            connection.execute(
                "INSERT OR REPLACE INTO marks VALUES (?, ?, ?)",
                (group_uuid, text, row_checksum(group_uuid, text)),
            )

    def _migrate(self) -> None:
        with self._transaction() as connection:
            version = read_version(connection)
            if version > len(MIGRATIONS):
                raise Internal(
                    f"{self._path} has format {version}; this Wings reads up to {len(MIGRATIONS)}"
                )
            for problem in integrity_problems(connection, 1):
                self._damaged(problem)
            if version == len(MIGRATIONS):
                return  # Nothing is written, so a full disk is no reason to refuse.
            add_row_checksum(connection)
            for migration in MIGRATIONS[version:]:
                for statement in migration:
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        try:
            with self._writer.transaction() as connection:
                yield connection
        except (Internal, UnicodeDecodeError) as error:
            self._raise_damage(error)
            raise

    def _raise_damage(self, error: Internal | UnicodeDecodeError) -> None:
        """Raise `StorageCorrupt` where an error is of damage."""
        cause = error.__cause__ if isinstance(error, Internal) else error
        if cause is error or is_damage(cause):
            self._is_damaged = True
            raise damaged(self._path, str(cause)) from error

    def _damaged(self, problem: str) -> None:
        self._is_damaged = True
        raise damaged(self._path, problem)


def damaged(path: Path, problem: str) -> StorageCorrupt:
    """Return the error of holds that are damaged."""
    return StorageCorrupt(
        f"share groups are closed, as {path.name} is damaged: {problem:.200}; stop the server and "
        f"run `wings holds rebuild`"
    )


def read_version(connection: sqlite3.Connection) -> int:
    """Return the version of the file; 0 where it has no tables yet."""
    with closing(connection.execute("PRAGMA user_version")) as cursor:
        return cursor.fetchone()[0]


def read_partitions(
    connection: sqlite3.Connection, damaged: Callable[[str], None]
) -> dict[int, StoredPartition]:
    """Return all partitions whose rows are sound, by their numbers.

    Args:
        connection: To a file of this version.
        damaged: Called with what is wrong with each row that is left out.
    """
    partitions: dict[int, StoredPartition] = {}
    for number, group_uuid, topic_uuid, partition, start_offset in _rows(
        connection, "partitions", damaged
    ):
        key = ShareKey(group_uuid, topic_uuid, Partition(partition))
        partitions[number] = StoredPartition(key, start_offset)
    for table in ("finished", "counts"):
        for number, *row in _rows(connection, table, damaged):
            stored = partitions.get(number)
            if stored is None:
                damaged(f"a row of {table} belongs to no partition")
                continue
            ranges = stored.finished if table == "finished" else stored.counts
            ranges.append((row[0], row[1], row[2]))
    return partitions


def read_marks(connection: sqlite3.Connection, damaged: Callable[[str], None]) -> dict[str, Mark]:
    """Return the marks of groups whose rows are sound, by UUID; see `read_partitions`."""
    rows = _rows(connection, "marks", damaged)
    return {group_uuid: Mark(*json.loads(text)) for group_uuid, text in rows}


def problems_of(path: Path) -> Iterator[str]:
    """Yield what is wrong with a file of holds, beside a process that has it open or at rest."""
    try:
        with closing(open_to_check(path)) as connection:
            # One moment of the file, for all that is looked at.
            connection.execute("BEGIN")
            (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
            if path.stat().st_size % page_bytes:
                yield "it ends within a page: it is cut off"
            yield from integrity_problems(connection)
            version = read_version(connection)
            if version == len(MIGRATIONS):
                found: list[str] = []
                read_partitions(connection, found.append)
                read_marks(connection, found.append)
                yield from found
            elif version > len(MIGRATIONS):
                yield f"it has format {version}; this Wings reads up to {len(MIGRATIONS)}"
    except FAULTS as error:
        yield str(error)


def _rows(
    connection: sqlite3.Connection, table: str, damaged: Callable[[str], None]
) -> list[tuple[Any, ...]]:
    """Return the sound rows of a table, in order.

    Where SQLite cannot read on, they are read from the other end too.
    """
    columns = _COLUMNS[table]
    keys = 1 if table in ("partitions", "marks") else 2
    rows: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for order in ("ASC", "DESC"):
        by = ", ".join(f"{column} {order}" for column in columns.split(", ")[:keys])
        try:
            with closing(
                connection.execute(f"SELECT checksum, {columns} FROM {table} ORDER BY {by}")
            ) as cursor:
                for checksum, *values in cursor:
                    row = tuple(values)
                    if row[:keys] in rows:
                        break  # What was read from the other end.
                    if checksum != row_checksum(*row):
                        damaged(f"a row of {table} is not what was written")
                        continue
                    rows[row[:keys]] = row
        except FAULTS as error:
            damaged(f"{table}: {error}")
            continue
        break
    return [rows[key] for key in sorted(rows)]


def _partition_checksum(number: int, key: ShareKey, start_offset: int) -> int:
    return row_checksum(number, key.group_uuid, key.topic_uuid, key.partition, start_offset)


def _create(connection: sqlite3.Connection, write: PartitionWrite) -> int:
    key = write.key
    cursor = connection.execute(
        "INSERT INTO partitions (group_uuid, topic_uuid, partition, start_offset) "
        "VALUES (?, ?, ?, ?)",
        (key.group_uuid, key.topic_uuid, key.partition, write.start_offset),
    )
    number = cursor.lastrowid
    assert number is not None
    checksum = _partition_checksum(number, key, write.start_offset)
    connection.execute("UPDATE partitions SET checksum = ? WHERE id = ?", (checksum, number))
    return number


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
            f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?)",
            [(number, *row, row_checksum(number, *row)) for row in added],
        )
