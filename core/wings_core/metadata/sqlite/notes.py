"""Notes of where pages lie, beside the metadata: what a rebuild without it needs.

A file of records, appended on a thread of its own after the transactions that they are of, and
never synced: a note that is lost costs nothing but the chance of a repair. A record is some
rows of some tables: a header with a checksum, and the rows, in Python's `marshal` format,
compressed.
Rows that are gone are not taken out; the file is written anew from the metadata when it has
become much larger than what was live, and at a start after one that did not end well.
"""

import contextlib
import logging
import marshal
import os
import sqlite3
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from wings_core.errors import WingsError
from wings_core.metadata.sqlite.connections import SqliteConnections
from wings_core.model import PageFormat

GATHER_SECONDS = 0.05
"""How long rows are gathered for a record: a flush each millisecond is one write each 50."""

QUEUED_ROWS_MAX = 1_000_000
"""Rows that wait to be written; beyond it they are dropped, and all is written anew."""

REWRITE_BYTES_MIN = 64 * 1024 * 1024
"""The file may grow by this, and by its size when it was last written anew."""

CHUNK_ROWS = 4_096
"""Rows of a record, where the file is written anew."""

PAUSE_SECONDS = 0.01
"""Between two of those: it is not to take a core from the log."""

CLOSING_SECONDS_MAX = 1.0
"""How long that may keep a log from closing; what is not done then is done at the next start."""

RETRY_SECONDS = 60.0
"""After a write that failed, as on a full disk."""

_MAGIC = b"WgNt"
_HEADER = struct.Struct("<4sIIQ")
"""Magic, bytes of the rows, bytes as compressed, checksum of those."""

_CLOSED = _HEADER.pack(_MAGIC, 0, 0, 0)
"""Ends the file of a log that was closed."""

_MARSHAL = 2
"""The version of the format: the same in all versions of Python."""

_CODEC = "lz4"

Note = tuple[str, Sequence[Sequence[Any]]]
"""A table, and rows: of `COLUMNS`, in their order."""

PUSHED, MOVED = "pages", "moved pages"

COLUMNS: dict[str, tuple[str, ...]] = {
    PUSHED: (
        *("partition_id", "end_offset", "start_offset", "timestamp", "folio_id", "position"),
        *("length", "first_row", "slice_bytes", "format", "schema_version"),
    ),
    MOVED: (
        *("partition_id", "end_offset", "start_offset", "timestamp", "folio_id", "position"),
        *("length", "first_timestamp", "format", "first_row", "slice_bytes", "schema_version"),
    ),
    "partitions": ("id", "topic_id", "value"),
    "folios": ("id", "name"),
    "namespaces": ("id", "tenant", "name", "created_at", "uuid"),
    "topics": (
        *("id", "uuid", "namespace_id", "name", "schema", "partition_key", "config", "created_at"),
        *("deleted_at", "purged_at", "earlier_schemas"),
    ),
}

_WATCHED = {"folios": "new.name NOT LIKE '%.inline'", "namespaces": "1", "topics": "1"}
"""Tables of few changes, whose rows SQLite itself tells of: whatever changes them."""

_PAGES = f"""
SELECT {", ".join(COLUMNS[MOVED])}, topic_id, value, name
FROM pages CROSS JOIN partitions ON partitions.id = partition_id
CROSS JOIN folios ON folios.id = folio_id
WHERE (partition_id, end_offset) > (?, ?)
ORDER BY partition_id, end_offset LIMIT ?
"""
"""In the order of its key, so that it need not be sorted."""

_logger = logging.getLogger(__name__)


