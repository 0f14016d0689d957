"""Pages and their folios in SQLite."""

from collections.abc import Mapping, Sequence

from wings_core.metadata.sqlite.database import Connection, insert_rows
from wings_core.metadata.sqlite.notes import PUSHED
from wings_core.model import INLINE_SUFFIX, PageFormat

PageRow = tuple[int | None, int, int, int, int, int, int, int | None, int | None, int, int]
"""Partition's id, end, start, timestamp, folio's id, position, length; of a slice its first row and
bytes; format, version of the schema."""


def count_to_folios(connection: Connection, counts: Mapping[str, int]) -> dict[str, int]:
    """Count so many pages to each folio, which is made where it is not there.

    Returns:
        The ids of the folios, by name.
    """
    folio_ids: dict[str, int] = {}
    for folio, pages in counts.items():
        known = connection.cache.folio_ids.get(folio)
        if known is not None:
            connection.raw.execute(
                "UPDATE folios SET pages = pages + ? WHERE id = ?", (pages, known)
            )
            folio_ids[folio] = known
            continue
        if folio.endswith(INLINE_SUFFIX):  # Of this flush alone; quicker than to ask for the row.
            inserted = connection.raw.execute(
                "INSERT INTO folios (name, pages) VALUES (?, ?)", (folio, pages)
            )
            assert inserted.lastrowid is not None
            folio_ids[folio] = inserted.lastrowid
            continue
        ((folio_ids[folio],),) = connection.raw.execute(
            "INSERT INTO folios (name, pages) VALUES (?, ?) "
            "ON CONFLICT (name) DO UPDATE SET pages = pages + excluded.pages RETURNING id",
            (folio, pages),
        ).fetchall()
    return folio_ids


def insert_pages(connection: Connection, pages: Sequence[PageRow]) -> None:
    """Index pages as they were pushed."""
    insert_rows(
        connection.raw,
        "INSERT INTO pages (partition_id, end_offset, start_offset, timestamp, folio_id, "
        "position, length, first_row, slice_bytes, format, schema_version)",
        "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        pages,
    )
    if pages and pages[0][-2] != PageFormat.INLINE:
        connection.cache.note(PUSHED, pages)


def insert_inline(connection: Connection, folio_id: int, data: bytes) -> None:
    """Keep the bytes of a folio, until its last page is counted off."""
    connection.raw.execute(
        "INSERT INTO inline_folios (folio_id, data) VALUES (?, ?)", (folio_id, data)
    )
