"""Take a backup: copy what the server hands out into a repository, and only what it lacks.

backup-begin ─▶ databases ─▶ files with messages, parts that are not kept yet ─▶ manifest
└─▶ backup-end
"""

import secrets
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from importlib.metadata import version
from typing import Any

import pyarrow as pa

from wings_client._errors import call_errors, ignored_call_errors, typed_error
from wings_client._stream import Reading
from wings_client._transport import Transport
from wings_core.backup.repository import (
    DATABASE_PART_BYTES,
    PART_BYTES,
    FilePart,
    KeptPart,
    Manifest,
    Repository,
    StoredFile,
    begin_of_id,
)
from wings_core.contracts.tickets import (
    METADATA_FILE,
    BackupBegin,
    BackupEnd,
    BackupFiles,
    BackupRead,
)
from wings_core.errors import Internal, StorageCorrupt, WingsError
from wings_core.times import now_us

BEGIN_SECONDS_MAX = 3_600.0
"""How long the server may take to copy its databases."""

READ_SECONDS_MAX = 300.0
"""How long the server may take for one part, all attempts together."""

COPIERS = 4
"""Files that are copied at a time."""

WAITING_MAX = 64
"""Files that wait for a copier; the list is not read further ahead."""

Progress = Callable[[int, int], None]
"""Called with the number of files done, and bytes copied."""


def take_backup(
    transport: Transport, repository: Repository, progress: Progress | None = None
) -> Manifest:
    """Take a backup of a server; blocks until its manifest is kept, which is last.

    Args:
        transport: To the server; the caller has `admin` on everything.
        repository: Gets the backup. What an earlier one left there, finished or not, is used.
        progress: Called from this thread.

    Raises:
        StorageCorrupt: The server has lost a file with messages, or part of it.
        WingsError: The server refused or cannot be reached, or the repository cannot be written.
    """
    begun = transport.act(
        "backup-begin", BackupBegin(), repeatable=False, timeout=BEGIN_SECONDS_MAX
    )
    try:
        return _Copy(transport, repository, begun, progress or _silent).run()
    finally:
        with suppress(WingsError), ignored_call_errors():  # The server ends it by itself, later.
            transport.act("backup-end", BackupEnd(backup=begun["backup"]), repeatable=True)


def _silent(files: int, copied: int) -> None:
    """Show no progress."""


