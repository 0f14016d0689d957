"""Stages in SQLite: begun and added to by commits, looked at, aborted, swept, purged.

`publish` makes them visible.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from wings_core.metadata.sqlite.connections import limit_of
from wings_core.metadata.stages import ABORTED_MAX, StageDraft, after_prefix
from wings_core.model import PageAddress, Stage, StoredPage


def find_stage(connection: sqlite3.Connection, stage: str) -> StageDraft | None:
    """Return a stage as it is stored, None where there is none of this id."""
    row: tuple[int, int, str, int, int, int] | None = connection.execute(
        "SELECT id, topic_id, writing, rows, bytes, pages FROM stages WHERE name = ?", (stage,)
    ).fetchone()
    if row is None:
        return None
    stage_id, topic_id, writing, rows, size, pages = row
    return StageDraft(stage, topic_id, stage_id, writing, rows, size, pages)


def write_stages(
    connection: sqlite3.Connection,
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
        connection.executemany(
            "INSERT INTO staged_pages VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
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
                )
                for number, (page, timestamp) in enumerate(draft.added, first)
            ],
        )


def delete_stages(connection: sqlite3.Connection, stages: Sequence[str]) -> tuple[str, ...]:
    """Take the names off stages, which makes their pages ready to be purged.

    Returns:
        Those that were there, in the order given.
    """
    return tuple(
        stage
        for stage in dict.fromkeys(stages)
        if connection.execute("UPDATE stages SET name = NULL WHERE name = ?", (stage,)).rowcount
    )


def stages_of_prefix(connection: sqlite3.Connection, prefix: str) -> list[str]:
    """Return the stages whose ids begin with a prefix, by id, at most `ABORTED_MAX`."""
    rows = connection.execute(
        "SELECT name FROM stages WHERE name >= ? AND name < ? ORDER BY name LIMIT ?",
        (prefix, after_prefix(prefix), ABORTED_MAX),
    )
    return [name for (name,) in rows]


def sweep(connection: sqlite3.Connection, changed_before: int, stages_max: int) -> int:
    """Take the names off stages that have not changed since; see `Stages.sweep`."""
    return connection.execute(
        "UPDATE stages SET name = NULL WHERE id IN (SELECT id FROM stages "
        "WHERE name IS NOT NULL AND changed_at <= ? ORDER BY changed_at LIMIT ?)",
        (changed_before, stages_max),
    ).rowcount


def stages_of_topic(
    connection: sqlite3.Connection, topic_uuid: str, after: str | None, items_max: int | None
) -> list[Stage]:
    """Return a topic's stages, by id; see `Stages.of_topic`."""
    rows = connection.execute(
        "SELECT stages.name, topics.uuid, stages.rows, stages.bytes, stages.pages, "
        "stages.changed_at FROM stages JOIN topics ON topics.id = stages.topic_id "
        "WHERE topics.uuid = ? AND topics.deleted_at IS NULL AND stages.name IS NOT NULL "
        f"{'' if after is None else 'AND stages.name > ? '}ORDER BY stages.name LIMIT ?",
        (topic_uuid, *([] if after is None else [after]), limit_of(items_max)),
    )
    return [Stage(*row) for row in rows]


def pages_of_stage(
    connection: sqlite3.Connection, stage: str, first: int, pages_max: int
) -> list[StoredPage]:
    """Return some of the pages of a stage; see `Stages.pages`."""
    rows = connection.execute(
        "SELECT staged_pages.partition, staged_pages.rows, folios.name, staged_pages.position, "
        "staged_pages.length FROM stages "
        "JOIN staged_pages ON staged_pages.stage_id = stages.id "
        "LEFT JOIN folios ON folios.id = staged_pages.folio_id "
        "WHERE stages.name = ? AND staged_pages.number >= ? ORDER BY staged_pages.number LIMIT ?",
        (stage, first, pages_max),
    )
    return [
        StoredPage(partition, count, PageAddress(folio, position, length))
        for partition, count, folio, position, length in rows
    ]


def purge_deleted(connection: sqlite3.Connection, rows_max: int) -> int:
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


def purge_of_topic(connection: sqlite3.Connection, topic_id: int, rows_max: int) -> int:
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


def _purge_pages(connection: sqlite3.Connection, stage_id: int, pages_max: int) -> int:
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


def count_off(connection: sqlite3.Connection, folios: Counter[int]) -> None:
    """Count pages that were deleted off their folios, and forget folios without pages."""
    connection.executemany(
        "UPDATE folios SET pages = pages - ? WHERE id = ?",
        [(count, folio_id) for folio_id, count in folios.items()],
    )
    connection.executemany(
        "DELETE FROM folios WHERE id = ? AND pages = 0", [(folio_id,) for folio_id in folios]
    )
