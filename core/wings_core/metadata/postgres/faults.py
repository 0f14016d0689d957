"""PostgreSQL's errors: which are worth another try, and what they are called here."""

import logging

import psycopg

from wings_core.errors import Internal, ResourceExhausted, Unavailable, WingsError
from wings_core.metadata.checks import RETIRED_CONSTRAINT, refers_to_retired
from wings_core.metadata.store.database import RunAgain

_PASSING_CLASSES = ("08", "40")
"""Connections that broke; transactions that could not be serialised, and deadlocks."""

_PASSING = {
    "25P03",  # The connection was idle for too long in a transaction: the node was paused.
    "25P04",  # A transaction took too long.
    "25006",  # The server became a standby.
    "53300",  # Too many connections.
    "55P03",  # A lock was not had in time.
    "57014",  # A statement took too long.
    "57P01",  # The server is being stopped,
    "57P02",  # has crashed,
    "57P03",  # or does not take connections yet.
    "57P05",  # The connection was idle for too long.
}
"""SQLSTATEs of what may go away by itself, with nothing of the transaction left."""

_logger = logging.getLogger(__name__)


def passing(error: Exception) -> bool:
    """Tell whether another try may succeed."""
    if not isinstance(error, psycopg.Error):
        return isinstance(error, RunAgain)
    state = error.sqlstate
    if state is None:
        # The connection broke, or could not be made.
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state in _PASSING or state[:2] in _PASSING_CLASSES


def translated(error: Exception) -> WingsError:
    """Return our error for one of PostgreSQL; its text is of the server, never of the settings."""
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    if isinstance(error, psycopg.Error) and error.diag.constraint_name == RETIRED_CONSTRAINT:
        return refers_to_retired()
    text = " ".join(str(error).split())[:300]
    if passing(error):
        return Unavailable(f"metadata cannot be reached: {text or 'others change it too often'}")
    if state is not None and state.startswith("53"):
        return ResourceExhausted(f"the server of metadata has no room: {text}")
    return Internal(f"metadata failed: {text}")


def discard(connection: psycopg.Connection | None) -> None:
    """Close a connection whatever its state; closing ends its transaction."""
    try:
        if connection is not None:
            connection.close()
    except psycopg.Error:
        _logger.exception("a connection to metadata could not be closed")
