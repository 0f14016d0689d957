"""The one connection that writes, and what it does when a transaction fails.

**A commit that failed must not come back.** SQLite appends a transaction to its write-ahead log,
the last frame marked as the commit, and then syncs. Where the sync fails, SQLite rolls back: no
connection sees the transaction. But its frames, mark and all, may lie in the log, and after a crash
recovery would find them valid and replay them (tried: it does). So after a failed COMMIT the writer
at once commits a row of its own, the fence. Its frames overwrite the failed ones, and since each
frame's checksum covers those before it, what is left of them is never valid again (tried). If the
fence fails as well, the next commit that succeeds does the same. A full disk is harmless: then the
frame with the mark, which is the last, was not written.

If even the rollback fails, the state of the connection is unknown: it is discarded, which ends its
transaction, and a new one is opened before the next use. Readers stay open meanwhile, so the
shared index of the log, which does not have the failed frames, stays in force.
"""

import logging
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from wings_core.errors import Internal, WingsError
from wings_core.metadata.sqlite.faults import discard, translated

FOREIGN_LOCK_SECONDS_MAX = 5.0
"""How long a statement waits for a lock of another process, such as a database shell."""

CACHE_KIB = 16 * 1024
"""Pages of the database that the writer keeps in memory."""

WAL_BYTES_MAX = 64 * 1024 * 1024
"""The write-ahead log is cut back to this size once it has been worked in."""

_logger = logging.getLogger(__name__)


class Writer:
    """Runs durable transactions; used by one thread at a time.

    Args:
        path: The database; created at the first use if it is not there.
        connection_type: The class of the connection.
    """

    def __init__(self, path: Path, connection_type: type[sqlite3.Connection]) -> None:
        self._path = path
        self._connection_type = connection_type
        self._connection: sqlite3.Connection | None = None

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        """Run the block in one durable transaction, which is undone if anything raises.

        Raises:
            ResourceExhausted: The disk is full.
            Unavailable: Another process holds the database's lock.
            Internal: SQLite failed; nothing of the transaction is or will become visible.
        """
        committing = False
        try:
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            committing = True
            connection.execute("COMMIT")
        except BaseException as error:
            self._undo()
            if committing:
                self._fence()
            if isinstance(error, sqlite3.Error):
                raise translated(error) from error
            raise

    def close(self) -> None:
        """Close the connection; the last of all to close moves the log into the database."""
        discard(self._connection)
        self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None:
            return self._connection
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
                raise Internal(f"metadata needs a write-ahead log, {self._path} cannot have one")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
            connection.execute(f"PRAGMA journal_size_limit={WAL_BYTES_MAX}").fetchall()
        except BaseException:
            discard(connection)
            raise
        self._connection = connection
        return connection

    def _undo(self) -> None:
        try:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            _logger.exception("metadata could not be rolled back: its connection is replaced")
            self.close()

    def _fence(self) -> None:
        """Make sure that recovery does not find the transaction whose COMMIT failed."""
        try:
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT OR REPLACE INTO fences VALUES (1, random())")
            connection.execute("COMMIT")
        except (sqlite3.Error, WingsError):
            _logger.exception("metadata cannot be written: its next commit will be the fence")
            self._undo()
