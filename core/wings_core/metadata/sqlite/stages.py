"""Stages in SQLite: begun and added to by commits, aborted; `publish` moves them."""

from collections.abc import Iterable, Mapping

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
