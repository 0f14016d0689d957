"""Backups in progress: their snapshots, and the files kept for them.

A snapshot shows both databases at one moment:

    lock writes of holds ─▶ holds: begin to read ─▶ metadata: begin to read ─▶ unlock ─▶ copy both

The two share no transaction. But acknowledgements to a share group are written to the holds alone,
so while the holds' only writer waits, the moment at which metadata is read is valid for the holds
too. The writer waits for a few statements; copying follows, in read transactions, which block no
writer.

A message acknowledged before the moment is finished in the snapshot, one acknowledged after it is
not; a dead letter and the rejection of its message are both in the snapshot or both not.
"""

import contextlib
import secrets
import shutil
import sqlite3
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from wings_core.contracts.tickets import DATA_SCHEMA, FILES_SCHEMA, HOLDS_FILE, METADATA_FILE
from wings_core.data_directory import FORMAT_VERSION
from wings_core.errors import InvalidArgument, ResourceExhausted, WingsError
from wings_core.metadata.interfaces import Metadata
from wings_core.metadata.maintenance import KEEPS_FOLIOS
from wings_core.metadata.sqlite.schema import VERSIONS
from wings_core.model import INLINE_SUFFIX
from wings_core.share.replica.copies import HoldsCopies
from wings_core.storage.folio_stores import FolioPlaces
from wings_core.times import now_us

if TYPE_CHECKING:
    from wings_core.contracts.tickets import BackupRead

_FILES = f"""
SELECT folios.name, max(used.end_position) FROM (
    SELECT folio_id, position + length AS end_position FROM pages
    UNION ALL
    SELECT folio_id, position + length FROM staged_pages
) AS used JOIN folios ON folios.id = used.folio_id
WHERE folios.name NOT LIKE '%{INLINE_SUFFIX}' GROUP BY folios.id ORDER BY folios.name
"""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Copies of the databases, and their common moment."""

    at: int
    """The moment, in microseconds since the epoch by the server's clock."""
    databases: dict[str, Path]
    """Paths of the copies by name; the holds are missing if there are none."""

    @property
    def store_id(self) -> str:
        """The id of the metadata."""
        with closing(open_copy(self.databases[METADATA_FILE])) as connection:
            return connection.execute("SELECT id FROM identity").fetchone()[0]

    def folios(self) -> Generator[tuple[str, int]]:
        """Yield the folios with pages outside the databases, and the end of each one's last page.

        Ordered by name; ends are bytes from the folio's beginning.
        """
        with closing(open_copy(self.databases[METADATA_FILE])) as connection:
            yield from connection.execute(_FILES)


def take_snapshot(metadata: Metadata, holds: HoldsCopies, into: Path) -> Snapshot:
    """Copy the databases of a log, SQLite or PostgreSQL; blocks until they are copied.

    Acknowledgements wait for a few statements; no other write waits.

    Args:
        metadata: The log's metadata.
        holds: The state of its share groups.
        into: A directory for the copies.

    Raises:
        ResourceExhausted: There is no disk space for the copies.
        WingsError: A database cannot be read, or the writer of the holds kept its lock.
    """
    with ExitStack() as opened:
        with holds.locked():
            at = now_us()  # A service copies its metadata whole before it answers.
            copies = {
                HOLDS_FILE: opened.enter_context(holds.copying()),
                METADATA_FILE: opened.enter_context(metadata.copying()),
            }
        databases: dict[str, Path] = {}
        try:
            for name in (METADATA_FILE, HOLDS_FILE):
                copy = copies[name]
                if copy is not None:
                    databases[name] = into / name
                    copy(databases[name])
        except OSError as error:
            raise ResourceExhausted(
                f"there is no room for a copy of the databases: {error.strerror or error}"
            ) from error
    return Snapshot(at, databases)


def open_copy(path: Path) -> sqlite3.Connection:
    """Open a copy read-only, without creating files beside it."""
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)


SILENT_SECONDS_MAX = 600.0
"""Time without a read after which a backup is ended, its client taken for dead."""

BEGIN_SECONDS_MAX = 3_600.0
"""First lease of a backup's files, and so the longest time for copying the databases."""

RENEW_SECONDS = 30.0
"""Age of a backup's lease at which a read renews it."""

