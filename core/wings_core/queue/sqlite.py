"""Queues in one SQLite file, for any number of processes of one machine.

In a watched directory each new file is a message. Files appear by an atomic rename: names that
begin with `.` or `_`, or end with `.tmp` or `.part`, are files still being written. A file is
identified by path, size and time of change, so an overwritten one is a new message.
"""

import json
import os
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from wings_core.errors import InvalidArgument, Unavailable, WingsError
from wings_core.metadata.sqlite.writer import FENCES, SqliteWriter
from wings_core.queue.interfaces import Queue, QueueMessage

PAUSE_SECONDS = (0.02, 0.5)
"""Pauses between polls of an empty queue: the least, which doubles each time, and the greatest."""

FILES_MAX = 1_000_000
"""Most files of one directory tree."""

SCAN_SECONDS = 1.0
"""Least time between two scans of a directory."""

STATE = Path(".wings") / "queue.sqlite"
"""The default path of a directory's queue, within the directory."""

_UNFINISHED = (".tmp", ".part")

_TABLES = (
    FENCES,
    """
CREATE TABLE IF NOT EXISTS messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT UNIQUE, -- Deduplicates announced messages; kept when acknowledged.
    body TEXT NOT NULL,
    receipt TEXT UNIQUE,
    visible_at REAL NOT NULL,
    deliveries INTEGER NOT NULL,
    acknowledged INTEGER NOT NULL
) STRICT
""",
    """
CREATE INDEX IF NOT EXISTS messages_waiting ON messages (visible_at, id) WHERE NOT acknowledged
""",
)

_IDENTITY = "CREATE TABLE identity (identity TEXT NOT NULL) STRICT"
"""Table with one row: a prefix of message ids, unique to the queue. It is empty in files older than
this table, whose messages keep their ids."""


