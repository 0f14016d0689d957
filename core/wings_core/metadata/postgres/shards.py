"""Shards in PostgreSQL: each method is one transaction; `write_progress` is a part of a publish."""

from collections.abc import Sequence
from typing import Any

from wings_core.metadata.interfaces import OFFSET_MAX, Shards
from wings_core.metadata.postgres.connections import Connection
from wings_core.metadata.postgres.database import Database
from wings_core.metadata.postgres.lease_clock import LeaseClock
from wings_core.metadata.shards import (
    PRUNED_MAX,
    SHARDS_MAX,
    check_claims,
    check_seconds,
    check_shards,
    moved,
)
from wings_core.model import (
    Shard,
    ShardClaim,
    ShardCounts,
    ShardProgress,
    ShardsPruned,
    ShardState,
)

_LOCK = """
SELECT source, shard, token, position, state, failures, error, opened_at, updated_at FROM shards
WHERE (source, shard) IN (SELECT * FROM unnest(%s::bytea[], %s::bytea[]))
ORDER BY source, shard FOR UPDATE
"""

_SELECT = """
SELECT source, shard, token, position, state, failures, error, opened_at, updated_at FROM shards
WHERE source = %s AND shard = ANY(%s::bytea[])
"""


def write_progress(
    connection: Connection, shards: Sequence[ShardProgress], clock: LeaseClock
) -> None:
    """Move shards within the transaction of a publish; they were checked by `check_progress`.

    Args:
        connection: In the transaction.
        shards: Where they are and shall be.
        clock: Owners count as heard of by it.

    Raises:
        PublishFenced: One of them may not be moved so.
    """
    if not shards:
        return
    rows = connection.execute(
        _LOCK,
        ([each.source.encode() for each in shards], [each.shard.encode() for each in shards]),
    ).fetchall()
    stored = {(shard.source, shard.shard): shard for shard in map(_shard, rows)}
    now = clock(connection)
    after = [moved(stored.get((each.source, each.shard)), each, now) for each in shards]
    connection.execute(
        "UPDATE shards SET position = wanted.position, state = wanted.state, "
        "failures = wanted.failures, error = wanted.error, updated_at = %s::bigint "
        "FROM unnest(%s::bytea[], %s::bytea[], %s::bigint[], %s::text[], %s::bigint[], %s::bytea[])"
        " AS wanted (source, shard, position, state, failures, error) "
        "WHERE shards.source = wanted.source AND shards.shard = wanted.shard",
        (
            now,
            [shard.source.encode() for shard in after],
            [shard.shard.encode() for shard in after],
            [shard.position for shard in after],
            [shard.state.value for shard in after],
            [shard.failures for shard in after],
            [None if shard.error is None else shard.error.encode() for shard in after],
        ),
    )


