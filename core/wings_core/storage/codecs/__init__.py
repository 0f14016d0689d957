"""Codecs of the formats of pages."""

from wings_core.storage.codecs.interfaces import (
    MergeCodec,
    MergedFile,
    PageCodec,
    PageRows,
    PushCodec,
    PushEncoder,
    Wanted,
)
from wings_core.storage.codecs.table import (
    CODECS,
    DRAINED_FORMAT,
    DRAINS,
    MERGES,
    PUSHES,
    read_pages,
)

__all__ = [
    "CODECS",
    "DRAINED_FORMAT",
    "DRAINS",
    "MERGES",
    "PUSHES",
    "MergeCodec",
    "MergedFile",
    "PageCodec",
    "PageRows",
    "PushCodec",
    "PushEncoder",
    "Wanted",
    "read_pages",
]
