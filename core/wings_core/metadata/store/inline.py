"""What metadata keeps inline: the bytes of small flushes, and the pages that are to be drained."""

from collections.abc import Sequence
from typing import LiteralString

from wings_core.errors import InvalidArgument
from wings_core.metadata.store.database import Connection
from wings_core.metadata.store.rows import location_of
from wings_core.model import INLINE_FOLIOS_MAX, InlineBacklog, InlinePage
from wings_core.names import NamespaceName, TopicName


def read_inline(connection: Connection, folios: Sequence[str]) -> dict[str, bytes]:
    """Return the bytes of inline folios; see `OffsetRegistry.read_inline`."""
    if len(folios) > INLINE_FOLIOS_MAX:
        raise InvalidArgument(f"at most {INLINE_FOLIOS_MAX} folios are read at once")
    places: list[LiteralString] = ["%s"] * len(folios)
    rows = connection.execute(
        "SELECT folios.name, data FROM folios JOIN inline_folios ON folio_id = folios.id "
        f"WHERE folios.name IN ({', '.join(places)})",
        tuple(folios),
    ).fetchall()
    return {name: bytes(data) for name, data in rows}


def find_inline(connection: Connection, pages_max: int) -> InlineBacklog:
    """Return what is inline; see `Maintenance.inline_backlog`."""
    # Deleted topics have no namespace, and so fall out of the join.
    rows = connection.execute(
        "SELECT namespaces.tenant, namespaces.name, topics.name, topics.uuid, partitions.value, "
        "pages.start_offset, pages.end_offset, pages.timestamp, folios.name, pages.position, "
        "pages.length, pages.first_timestamp, pages.format, pages.first_row, pages.slice_bytes, "
        "pages.schema_version "
        "FROM pages JOIN partitions ON partitions.id = pages.partition_id "
        "JOIN topics ON topics.id = partitions.topic_id "
        "JOIN namespaces ON namespaces.id = topics.namespace_id "
        "JOIN folios ON folios.id = pages.folio_id "
        "WHERE pages.format = 3 ORDER BY pages.partition_id, pages.end_offset LIMIT %s::bigint",
        (pages_max,),
    ).fetchall()
    ((size,),) = connection.execute(
        "SELECT coalesce(sum(length(data)), 0) FROM inline_folios"
    ).fetchall()
    pages = tuple(
        InlinePage(
            TopicName(NamespaceName(tenant, namespace), topic), uuid, partition, location_of(*page)
        )
        for tenant, namespace, topic, uuid, partition, *page in rows
    )
    return InlineBacklog(pages, int(size))
