"""SQLite's errors as ours."""

import logging
import sqlite3

from wings_core.errors import Internal, ResourceExhausted, Unavailable, WingsError
from wings_core.metadata.folios import RETIRED_CONSTRAINT, refers_to_retired

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
        what: What the database holds.
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
