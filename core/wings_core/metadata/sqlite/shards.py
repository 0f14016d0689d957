"""The statements of shards in SQLite that go over many."""

from collections.abc import Callable, Sequence

from wings_core.metadata.shards import moved
from wings_core.metadata.sqlite.database import Connection
from wings_core.metadata.store.shards import COLUMNS, shard_of
from wings_core.model import Shard, ShardClaim, ShardProgress, ShardState


def find_shards(connection: Connection, source: str, shards: Sequence[str]) -> list[Shard]:
    """Return those of the shards that are there, in the order given."""
    found = (_find(connection, source, shard) for shard in shards)
    return [shard for shard in found if shard is not None]


def open_shards(
    connection: Connection, source: str, token: str, shards: Sequence[str], now: int
) -> None:
    """Create the shards that are not there."""
    connection.raw.executemany(
        f"INSERT INTO shards ({COLUMNS}) VALUES (?, ?, ?, 0, 'open', 0, NULL, ?, ?) "
        "ON CONFLICT DO NOTHING",
        [(source, shard, token, now, now) for shard in shards],
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
    connection.raw.executemany(
        "UPDATE shards SET token = ?1, updated_at = max(updated_at, ?2) "
        "WHERE source = ?3 AND shard = ?4 AND state = 'open' AND token = ?5 "
        "AND (token IN (?1, '') OR updated_at <= ?6)",
        [(token, now, source, claim.shard, claim.token, stale_before) for claim in claims],
    )


def reset_shards(connection: Connection, source: str, shards: Sequence[str]) -> list[str]:
    """Open dead shards again; return those that were dead."""
    dead = [
        shard.shard
        for shard in find_shards(connection, source, shards)
        if shard.state is ShardState.DEAD
    ]
    connection.raw.executemany(
        "UPDATE shards SET token = '', state = 'open', failures = 0, error = NULL, "
        "updated_at = 0 WHERE source = ? AND shard = ?",
        [(source, shard) for shard in dead],
    )
    return dead


def write_progress(
    connection: Connection, shards: Sequence[ShardProgress], clock: Callable[[], int]
) -> None:
    """Move shards within a publish; see `Dialect.write_progress`."""
    now = clock()
    for progress in shards:
        after = moved(_find(connection, progress.source, progress.shard), progress, now)
        connection.execute(
            "UPDATE shards SET position = ?, state = ?, failures = ?, error = ?, updated_at = ? "
            "WHERE source = ? AND shard = ?",
            (
                after.position,
                after.state.value,
                after.failures,
                after.error,
                after.updated_at,
                after.source,
                after.shard,
            ),
        )


def _find(connection: Connection, source: str, shard: str) -> Shard | None:
    row = connection.execute(
        f"SELECT {COLUMNS} FROM shards WHERE source = ? AND shard = ?", (source, shard)
    ).fetchone()
    return None if row is None else shard_of(*row)
