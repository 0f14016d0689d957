"""How transactions that write many partitions, producers, folios or shards are planned.

Statements are planned once, for a walk along indexes (see `connections`). Where that was done while
a table had few rows, the planner may walk through all of them for each that is wanted, which
costs nothing then and is as much as their square later: until PostgreSQL has counted the rows
again, a first push to 10,000 partitions would take longer than a statement may.
"""

from typing import LiteralString

from wings_core.metadata.postgres.connections import Connection

ROWS_MANY: LiteralString = "200"
"""From so many on a plan of its own costs little beside what it is for."""

PLAN_FOR_MANY: LiteralString = """
    set_config('plan_cache_mode', 'force_custom_plan', true),
    set_config('enable_hashjoin', 'on', true)
"""
"""Of a select: plans what follows in this transaction for the values it has, by hash or index."""


def plan_for(connection: Connection, rows: int) -> None:
    """Have the rest of the transaction planned for as many rows of a table as it names."""
    if rows >= int(ROWS_MANY):
        connection.execute(f"SELECT {PLAN_FOR_MANY}")
