"""Partitions, pages and folios as rows of the log's index, written many at once."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from wings_core.metadata.judge import PartitionDraft
from wings_core.metadata.store.database import Connection, Retry
from wings_core.model import Location, PageAddress, page_format
from wings_core.partitions import Partition

PageRow = tuple[int, int, int, int, int, int, int, int | None, int, int | None, int | None, int]
"""Partition's id, end, start, timestamp, folio's id, position, length; of a merged page its first
timestamp; format; of a slice its first row and bytes; version of the schema."""

_PAGE_COLUMNS = (
    *("partition_id bigint", "end_offset bigint", "start_offset bigint", "timestamp bigint"),
    *("folio_id bigint", "position bigint", "length bigint", "first_timestamp bigint"),
    *("format smallint", "first_row bigint", "slice_bytes bigint", "schema_version integer"),
)


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


def find_partitions(
    connection: Connection, keys: Sequence[tuple[int, Partition]]
) -> dict[tuple[int, Partition], PartitionDraft]:
    """Return drafts of partitions, by topic id and value; those that are there are locked."""
    drafts = {key: PartitionDraft(*key) for key in keys}
    rows = connection.execute_rows(
        "SELECT partitions.topic_id, partitions.value, partitions.id, partitions.next_offset, "
        "partitions.last_timestamp FROM {given} JOIN partitions "
        "ON partitions.topic_id = given.topic_id AND partitions.value = given.value "
        "ORDER BY partitions.topic_id, partitions.value FOR UPDATE OF partitions",
        {
            "topic_id bigint": [topic_id for topic_id, _ in keys],
            "value text": [value for _, value in keys],
        },
    ).fetchall()
    for topic_id, value, partition_id, next_offset, last_timestamp in rows:
        draft = drafts[topic_id, value]
        draft.partition_id, draft.last_timestamp = partition_id, last_timestamp
        draft.next_offset = draft.stored_next_offset = next_offset
    return drafts


def write_partitions(connection: Connection, drafts: Iterable[PartitionDraft]) -> None:
    """Write partitions that were appended to; their bytes and pages are added to those stored.

    Gives ids to new ones.

    Raises:
        Retry: Another transaction has just made one of them.
    """
    known: list[PartitionDraft] = []
    new: list[PartitionDraft] = []
    for draft in drafts:
        (new if draft.partition_id is None else known).append(draft)
    if known:
        connection.execute_rows(
            "UPDATE partitions SET next_offset = given.next_offset, "
            "last_timestamp = given.last_timestamp, bytes = partitions.bytes + given.bytes, "
            "pages = partitions.pages + given.pages FROM {given} WHERE partitions.id = given.id",
            {"id bigint": [draft.partition_id for draft in known], **_stands(known)},
        )
    if not new:
        return
    new.sort(key=lambda draft: (draft.topic_id, draft.partition))  # In the order of `locks`.
    made = connection.execute_rows(
        "INSERT INTO partitions "
        "(topic_id, value, log_start_offset, next_offset, last_timestamp, bytes, pages) "
        "SELECT given.topic_id, given.value, 0, given.next_offset, given.last_timestamp, "
        "given.bytes, given.pages FROM {given} WHERE true "
        "ON CONFLICT DO NOTHING RETURNING id, topic_id, value",
        {
            "topic_id bigint": [draft.topic_id for draft in new],
            "value text": [draft.partition for draft in new],
            **_stands(new),
        },
    ).fetchall()
    if len(made) < len(new):
        raise Retry("a partition was made meanwhile")
    connection.note("partitions", made)
    ids = {(topic_id, value): partition_id for partition_id, topic_id, value in made}
    for draft in new:
        draft.partition_id = ids[draft.topic_id, draft.partition]


def _stands(drafts: Sequence[PartitionDraft]) -> Mapping[str, Sequence[int | None]]:
    return {
        "next_offset bigint": [draft.next_offset for draft in drafts],
        "last_timestamp bigint": [draft.last_timestamp for draft in drafts],
        "bytes bigint": [draft.bytes for draft in drafts],
        "pages bigint": [draft.pages for draft in drafts],
    }


def insert_pages(connection: Connection, rows: Sequence[PageRow]) -> None:
    """Index pages, which their folios count already."""
    connection.execute_rows(
        "INSERT INTO pages (partition_id, end_offset, start_offset, timestamp, folio_id, position, "
        "length, first_timestamp, format, first_row, slice_bytes, schema_version) "
        "SELECT given.partition_id, given.end_offset, given.start_offset, given.timestamp, "
        "given.folio_id, given.position, given.length, given.first_timestamp, given.format, "
        "given.first_row, given.slice_bytes, given.schema_version FROM {given}",
        dict(zip(_PAGE_COLUMNS, zip(*rows, strict=True), strict=True)),
    )
    connection.note("moved pages", rows)


def add_pages(connection: Connection, pages: Sequence[tuple[int, Location]]) -> None:
    """Index pages of partitions, by id, and count them to their folios.

    At once: each count of a folio in one transaction takes a walk past all before it.
    """
    if not pages:
        return
    counts = sorted(Counter(page.address.folio for _, page in pages).items())
    folio_ids = dict(
        connection.execute_rows(
            "INSERT INTO folios (name, pages) SELECT given.name, given.pages FROM {given} "
            "WHERE true ON CONFLICT (name) DO UPDATE SET pages = folios.pages + excluded.pages "
            "RETURNING name, id",
            {
                "name text": [folio for folio, _ in counts],
                "pages bigint": [number for _, number in counts],
            },
        ).fetchall()
    )
    insert_pages(
        connection,
        [
            (
                partition_id,
                page.end_offset,
                page.start_offset,
                page.timestamp,
                folio_ids[page.address.folio],
                page.address.position,
                page.address.length,
                page.first_timestamp,
                int(page.format),
                page.first_row,
                page.slice_bytes,
                page.schema_version,
            )
            for partition_id, page in pages
        ],
    )


def count_off(connection: Connection, folios: Counter[int]) -> None:
    """Count deleted pages off their folios, by id, and delete folios without pages."""
    if not folios:
        return
    ids = {"id bigint": list(folios)}
    connection.execute_rows(
        "SELECT folios.id FROM {given} JOIN folios ON folios.id = given.id "
        "ORDER BY folios.name FOR UPDATE OF folios",
        ids,
    )
    connection.execute_rows(
        "UPDATE folios SET pages = folios.pages - given.pages FROM {given} "
        "WHERE folios.id = given.id",
        {**ids, "pages bigint": list(folios.values())},
    )
    connection.execute_rows(
        "DELETE FROM folios WHERE id IN (SELECT id FROM {given}) AND pages = 0", ids
    )