class _Copy:
    """One backup being taken."""

    def __init__(
        self,
        transport: Transport,
        repository: Repository,
        begun: dict[str, Any],
        progress: Progress,
    ) -> None:
        self._transport = transport
        self._endpoint = transport.endpoint
        self._repository = repository
        self._begun = begun
        self._id: str = begun["backup"]
        self._progress = progress
        self._kept = repository.kept()
        self._lock = threading.Lock()
        """Guards the count below."""
        self._copied_bytes = 0
        self._stopping = threading.Event()

    def run(self) -> Manifest:
        databases = [
            self._copy_database(name, size) for name, size in self._begun["databases"].items()
        ]
        if METADATA_FILE not in self._begun["databases"]:
            raise Internal(f"the server at {self._endpoint} backs up no metadata")
        folios = self._copy_folios()
        manifest = Manifest(
            backup=f"{begin_of_id(self._begun['at_us'])}-{secrets.token_hex(4)}",
            wings=version("wings-flight"),
            log=self._begun["log"],
            at_us=self._begun["at_us"],
            finished_at_us=now_us(),
            format=self._begun["format"],
            metadata_version=self._begun["metadata_version"],
            copied_bytes=self._copied_bytes,
            databases=tuple(databases),
            folios=tuple(folios),
        )
        self._repository.add(manifest)
        return manifest

    def _copy_database(self, name: str, size: int) -> StoredFile:
        kept = self._repository.databases()
        parts: list[FilePart] = []
        for start in range(0, size, PART_BYTES):
            read = self._read(name, start, min(start + PART_BYTES, size))
            if len(read) != min(PART_BYTES, size - start):
                raise StorageCorrupt(f"the server's copy of {name} is cut off", file=name)
            for first in range(0, len(read), DATABASE_PART_BYTES):
                data = read[first : first + DATABASE_PART_BYTES]
                part = self._repository.database_part(start + first, data)
                if part.object not in kept:
                    self._repository.put_database(part, data)
                    self._count(len(data))
                    kept.add(part.object)
                parts.append(part)
        return StoredFile(name=name, parts=tuple(parts))

    def _copy_folios(self) -> list[StoredFile]:
        """Copy what the repository lacks, some files at a time; returns all, in order."""
        found: list[StoredFile] = []
        waiting: set[Future[StoredFile]] = set()
        with ThreadPoolExecutor(COPIERS, thread_name_prefix="wings-backup") as copiers:
            try:
                for name, end in self._listed():
                    waiting.add(copiers.submit(self._copy_folio, name, end))
                    if len(waiting) >= WAITING_MAX:
                        waiting = self._take(found, waiting)
                while waiting:
                    waiting = self._take(found, waiting)
            except BaseException:
                self._stopping.set()
                copiers.shutdown(wait=False, cancel_futures=True)
                raise
        return sorted(found, key=lambda file: file.name)

    def _take(
        self, found: list[StoredFile], waiting: set[Future[StoredFile]]
    ) -> set[Future[StoredFile]]:
        done, left = wait(waiting, return_when=FIRST_COMPLETED)
        found += [each.result() for each in done]
        self._progress(len(found), self._copied_bytes)
        return left

    def _copy_folio(self, name: str, end: int | None) -> StoredFile:
        """Copy what is missing of a file, up to `end` in bytes; None: to where it ends."""
        parts: list[FilePart] = []
        is_last = False
        at = 0
        for kept in _chain(self._kept.get(name, {})):
            if end is not None and at >= end:
                break
            parts.append(kept.part)
            at, is_last = kept.part.end, kept.is_last
        while not is_last and (end is None or at < end) and not self._stopping.is_set():
            wanted = PART_BYTES if end is None else min(PART_BYTES, end - at)
            data = self._read(name, at, at + wanted)
            is_last = end is None and len(data) < wanted
            if end is not None and len(data) < wanted:
                raise StorageCorrupt(f"{name} ends at byte {at + len(data)}", file=name)
            parts.append(self._repository.put_folio(name, at, data, is_last=is_last))
            self._count(len(data))
            at += len(data)
        return StoredFile(name=name, parts=tuple(parts))

    def _listed(self) -> Iterator[tuple[str, int | None]]:
        ticket = BackupFiles(backup=self._id)
        with self._stream(ticket.to_bytes(), BEGIN_SECONDS_MAX) as batches:
            for batch in batches:
                names: list[Any] = batch.column("name").to_pylist()
                ends: list[Any] = batch.column("bytes").to_pylist()
                yield from zip(names, ends, strict=True)

    def _read(self, file: str, start: int, end: int) -> bytes:
        """Read bytes of a file, again where the connection breaks."""
        ticket = BackupRead(backup=self._id, file=file, start=start, end=end).to_bytes()

        def read(seconds: float) -> bytes:
            with self._stream(ticket, seconds) as batches:
                return b"".join(
                    value.as_buffer() for batch in batches for value in batch.column("data")
                )

        return self._transport.repeat(read, repeatable=True, timeout=READ_SECONDS_MAX)

    @contextmanager
    def _stream(self, ticket: bytes, seconds: float) -> Generator[Iterator[pa.RecordBatch]]:
        """Open a stream at the server that has the snapshot."""
        reading = Reading(self._transport)
        try:
            opened = reading.open(ticket, seconds, self._endpoint)
            yield (chunk.data for chunk in opened.reader if chunk.data is not None)
        except call_errors() as error:
            raise typed_error(error, self._endpoint) from error
        finally:
            reading.done()

    def _count(self, size: int) -> None:
        with self._lock:
            self._copied_bytes += size


def _chain(parts: dict[int, KeptPart]) -> Iterator[KeptPart]:
    """Yield parts that follow one another, from the first byte on."""
    at = 0
    while (found := parts.get(at)) is not None:
        yield found
        if found.is_last or found.part.end == at:
            return
        at = found.part.end