class PostgresShards(Shards):
    """See `Shards`.

    Args:
        database: Where they are.
        clock: Owners count as heard of, and shards as old, by it.
    """

    def __init__(self, database: Database, clock: LeaseClock) -> None:
        self._database = database
        self._clock = clock

    def open(self, source: str, token: str, shards: Sequence[str]) -> list[Shard]:
        """Create shards that are not there; see `Shards.open`."""
        check_shards(source, token, shards)

        def work(connection: Connection) -> list[Shard]:
            now = self._clock(connection)
            # In order, so that two who open the same ones do not wait for each other.
            connection.execute(
                "INSERT INTO shards SELECT %s, shard, %s, 0, 'open', 0, NULL, %s::bigint, "
                "%s::bigint FROM unnest(%s::bytea[]) AS shard ORDER BY shard "
                "ON CONFLICT DO NOTHING",
                (source.encode(), token.encode(), now, now, _bytes(shards)),
            )
            return _find_all(connection, source, shards)

        return self._database.write(work)

    def acquire(
        self, source: str, token: str, claims: Sequence[ShardClaim], stale_seconds: float
    ) -> list[Shard]:
        """Take over shards from owners that were not heard of; see `Shards.acquire`."""
        check_claims(source, token, claims)
        check_seconds("stale_seconds", stale_seconds)
        shards = [claim.shard for claim in claims]

        def work(connection: Connection) -> list[Shard]:
            now = self._clock(connection)
            connection.execute(_LOCK, ([source.encode()] * len(shards), _bytes(shards)))
            connection.execute(
                "UPDATE shards SET token = %s, updated_at = greatest(updated_at, %s::bigint) "
                "FROM unnest(%s::bytea[], %s::bytea[]) AS claim (shard, token) "
                "WHERE shards.source = %s AND shards.shard = claim.shard AND state = 'open' "
                "AND shards.token = claim.token "
                "AND (shards.token = ANY(%s::bytea[]) OR updated_at <= %s::bigint)",
                (
                    token.encode(),
                    now,
                    _bytes(shards),
                    _bytes([claim.token for claim in claims]),
                    source.encode(),
                    [token.encode(), b""],
                    now - round(stale_seconds * 1e6),
                ),
            )
            return _find_all(connection, source, shards)

        return self._database.write(work)

    def reset(self, source: str, shards: Sequence[str]) -> list[Shard]:
        """Open dead shards again; see `Shards.reset`."""
        check_shards(source, None, shards)

        def work(connection: Connection) -> list[Shard]:
            rows = connection.execute(
                "UPDATE shards SET token = '', state = 'open', failures = 0, error = NULL, "
                "updated_at = 0 WHERE source = %s AND shard IN (SELECT shard FROM shards "
                "WHERE source = %s AND shard = ANY(%s::bytea[]) AND state = 'dead' "
                "ORDER BY shard FOR UPDATE) RETURNING shard",
                (source.encode(), source.encode(), _bytes(shards)),
            ).fetchall()
            changed = {shard.decode() for (shard,) in rows}
            return _find_all(connection, source, [shard for shard in shards if shard in changed])

        return self._database.write(work)

    def get(self, source: str, shards: Sequence[str]) -> list[Shard]:
        """Return shards by their ids; see `Shards.get`."""
        check_shards(source, None, shards)
        return self._database.read(lambda connection: _find_all(connection, source, shards))

    def of_source(
        self, source: str, state: ShardState | None, after: str, shards_max: int
    ) -> list[Shard]:
        """Return shards of a source, by id; see `Shards.of_source`."""
        check_shards(source, None, ())
        rows = self._database.read(
            lambda connection: connection.execute(
                "SELECT source, shard, token, position, state, failures, error, opened_at, "
                "updated_at FROM shards WHERE source = %s AND shard > %s "
                "AND (%s::text IS NULL OR state = %s::text) ORDER BY shard LIMIT %s::bigint",
                (
                    source.encode(),
                    after.encode("utf-8", "replace"),
                    None if state is None else state.value,
                    None if state is None else state.value,
                    max(0, min(shards_max, SHARDS_MAX)),
                ),
            ).fetchall()
        )
        return [_shard(row) for row in rows]

    def count(self, source: str) -> ShardCounts:
        """Count the shards of a source; see `Shards.count`."""
        check_shards(source, None, ())
        rows = self._database.read(
            lambda connection: connection.execute(
                "SELECT state, count(*), sum(position) FROM shards WHERE source = %s "
                "GROUP BY state",
                (source.encode(),),
            ).fetchall()
        )
        counts = {state: count for state, count, _ in rows}
        return ShardCounts(
            counts.get("open", 0),
            counts.get("finished", 0),
            counts.get("dead", 0),
            min(sum(int(position) for _, _, position in rows), OFFSET_MAX),
        )

    def prune(
        self, source: str, age_seconds: float, count_max: int | None, interval_seconds: float
    ) -> ShardsPruned:
        """Forget shards that ended long ago; see `Shards.prune`."""
        check_shards(source, None, ())
        check_seconds("age_seconds", age_seconds)
        check_seconds("interval_seconds", interval_seconds)
        name = source.encode()

        def work(connection: Connection) -> ShardsPruned:
            now = self._clock(connection)
            # Whoever comes while another prunes waits for its row, and then finds it too young.
            begun = connection.execute(
                "INSERT INTO shard_prunings AS last VALUES (%s, %s::bigint) "
                "ON CONFLICT (source) DO UPDATE SET pruned_at = excluded.pruned_at "
                "WHERE last.pruned_at <= %s::bigint RETURNING source",
                (name, now, now - round(interval_seconds * 1e6)),
            ).fetchall()
            if not begun:
                return ShardsPruned(0, debounced=True)
            pruned = connection.execute(
                "DELETE FROM shards WHERE source = %s AND state != 'open' AND shard IN ("
                "SELECT shard FROM (SELECT shard, updated_at, row_number() OVER "
                "(ORDER BY updated_at DESC, shard DESC) AS age FROM shards WHERE source = %s "
                "AND state != 'open') AS ended WHERE updated_at <= %s::bigint OR age > %s::bigint "
                "ORDER BY age DESC LIMIT %s::bigint) RETURNING shard",
                (
                    name,
                    name,
                    now - round(age_seconds * 1e6),
                    (1 << 62) if count_max is None else max(0, count_max),
                    PRUNED_MAX,
                ),
            ).fetchall()
            return ShardsPruned(len(pruned), debounced=False)

        return self._database.write(work)


def _find_all(connection: Connection, source: str, shards: Sequence[str]) -> list[Shard]:
    rows = connection.execute(_SELECT, (source.encode(), _bytes(shards))).fetchall()
    found = {shard.shard: shard for shard in map(_shard, rows)}
    return [found[shard] for shard in shards if shard in found]


def _bytes(texts: Sequence[str]) -> list[bytes]:
    return [text.encode() for text in texts]


def _shard(row: tuple[Any, ...]) -> Shard:
    source, shard, token, position, state, failures, error, opened_at, updated_at = row
    return Shard(
        source.decode(),
        shard.decode(),
        token.decode(),
        position,
        ShardState(state),
        failures,
        None if error is None else error.decode(),
        opened_at,
        updated_at,
    )
