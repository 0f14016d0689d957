"""Commits that a writer can retry; see `metadata.flushes`."""

from collections.abc import Sequence

from wings_core.metadata.flushes import FLUSHES_KEPT_US, dump_results, is_repeat, load_results
from wings_core.metadata.store.database import C, Committed, Connection, Dialect
from wings_core.metadata.store.locks import Lock
from wings_core.model import CommitBatch, FlushId, InlineFolio


def commit_flush(
    dialect: Dialect[C],
    connection: C,
    batches: Sequence[CommitBatch],
    now: int,
    flush_id: FlushId,
    inline: InlineFolio | None = None,
) -> Committed:
    """Commit batches once: a repeated flush is answered with its first results."""
    connection.take_lock(Lock.WRITERS, (flush_id.writer,))
    row = connection.execute(
        "SELECT number, results FROM flushes WHERE writer = %s", (flush_id.writer,)
    ).fetchone()
    if row is not None and is_repeat(flush_id, row[0]):
        return Committed(load_results(row[1]), {})
    committed = dialect.commit_batches(connection, batches, now, inline)
    connection.execute(
        "INSERT INTO flushes (writer, number, results, committed_at) VALUES (%s, %s, %s, %s) "
        "ON CONFLICT (writer) DO UPDATE SET number = excluded.number, "
        "results = excluded.results, committed_at = excluded.committed_at",
        (flush_id.writer, flush_id.number, dump_results(committed.results), now),
    )
    return committed


def purge_flushes(connection: Connection, rows_max: int, now: int) -> int:
    """Delete up to so many flushes that are too old to be retried; return how many."""
    rows = connection.execute(
        "WITH old AS MATERIALIZED (SELECT writer FROM flushes "
        "WHERE committed_at <= %s::bigint LIMIT %s::bigint FOR UPDATE SKIP LOCKED) "
        "DELETE FROM flushes WHERE writer IN (SELECT writer FROM old) RETURNING number",
        (now - FLUSHES_KEPT_US, max(0, rows_max)),
    ).fetchall()
    return len(rows)
