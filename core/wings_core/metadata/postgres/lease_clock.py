"""The clock that leases count by: PostgreSQL's own, which is one for all services over it.

What services stamp by their own clocks may differ by as much as those do. A lease that one of them
granted must not look expired to another, nor the owner of a shard gone, that it has heard of.
"""

from collections.abc import Callable

from wings_core.metadata.postgres.connections import Connection

LeaseClock = Callable[[Connection], int]
"""Tells the time in microseconds since the epoch; asks the server, in the transaction."""


def server_clock(connection: Connection) -> int:
    """Return the server's time, at this moment and not at the transaction's beginning."""
    row = connection.execute(
        "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    ).fetchone()
    assert row is not None
    return int(row[0])
