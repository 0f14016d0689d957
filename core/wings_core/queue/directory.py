"""A watched directory as a queue: each new file is a message.

Files appear by an atomic rename: names that begin with `.` or `_`, or end with `.tmp` or `.part`,
are files still being written. A file is identified by path, size and time of change, so an
overwritten one is a new message.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from wings_core.errors import InvalidArgument, Unavailable
from wings_core.queue.sqlite import FoundQueue

FILES_MAX = 1_000_000
"""Most files of one directory tree."""

SCAN_SECONDS = 1.0
"""Least time between two scans of a directory."""

STATE = Path(".wings") / "queue.sqlite"
"""The default path of a directory's queue, within the directory."""

_UNFINISHED = (".tmp", ".part")


class DirectoryQueue(FoundQueue):
    """See `FoundQueue`. Messages are JSON: `{"uri", "version", "size"}`.

    Args:
        directory: The directory, scanned recursively.
        state: The queue's database; None for `.wings/queue.sqlite` in the directory.
        clock: Returns seconds since the epoch.
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
        super().__init__(path, clock=clock, pause_seconds=scan_seconds)
        self._scan_seconds = scan_seconds
        self._scanning = threading.Lock()
        self._scanned_at: float | None = None
        self._known: set[str] | None = None

    def _look(self) -> bool:
        """Scan the directory, if it is time; a scan is always whole."""
        with self._scanning:
            now = time.monotonic()
            if self._scanned_at is not None and now < self._scanned_at + self._scan_seconds:
                return False
            self._scanned_at = now
            if self._known is None:
                self._known = self.keys()
            found: dict[str, str] = {}
            for path, version, size in self._files():
                # A name that is not UTF-8 cannot be stored; escaped, it becomes a dead file.
                name = os.fsencode(path).decode("utf-8", "backslashreplace")
                found[f"{name}#{version}"] = json.dumps(
                    {"uri": path.as_posix(), "version": version, "size": size}
                )
            new = found.keys() - self._known
            if new:
                self.announce((key, found[key]) for key in sorted(new))
            gone = self._known - found.keys()
            if gone:
                self.forget(gone)
            self._known = set(found)
        return False

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
