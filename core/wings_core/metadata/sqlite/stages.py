"""Stages in SQLite: begun and added to by commits, aborted, purged; `publish` moves them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from wings_core.metadata.sqlite.database import Connection
from wings_core.metadata.stages import StageDraft


def find_stage(connection: Connection, stage: str) -> StageDraft | None:
    """Return a stage as it is stored, None where there is none of this id."""
    row: tuple[int, int, str, int, int, int] | None = connection.execute(
        "SELECT id, topic_id, writing, rows, bytes, pages FROM stages WHERE name = ?", (stage,)
    ).fetchone()
    if row is None:
        return None
    stage_id, topic_id, writing, rows, size, pages = row
    return StageDraft(stage, topic_id, stage_id, writing, rows, size, pages)


def write_stages(
    connection: Connection,
    stages: Iterable[StageDraft],
    folio_ids: Mapping[str, int],
    now: int,
) -> None:
    """Write what a flush added to stages, giving ids to new ones."""
    for draft in stages:
        if draft.stage_id is None:
            draft.stage_id = connection.execute(
                "INSERT INTO stages (name, topic_id, writing, rows, bytes, pages, changed_at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    draft.stage,
                    draft.topic_id,
                    draft.writing,
                    draft.rows,
                    draft.bytes,
                    draft.pages,
                    now,
                ),
            ).lastrowid
        else:
            connection.execute(
                "UPDATE stages SET rows = ?, bytes = ?, pages = ?, changed_at = ? WHERE id = ?",
                (draft.rows, draft.bytes, draft.pages, now, draft.stage_id),
            )
        first = draft.pages - len(draft.added)
        connection.raw.executemany(
            "INSERT INTO staged_pages "
            "(stage_id, number, partition, rows, timestamp, folio_id, position, length, "
            "first_row, slice_bytes, schema_version) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    draft.stage_id,
                    number,
                    page.partition,
                    page.rows,
                    timestamp,
                    folio_ids[page.address.folio],
                    page.address.position,
                    page.address.length,
                    page.first_row,
                    page.slice_bytes,
                    page.schema_version,
                )
                for number, (page, timestamp) in enumerate(draft.added, first)
            ],
        )


def delete_stages(connection: Connection, stages: Sequence[str]) -> tuple[str, ...]:
    """Take the names off stages, which makes their pages ready to be purged.

    Returns:
        Those that were there, in the order given.
    """
    return tuple(
        stage
        for stage in dict.fromkeys(stages)
        if connection.execute("UPDATE stages SET name = NULL WHERE name = ?", (stage,)).rowcount
    )


def purge_deleted(connection: Connection, rows_max: int) -> int:
    """Delete up to so many rows of stages that were aborted or swept; return how many."""
    left = rows_max
    while left > 0:
        row: tuple[int] | None = connection.execute(
            "SELECT id FROM stages WHERE name IS NULL LIMIT 1"
        ).fetchone()
        if row is None:
            break
        left -= _purge_pages(connection, row[0], left)
        if left > 0:
            connection.execute("DELETE FROM stages WHERE id = ?", row)
            left -= 1
    return rows_max - left


def purge_of_topic(connection: Connection, topic_id: int, rows_max: int) -> int:
    """Delete up to so many pages staged for a deleted topic; return how many.

    The stages themselves stay until they are swept.
    """
    left = rows_max
    while left > 0:
        row: tuple[int] | None = connection.execute(
            "SELECT id FROM stages WHERE topic_id = ? AND pages > 0 LIMIT 1", (topic_id,)
        ).fetchone()
        if row is None:
            break
        left -= _purge_pages(connection, row[0], left)
        if left > 0:
            connection.execute("UPDATE stages SET rows = 0, bytes = 0, pages = 0 WHERE id = ?", row)
            left -= 1
    return rows_max - left


def _purge_pages(connection: Connection, stage_id: int, pages_max: int) -> int:
    """Delete a stage's first pages and count them off their folios; return how many."""
    pages = connection.execute(
        "SELECT number, folio_id FROM staged_pages WHERE stage_id = ? ORDER BY number LIMIT ?",
        (stage_id, pages_max),
    ).fetchall()
    if pages:
        connection.execute(
            "DELETE FROM staged_pages WHERE stage_id = ? AND number <= ?", (stage_id, pages[-1][0])
        )
    count_off(connection, Counter(folio_id for _, folio_id in pages))
    return len(pages)


def count_off(connection: Connection, folios: Counter[int]) -> None:
    """Count deleted pages off their folios, by id, and delete folios without pages."""
    connection.raw.executemany(
        "UPDATE folios SET pages = pages - ? WHERE id = ?",
        [(count, folio_id) for folio_id, count in folios.items()],
    )
    connection.raw.executemany(
        "DELETE FROM folios WHERE id = ? AND pages = 0", [(folio_id,) for folio_id in folios]
    )
