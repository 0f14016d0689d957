"""The lines of CSV: the names of the columns, and where a row begins."""

import codecs
import csv
import io
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from wings_client.files.formats import compression_of
from wings_core.errors import InvalidArgument

HEADER_BYTES_MAX = 1024 * 1024
"""Bytes within which the names of the columns must end."""

DELIMITERS = (",", ";", "\t", "|")
"""Those that are recognised."""

DELIMITER_LINES = 20
"""Lines after the names in which one is recognised."""

CONVERT = "say which encoding it has, like --encoding latin1"
"""The hint on a file of another encoding."""


def column_names(head: bytes, delimiter: str, quote: str = '"') -> list[str]:
    """Return the names in the first line.

    Raises:
        InvalidArgument: There is no first line, or it has no valid names.
    """
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise InvalidArgument(f"the file is UTF-16: {CONVERT.replace('latin1', 'utf-16')}")
    lines = io.StringIO(head[:HEADER_BYTES_MAX].decode("utf-8-sig", "surrogateescape"), newline="")
    try:
        for row in csv.reader(lines, delimiter=delimiter, **quoting(quote)):
            if row:
                return _named(row)
    except csv.Error as error:
        raise InvalidArgument(f"the first line is not CSV: {error}") from None
    raise InvalidArgument("the file is empty: it should begin with the names of the columns")


def quoting(quote: str) -> dict[str, Any]:
    """Return what tells Python's reader the character around values; empty: none."""
    return {"quotechar": quote} if quote else {"quoting": csv.QUOTE_NONE, "quotechar": None}


def _named(names: list[str]) -> list[str]:
    for index, name in enumerate(names):
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InvalidArgument(f"the first line is not UTF-8: {CONVERT}") from None
        if not name:
            raise InvalidArgument(
                f"column {index + 1} has no name in the first line: give it one, or leave it out"
            )
        if name in names[:index]:
            raise InvalidArgument(
                f"columns {names.index(name) + 1} and {index + 1} are both named {name!r:.80} in "
                "the first line: rename one"
            )
    return names


def delimiter_of(head: bytes) -> str:
    """Return what separates values in the first lines: a comma, where nothing else does.

    Another of `DELIMITERS` does if there is no comma in the names, and the first lines have as many
    values as there are names.
    """
    text = head[:HEADER_BYTES_MAX].decode("utf-8-sig", "replace")
    for delimiter in DELIMITERS[1:]:
        lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        rows: list[list[str]] = []
        with suppress(csv.Error):
            rows += islice((row for row in lines if row), DELIMITER_LINES + 1)
        is_table = len(rows) > 1 and len(rows[0]) > 1 and len({len(row) for row in rows}) == 1
        if is_table and not any("," in name for name in rows[0]):
            return delimiter
    return DELIMITERS[0]


def is_open(batch: pa.RecordBatch, tail: bytes, quote: str = '"') -> bool:
    """Return whether the last value extends to the end of the file: its quote is never closed."""
    last = batch.column(batch.num_columns - 1)
    if not batch.num_rows or not pa.types.is_string(last.type) or not tail.endswith(b"\n"):
        return False
    value = last[batch.num_rows - 1].as_py()
    is_closed = tail.removesuffix(b"\n").removesuffix(b"\r").endswith(quote.encode())
    return value is not None and value.endswith("\n") and not is_closed


def line_of(
    path: Path, delimiter: str, row: int, encoding: str | None = None, quote: str = '"'
) -> int | None:
    """Return the line at which a row begins; None where Python's reader disagrees with Arrow's.

    Args:
        path: Of the file.
        delimiter: Between values.
        row: From 1, the line of names excluded.
        encoding: Of the file; None: UTF-8.
        quote: Around values; empty: none.
    """
    if compression_of(path) is not None:
        return None
    try:
        with path.open(encoding=encoding or "utf-8-sig", errors="replace", newline="") as file:
            reader = csv.reader(file, delimiter=delimiter, **quoting(quote))
            names = next((found for found in reader if found), [])
            begins = reader.line_num + 1
            for found in reader:
                if found or len(names) == 1:
                    row -= 1
                    if row == 0:
                        return begins
                begins = reader.line_num + 1
    except (OSError, csv.Error):
        pass
    return None
