"""How transactions that write to many partitions at once are planned.

Statements are planned once, for a walk along indexes (see `connections`). Where that was done while
few partitions were there, the planner may walk through all of them for each that is wanted, which
costs nothing then and is as much as their square later: until PostgreSQL has counted the rows
again, a first push to 10,000 partitions would take longer than a statement may.
"""

from typing import LiteralString

from wings_core.metadata.postgres.connections import Connection

PARTITIONS_MANY: LiteralString = "200"
"""From so many on a plan of its own costs little beside what it is for."""

PLAN_FOR_MANY: LiteralString = """
    set_config('plan_cache_mode', 'force_custom_plan', true),
    set_config('enable_hashjoin', 'on', true)
"""
"""Of a select: plans what follows in this transaction for the values it has, by hash or index."""


def plan_for(connection: Connection, partitions: int) -> None:
    """Have the rest of a transaction planned for as many partitions as it writes to."""
    if partitions >= int(PARTITIONS_MANY):
        connection.execute(f"SELECT {PLAN_FOR_MANY}")
