"""Flushes that their writers can repeat; see `metadata.flushes`."""

from wings_core.metadata.flushes import FLUSHES_KEPT_US
from wings_core.metadata.store.database import Connection


def purge_flushes(connection: Connection, rows_max: int, now: int) -> int:
    """Delete up to so many flushes that are too old to be retried; return how many."""
    rows = connection.execute(
        "WITH old AS MATERIALIZED (SELECT writer FROM flushes "
        "WHERE committed_at <= %s::bigint LIMIT %s::bigint FOR UPDATE SKIP LOCKED) "
        "DELETE FROM flushes WHERE writer IN (SELECT writer FROM old) RETURNING number",
        (now - FLUSHES_KEPT_US, max(0, rows_max)),
    ).fetchall()
    return len(rows)
