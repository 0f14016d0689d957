"""Shards in a database: each method is one transaction."""

from collections.abc import Sequence
from typing import Any

from wings_core.contracts.shards import SHARDS_MAX
from wings_core.metadata.checks import check_text
from wings_core.metadata.interfaces import OFFSET_MAX, Shards
from wings_core.metadata.stages import PRUNED_MAX, check_claims, check_seconds, check_shards
from wings_core.metadata.store.database import Connection, DatabasePart
from wings_core.model import Shard, ShardClaim, ShardCounts, ShardProgress, ShardsPruned, ShardState

COLUMNS = "source, shard, token, position, state, failures, error, opened_at, updated_at"
"""Columns of a row that `shard_of` reads."""


class DatabaseShards(DatabasePart, Shards):
    """See `Shards`."""

    def open(self, source: str, token: str, shards: Sequence[str]) -> list[Shard]:
        """Create shards that are not there; see `Shards.open`."""
        check_shards(source, token, shards)

        def work(connection: Connection) -> list[Shard]:
            # In order, so that two transactions that open the same ones do not wait for each other.
            connection.execute_rows(
                f"INSERT INTO shards ({COLUMNS}) SELECT %(source)s, given.shard, %(token)s, 0, "
                "'open', 0, NULL, %(now)s::bigint, %(now)s::bigint FROM {given} WHERE true "
                "ON CONFLICT DO NOTHING",
                {"shard text": sorted(shards)},
                {"source": source, "token": token, "now": self._database.lease_now(connection)},
            )
            return _find(connection, source, shards)

        return self._database.write(work)

    def acquire(
        self, source: str, token: str, claims: Sequence[ShardClaim], stale_seconds: float
    ) -> list[Shard]:
        """Take over shards from stale owners; see `Shards.acquire`."""
        check_claims(source, token, claims)
        check_seconds("stale_seconds", stale_seconds)

        def work(connection: Connection) -> list[Shard]:
            shards = [claim.shard for claim in claims]
            _lock(connection, [source] * len(shards), shards)
            now = self._database.lease_now(connection)
            # Updated before the clock was set back, a shard counts as updated now.
            connection.execute_rows(
                "UPDATE shards SET updated_at = %(now)s::bigint FROM {given} "
                "WHERE shards.source = %(source)s AND shards.shard = given.shard "
                "AND shards.state = 'open' AND updated_at > %(now)s::bigint",
                {"shard text": shards},
                {"now": now, "source": source},
            )
            connection.execute_rows(
                "UPDATE shards SET token = %(token)s, updated_at = %(now)s::bigint FROM {given} "
                "WHERE shards.source = %(source)s AND shards.shard = given.shard "
                "AND shards.state = 'open' AND shards.token = given.token "
                "AND (shards.token IN (%(token)s::text, '') OR updated_at <= %(stale)s::bigint)",
                {"shard text": shards, "token text": [claim.token for claim in claims]},
                {
                    "token": token,
                    "now": now,
                    "source": source,
                    "stale": now - round(stale_seconds * 1e6),
                },
            )
            return _find(connection, source, shards)

        return self._database.write(work)

    def reset(self, source: str, shards: Sequence[str]) -> list[Shard]:
        """Open dead shards again; see `Shards.reset`."""
        check_shards(source, None, shards)

        def work(connection: Connection) -> list[Shard]:
            _lock(connection, [source] * len(shards), shards)
            reset = connection.execute_rows(
                "UPDATE shards SET token = '', state = 'open', failures = 0, error = NULL, "
                "updated_at = 0 FROM {given} WHERE shards.source = %(source)s "
                "AND shards.shard = given.shard AND shards.state = 'dead' RETURNING shards.shard",
                {"shard text": list(shards)},
                {"source": source},
            ).fetchall()
            dead = {shard for (shard,) in reset}
            return _find(connection, source, [shard for shard in shards if shard in dead])

        return self._database.write(work)

    def get(self, source: str, shards: Sequence[str]) -> list[Shard]:
        """Return shards by their ids; see `Shards.get`."""
        check_shards(source, None, shards)
        return self._database.read(lambda connection: _find(connection, source, shards))

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
        return [shard_of(row) for row in rows]

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

        def work(connection: Connection) -> ShardsPruned:
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


def lock_shards(
    connection: Connection, shards: Sequence[ShardProgress]
) -> dict[tuple[str, str], Shard]:
    """Return the existing ones of shards, by source and id, locked against other transactions."""
    rows = _lock(connection, [each.source for each in shards], [each.shard for each in shards])
    return {(shard.source, shard.shard): shard for shard in rows}


def write_shards(connection: Connection, shards: Sequence[Shard]) -> None:
    """Write how far shards have got, and their failures."""
    connection.execute_rows(
        "UPDATE shards SET position = given.position, state = given.state, "
        "failures = given.failures, error = given.error, updated_at = given.updated_at "
        "FROM {given} WHERE shards.source = given.source AND shards.shard = given.shard",
        {
            "source text": [shard.source for shard in shards],
            "shard text": [shard.shard for shard in shards],
            "position bigint": [shard.position for shard in shards],
            "state text": [shard.state.value for shard in shards],
            "failures bigint": [shard.failures for shard in shards],
            "error text": [shard.error for shard in shards],
            "updated_at bigint": [shard.updated_at for shard in shards],
        },
    )


_GIVEN = (
    f"SELECT {', '.join(f'shards.{column}' for column in COLUMNS.split(', '))} FROM {{given}} "
    "JOIN shards ON shards.source = given.source AND shards.shard = given.shard ORDER BY "
)


def _find(connection: Connection, source: str, shards: Sequence[str]) -> list[Shard]:
    """Return the existing ones of shards, in the order given."""
    columns = {"source text": [source] * len(shards), "shard text": list(shards)}
    rows = connection.execute_rows(_GIVEN + "given.place", columns).fetchall()
    return [shard_of(row) for row in rows]


def _lock(connection: Connection, sources: Sequence[str], shards: Sequence[str]) -> list[Shard]:
    rows = connection.execute_rows(
        _GIVEN + "shards.source, shards.shard FOR UPDATE OF shards",
        {"source text": sources, "shard text": shards},
    ).fetchall()
    return [shard_of(row) for row in rows]


def shard_of(row: Sequence[Any]) -> Shard:
    """Return a shard of the values of `COLUMNS`."""
    source, shard, token, position, state, *rest = row
    return Shard(source, shard, token, position, ShardState(state), *rest)