BACKUPS_MAX = 4
"""Most concurrent backups; each has a copy of the metadata on disk."""

READ_BYTES_MAX = 64 * 1024 * 1024
"""The most bytes of one read."""

BATCH_BYTES = 1024 * 1024
"""Bytes of a file per batch on the wire."""

BATCH_FILES = 4_096
"""Files per batch of the file list."""

_SCRATCH = "backup-"
"""Prefix of the names of directories with copies."""


@dataclass(slots=True)
class _Backup:
    id: str
    snapshot: Snapshot
    directory: Path
    lease: int | None
    """The token of the lease that keeps its files."""
    used_at: float
    """Monotonic time of the last renewal."""


class Backups:
    """Serves backups in progress to clients. Thread-safe.

    During a backup no file with messages is deleted, even if metadata drops its last reference.

    Args:
        metadata: The log's metadata.
        holds: The state of its share groups.
        places: The stores of files with messages.
        reclaim: Called when files may be deleted again.
        directory: Directory for copies of databases; None for the system's temporary directory.
    """

    def __init__(
        self,
        metadata: Metadata,
        holds: HoldsCopies,
        places: FolioPlaces,
        reclaim: Callable[[], None],
        directory: Path | None = None,
    ) -> None:
        self._metadata = metadata
        self._holds = holds
        self._places = places
        self._reclaim = reclaim
        self._directory = directory
        self._lock = threading.Lock()
        """Guards the table of backups; a leaf lock, held briefly."""
        self._running: dict[str, _Backup] = {}
        self._beginning = 0
        self.last_at: int | None = None
        """Moment of the last backup begun since this process started, in microseconds since the
        epoch; None without one."""
        if directory is not None:
            for left in directory.glob(f"{_SCRATCH}*"):
                shutil.rmtree(left, ignore_errors=True)  # Left by a crashed process.

    def begin(self) -> dict[str, object]:
        """Begin a backup; blocks while the databases are copied.

        Returns:
            The response of the action `backup-begin`.

        Raises:
            ResourceExhausted: `BACKUPS_MAX` backups run, or there is no disk space for the copies.
            WingsError: The databases cannot be read.
        """
        self._end_silent()
        with self._lock:
            if len(self._running) + self._beginning >= BACKUPS_MAX:
                raise ResourceExhausted(f"{BACKUPS_MAX} backups are being taken already")
            self._beginning += 1
        try:
            backup = self._begin()
        except BaseException:
            with self._lock:
                self._beginning -= 1
            raise
        with self._lock:
            self._beginning -= 1
            self._running[backup.id] = backup
            self.last_at = backup.snapshot.at
        self._get(backup.id)
        snapshot = backup.snapshot
        return {
            "backup": backup.id,
            "log": snapshot.store_id,
            "at_us": snapshot.at,
            "format": FORMAT_VERSION,
            "metadata_version": VERSIONS.newest,
            "databases": {name: path.stat().st_size for name, path in snapshot.databases.items()},
        }

    def _begin(self) -> _Backup:
        """Copy the databases for a backup."""
        backup_id = secrets.token_hex(16)
        # Taken before the snapshot: from then on no process deletes files that it refers to.
        lease = self._renew(backup_id, BEGIN_SECONDS_MAX)
        with ExitStack() as failed:
            failed.callback(self._release, backup_id)
            scratch = _new_directory(self._directory)
            failed.callback(shutil.rmtree, scratch, ignore_errors=True)
            snapshot = take_snapshot(self._metadata, self._holds, scratch)
            failed.pop_all()
        # Counts as due for renewal: the first read renews it, and ends the backup if too late.
        used_at = time.monotonic() - RENEW_SECONDS
        return _Backup(backup_id, snapshot, scratch, lease, used_at)

    def files(self, backup_id: str) -> Generator[pa.RecordBatch]:
        """Yield the files with messages that a backup needs, as batches of `FILES_SCHEMA`.

        Raises:
            InvalidArgument: There is no such backup, or it has ended.
        """
        backup = self._get(backup_id)
        names: list[str] = []
        ends: list[int | None] = []
        with contextlib.closing(backup.snapshot.folios()) as folios:
            for name, end in folios:
                names.append(name)
                # Merged files are also read by other programs, which need the footer at their end.
                ends.append(None if self._places.is_whole(name) else end)
                if len(names) == BATCH_FILES:
                    yield _files_batch(names, ends)
                    names, ends = [], []
                    self._get(backup_id)
        yield _files_batch(names, ends)

    def read(self, ticket: "BackupRead") -> Generator[pa.RecordBatch]:
        """Yield a part of a file as batches of `DATA_SCHEMA`; shorter at the end of the file.

        Raises:
            InvalidArgument: There is no such backup, or it has ended.
            InvalidArgument: The part is too large.
            StorageCorrupt: The file is missing, or shorter than when it was listed.
        """
        backup = self._get(ticket.backup)
        if not 0 <= ticket.end - ticket.start <= READ_BYTES_MAX:
            raise InvalidArgument(f"a read must have 0 to {READ_BYTES_MAX} bytes")
        database = backup.snapshot.databases.get(ticket.file)
        parts = (
            self._places.read(ticket.file, ticket.start, ticket.end, BATCH_BYTES)
            if database is None
            else _read_database(database, ticket.start, ticket.end)
        )
        for part in parts:
            yield _data_batch(part)
        self._get(ticket.backup)

    def end(self, backup_id: str) -> bool:
        """End a backup and delete its copies; returns False if it does not exist or has ended."""
        with self._lock:
            backup = self._running.pop(backup_id, None)
        if backup is None:
            return False
        shutil.rmtree(backup.directory, ignore_errors=True)
        self._release(backup_id)
        self._reclaim()
        return True

    def close(self) -> None:
        """End all backups, and delete their copies."""
        with self._lock:
            running = list(self._running)
        for each in running:
            self.end(each)

    def _get(self, backup_id: str) -> _Backup:
        """Return a backup, and renew its lease where due."""
        self._end_silent()
        with self._lock:
            backup = self._running.get(backup_id)
        if backup is not None:
            now = time.monotonic()
            if now - backup.used_at < RENEW_SECONDS:
                return backup
            if self._renew(backup_id) == backup.lease:
                backup.used_at = now
                return backup
            self.end(backup_id)
        raise InvalidArgument(
            f"there is no backup {backup_id:.40} here: it has ended, the server was restarted, "
            f"nothing was read for {SILENT_SECONDS_MAX:.0f} s, or another node has it"
        )

    def _renew(self, backup_id: str, seconds: float = SILENT_SECONDS_MAX) -> int | None:
        """Keep all files for `seconds`; the returned token changes if the lease had expired."""
        return self._metadata.maintenance.acquire_lease(_lease_of(backup_id), backup_id, seconds)

    def _release(self, backup_id: str) -> None:
        """Release the lease, so that files may be deleted again."""
        with suppress(WingsError):  # Otherwise the lease expires.
            self._metadata.maintenance.release_lease(_lease_of(backup_id), backup_id)

    def _end_silent(self) -> None:
        oldest = time.monotonic() - SILENT_SECONDS_MAX
        with self._lock:
            silent = [each.id for each in self._running.values() if each.used_at < oldest]
        for each in silent:
            self.end(each)


def _lease_of(backup_id: str) -> str:
    return f"{KEEPS_FOLIOS}{backup_id}"


def _new_directory(parent: Path | None) -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=parent))
    except OSError as error:
        raise ResourceExhausted(
            f"cannot create a directory for the copies of a backup: {error.strerror or error}"
        ) from error


def _files_batch(names: list[str], ends: list[int | None]) -> pa.RecordBatch:
    columns = [pa.array(names, pa.string()), pa.array(ends, pa.int64())]
    return pa.record_batch(columns, schema=FILES_SCHEMA)


def _data_batch(part: pa.Buffer) -> pa.RecordBatch:
    """Return a batch of one row that refers to bytes, without a copy."""
    offsets = pa.py_buffer(struct.pack("<ii", 0, part.size))
    data = pa.Array.from_buffers(DATA_SCHEMA.field(0).type, 1, [None, offsets, part])
    return pa.record_batch([data], schema=DATA_SCHEMA)


def _read_database(path: Path, start: int, end: int) -> Iterator[pa.Buffer]:
    with path.open("rb") as file:
        file.seek(start)
        while start < end:
            part = file.read(min(BATCH_BYTES, end - start))
            if not part:
                return
            start += len(part)
            yield pa.py_buffer(part)
