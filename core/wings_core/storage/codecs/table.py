"""The codecs by format; a new format is a module in this package and an entry here."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from wings_core.model import Location, PageFormat, Topic
from wings_core.storage.codecs.formats import DrainedCodec, ParquetCodec, PlainCodec, SegmentCodec
from wings_core.storage.codecs.interfaces import (
    MergeCodec,
    PageCodec,
    PageRows,
    PushCodec,
    TimedCodec,
    Wanted,
)
from wings_core.storage.codecs.versions import read_version
from wings_core.storage.interfaces import FolioStore

PUSHES: PushCodec = PlainCodec()
"""The codec for pushed rows: `PageFormat.PLAIN`."""

MERGES: Mapping[PageFormat, MergeCodec] = {
    PageFormat.SEGMENT: SegmentCodec(),
    PageFormat.PARQUET: ParquetCodec(),
}
"""Codecs for merged pages, chosen by `TopicConfig.merged_format`."""

DRAINS: TimedCodec = DrainedCodec()
"""The codec for drained inline pages: `DRAINED_FORMAT`."""

DRAINED_FORMAT = PageFormat.DRAINED

CODECS: Mapping[PageFormat, PageCodec] = {
    **MERGES,
    PageFormat.PLAIN: PUSHES,
    PageFormat.INLINE: PUSHES,
    PageFormat.DRAINED: DRAINS,
}


def read_pages(
    store: FolioStore, topic: Topic, locations: Sequence[Location], wanted: Wanted
) -> Iterator[PageRows]:
    """Yield the wanted rows of pages of any format, in the order given; see `PageCodec.read`.

    Args:
        store: Store of the pages.
        topic: Topic of the pages, with the schema versions that they are written in.
        locations: Locations of the pages; neighbours of one format and version are read together.
        wanted: Columns and rows wanted: at least one row of each page.

    Raises:
        StorageCorrupt: A page is damaged or missing; raised in the place of its rows.
        SchemaMismatch: A value does not fit the requested, earlier schema version.
        Unavailable: Storage cannot be reached.
    """
    for (format_, version), pages in groupby(locations, _form):
        codec = CODECS[format_]
        if version == topic.schema_version:
            yield from codec.read(store, topic, list(pages), wanted)
        else:
            written = topic.at(version)
            yield from read_version(codec, store, topic, written, list(pages), wanted)


def _form(location: Location) -> tuple[PageFormat, int]:
    return location.format, location.schema_version
