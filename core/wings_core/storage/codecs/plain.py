"""Plain pages: rows as they were pushed, uncompressed, all with their page's timestamp."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from wings_core.model import Location, PageAddress, Topic
from wings_core.storage.codecs.interfaces import PageRows, Wanted, rows_of
from wings_core.storage.interfaces import FolioStore
from wings_core.storage.page import PageEncoder


class PlainCodec:
    """The `PushCodec` of `PageFormat.PLAIN`; storage/page.py says how a page is framed."""

    def read(
        self, store: FolioStore, topic: Topic, locations: Sequence[Location], wanted: Wanted
    ) -> Iterator[PageRows]:
        """See `PageCodec.read`; no bytes are copied."""
        # Neighbouring slices of a page are read at once.
        by_page = _by_page(locations)
        addresses = [slices[0].address for slices in by_page]
        pages = store.read_all(addresses, topic.uuid, topic.schema, wanted.columns)
        for slices, page in zip(by_page, pages, strict=True):
            for location in slices:
                rows = rows_of(topic, location, page)
                first, count = wanted.part_of(location)
                if count < location.rows:
                    rows = rows.slice(first, count)
                yield PageRows(rows, location.timestamp, location.bytes)

    def check(self, store: FolioStore, topic: Topic, address: PageAddress) -> pa.RecordBatch:
        """See `PageCodec.check`."""
        return store.read(address, topic.uuid, topic.schema)

    def encoder(self, topic_uuid: str, schema: pa.Schema) -> PageEncoder:
        """See `PushCodec.encoder`."""
        return PageEncoder(topic_uuid, schema)


def _by_page(locations: Sequence[Location]) -> list[list[Location]]:
    """Return the locations, neighbouring slices of a page together."""
    pages: list[list[Location]] = []
    for location in locations:
        if location.first_row is not None and pages and pages[-1][-1].address == location.address:
            pages[-1].append(location)
        else:
            pages.append([location])
    return pages
