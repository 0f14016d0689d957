"""The codec of plain pages: uncompressed rows as pushed, with one timestamp for the page."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from wings_core.model import Location, PageAddress, Topic
from wings_core.storage.codecs.interfaces import PageRows, Wanted, rows_of, slices_by_page
from wings_core.storage.interfaces import FolioStore
from wings_core.storage.page import PageEncoder


class PlainCodec:
    """The `PushCodec` of `PageFormat.PLAIN` and INLINE; see storage/page.py."""

    def read(
        self, store: FolioStore, topic: Topic, locations: Sequence[Location], wanted: Wanted
    ) -> Iterator[PageRows]:
        """See `PageCodec.read`; no bytes are copied."""
        by_page = slices_by_page(locations)
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
