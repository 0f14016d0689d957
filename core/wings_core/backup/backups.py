"""The backups that are being taken of a log: their snapshots, and what is kept for them."""

import contextlib
import secrets
import shutil
import struct
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from wings_core.backup.snapshot import Snapshot, take_snapshot
from wings_core.contracts.backup import DATA_SCHEMA, FILES_SCHEMA
from wings_core.data_directory import FORMAT_VERSION, DataDirectory
from wings_core.errors import InvalidArgument, ResourceExhausted
from wings_core.metadata.sqlite.migrations import MIGRATIONS
from wings_core.reclaim import Reclaimer
from wings_core.storage.folio_places import FolioPlaces

if TYPE_CHECKING:
    from wings_core.contracts.backup import BackupRead

SILENT_SECONDS_MAX = 600.0
"""A backup of which nothing was read for so long is ended: its client is gone."""

BACKUPS_MAX = 4
"""Backups at a time; each has a copy of the metadata on the disk."""

READ_BYTES_MAX = 64 * 1024 * 1024
"""The most bytes of one read."""

BATCH_BYTES = 1024 * 1024
"""Of a batch of bytes on the wire."""

BATCH_FILES = 4_096
"""Files that a batch of the list names."""

_SCRATCH = "backup-"
"""How directories of copies are named, in the data directory."""


@dataclass(slots=True)
class _Backup:
    id: str
    snapshot: Snapshot
    directory: Path
    used_at: float = field(default_factory=time.monotonic)


class Backups:
    """Hands out what backups are of; all methods may be called from any thread.

    While one is being taken, no file with messages is deleted, whatever metadata forgets.

    Args:
        directory: The log's, whose databases this process has open.
        store_id: Of the metadata.
        places: Where files with messages are.
        reclaimer: Pauses meanwhile.
        refusal: Returns why none can be taken; None where one can.
    """

    def __init__(
        self,
        directory: DataDirectory,
        store_id: str,
        places: FolioPlaces,
        reclaimer: Reclaimer,
        refusal: Callable[[], str | None],
    ) -> None:
        self._directory = directory
        self._store_id = store_id
        self._places = places
        self._reclaimer = reclaimer
        self._refusal = refusal
        self._lock = threading.Lock()
        """Of the table; taken for a moment, and no other lock is under it."""
        self._running: dict[str, _Backup] = {}
        for left in directory.path.glob(f"{_SCRATCH}*"):
            shutil.rmtree(left, ignore_errors=True)  # Of a process that crashed.

    def begin(self) -> dict[str, object]:
        """Begin a backup: copies the databases, which takes as long as reading them.

        Returns:
            What `backup-begin` answers.

        Raises:
            InvalidArgument: This server cannot be backed up; says why.
            ResourceExhausted: There are `BACKUPS_MAX`, or there is no room for the copies.
            WingsError: The databases cannot be read.
        """
        refusal = self._refusal()
        if refusal is not None:
            raise InvalidArgument(refusal)
        self._end_silent()
        with self._lock:
            if len(self._running) >= BACKUPS_MAX:
                raise ResourceExhausted(f"{BACKUPS_MAX} backups are being taken already")
        backup_id = secrets.token_hex(16)
        # Before the snapshot: what it refers to must not be deleted from then on.
        self._reclaimer.pause(backup_id, SILENT_SECONDS_MAX)
        scratch = self._directory.path / f"{_SCRATCH}{backup_id}"
        try:
            scratch.mkdir(mode=0o700)
            snapshot = take_snapshot(self._directory.metadata, self._directory.holds, scratch)
        except BaseException:
            self._reclaimer.resume(backup_id)
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        with self._lock:
            self._running[backup_id] = _Backup(backup_id, snapshot, scratch)
        return {
            "backup": backup_id,
            "log": self._store_id,
            "at_us": snapshot.at,
            "format": FORMAT_VERSION,
            "metadata_version": len(MIGRATIONS),
            "databases": {name: path.stat().st_size for name, path in snapshot.databases.items()},
        }

    def files(self, backup_id: str) -> Generator[pa.RecordBatch]:
        """Yield the files with messages that a backup needs, by `FILES_SCHEMA`.

        Raises:
            InvalidArgument: There is no such backup, or not any more.
        """
        backup = self._get(backup_id)
        names: list[str] = []
        ends: list[int | None] = []
        with contextlib.closing(backup.snapshot.folios()) as folios:
            for name, end in folios:
                names.append(name)
                # Files of merged pages are read by other programs too, which need their end.
                ends.append(None if self._places.is_whole(name) else end)
                if len(names) == BATCH_FILES:
                    yield _files_batch(names, ends)
                    names, ends = [], []
                    self._get(backup_id)
        yield _files_batch(names, ends)

    def read(self, ticket: "BackupRead") -> Generator[pa.RecordBatch]:
        """Yield a part of a file, by `DATA_SCHEMA`; less than asked for where the file ends.

        Raises:
            InvalidArgument: There is no such backup, or not any more.
            InvalidArgument: The part is too large.
            StorageCorrupt: The file is missing, or shorter than it was when it was listed.
        """
        backup = self._get(ticket.backup)
        if not 0 <= ticket.end - ticket.start <= READ_BYTES_MAX:
            raise InvalidArgument(f"a read is of 0 to {READ_BYTES_MAX} bytes")
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
        """End a backup, and delete its copies; False where there is none, or not any more."""
        with self._lock:
            backup = self._running.pop(backup_id, None)
        self._reclaimer.resume(backup_id)
        if backup is None:
            return False
        shutil.rmtree(backup.directory, ignore_errors=True)
        self._reclaimer.wake()
        return True

    def close(self) -> None:
        """End all."""
        with self._lock:
            running = list(self._running)
        for each in running:
            self.end(each)

    def _get(self, backup_id: str) -> _Backup:
        """Return a backup, and keep it for another while."""
        self._end_silent()
        with self._lock:
            backup = self._running.get(backup_id)
            if backup is not None:
                backup.used_at = time.monotonic()
        if backup is None or not self._reclaimer.pause(backup_id, SILENT_SECONDS_MAX, again=True):
            raise InvalidArgument(
                f"there is no backup {backup_id:.40} any more: the server was started again, or "
                f"nothing was read of it for {SILENT_SECONDS_MAX:.0f} s"
            )
        return backup

    def _end_silent(self) -> None:
        oldest = time.monotonic() - SILENT_SECONDS_MAX
        with self._lock:
            silent = [each.id for each in self._running.values() if each.used_at < oldest]
        for each in silent:
            self.end(each)


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
