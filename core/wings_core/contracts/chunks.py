"""The app_metadata of DoGet chunks: the range that each covers, and why the stream ended."""

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import pyarrow as pa

from wings_core.contracts.messages import to_bytes


class EndReason(StrEnum):
    """Why a stream ended: the first of these that holds."""

    MAX_MESSAGES = "max_messages"
    END_OFFSET = "end_offset"
    MIN_MESSAGES = "min_messages"
    DEADLINE = "deadline"


class ChunkRange(NamedTuple):
    """The offsets `[start_offset, end_offset]` of the log that a chunk covers.

    Rows that a filter dropped are in the range and not in the chunk.
    """

    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class ChunkEnd:
    """The app_metadata of the last chunk of a stream, which is empty."""

    end: EndReason
    next_offset: int
    """The offset of the next read."""
    log_end_offset: int
    """The next offset to be assigned, as of the last look at the log."""


def chunk_metadata(start_offset: int, end_offset: int) -> bytes:
    """Return the metadata of a chunk of rows; both offsets inclusive."""
    # Formatted by hand: this runs once for each chunk, and holds nothing but numbers.
    return b'{"start_offset": %d, "end_offset": %d}' % (start_offset, end_offset)


def end_metadata(end: EndReason, next_offset: int, log_end_offset: int) -> bytes:
    """Return the metadata of the last chunk."""
    return (
        f'{{"end": "{end}", "next_offset": {next_offset}, "log_end_offset": {log_end_offset}}}'
    ).encode("ascii")


_RANGE = re.compile(rb'\{"start_offset": (\d+), "end_offset": (\d+)\}')
"""As `chunk_metadata` writes it."""


def parse_chunk_metadata(raw: "bytes | pa.Buffer") -> ChunkRange | ChunkEnd:
    """Read the metadata of a chunk, or of the last one, as a server wrote it."""
    text = to_bytes(raw)
    # Ranges come once for each chunk; matching takes a fifth of the time of parsing.
    usual = _RANGE.fullmatch(text)
    if usual is not None:
        return ChunkRange(int(usual[1]), int(usual[2]))
    found = json.loads(text)
    if "end" in found:
        return ChunkEnd(EndReason(found["end"]), found["next_offset"], found["log_end_offset"])
    return ChunkRange(found["start_offset"], found["end_offset"])
