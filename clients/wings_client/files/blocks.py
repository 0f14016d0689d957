"""Text in blocks of whole rows, as they come: of a file, or of a pipe that pauses between them."""

import codecs
from collections.abc import Callable, Iterator

from wings_client.files.parts import bad_row
from wings_client.files.sections import line_ends
from wings_client.files.source import Source

ROW_BYTES_MAX = 64 * 1024 * 1024
"""A longer row is refused, as a server does."""


def row_blocks(
    source: Source, rows_end: Callable[[bytes], int], first: int = 1
) -> Iterator[tuple[bytes, int]]:
    """Yield blocks of whole rows, and the number of the first line of each.

    What a pipe has is yielded once it pauses, but for an incomplete row. Blocks until there are
    rows.

    Args:
        source: What is left of it is read to its end.
        rows_end: Returns where the last complete row of a text ends; 0: it has none.
        first: The number of the first line.

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
