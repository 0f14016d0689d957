"""The one connection that writes, and what it does when a transaction fails.

**A commit that failed must not come back.** SQLite appends a transaction to its write-ahead log,
the last frame marked as the commit, and then syncs. Where the sync fails, SQLite rolls back: no
connection sees the transaction. But its frames, mark and all, may lie in the log, and after a crash
recovery would find them valid and replay them (tried: it does). So after a failed COMMIT the writer
at once commits a row of its own, the fence. Its frames overwrite the failed ones, and since each
frame's checksum covers those before it, what is left of them is never valid again (tried). A fence
that fails is tried again; until one is on the disk, each transaction begins with it, and a caller
is told that its transaction may come back. A full disk is harmless: then the frame with the mark,
which is the last, was not written.

**A sync that failed is not made up for by the next.** Linux takes what it could not write for
written, and recovery does not come to the frames after one that is missing. So a fence writes the
whole log again. A process knows nothing of the syncs of those before it: it writes the log again,
and syncs it, before it reads anything of it. What it shows, or answers, is on the disk.

**Closing tells what failed.** SQLite moves the log into the database when the last connection is
closed, and says nothing of errors; so that is done, with the fence that is due, by statements.

If even the rollback fails, the state of the connection is unknown: it is discarded, which ends its
transaction, and a new one is opened before the next use. Readers stay open meanwhile, so the
shared index of the log, which does not have the failed frames, stays in force.

**A connection in use is never closed.** SQLite's handle is gone once it is closed, and a statement
that runs on it meanwhile ends the process (tried: a segmentation fault). So one lock covers each
transaction, and closing too.

**A log that grows is slow.** A sync of a file that has become longer has its length to write too:
0.4 to 0.9 ms where a sync within it takes 0.25 to 0.5. SQLite begins at the start of the log again
after each thousand pages, so only the first thousand would be slow; they are written in advance, as
zeros, which recovery takes for the end of the log, like the frames of an earlier round.
"""

import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from wings_core.errors import Internal, ResourceExhausted, Unavailable, WingsError
from wings_core.metadata.checks import RETIRED_CONSTRAINT, refers_to_retired
from wings_core.storage.files import sync_data, sync_directory

_logger = logging.getLogger(__name__)


_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}


def is_damage(error: BaseException | None) -> bool:
    """Tell whether SQLite says that its file is damaged."""
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
    return code & 0xFF in _DAMAGED or code == sqlite3.SQLITE_IOERR_SHORT_READ


def translated(error: sqlite3.Error, what: str = "metadata") -> WingsError:
    """Return our error for one of SQLite.

    Args:
        error: SQLite's.
        what: Content of the database, as errors name it.
    """
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    # The low byte is the kind, the rest says where it happened.
    if code & 0xFF == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_SHMSIZE:
        return ResourceExhausted(f"there is no room on the disk of {what}: {error}")
    if code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Unavailable(f"another process has {what} locked: {error}")
    if isinstance(error, sqlite3.IntegrityError) and RETIRED_CONSTRAINT in str(error):
        return refers_to_retired()
    return Internal(f"{what} failed: {error}")


def discard(connection: sqlite3.Connection | None) -> None:
    """Close a connection whatever its state; closing ends its transaction."""
    try:
        if connection is not None:
            connection.close()
    except sqlite3.Error:
        _logger.exception("a connection to metadata could not be closed")


FOREIGN_LOCK_SECONDS_MAX = 5.0
"""How long a statement waits for a lock of another process, such as a database shell."""

CACHE_KIB = 16 * 1024
"""Pages of the database that the writer keeps in memory."""

WAL_BYTES_MAX = 64 * 1024 * 1024
"""The write-ahead log is cut back to this size once it has been worked in."""

WAL_BYTES_AHEAD = 1_000 * (4096 + 24) + 32
"""The length of a log when SQLite begins it again: a thousand frames of a page each."""

LENGTHENED_AFTER = 48
"""Transactions after which the log is written in advance; a short life has no need of it."""

FENCE_TRIES = 3
"""How often a fence is tried before its transaction is in doubt."""

COPIED_BYTES = 1024 * 1024
"""Bytes of the log that are written again at a time."""

FENCES = "CREATE TABLE IF NOT EXISTS fences (id INTEGER PRIMARY KEY, mark INTEGER NOT NULL) STRICT"
"""The table that a database has for the fences of its writer."""

FENCE = "INSERT OR REPLACE INTO fences (id, mark) VALUES (1, random())"
"""A change of a row that says nothing."""


