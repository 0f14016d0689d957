"""Shards in SQLite: each method is one transaction; `write_progress` is a part of a publish."""

import sqlite3
from collections.abc import Callable, Sequence

from wings_core.metadata.interfaces import OFFSET_MAX, Shards
from wings_core.metadata.shards import (
    PRUNED_MAX,
    SHARDS_MAX,
    check_claims,
    check_progress,
    check_seconds,
    check_shards,
    moved,
)
from wings_core.metadata.sqlite.connections import Connections
from wings_core.model import (
    Shard,
    ShardClaim,
    ShardCounts,
    ShardProgress,
    ShardsPruned,
    ShardState,
)

_COLUMNS = "source, shard, token, position, state, failures, error, opened_at, updated_at"


def write_progress(
    connection: sqlite3.Connection, shards: Sequence[ShardProgress], now: int
) -> None:
    """Move shards within the transaction of a publish.

    Raises:
        PublishFenced: One of them may not be moved so.
        InvalidArgument: What is said of one makes no sense.
    """
    check_progress(shards)
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


class SqliteShards(Shards):
    """See `Shards`.

    Args:
        connections: To the database.
        clock: Microseconds since the epoch.
    """

    def __init__(self, connections: Connections, clock: Callable[[], int]) -> None:
        self._connections = connections
        self._clock = clock

    def open(self, source: str, token: str, shards: Sequence[str]) -> list[Shard]:
        """Create shards that are not there; see `Shards.open`."""
        check_shards(source, token, shards)
        with self._connections.writing() as connection:
            now = self._clock()
            connection.executemany(
                f"INSERT INTO shards ({_COLUMNS}) VALUES (?, ?, ?, 0, 'open', 0, NULL, ?, ?) "
                "ON CONFLICT DO NOTHING",
                [(source, shard, token, now, now) for shard in shards],
            )
            return _find_all(connection, source, shards)

    def acquire(
        self, source: str, token: str, claims: Sequence[ShardClaim], stale_seconds: float
    ) -> list[Shard]:
        """Take over shards from owners that were not heard of; see `Shards.acquire`."""
        check_claims(source, token, claims)
        check_seconds("stale_seconds", stale_seconds)
        with self._connections.writing() as connection:
            now = self._clock()
            connection.executemany(
                "UPDATE shards SET token = ?1, updated_at = max(updated_at, ?2) "
                "WHERE source = ?3 AND shard = ?4 AND state = 'open' AND token = ?5 "
                "AND (token IN (?1, '') OR updated_at <= ?6)",
                [
                    (token, now, source, claim.shard, claim.token, now - round(stale_seconds * 1e6))
                    for claim in claims
                ],
            )
            return _find_all(connection, source, [claim.shard for claim in claims])

    def reset(self, source: str, shards: Sequence[str]) -> list[Shard]:
        """Open dead shards again; see `Shards.reset`."""
        check_shards(source, None, shards)
        with self._connections.writing() as connection:
            dead = [
                shard.shard
                for shard in _find_all(connection, source, shards)
                if shard.state is ShardState.DEAD
            ]
            connection.executemany(
                "UPDATE shards SET token = '', state = 'open', failures = 0, error = NULL, "
                "updated_at = 0 WHERE source = ? AND shard = ?",
                [(source, shard) for shard in dead],
            )
            return _find_all(connection, source, dead)

    def get(self, source: str, shards: Sequence[str]) -> list[Shard]:
        """Return shards by their ids; see `Shards.get`."""
        check_shards(source, None, shards)
        with self._connections.reading() as connection:
            return _find_all(connection, source, shards)

    def of_source(
        self, source: str, state: ShardState | None, after: str, shards_max: int
    ) -> list[Shard]:
        """Return shards of a source, by id; see `Shards.of_source`."""
        check_shards(source, None, ())
        with self._connections.reading() as connection:
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM shards WHERE source = ?1 AND shard > ?2 "
                "AND (?3 IS NULL OR state = ?3) ORDER BY shard LIMIT ?4",
                (
                    source,
                    after.encode("utf-8", "replace").decode(),
                    None if state is None else state.value,
                    max(0, min(shards_max, SHARDS_MAX)),
                ),
            ).fetchall()
        return [_shard(row) for row in rows]

    def count(self, source: str) -> ShardCounts:
        """Count the shards of a source; see `Shards.count`."""
        check_shards(source, None, ())
        with self._connections.reading() as connection:
            # In halves, each of which has a sum that SQLite can count to.
            rows = connection.execute(
                "SELECT state, count(*), sum(position >> 32), sum(position & 4294967295) "
                "FROM shards WHERE source = ? GROUP BY state",
                (source,),
            ).fetchall()
        counts = {state: count for state, count, _, _ in rows}
        return ShardCounts(
            counts.get("open", 0),
            counts.get("finished", 0),
            counts.get("dead", 0),
            min(sum((high << 32) + low for _, _, high, low in rows), OFFSET_MAX),
        )

    def prune(
        self, source: str, age_seconds: float, count_max: int | None, interval_seconds: float
    ) -> ShardsPruned:
        """Forget shards that ended long ago; see `Shards.prune`."""
        check_shards(source, None, ())
        check_seconds("age_seconds", age_seconds)
        check_seconds("interval_seconds", interval_seconds)
        with self._connections.writing() as connection:
            now = self._clock()
            begun = connection.execute(
                "INSERT INTO shard_prunings VALUES (?1, ?2) ON CONFLICT (source) DO UPDATE "
                "SET pruned_at = ?2 WHERE pruned_at <= ?3",
                (source, now, now - round(interval_seconds * 1e6)),
            ).rowcount
            if not begun:
                return ShardsPruned(0, debounced=True)
            pruned = connection.execute(
                "DELETE FROM shards WHERE source = ?1 AND shard IN (SELECT shard FROM ("
                "SELECT shard, updated_at, row_number() OVER (ORDER BY updated_at DESC, shard DESC)"
                " AS age FROM shards WHERE source = ?1 AND state != 'open') "
                "WHERE updated_at <= ?2 OR age > ?3 ORDER BY age DESC LIMIT ?4)",
                (
                    source,
                    now - round(age_seconds * 1e6),
                    (1 << 62) if count_max is None else max(0, count_max),
                    PRUNED_MAX,
                ),
            ).rowcount
        return ShardsPruned(pruned, debounced=False)


def _find(connection: sqlite3.Connection, source: str, shard: str) -> Shard | None:
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM shards WHERE source = ? AND shard = ?", (source, shard)
    ).fetchone()
    return None if row is None else _shard(row)


def _find_all(connection: sqlite3.Connection, source: str, shards: Sequence[str]) -> list[Shard]:
    found = (_find(connection, source, shard) for shard in shards)
    return [shard for shard in found if shard is not None]


def _shard(row: tuple[str, str, str, int, str, int, str | None, int, int]) -> Shard:
    source, shard, token, position, state, failures, error, opened_at, updated_at = row
    return Shard(
        source, shard, token, position, ShardState(state), failures, error, opened_at, updated_at
    )
