"""Text in blocks of whole rows, from a file, or from a pipe as they arrive."""

import codecs
from collections.abc import Callable, Iterator

from wings_client.files.parts import bad_row
from wings_client.files.sections import line_ends
from wings_client.files.source import Source

ROW_BYTES_MAX = 64 * 1024 * 1024
"""Longest row, the server's limit."""


def row_blocks(
    source: Source, rows_end: Callable[[bytes], int], first: int = 1
) -> Iterator[tuple[bytes, int]]:
    """Yield blocks of whole rows, and the number of the first line of each.

    Complete rows of a pipe are yielded when it pauses. Blocks until there are rows.

    Args:
        source: The source, read to its end.
        rows_end: Returns the end of the last complete row of a text; 0 without one.
        first: Number of the first line.

    Raises:
        SchemaMismatch: A row is longer than `ROW_BYTES_MAX`.
        InvalidArgument: The source is damaged.
    """
    rest = b""
    marked = first == 1 and not source.begins_within
    while not source.ended:
        text = rest + source.read()
        if marked and len(text) >= len(codecs.BOM_UTF8):
            text = text.removeprefix(codecs.BOM_UTF8)
            marked = False
        end = len(text) if source.ended else rows_end(text)
        rest = text[end:]
        if len(rest) > ROW_BYTES_MAX:
            line = source.line(first + line_ends(text, end))
            raise bad_row(line, f"longer than {ROW_BYTES_MAX} bytes, or a quote is never closed")
        if end:
            yield text[:end], first
            first += line_ends(text, end)
