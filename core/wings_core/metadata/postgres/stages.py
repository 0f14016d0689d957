"""Stages in PostgreSQL: begun and added to by commits, aborted; `publish` moves them."""

from collections.abc import Iterable, Sequence

from wings_core.metadata.postgres.connections import Connection
from wings_core.metadata.postgres.plans import plan_for
from wings_core.metadata.stages import StageDraft


def lock_stages(connection: Connection, stages: Sequence[str]) -> dict[str, StageDraft]:
    """Return the stages that are there, by id, and keep other transactions from them."""
    rows = connection.execute(
        "SELECT name, topic_id, id, writing, rows, bytes, pages FROM stages "
        "WHERE name = ANY(%s::text[]) ORDER BY name FOR UPDATE",
        (list(stages),),
    ).fetchall()
    return {
        name: StageDraft(name, topic_id, stage_id, writing, count, size, pages)
        for name, topic_id, stage_id, writing, count, size, pages in rows
    }


def write_stages(connection: Connection, stages: Iterable[StageDraft], now: int) -> None:
    """Write what a flush added to stages, giving ids to new ones; the folios are there."""
    for draft in stages:
        if draft.stage_id is None:
            row = connection.execute(
                "INSERT INTO stages (name, topic_id, writing, rows, bytes, pages, changed_at) "
                "VALUES (%s, %s, %s, %s, %s, %s, %s) RETURNING id",
                (
                    draft.stage,
                    draft.topic_id,
                    draft.writing,
                    draft.rows,
                    draft.bytes,
                    draft.pages,
                    now,
                ),
            ).fetchone()
            assert row is not None
            draft.stage_id = row[0]
        else:
            connection.execute(
                "UPDATE stages SET rows = %s, bytes = %s, pages = %s, changed_at = %s "
                "WHERE id = %s",
                (draft.rows, draft.bytes, draft.pages, now, draft.stage_id),
            )
        _write_pages(connection, draft)


def _write_pages(connection: Connection, draft: StageDraft) -> None:
    added = draft.added
    if not added:
        return
    connection.execute(
        "INSERT INTO staged_pages "
        "(stage_id, number, partition, rows, timestamp, folio_id, position, length, first_row, "
        "slice_bytes, schema_version) "
        "SELECT %s, added.number, added.partition, added.rows, added.timestamp, folios.id, "
        "added.position, added.length, added.first_row, added.slice_bytes, "
        "added.schema_version "
        "FROM unnest(%s::bigint[], %s::text[], %s::bigint[], %s::bigint[], %s::text[], "
        "%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::integer[]) "
        "AS added (number, partition, rows, timestamp, folio, position, length, first_row, "
        "slice_bytes, schema_version) "
        "JOIN folios ON folios.name = added.folio",
        (
            draft.stage_id,
            list(range(draft.pages - len(added), draft.pages)),
            [page.partition for page, _ in added],
            [page.rows for page, _ in added],
            [timestamp for _, timestamp in added],
            [page.address.folio for page, _ in added],
            [page.address.position for page, _ in added],
            [page.address.length for page, _ in added],
            [page.first_row for page, _ in added],
            [page.slice_bytes for page, _ in added],
            [page.schema_version for page, _ in added],
        ),
    )


def delete_stages(connection: Connection, stages: Sequence[str]) -> tuple[str, ...]:
    """Take the names off stages, which makes their pages ready to be purged.

    Returns:
        Those that were there, in the order given.
    """
    plan_for(connection, len(stages))
    found = lock_stages(connection, stages)
    connection.execute(
        "UPDATE stages SET name = NULL WHERE id = ANY(%s::bigint[])",
        ([draft.stage_id for draft in found.values()],),
    )
    return tuple(stage for stage in dict.fromkeys(stages) if stage in found)
