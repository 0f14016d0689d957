"""A watched directory as a queue: each new file is a message.

Files appear by an atomic rename: names that begin with `.` or `_`, or end with `.tmp` or `.part`,
are files still being written. A file is identified by path, size and time of change, so an
overwritten one is a new message. Deliveries and acknowledgements are kept in a SQLite queue until
the file is deleted.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from wings_core.errors import InvalidArgument, Unavailable
from wings_core.queue.interfaces import Queue, QueueMessage
from wings_core.queue.sqlite import SqliteQueue

FILES_MAX = 1_000_000
"""Most files of one directory tree."""

SCAN_SECONDS = 1.0
"""Least time between two scans of a directory."""

STATE = Path(".wings") / "queue.sqlite"
"""The default path of a directory's queue, within the directory."""

_UNFINISHED = (".tmp", ".part")


class DirectoryQueue(Queue):
    """See `Queue`. Messages are JSON: `{"uri", "version", "size"}`.

    Args:
        directory: Scanned with all directories below it.
        state: The queue's database; None: `.wings/queue.sqlite` in the directory.
        clock: Seconds since the epoch.
        scan_seconds: Least time between two scans.

    Raises:
        InvalidArgument: There is no such directory.
    """

    def __init__(
        self,
        directory: Path,
        state: Path | None = None,
        *,
        clock: Callable[[], float] = time.time,
        scan_seconds: float = SCAN_SECONDS,
    ) -> None:
        if not directory.is_dir():
            raise InvalidArgument(f"there is no directory {directory} to watch")
        self._directory = directory.absolute()
        path = self._directory / STATE if state is None else state
        path.parent.mkdir(parents=True, exist_ok=True)
        self._queue = SqliteQueue(path, clock=clock)
        self._scan_seconds = scan_seconds
        self._lock = threading.Lock()
        self._scanned_at: float | None = None
        self._known: set[str] | None = None
        self._closed = threading.Event()

    def receive(
        self, messages_max: int, visibility_seconds: float, wait_seconds: float = 0.0
    ) -> list[QueueMessage]:
        """Receive new files, in the order in which they were found; see `Queue.receive`."""
        until = time.monotonic() + wait_seconds
        while True:
            self._scan()
            found = self._queue.receive(messages_max, visibility_seconds)
            left = until - time.monotonic()
            if found or left <= 0 or self._closed.wait(min(self._scan_seconds, left)):
                return found

    def extend(self, receipt: str, visibility_seconds: float) -> float | None:
        """Hide a file for longer; see `Queue.extend`."""
        return self._queue.extend(receipt, visibility_seconds)

    def acknowledge(self, receipts: Sequence[str]) -> None:
        """Record files as processed; the files themselves stay."""
        self._queue.acknowledge(receipts)

    def send(self, bodies: Iterable[str]) -> None:
        """Add messages, also for files that were delivered before."""
        self._queue.send(bodies)

    def pending(self) -> int:
        """Return the count of files that may be delivered now."""
        return self._queue.pending()

    def close(self) -> None:
        """Close the database; a wait ends."""
        self._closed.set()
        self._queue.close()

    def _scan(self) -> None:
        """Add new files to the queue, and remove deleted ones."""
        with self._lock:
            now = time.monotonic()
            if self._scanned_at is not None and now < self._scanned_at + self._scan_seconds:
                return
            self._scanned_at = now
            if self._known is None:
                self._known = self._queue.keys()
            found: dict[str, str] = {}
            for path, version, size in self._files():
                # A name that is not UTF-8 cannot be stored; escaped, it becomes a dead file.
                name = os.fsencode(path).decode("utf-8", "backslashreplace")
                found[f"{name}#{version}"] = json.dumps(
                    {"uri": path.as_posix(), "version": version, "size": size}
                )
            new = found.keys() - self._known
            if new:
                self._queue.announce((key, found[key]) for key in sorted(new))
            gone = self._known - found.keys()
            if gone:
                self._queue.forget(gone)
            self._known = set(found)

    def _unlisted(self, error: OSError) -> None:
        """Fail an incomplete scan: missed files would be removed, and delivered again later."""
        is_below = Path(error.filename) != self._directory
        if is_below and isinstance(error, FileNotFoundError | NotADirectoryError):
            return  # It was deleted meanwhile, with its files.
        raise Unavailable(f"{error.filename} cannot be scanned: {error.strerror}") from error

    def _files(self) -> Iterator[tuple[Path, str, int]]:
        count = 0
        for base, directories, names in os.walk(self._directory, onerror=self._unlisted):
            directories[:] = [name for name in directories if not name.startswith((".", "_"))]
            for name in names:
                if name.startswith((".", "_")) or name.endswith(_UNFINISHED):
                    continue
                count += 1
                if count > FILES_MAX:
                    raise Unavailable(
                        f"{self._directory} holds more than {FILES_MAX} files: move old ones away"
                    )
                path = Path(base) / name
                try:
                    status = path.stat()
                except OSError:
                    continue  # It was deleted meanwhile.
                yield path, f"{status.st_size}-{status.st_mtime_ns}", status.st_size
