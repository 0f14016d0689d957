"""Formats of files, by their names or their first bytes."""

from enum import StrEnum
from pathlib import PurePath

from wings_core.errors import InvalidArgument


class FileFormat(StrEnum):
    """The format of a file of rows."""

    JSONL = "jsonl"
    """An object on each line."""
    JSON = "json"
    """An array of objects, or objects one after another."""
    CSV = "csv"
    """Values with commas between them, names in the first line."""
    PARQUET = "parquet"
    ARROW = "arrow"
    """Arrow IPC, of either kind: file or stream."""
    ORC = "orc"


COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
"""By the last suffix of a name, which may follow that of the format."""

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
    """Return the format by a file's suffix, before that of a compression; None if unknown."""
    if compression_of(path) is not None:
        path = path.with_suffix("")
    return _BY_ENDING.get(path.suffix.lower())


def check_uncompressed(head: bytes) -> None:
    """Check that the first bytes, which no name told to decompress, are not compressed.

    Raises:
        InvalidArgument: They are.
    """
    for magic, name in _COMPRESSED.items():
        if head.startswith(magic):
            endings = [ending for ending, found in COMPRESSIONS.items() if found == name]
            hint = f"name it {endings[0]}, or decompress it" if endings else "decompress it"
            raise InvalidArgument(f"the file is compressed, by {name}: {hint} before it is read")


def format_by_content(head: bytes) -> FileFormat:
    """Return the format that the first bytes indicate.

    Raises:
        InvalidArgument: They match no format (fact `argument` is `format`), or that of Avro.
    """
    if head.startswith((ARROW_FILE, _ARROW_STREAM)):
        return FileFormat.ARROW
    if head.startswith(PARQUET):
        return FileFormat.PARQUET
    if head.startswith(_ORC):
        return FileFormat.ORC
    if head.startswith(_AVRO):
        raise InvalidArgument(
            "Avro is not read, as pyarrow has no reader of it: write it as Parquet, or push its "
            "rows with a program"
        )
    text = head.removeprefix(_BOM).lstrip()
    if text.startswith(b"{"):
        first, _, rest = text.partition(b"\n")
        is_spread = not first.rstrip().endswith(b"}") and rest.lstrip()[:1] not in (b"", b"{")
        return FileFormat.JSON if is_spread else FileFormat.JSONL
    if text.startswith(b"["):
        return FileFormat.JSON
    raise InvalidArgument(
        f"cannot tell what the input is; say one of {', '.join(FileFormat)}", argument="format"
    )
