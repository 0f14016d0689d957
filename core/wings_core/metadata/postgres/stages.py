"""Stages in PostgreSQL: begun and added to by commits, looked at, aborted, swept, purged.

`publish` makes them visible.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from wings_core.metadata.postgres.connections import Connection
from wings_core.metadata.stages import ABORTED_MAX, StageDraft, after_prefix
from wings_core.model import PageAddress, Stage, StoredPage


def lock_stages(connection: Connection, stages: Sequence[str]) -> dict[str, StageDraft]:
    """Return the stages that are there, by id, and keep all others from them."""
    rows = connection.execute(
        "SELECT name, topic_id, id, writing, rows, bytes, pages FROM stages "
        "WHERE name = ANY(%s::text[]) ORDER BY name FOR UPDATE",
        (list(stages),),
    ).fetchall()
    return {str(row[0]): StageDraft(*row) for row in rows}


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
        "INSERT INTO staged_pages SELECT %s, added.number, added.partition, added.rows, "
        "added.timestamp, folios.id, added.position, added.length "
        "FROM unnest(%s::bigint[], %s::text[], %s::bigint[], %s::bigint[], %s::text[], "
        "%s::bigint[], %s::bigint[]) "
        "AS added (number, partition, rows, timestamp, folio, position, length) "
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
        ),
    )


def delete_stages(connection: Connection, stages: Sequence[str]) -> tuple[str, ...]:
    """Take the names off stages, which makes their pages ready to be purged.

    Returns:
        Those that were there, in the order given.
    """
    found = lock_stages(connection, stages)
    connection.execute(
        "UPDATE stages SET name = NULL WHERE id = ANY(%s::bigint[])",
        ([draft.stage_id for draft in found.values()],),
    )
    return tuple(stage for stage in dict.fromkeys(stages) if stage in found)


def stages_of_prefix(connection: Connection, prefix: str) -> list[str]:
    """Return the stages whose ids begin with a prefix, by id, at most `ABORTED_MAX`."""
    rows = connection.execute(
        "SELECT name FROM stages WHERE name >= %s AND name < %s ORDER BY name LIMIT %s",
        (prefix, after_prefix(prefix), ABORTED_MAX),
    ).fetchall()
    return [name for (name,) in rows]


def sweep(connection: Connection, changed_before: int, stages_max: int) -> int:
    """Take the names off stages that have not changed since; see `Stages.sweep`.

    One that somebody works on right now is not old.
    """
    rows = connection.execute(
        "WITH old AS MATERIALIZED (SELECT id FROM stages "
        "WHERE name IS NOT NULL AND changed_at <= %s::bigint ORDER BY changed_at LIMIT %s::bigint "
        "FOR UPDATE SKIP LOCKED) "
        "UPDATE stages SET name = NULL WHERE id IN (SELECT id FROM old) RETURNING id",
        (changed_before, stages_max),
    ).fetchall()
    return len(rows)


def stages_of_topic(
    connection: Connection, topic_uuid: str, after: str | None, items_max: int | None
) -> list[Stage]:
    """Return a topic's stages, by id; see `Stages.of_topic`."""
    rows = connection.execute(
        "SELECT stages.name, topics.uuid, stages.rows, stages.bytes, stages.pages, "
        "stages.changed_at FROM stages JOIN topics ON topics.id = stages.topic_id "
        "WHERE topics.uuid = %s AND topics.deleted_at IS NULL AND stages.name IS NOT NULL "
        f"{'' if after is None else 'AND stages.name > %s::text '}"
        "ORDER BY stages.name LIMIT %s::bigint",
        (topic_uuid, *([] if after is None else [after]), items_max),
    ).fetchall()
    return [Stage(*row) for row in rows]


def pages_of_stage(
    connection: Connection, stage: str, first: int, pages_max: int
) -> list[StoredPage]:
    """Return some of the pages of a stage; see `Stages.pages`."""
    rows = connection.execute(
        "SELECT staged_pages.partition, staged_pages.rows, folios.name, staged_pages.position, "
        "staged_pages.length FROM stages "
        "JOIN staged_pages ON staged_pages.stage_id = stages.id "
        "LEFT JOIN folios ON folios.id = staged_pages.folio_id "
        "WHERE stages.name = %s AND staged_pages.number >= %s::bigint "
        "ORDER BY staged_pages.number LIMIT %s::bigint",
        (stage, first, pages_max),
    ).fetchall()
    return [
        StoredPage(partition, count, PageAddress(folio, position, length))
        for partition, count, folio, position, length in rows
    ]


def purge_deleted(connection: Connection, rows_max: int, folios: Counter[int]) -> int:
    """Delete up to so many rows of stages that were aborted or swept; return how many.

    Args:
        connection: In a transaction.
        rows_max: At most so many.
        folios: Counts the pages deleted, by folio.
    """
    left = rows_max
    while left > 0:
        row = connection.execute("SELECT id FROM stages WHERE name IS NULL LIMIT 1").fetchone()
        if row is None:
            break
        left -= _purge_pages(connection, row[0], left, folios)
        if left > 0:
            connection.execute("DELETE FROM stages WHERE id = %s", row)
            left -= 1
    return rows_max - left


def purge_of_topic(
    connection: Connection, topic_id: int, rows_max: int, folios: Counter[int]
) -> int:
    """Delete up to so many pages staged for a deleted topic; return how many.

    The stages themselves stay until they are swept.
    """
    left = rows_max
    while left > 0:
        row = connection.execute(
            "SELECT id FROM stages WHERE topic_id = %s AND pages > 0 "
            "ORDER BY name LIMIT 1 FOR UPDATE",
            (topic_id,),
        ).fetchone()
        if row is None:
            break
        left -= _purge_pages(connection, row[0], left, folios)
        if left > 0:
            connection.execute(
                "UPDATE stages SET rows = 0, bytes = 0, pages = 0 WHERE id = %s", row
            )
            left -= 1
    return rows_max - left


def _purge_pages(
    connection: Connection, stage_id: int, pages_max: int, folios: Counter[int]
) -> int:
    """Delete a stage's first pages and count them to their folios; return how many."""
    rows = connection.execute(
        "DELETE FROM staged_pages WHERE stage_id = %s AND number IN "
        "(SELECT number FROM staged_pages WHERE stage_id = %s ORDER BY number LIMIT %s::bigint) "
        "RETURNING folio_id",
        (stage_id, stage_id, pages_max),
    ).fetchall()
    folios.update(folio_id for (folio_id,) in rows)
    return len(rows)
