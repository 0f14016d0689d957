"""Pages as rows of the index."""

from wings_core.model import Location


def merged_row(partition_id: int, page: Location, folio: int | str) -> tuple[int | str | None, ...]:
    """Return a merged page as it is indexed, with its folio's id or name.

    Partition's id, end, start, timestamp, folio, position, length, first timestamp, format; of a
    slice its first row and bytes; version of the schema.
    """
    _, position, length = page.address
    return (
        partition_id,
        page.end_offset,
        page.start_offset,
        page.timestamp,
        folio,
        position,
        length,
        page.first_timestamp,
        int(page.format),
        page.first_row,
        page.slice_bytes,
        page.schema_version,
    )
