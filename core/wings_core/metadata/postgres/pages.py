"""Pages and their folios in PostgreSQL, many in one statement."""

from collections import Counter
from collections.abc import Mapping, Sequence

from wings_core.metadata.postgres.connections import Connection
from wings_core.metadata.postgres.plans import plan_for
from wings_core.metadata.store.pages import merged_row
from wings_core.model import InlineFolio, Location

PageRow = tuple[int | None, int, int, int, str, int, int, int | None, int | None, int, int]
"""Partition's id, end, start, timestamp, folio's name, position, length; of a slice its first row
and bytes; format, version of the schema."""


def columns(rows: Sequence[tuple[object, ...]], width: int) -> list[list[object]]:
    """Turn rows into the arrays that `unnest` turns into rows again."""
    return [[row[index] for row in rows] for index in range(width)]


def update_partitions(connection: Connection, rows: Sequence[tuple[object, ...]]) -> None:
    """Write where partitions stand: of each its id, next offset, bytes, last timestamp, pages."""
    connection.execute(
        "UPDATE partitions SET next_offset = wanted.next_offset, bytes = wanted.bytes, "
        "last_timestamp = wanted.last_timestamp, pages = wanted.pages "
        "FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[]) "
        "AS wanted (id, next_offset, bytes, last_timestamp, pages) WHERE partitions.id = wanted.id",
        columns(rows, 5),
    )


def count_to_folios(connection: Connection, counts: Mapping[str, int]) -> None:
    """Count so many pages to each folio, which is made where it is not there."""
    if counts:
        connection.execute(
            "INSERT INTO folios (name, pages) "
            "SELECT name, pages FROM unnest(%s::text[], %s::bigint[]) AS added (name, pages) "
            'ORDER BY name COLLATE "C" '
            "ON CONFLICT (name) DO UPDATE SET pages = folios.pages + excluded.pages",
            columns(sorted(counts.items()), 2),
        )


def insert_pages(connection: Connection, pages: Sequence[PageRow]) -> None:
    """Index pages as they were pushed, whose folios are there."""
    if pages:
        connection.execute(
            "INSERT INTO pages (partition_id, end_offset, start_offset, timestamp, folio_id, "
            "position, length, first_row, slice_bytes, format, schema_version) "
            "SELECT added.partition_id, added.end_offset, added.start_offset, "
            "added.timestamp, folios.id, added.position, added.length, added.first_row, "
            "added.slice_bytes, added.format, added.schema_version "
            "FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::text[], "
            "%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::smallint[], "
            "%s::integer[]) AS added "
            "(partition_id, end_offset, start_offset, timestamp, folio, position, length, "
            "first_row, slice_bytes, format, schema_version) "
            "JOIN folios ON folios.name = added.folio",
            columns(pages, 11),
        )


def insert_inline(connection: Connection, inline: InlineFolio) -> None:
    """Keep the bytes of a folio, where pages refer to it, until the last of them is counted off."""
    connection.execute(
        "INSERT INTO inline_folios (folio_id, data) SELECT id, %s FROM folios WHERE name = %s",
        (inline.data, inline.name),
    )


def add_pages(connection: Connection, pages: Sequence[tuple[int, Location]]) -> None:
    """Index merged pages of partitions, by id, and count them to their folios.

    At once: each count of a folio in one transaction takes a walk past all before it.
    """
    plan_for(connection, len(pages))
    count_to_folios(connection, Counter(page.address.folio for _, page in pages))
    connection.execute(
        "INSERT INTO pages (partition_id, end_offset, start_offset, timestamp, folio_id, "
        "position, length, first_timestamp, format, first_row, slice_bytes, schema_version) "
        "SELECT added.partition_id, added.end_offset, added.start_offset, added.timestamp, "
        "folios.id, added.position, added.length, added.first_timestamp, added.format, "
        "added.first_row, added.slice_bytes, added.schema_version "
        "FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::text[], "
        "%s::bigint[], %s::bigint[], %s::bigint[], %s::smallint[], %s::bigint[], %s::bigint[], "
        "%s::integer[]) AS added "
        "(partition_id, end_offset, start_offset, timestamp, folio, position, length, "
        "first_timestamp, format, first_row, slice_bytes, schema_version) "
        "JOIN folios ON folios.name = added.folio",
        columns([merged_row(id_, page, page.address.folio) for id_, page in pages], 12),
    )
