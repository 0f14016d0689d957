"""A watched directory as a queue: a file that appears in it is a message.

Files come by an atomic rename: what begins with `.` or `_`, or ends with `.tmp` or `.part`, is
still being written. A file is told from another by its path, size and time of change, so one that
is overwritten is a new message. What was handed out and acknowledged is remembered in a SQLite
queue, until its file is gone.
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
"""Files of one directory tree that are looked at."""

SCAN_SECONDS = 1.0
"""A directory is looked through no more often than this."""

STATE = Path(".wings") / "queue.sqlite"
"""Where a directory's queue is, unless it is said otherwise."""

_UNFINISHED = (".tmp", ".part")


class DirectoryQueue(Queue):
    """See `Queue`. Messages are JSON: `{"uri", "version", "size"}`.

    Args:
        directory: With all below it.
        state: The queue's database; None: `.wings/queue.sqlite` in the directory.
        clock: Seconds since the epoch.
        scan_seconds: How often it is looked through at most.

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
        """Take files that are new, the first found first; see `Queue.receive`."""
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
        """Remember that files need not be told of again; the files stay."""
        self._queue.acknowledge(receipts)

    def send(self, bodies: Iterable[str]) -> None:
        """Tell of files again, whether they were told of before or not."""
        self._queue.send(bodies)

    def pending(self) -> int:
        """Return how many files may be handed out now."""
        return self._queue.pending()

    def close(self) -> None:
        """Close the database; a wait ends."""
        self._closed.set()
        self._queue.close()

    def _scan(self) -> None:
        """Announce files that are new, and forget those that are gone."""
        with self._lock:
            now = time.monotonic()
            if self._scanned_at is not None and now < self._scanned_at + self._scan_seconds:
                return
            self._scanned_at = now
            if self._known is None:
                self._known = self._queue.keys()
            found: dict[str, str] = {}
            for path, version, size in self._files():
                # A name that is not UTF-8 cannot be stored; as JSON it is told of, and given up.
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
        """Refuse a look that misses files: they would be forgotten, and told of again later."""
        is_below = Path(error.filename) != self._directory
        if is_below and isinstance(error, FileNotFoundError | NotADirectoryError):
            return  # It was taken away meanwhile, with its files.
        raise Unavailable(f"{error.filename} cannot be looked through: {error.strerror}") from error

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
                    continue  # It is gone again.
                yield path, f"{status.st_size}-{status.st_mtime_ns}", status.st_size