class Notes:
    """Writes the notes of one database; `add` only queues.

    Args:
        path: The file.
        connections: To the database, which is up to date.
    """

    def __init__(self, path: Path, connections: SqliteConnections) -> None:
        self._path = path
        self._connections = connections
        self._queue: deque[Sequence[Note]] = deque()
        self._queued_rows = 0
        """At most: what was taken since it was counted is not told."""
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._missed = not _was_closed(path)
        """Whether all must be written anew."""
        self._bytes = path.stat().st_size if path.exists() else 0
        self._bytes_max = self._bytes + REWRITE_BYTES_MIN
        cache = connections.commit_cache
        writer = connections.acquire_writer()
        try:
            cache.sink = self.add
            writer.prepare(lambda connection: _watch(connection, cache.note))
        finally:
            connections.release_writer(writer)
        self._thread = threading.Thread(target=self._run, name="wings-notes", daemon=True)
        self._thread.start()

    def add(self, notes: Sequence[Note]) -> None:
        """Queue the rows that a transaction wrote; it is durable."""
        if self._queued_rows > QUEUED_ROWS_MAX:
            self._missed = True
            return
        self._queued_rows += sum(len(rows) for _, rows in notes)
        self._queue.append(notes)
        if not self._wake.is_set():
            self._wake.set()

    def close(self) -> None:
        """Write what is queued, and stop; the connections must still be open."""
        self._closing.set()
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._step()
                # Looked at after the step, which took back what `close` may have woken it by.
                if not (self._missed or self._closing.is_set()):
                    self._wake.wait()
                self._closing.wait(GATHER_SECONDS)
            self._step()
            if not self._missed:
                self._append([_CLOSED])
        except Exception:  # The log does not depend on it.
            _logger.exception("notes of pages are not written any more")

    def _step(self) -> None:
        self._wake.clear()
        try:
            if self._missed or self._bytes > self._bytes_max:
                self._rewrite()
            # In their order: ids of files and partitions are used again, and a page's are those
            # that were noted last before it.
            gathered: list[tuple[str, list[Sequence[Any]]]] = []
            self._queued_rows = 0
            while self._queue:
                for table, rows in self._queue.popleft():
                    if not gathered or gathered[-1][0] != table:
                        gathered.append((table, []))
                    gathered[-1][1].extend(rows)
            if gathered:
                self._append([record_of(gathered)])
        except (OSError, WingsError) as error:
            _logger.warning("notes of pages are incomplete: %s", error)
            self._missed = True
            self._closing.wait(RETRY_SECONDS)

    def _append(self, parts: Sequence[bytes]) -> None:
        data = b"".join(parts)
        descriptor = os.open(
            self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        try:
            if os.write(descriptor, data) != len(data):
                raise OSError(f"{self._path.name} was written in part")
        finally:
            os.close(descriptor)
        self._bytes += len(data)

    def _rewrite(self) -> None:
        """Write the file anew from the metadata; what is queued meanwhile is appended after it."""
        new = self._path.with_name(f"{self._path.name}.new")
        self._missed = False  # Set again where rows are dropped meanwhile.
        until: float | None = None
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            for notes in self._live():
                file.write(record_of(notes))
                if self._closing.wait(PAUSE_SECONDS):
                    until = until or time.monotonic() + CLOSING_SECONDS_MAX
                    if time.monotonic() > until:
                        self._missed = True
                        break
            size = file.tell()
        if self._missed:
            new.unlink()
            return
        new.replace(self._path)
        self._bytes = size
        self._bytes_max = 2 * size + REWRITE_BYTES_MIN

    def _live(self) -> Iterator[list[Note]]:
        """Yield all rows that there are, some at a time."""
        for table in ("namespaces", "topics"):
            last = -1
            while rows := self._read(
                f"SELECT {', '.join(COLUMNS[table])} FROM {table} WHERE id > ? ORDER BY id LIMIT ?",
                (last, CHUNK_ROWS),
            ):
                yield [(table, rows)]
                last = rows[-1][0]
        at: tuple[int, int] = (-1, -1)
        while rows := self._read(_PAGES, (*at, CHUNK_ROWS)):
            at = rows[-1][:2]
            partitions = {row[0]: (row[0], *row[-3:-1]) for row in rows}
            folios = {row[4]: (row[4], row[-1]) for row in rows}
            pages = [row[:-3] for row in rows if row[8] != PageFormat.INLINE]
            yield [
                ("partitions", list(partitions.values())),
                ("folios", list(folios.values())),
                (MOVED, pages),
            ]

    def _read(self, query: str, params: Sequence[Any]) -> list[Any]:
        return self._connections.read(lambda raw: raw.execute(query, params).fetchall())


def read_notes(path: Path) -> Iterator[Note]:
    """Yield the notes of a file, in the order in which they were written.

    What is damaged is left out; a file that is not there has none.

    Raises:
        OSError: It cannot be read.
    """
    data = path.read_bytes() if path.exists() else b""
    at = data.find(_MAGIC)
    while at >= 0 and at + _HEADER.size <= len(data):
        _, _, length, checksum = _HEADER.unpack_from(data, at)
        rows = data[at + _HEADER.size : at + _HEADER.size + length]
        if length and len(rows) == length and xxhash.xxh3_64_intdigest(rows) == checksum:
            # As a stream: how long they are is not in the checksum.
            with pa.CompressedInputStream(pa.BufferReader(rows), _CODEC) as stream:
                yield from marshal.loads(stream.read())
            at += _HEADER.size + length
        else:
            at += 1
        at = data.find(_MAGIC, at)


def record_of(notes: Sequence[Note]) -> bytes:
    """Return the bytes by which a file keeps notes that were written together."""
    data = marshal.dumps([(table, list(map(tuple, rows))) for table, rows in notes], _MARSHAL)
    stored: bytes = pa.compress(data, _CODEC, asbytes=True)
    checksum = xxhash.xxh3_64_intdigest(stored)
    return _HEADER.pack(_MAGIC, len(data), len(stored), checksum) + stored


def _was_closed(path: Path) -> bool:
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - len(_CLOSED)))
        return file.read() == _CLOSED
    return False


def _watch(
    connection: sqlite3.Connection, note: Callable[[str, Sequence[Sequence[Any]]], None]
) -> None:
    """Have a connection tell of changed rows of some tables, within its transactions."""

    def changed(table: str, *row: Any) -> None:
        note(table, [row])

    connection.create_function("wings_note", -1, changed)
    for table, condition in _WATCHED.items():
        columns = ", ".join(f"new.{column}" for column in COLUMNS[table])
        for event in ("INSERT", "UPDATE"):
            if table == "folios" and event == "UPDATE":
                continue  # Only its count of pages changes.
            connection.execute(
                f"CREATE TEMP TRIGGER note_{table}_{event} AFTER {event} ON main.{table} "
                f"WHEN {condition} BEGIN SELECT wings_note('{table}', {columns}); END"
            )
