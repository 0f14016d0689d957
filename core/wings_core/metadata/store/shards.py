"""Shards in a database: each method is one transaction."""

from collections.abc import Sequence
from typing import Generic

from wings_core.metadata.interfaces import OFFSET_MAX, Shards
from wings_core.metadata.judge import check_text
from wings_core.metadata.shards import (
    PRUNED_MAX,
    SHARDS_MAX,
    check_claims,
    check_seconds,
    check_shards,
)
from wings_core.metadata.store.database import C, Database, Dialect
from wings_core.model import Shard, ShardClaim, ShardCounts, ShardsPruned, ShardState

COLUMNS = "source, shard, token, position, state, failures, error, opened_at, updated_at"
"""Of a row that `shard_of` reads."""


class DatabaseShards(Shards, Generic[C]):
    """See `Shards`.

    Args:
        database: Where they are.
        dialect: Its statements.
    """

    def __init__(self, database: Database[C], dialect: Dialect[C]) -> None:
        self._database = database
        self._dialect = dialect

    def open(self, source: str, token: str, shards: Sequence[str]) -> list[Shard]:
        """Create shards that are not there; see `Shards.open`."""
        check_shards(source, token, shards)

        def work(connection: C) -> list[Shard]:
            now = self._database.lease_now(connection)
            self._dialect.open_shards(connection, source, token, shards, now)
            return self._dialect.find_shards(connection, source, shards)

        return self._database.write(work)

    def acquire(
        self, source: str, token: str, claims: Sequence[ShardClaim], stale_seconds: float
    ) -> list[Shard]:
        """Take over shards from stale owners; see `Shards.acquire`."""
        check_claims(source, token, claims)
        check_seconds("stale_seconds", stale_seconds)

        def work(connection: C) -> list[Shard]:
            now = self._database.lease_now(connection)
            stale_before = now - round(stale_seconds * 1e6)
            self._dialect.acquire_shards(connection, source, token, claims, now, stale_before)
            shards = [claim.shard for claim in claims]
            return self._dialect.find_shards(connection, source, shards)

        return self._database.write(work)

    def reset(self, source: str, shards: Sequence[str]) -> list[Shard]:
        """Open dead shards again; see `Shards.reset`."""
        check_shards(source, None, shards)

        def work(connection: C) -> list[Shard]:
            dead = set(self._dialect.reset_shards(connection, source, shards))
            return self._dialect.find_shards(
                connection, source, [shard for shard in shards if shard in dead]
            )

        return self._database.write(work)

    def get(self, source: str, shards: Sequence[str]) -> list[Shard]:
        """Return shards by their ids; see `Shards.get`."""
        check_shards(source, None, shards)
        return self._database.read(
            lambda connection: self._dialect.find_shards(connection, source, shards)
        )

    def of_source(
        self, source: str, state: ShardState | None, after: str, shards_max: int
    ) -> list[Shard]:
        """Return shards of a source, by id; see `Shards.of_source`."""
        check_shards(source, None, ())
        check_text("after", after)
        wanted = None if state is None else state.value
        rows = self._database.read(
            lambda connection: connection.execute(
                f"SELECT {COLUMNS} FROM shards WHERE source = %s AND shard > %s::text "
                "AND (%s::text IS NULL OR state = %s::text) ORDER BY shard LIMIT %s::bigint",
                (source, after, wanted, wanted, max(0, min(shards_max, SHARDS_MAX))),
            ).fetchall()
        )
        return [shard_of(*row) for row in rows]

    def sources(self, sources_max: int, *, after: str | None = None) -> list[str]:
        """Return the sources that have shards; see `Shards.sources`."""
        check_text("after", after or "")
        # One look along the index for each source, however many shards it has; no name is empty.
        rows = self._database.read(
            lambda connection: connection.execute(
                "WITH RECURSIVE found (source) AS ("
                "SELECT min(source) FROM shards WHERE source > %s::text UNION ALL "
                "SELECT (SELECT min(source) FROM shards WHERE source > found.source) "
                "FROM found WHERE found.source IS NOT NULL) "
                "SELECT source FROM found WHERE source IS NOT NULL LIMIT %s::bigint",
                (after or "", max(0, sources_max)),
            ).fetchall()
        )
        return [source for (source,) in rows]

    def count(self, source: str) -> ShardCounts:
        """Count the shards of a source; see `Shards.count`."""
        check_shards(source, None, ())
        # Positions are added up in halves, whose sums SQLite can count to.
        rows = self._database.read(
            lambda connection: connection.execute(
                "SELECT state, count(*), sum(position >> 32), sum(position & 4294967295) "
                "FROM shards WHERE source = %s GROUP BY state",
                (source,),
            ).fetchall()
        )
        counts: dict[str, int] = {state: count for state, count, _, _ in rows}
        position = sum((int(high) << 32) + int(low) for _, _, high, low in rows)
        return ShardCounts(
            counts.get("open", 0),
            counts.get("finished", 0),
            counts.get("dead", 0),
            min(position, OFFSET_MAX),
        )

    def prune(
        self, source: str, age_seconds: float, count_max: int | None, interval_seconds: float
    ) -> ShardsPruned:
        """Delete shards that ended long ago; see `Shards.prune`."""
        check_shards(source, None, ())
        check_seconds("age_seconds", age_seconds)
        check_seconds("interval_seconds", interval_seconds)

        def work(connection: C) -> ShardsPruned:
            now = self._database.lease_now(connection)
            # A pruning that comes during another waits for its row, and then finds it too young.
            begun = connection.execute(
                "INSERT INTO shard_prunings AS last (source, pruned_at) VALUES (%s, %s::bigint) "
                "ON CONFLICT (source) DO UPDATE SET pruned_at = excluded.pruned_at "
                "WHERE last.pruned_at <= %s::bigint",
                (source, now, now - round(interval_seconds * 1e6)),
            ).rowcount
            if not begun:
                return ShardsPruned(0, debounced=True)
            pruned = connection.execute(
                # The oldest, up to the youngest of them.
                "DELETE FROM shards WHERE source = %s AND state != 'open' "
                "AND (updated_at, shard) <= (SELECT updated_at, shard FROM ("
                "SELECT shard, updated_at, age FROM (SELECT shard, updated_at, row_number() OVER "
                "(ORDER BY updated_at DESC, shard DESC) AS age FROM shards WHERE source = %s "
                "AND state != 'open') AS ended WHERE updated_at <= %s::bigint OR age > %s::bigint "
                "ORDER BY age DESC LIMIT %s::bigint) AS pruned ORDER BY age LIMIT 1)",
                (
                    source,
                    source,
                    now - round(age_seconds * 1e6),
                    (1 << 62) if count_max is None else max(0, count_max),
                    PRUNED_MAX,
                ),
            ).rowcount
            return ShardsPruned(pruned, debounced=False)

        return self._database.write(work)


def shard_of(
    source: str,
    shard: str,
    token: str,
    position: int,
    state: str,
    failures: int,
    error: str | None,
    opened_at: int,
    updated_at: int,
) -> Shard:
    """Return a shard of the values of `COLUMNS`."""
    return Shard(
        source, shard, token, position, ShardState(state), failures, error, opened_at, updated_at
    )
