"""Reads of many partitions of a topic as one stream.

rotation ─▶ locate many ─▶ pieces, in the order of the pages ─▶ chunks of mixed partitions ─▶ …
▲                                                                │
└── commits, told by the topic's watch                 partitions that have more: to the back
"""

from wings_core.fetch.many.chunks import ManyChunk, PieceFailed
from wings_core.fetch.many.covers import PartRange
from wings_core.fetch.many.cursors import cursors_of, named_partitions
from wings_core.fetch.many.reader import ManyRead, ManyReader
from wings_core.fetch.many.rotation import PartitionCursor, Rotation

__all__ = [
    "ManyChunk",
    "ManyRead",
    "ManyReader",
    "PartRange",
    "PartitionCursor",
    "PieceFailed",
    "Rotation",
    "cursors_of",
    "named_partitions",
]
