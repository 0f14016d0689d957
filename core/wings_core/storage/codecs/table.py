"""The codec of each format; a new format is a module beside this one and a line here."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from wings_core.model import Location, PageFormat, Topic
from wings_core.storage.codecs.interfaces import (
    MergeCodec,
    PageCodec,
    PageRows,
    PushCodec,
    TimedCodec,
    Wanted,
)
from wings_core.storage.codecs.parquet import ParquetCodec
from wings_core.storage.codecs.plain import PlainCodec
from wings_core.storage.codecs.segment import DrainedCodec, SegmentCodec
from wings_core.storage.codecs.versions import read_version
from wings_core.storage.interfaces import FolioStore

PUSHES: PushCodec = PlainCodec()
"""In which pushed rows are stored: pages of `PageFormat.PLAIN`."""

MERGES: Mapping[PageFormat, MergeCodec] = {
    PageFormat.SEGMENT: SegmentCodec(),
    PageFormat.PARQUET: ParquetCodec(),
}
"""In which maintenance stores what it merges; `TopicConfig.merged_format` says which."""

DRAINS: TimedCodec = DrainedCodec()
"""In which pages that were inline are gathered: pages of `DRAINED_FORMAT`."""

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
    """Yield the wanted rows of pages of any formats, in the order given; see `PageCodec.read`.

    Args:
        store: Where the pages lie.
        topic: Whose pages they are.
            It knows the versions of its schema that they are written in.
        locations: Where they are; neighbours of one format and version are read together.
        wanted: Of each page, at least one row.

    Raises:
        StorageCorrupt: A page is damaged or missing; raised where its rows would come.
        SchemaMismatch: A page has a value that the topic's schema, an earlier version, cannot hold.
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
