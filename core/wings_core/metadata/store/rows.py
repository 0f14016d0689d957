"""Rows of the log's index as its nouns."""

from wings_core.model import Location, PageAddress, page_format


def location_of(
    start_offset: int,
    end_offset: int,
    timestamp: int,
    folio: str,
    position: int,
    length: int,
    first_timestamp: int | None,
    format_: int,
    first_row: int | None,
    slice_bytes: int | None,
    schema_version: int,
) -> Location:
    """Return the location that a row of the table of pages and its folio's name say.

    Raises:
        Internal: The page is of a format that only a later version knows.
    """
    return Location(
        start_offset,
        end_offset,
        timestamp,
        PageAddress(folio, position, length),
        first_timestamp,
        page_format(format_),
        first_row,
        slice_bytes,
        schema_version,
    )
