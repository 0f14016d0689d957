"""The statements of shards in PostgreSQL that go over many at once."""

from collections.abc import Callable, Sequence

from wings_core.metadata.postgres.connections import Connection
from wings_core.metadata.postgres.plans import plan_for
from wings_core.metadata.shards import moved
from wings_core.metadata.store.shards import COLUMNS, shard_of
from wings_core.model import Shard, ShardClaim, ShardProgress

_LOCK = f"""
SELECT {COLUMNS} FROM shards
WHERE (source, shard) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
ORDER BY source, shard FOR UPDATE
"""


def find_shards(connection: Connection, source: str, shards: Sequence[str]) -> list[Shard]:
    """Return those of the shards that are there, in the order given."""
    rows = connection.execute(
        # Looked up one by one, whatever the plan; see `LOCATE_MANY`.
        f"SELECT {COLUMNS} FROM unnest(%s::text[]) WITH ORDINALITY AS wanted (value, place) "
        "CROSS JOIN LATERAL (SELECT * FROM shards WHERE source = %s AND shard = wanted.value "
        "LIMIT 1) AS shards ORDER BY place",
        (list(shards), source),
    ).fetchall()
    return [shard_of(*row) for row in rows]


def open_shards(
    connection: Connection, source: str, token: str, shards: Sequence[str], now: int
) -> None:
    """Create the shards that are not there."""
    # In order, so that two transactions that open the same ones do not wait for each other.
    connection.execute(
        f"INSERT INTO shards ({COLUMNS}) "
        "SELECT %s, shard, %s, 0, 'open', 0, NULL, %s::bigint, %s::bigint "
        "FROM unnest(%s::text[]) AS shard "
        'ORDER BY shard COLLATE "C" ON CONFLICT DO NOTHING',
        (source, token, now, now, list(shards)),
    )


def acquire_shards(
    connection: Connection,
    source: str,
    token: str,
    claims: Sequence[ShardClaim],
    now: int,
    stale_before: int,
) -> None:
    """Change the owner of the shards whose claims hold; see `Shards.acquire`."""
    shards = [claim.shard for claim in claims]
    plan_for(connection, len(shards))
    connection.execute(_LOCK, ([source] * len(shards), shards))
    connection.execute(
        "UPDATE shards SET token = %s, updated_at = greatest(updated_at, %s::bigint) "
        "FROM unnest(%s::text[], %s::text[]) AS claim (shard, token) "
        "WHERE shards.source = %s AND shards.shard = claim.shard AND state = 'open' "
        "AND shards.token = claim.token "
        "AND (shards.token = ANY(%s::text[]) OR updated_at <= %s::bigint)",
        (token, now, shards, [claim.token for claim in claims], source, [token, ""], stale_before),
    )


def reset_shards(connection: Connection, source: str, shards: Sequence[str]) -> list[str]:
    """Open dead shards again; return those that were dead, in any order."""
    plan_for(connection, len(shards))
    connection.execute(_LOCK, ([source] * len(shards), list(shards)))
    rows = connection.execute(
        "UPDATE shards SET token = '', state = 'open', failures = 0, error = NULL, "
        "updated_at = 0 WHERE source = %s AND shard = ANY(%s::text[]) AND state = 'dead' "
        "RETURNING shard",
        (source, list(shards)),
    ).fetchall()
    return [shard for (shard,) in rows]


def write_progress(
    connection: Connection, shards: Sequence[ShardProgress], clock: Callable[[], int]
) -> None:
    """Move shards within a publish; see `Dialect.write_progress`."""
    plan_for(connection, len(shards))
    rows = connection.execute(
        _LOCK, ([each.source for each in shards], [each.shard for each in shards])
    ).fetchall()
    stored = {(shard.source, shard.shard): shard for shard in (shard_of(*row) for row in rows)}
    now = clock()
    after = [moved(stored.get((each.source, each.shard)), each, now) for each in shards]
    connection.execute(
        "UPDATE shards SET position = wanted.position, state = wanted.state, "
        "failures = wanted.failures, error = wanted.error, updated_at = %s::bigint "
        "FROM unnest(%s::text[], %s::text[], %s::bigint[], %s::text[], %s::bigint[], %s::text[])"
        " AS wanted (source, shard, position, state, failures, error) "
        "WHERE shards.source = wanted.source AND shards.shard = wanted.shard",
        (
            now,
            [shard.source for shard in after],
            [shard.shard for shard in after],
            [shard.position for shard in after],
            [shard.state.value for shard in after],
            [shard.failures for shard in after],
            [shard.error for shard in after],
        ),
    )