class SqliteQueue(Queue):
    """See `Queue`. A receipt is valid until its deadline.

    Args:
        path: The database, created if missing, in an existing directory.
        clock: Returns seconds since the epoch.

    Raises:
        Unavailable: It cannot be opened, or is not a queue.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._closed = threading.Event()
        self._writer = SqliteWriter(path, sqlite3.Connection, "it")
        try:
            with self._transaction() as connection:
                self._identity = _identity(connection)
        except BaseException:
            self._writer.close()
            raise

    def send(self, bodies: Iterable[str]) -> None:
        """Add messages, in order."""
        self.announce((None, body) for body in bodies)

    def announce(self, messages: Iterable[tuple[str | None, str]]) -> int:
        """Add the messages whose keys are new, in order.

        Args:
            messages: Keys and bodies; a message without a key is always added.

        Returns:
            The count of added messages.
        """
        now = self._clock()
        with self._transaction() as connection:
            return connection.executemany(
                "INSERT INTO messages (key, body, visible_at, deliveries, acknowledged) "
                "VALUES (?, ?, ?, 0, 0) ON CONFLICT (key) DO NOTHING",
                ((key, body, now) for key, body in messages),
            ).rowcount

    def keys(self) -> set[str]:
        """Return the keys of all messages, acknowledged or not."""
        with self._transaction() as connection:
            return {
                key
                for (key,) in connection.execute("SELECT key FROM messages WHERE key IS NOT NULL")
            }

    def keys_between(self, after: str, until: str | None) -> set[str]:
        """Return the keys of messages in a range of the order of code points.

        Args:
            after: Lower bound, exclusive.
            until: Upper bound, inclusive; None for no bound.
        """
        with self._transaction() as connection:
            return {
                key
                for (key,) in connection.execute(
                    "SELECT key FROM messages WHERE key > ?1 AND (?2 IS NULL OR key <= ?2)",
                    (after, until),
                )
            }

    def forget(self, keys: Iterable[str]) -> None:
        """Delete acknowledged messages by their keys, which count as new from then on."""
        with self._transaction() as connection:
            connection.executemany(
                "DELETE FROM messages WHERE key = ? AND acknowledged", ((key,) for key in keys)
            )

    def receive(
        self, messages_max: int, visibility_seconds: float, wait_seconds: float = 0.0
    ) -> list[QueueMessage]:
        """Receive messages, the oldest first; see `Queue.receive`."""
        until = time.monotonic() + wait_seconds
        pause, pause_max = PAUSE_SECONDS
        while True:
            found = self._take(messages_max, visibility_seconds)
            left = until - time.monotonic()
            if found or left <= 0 or self._closed.wait(min(pause, left)):
                return found
            pause = min(2 * pause, pause_max)

    def extend(self, receipt: str, visibility_seconds: float) -> float | None:
        """Hide a message for longer; see `Queue.extend`."""
        now = self._clock()
        with self._transaction() as connection:
            changed = connection.execute(
                "UPDATE messages SET visible_at = ?1 WHERE receipt = ?2 AND visible_at > ?3 "
                "AND NOT acknowledged",
                (now + visibility_seconds, receipt, now),
            ).rowcount
        return now + visibility_seconds if changed else None

    def acknowledge(self, receipts: Sequence[str]) -> None:
        """Delete messages; see `Queue.acknowledge`."""
        now = self._clock()
        with self._transaction() as connection:
            wanted = [(receipt, now) for receipt in receipts]
            connection.executemany(
                "UPDATE messages SET acknowledged = 1 WHERE receipt = ? AND visible_at > ? "
                "AND key IS NOT NULL",
                wanted,
            )
            connection.executemany(
                "DELETE FROM messages WHERE receipt = ? AND visible_at > ? AND key IS NULL", wanted
            )

    def pending(self) -> int:
        """Return the count of messages that may be delivered now."""
        with self._transaction() as connection:
            ((count,),) = connection.execute(
                "SELECT count(*) FROM messages WHERE NOT acknowledged AND visible_at <= ?",
                (self._clock(),),
            ).fetchall()
        return count

    @property
    def remaining(self) -> int:
        """Count of messages that are not acknowledged, delivered or not."""
        with self._transaction() as connection:
            ((count,),) = connection.execute(
                "SELECT count(*) FROM messages WHERE NOT acknowledged"
            ).fetchall()
        return count

    def close(self) -> None:
        """Close the database; a wait ends."""
        self._closed.set()
        self._writer.close()

    def _take(self, messages_max: int, visibility_seconds: float) -> list[QueueMessage]:
        now = self._clock()
        deadline = now + visibility_seconds
        with self._transaction() as connection:
            rows = connection.execute(
                "SELECT id, body, deliveries FROM messages WHERE NOT acknowledged "
                "AND visible_at <= ? ORDER BY id LIMIT ?",
                (now, messages_max),
            ).fetchall()
            found = [
                QueueMessage(
                    f"{self._identity}{number}", uuid4().hex, body, deliveries + 1, deadline
                )
                for number, body, deliveries in rows
            ]
            connection.executemany(
                "UPDATE messages SET receipt = ?, visible_at = ?, deliveries = ? WHERE id = ?",
                [
                    (message.receipt, deadline, message.deliveries, number)
                    for message, (number, _, _) in zip(found, rows, strict=True)
                ],
            )
        return found

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        try:
            with self._writer.transaction() as connection:
                yield connection
        except (WingsError, ValueError) as error:
            raise Unavailable(f"the queue {self._path}: {error}") from error


class FoundQueue(SqliteQueue, ABC):
    """A `SqliteQueue` that looks for new files when messages are received.

    Args:
        state: The database; its directory is created if it is missing.
        clock: Returns seconds since the epoch.
        pause_seconds: Interval of polling an empty queue.

    Raises:
        Unavailable: The database cannot be opened.
    """

    def __init__(
        self, state: Path, *, clock: Callable[[], float] = time.time, pause_seconds: float
    ) -> None:
        state.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(state, clock=clock)
        self._pause_seconds = pause_seconds

    @abstractmethod
    def _look(self) -> bool:
        """Announce new files and forget deleted ones; returns whether the scan must continue.

        May be called from any thread.
        """

    def receive(
        self, messages_max: int, visibility_seconds: float, wait_seconds: float = 0.0
    ) -> list[QueueMessage]:
        """Receive new files, in the order in which they were found; see `Queue.receive`.

        Blocks for longer than `wait_seconds` while a scan continues without finding new files, as
        only its end shows that there are none.
        """
        until = time.monotonic() + wait_seconds
        while True:
            has_more = self._look()
            found = super().receive(messages_max, visibility_seconds)
            if found or self._closed.is_set():
                return found
            left = until - time.monotonic()
            if not has_more and (left <= 0 or self._closed.wait(min(self._pause_seconds, left))):
                return found


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


def _identity(connection: sqlite3.Connection) -> str:
    """Return the prefix of all message ids; creates missing tables."""
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    for statement in _TABLES:
        connection.execute(statement)
    if "identity" not in names:
        connection.execute(_IDENTITY)
        identity = "" if "messages" in names else f"{uuid4().hex}."
        connection.execute("INSERT INTO identity VALUES (?)", (identity,))
    ((found,),) = connection.execute("SELECT identity FROM identity").fetchall()
    return found
