"""Detection of file formats, by name or first bytes."""

import csv
import io
from contextlib import suppress
from enum import StrEnum
from itertools import islice
from pathlib import PurePath

from wings_client.files.sections import SEPARATOR_LINE
from wings_core.errors import InvalidArgument


class FileFormat(StrEnum):
    """The format of a file of rows."""

    JSONL = "jsonl"
    """One object per line."""
    JSON = "json"
    """An array of objects, or consecutive objects."""
    CSV = "csv"
    """Comma-separated values, with names in the first line."""
    PARQUET = "parquet"
    ARROW = "arrow"
    """Arrow IPC, of either kind: file or stream."""
    ORC = "orc"


COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
"""Compressions by the last suffix of a name, which may follow that of the format."""

_BY_ENDING = {
    ".jsonl": FileFormat.JSONL,
    ".ndjson": FileFormat.JSONL,
    ".geojsonl": FileFormat.JSONL,
    ".json": FileFormat.JSON,
    ".geojson": FileFormat.JSON,
    ".csv": FileFormat.CSV,
    ".tsv": FileFormat.CSV,
    ".parquet": FileFormat.PARQUET,
    ".pq": FileFormat.PARQUET,
    ".arrow": FileFormat.ARROW,
    ".arrows": FileFormat.ARROW,
    ".feather": FileFormat.ARROW,
    ".ipc": FileFormat.ARROW,
    ".orc": FileFormat.ORC,
}

DELIMITERS = (",", ";", "\t", "|")
"""Delimiters that are detected."""

DELIMITER_BYTES = 1024 * 1024
"""Bytes at the start of a file used to detect the delimiter."""

DELIMITER_LINES = 20
"""Lines after the names used to detect the delimiter."""

ARROW_FILE = b"ARROW1"
PARQUET = b"PAR1"
_ORC = b"ORC"
_ARROW_STREAM = b"\xff\xff\xff\xff"
_AVRO = b"Obj\x01"
_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh91AY&SY": "bz2",
    b"\xfd7zXZ\x00": "xz",
    b"PK\x03\x04": "zip",
}
_BOM = b"\xef\xbb\xbf"


def compression_of(path: PurePath) -> str | None:
    """Return the compression by a file's suffix; None without one."""
    return COMPRESSIONS.get(path.suffix.lower())


def format_by_name(path: PurePath) -> FileFormat | None:
    """Return the format by a file's suffix, ignoring that of a compression; None if unknown."""
    if compression_of(path) is not None:
        path = path.with_suffix("")
    return _BY_ENDING.get(path.suffix.lower())


def check_uncompressed(head: bytes) -> None:
    """Check that the first bytes of a file without a compression's suffix are not compressed.

    Raises:
        InvalidArgument: The bytes are compressed.
    """
    for magic, name in _COMPRESSED.items():
        if head.startswith(magic):
            endings = [ending for ending, found in COMPRESSIONS.items() if found == name]
            hint = f"name it {endings[0]}, or decompress it" if endings else "decompress it"
            raise InvalidArgument(f"the file is compressed, by {name}: {hint} before it is read")


def format_by_content(head: bytes) -> FileFormat:
    """Return the format that the first bytes indicate.

    Raises:
        InvalidArgument: The bytes match no format (fact `argument` is `format`), or are Avro.
    """
    if head.startswith((ARROW_FILE, _ARROW_STREAM)):
        return FileFormat.ARROW
    if head.startswith(PARQUET):
        return FileFormat.PARQUET
    if head.startswith(_ORC):
        return FileFormat.ORC
    if head.startswith(_AVRO):
        raise InvalidArgument(
            "Avro is not supported, as pyarrow cannot read it: convert it to Parquet, or push its "
            "rows with a program"
        )
    text = head.removeprefix(_BOM).lstrip()
    if text.startswith(b"{"):
        first, _, rest = text.partition(b"\n")
        is_spread = not first.rstrip().endswith(b"}") and rest.lstrip()[:1] not in (b"", b"{")
        return FileFormat.JSON if is_spread else FileFormat.JSONL
    if text.startswith(b"["):
        return FileFormat.JSON
    if delimiter_of(head) is not None:
        return FileFormat.CSV
    raise InvalidArgument(f"unknown format; give one of {', '.join(FileFormat)}", argument="format")


def told_delimiter(head: bytes) -> str | None:
    """Return the delimiter given by a first line like `sep=;`; None without one."""
    told = SEPARATOR_LINE.match(head.removeprefix(_BOM))
    return None if told is None else told[1].decode()


def delimiter_of(head: bytes) -> str | None:
    """Return the delimiter of CSV, given by the first line or detected from the first lines.

    A detected one is in `DELIMITERS`; the first lines have as many values as names, and no name has
    a comma. None if there is none.
    """
    told = told_delimiter(head)
    if told is not None:
        return told
    text = head[:DELIMITER_BYTES].decode("utf-8-sig", "replace")
    for delimiter in DELIMITERS:
        lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        rows: list[list[str]] = []
        with suppress(csv.Error):
            rows += islice((row for row in lines if row), DELIMITER_LINES + 1)
        is_table = len(rows) > 1 and len(rows[0]) > 1 and len({len(row) for row in rows}) == 1
        if is_table and (delimiter == "," or not any("," in name for name in rows[0])):
            return delimiter
    return None