class SqliteWriter:
    """Runs durable transactions, one at a time; all methods may be called from any thread.

    Args:
        path: The database; created at the first use if it is not there.
        connection_type: The class of the connection.
        what: Content of the database, as errors name it.
    """

    def __init__(
        self, path: Path, connection_type: type[sqlite3.Connection], what: str = "metadata"
    ) -> None:
        self._path = path
        self._what = what
        self._connection_type = connection_type
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._prepare: Callable[[sqlite3.Connection], None] | None = None
        self._transactions = 0
        self._is_fence_due = False
        """Whether recovery may find a transaction that was undone."""

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        """Run the block in one durable transaction, which is undone if anything raises.

        Waits for the transaction of another thread; the block must not begin a second one.

        Raises:
            ResourceExhausted: The disk is full.
            Unavailable: The writer is closed, or another process holds the database's lock; or (the
                fact `in_doubt`) SQLite failed so that the transaction, which is not visible, may be
                after a crash.
            Internal: SQLite failed; nothing of the transaction is or will become visible.
        """
        with self._lock:
            if self._closed:
                raise Unavailable(f"the database {self._path.name} is closed")
            committing = False
            try:
                connection = self._open()
                connection.execute("BEGIN IMMEDIATE")
                if self._is_fence_due:
                    self._put_fence(connection)
                yield connection
                committing = True
                connection.execute("COMMIT")
                committing = self._is_fence_due = False
                self._transactions += 1
                if self._transactions == LENGTHENED_AFTER:
                    self._lengthen_log(connection)
            except BaseException as error:
                self._undo()
                failure = None
                if isinstance(error, sqlite3.Error):
                    failure = translated(error, self._what)
                if committing and not isinstance(failure, ResourceExhausted):
                    self._fence_off()
                    if failure is not None and self._is_fence_due:
                        message = f"it is not known whether this was committed: {failure.message}"
                        failure = Unavailable(message, in_doubt=True)
                if failure is not None:
                    raise failure from error
                raise

    def prepare(self, prepare: Callable[[sqlite3.Connection], None]) -> None:
        """Have the connection prepared whenever one is opened, and now if one is."""
        with self._lock:
            self._prepare = prepare
            if self._connection is not None:
                prepare(self._connection)

    def close(self) -> None:
        """Close the connection, after the transaction that runs; later ones are refused.

        The log is moved into the database before.

        Raises:
            Internal: That failed. It is closed; what was committed is in the log, where the next
                process finds it.
        """
        with self._lock:
            self._closed = True
            try:
                if self._connection is not None:
                    self._leave(self._connection)
            finally:
                self._disconnect()

    # Inside; the lock is held.

    def _leave(self, connection: sqlite3.Connection) -> None:
        """Move the log into the database, unless another process reads it."""
        try:
            if self._is_fence_due:
                self._fence()
            connection.execute("PRAGMA wal_checkpoint").fetchall()
        except (sqlite3.Error, WingsError) as error:
            failure = error if isinstance(error, WingsError) else translated(error, self._what)
            _logger.error("%s is closed, and keeps its log: %s", self._what, failure.message)
            with suppress(sqlite3.Error, WingsError):
                self._settle(connection, sync=False)
            if not isinstance(failure, ResourceExhausted):
                raise failure from error

    def _disconnect(self) -> None:
        discard(self._connection)
        self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None:
            return self._connection
        # SQLite's further files get the mode of this one; what keeps it from being made, it says.
        with suppress(OSError):
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(
            self._path,
            timeout=FOREIGN_LOCK_SECONDS_MAX,
            isolation_level=None,
            check_same_thread=False,
            factory=self._connection_type,
        )
        try:
            ((mode,),) = connection.execute("PRAGMA journal_mode=WAL").fetchall()
            if mode != "wal":
                raise Internal(f"{self._path} cannot have a write-ahead log, which is needed")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA fullfsync=ON")  # Of macOS: else the disk may lose it.
            connection.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
            connection.execute(f"PRAGMA journal_size_limit={WAL_BYTES_MAX}").fetchall()
            self._settle(connection, sync=True)
            if self._prepare is not None:
                self._prepare(connection)
        except BaseException:
            discard(connection)
            raise
        self._connection = connection
        return connection

    def _lengthen_log(self, connection: sqlite3.Connection) -> None:
        """Write the log's pages to come; where that fails, the log grows as it would."""
        with suppress(OSError, sqlite3.Error):
            connection.execute("BEGIN IMMEDIATE")  # So that nothing is appended meanwhile.
            with Path(f"{self._path}-wal").open("rb+") as log:
                ahead = WAL_BYTES_AHEAD - log.seek(0, os.SEEK_END)
                if ahead > 0:
                    log.write(bytes(ahead))
                    log.flush()
                    sync_data(log.fileno())
        self._undo()

    def _settle(self, connection: sqlite3.Connection, *, sync: bool) -> None:
        """Write all of the log again, so that the next sync is of all of it; or sync it, too."""
        connection.execute("BEGIN IMMEDIATE")  # So that nothing is appended meanwhile.
        try:
            self._write_log_again(sync=sync)
        finally:
            connection.execute("ROLLBACK")

    def _write_log_again(self, *, sync: bool = False) -> None:
        log = Path(f"{self._path}-wal")
        try:
            with log.open("rb+", buffering=0) as file:
                _copy_in_place(file.fileno())
                if sync:
                    try:
                        sync_data(file.fileno())
                    except OSError:
                        # SQLite syncs it when it is closed, before it moves it into the database.
                        _copy_in_place(file.fileno())
                        raise
                    sync_directory(log.parent)
        except OSError as error:
            raise Internal(f"the log of {self._what} cannot be written again: {error}") from error

    def _undo(self) -> None:
        try:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            _logger.exception("%s could not be rolled back: its connection is replaced", self._what)
            self._disconnect()

    def _put_fence(self, connection: sqlite3.Connection) -> None:
        self._write_log_again()
        connection.execute(FENCE)

    def _fence(self) -> None:
        """Make sure that recovery does not find the transaction whose COMMIT failed."""
        connection = self._open()
        connection.execute("BEGIN IMMEDIATE")
        try:
            self._put_fence(connection)
            connection.execute("COMMIT")
        except BaseException:
            self._undo()
            raise
        self._is_fence_due = False

    def _fence_off(self) -> None:
        """Fence a transaction off, now or with the next one."""
        self._is_fence_due = True
        for tries in range(1, FENCE_TRIES + 1):
            try:
                self._fence()
            except (sqlite3.Error, WingsError):
                if tries == FENCE_TRIES:
                    _logger.exception(
                        "%s cannot be written: the next commit will be the fence", self._what
                    )
            else:
                return


def _copy_in_place(descriptor: int) -> None:
    """Write all of a file again, as it is."""
    position = 0
    while data := os.pread(descriptor, COPIED_BYTES, position):
        position += os.pwrite(descriptor, data, position)
