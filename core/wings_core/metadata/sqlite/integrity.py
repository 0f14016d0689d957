"""Whether an SQLite file is sound: what SQLite itself can tell of it, and checksums of rows.

SQLite notices damage to its trees, to types of values, and where an index differs from its table;
not damage to what a row alone says. Tables whose numbers say where messages are have a checksum of
them, which SQLite itself computes whenever it writes a row; one with texts that are long has one
that the writer computes. Of others, an index has the columns, or other rows say the same.
"""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from zlib import crc32

from wings_core.metadata.sqlite.database_file import DatabaseFile

PAGE_BYTES_MIN = 512
"""The smallest page of SQLite's files."""

FAULTS = (sqlite3.Error, UnicodeDecodeError)
"""Errors of reading a damaged file: the second where names or messages have become no text."""

_PRIME = 4_294_967_291
"""The greatest below 2^32. A changed byte changes a number by no multiple of it, nor the sum."""

_WEIGHTS = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
"""Numbers that trade places are noticed too."""


def _checksum(*columns: str) -> str:
    """Return the SQL of a checksum of columns; of those that may be NULL, `column?`."""
    terms = [
        f"{weight} * ifnull({column[:-1]}, -1)" if column.endswith("?") else f"{weight} * {column}"
        for weight, column in zip(_WEIGHTS, columns, strict=False)
    ]
    return f"({' + '.join(terms)}) % {_PRIME}"


_COLUMNS = {
    "pages": (
        "partition_id",
        "end_offset",
        "start_offset",
        "timestamp",
        "folio_id",
        "position",
        "length",
        "format",
        "first_timestamp?",
        "first_row?",
        "slice_bytes?",
    ),
    "partitions": (
        "id",
        "topic_id",
        "log_start_offset",
        "next_offset",
        "bytes",
        "last_timestamp",
        "pages",
        "merged_pages",
        "merged_rows",
        "merged_bytes",
    ),
    "consumer_offsets": ("topic_id", "offset", "committed_at"),
}

_WITH_TEXTS = {
    "producer_results": (
        *("topic_id", "producer_id", "slot", "sequence", "committed", "committed_at"),
    ),
}
"""Tables whose checksum is `row_checksum` of these columns."""

CHECKSUMS = {
    **{table: _checksum(*columns) for table, columns in _COLUMNS.items()},
    # Bytes, as a damaged text is none.
    **{
        table: f"row_checksum({', '.join(f'CAST({column} AS BLOB)' for column in columns)})"
        for table, columns in _WITH_TEXTS.items()
    },
}
"""The SQL of the column `checksum` of each table. Migrations have it: it does not change."""


def row_checksum(*values: int | str) -> int:
    """Return the checksum of a row's values: the CRC-32 of their texts, NUL between them."""
    return crc32("\0".join(map(str, values)).encode("utf-8", "surrogateescape"))


def add_row_checksum(connection: sqlite3.Connection) -> None:
    """Add the SQL function `row_checksum` to a connection; it takes texts as bytes too."""

    def checksum(*values: int | str | bytes) -> int:
        return row_checksum(*(_text(each) if isinstance(each, bytes) else each for each in values))

    connection.create_function("row_checksum", -1, checksum, deterministic=True)


def checksum_of(table: str, row: Mapping[str, Any]) -> int:
    """Return the column `checksum` of a row.

    Args:
        table: One of `CHECKSUMS`.
        row: Its values, by column.
    """
    if table in _WITH_TEXTS:
        return row_checksum(*(row[column] for column in _WITH_TEXTS[table]))
    total = 0
    for weight, column in zip(_WEIGHTS, _COLUMNS[table], strict=False):
        value = row[column.removesuffix("?")]
        total += weight * (-1 if value is None else value)
    return total % _PRIME if total >= 0 else -(-total % _PRIME)


_KEYS = {
    "pages": "partition_id || ', end ' || end_offset",
    "partitions": "id",
    "consumer_offsets": "quote(consumer) || ', partition ' || partition",
    "producer_results": "quote(producer_id) || ', sequence ' || sequence",
}

_DISAGREEING = {
    "the pages of folio {} are not as many as it counts": """
        SELECT folios.name FROM folios LEFT JOIN (
            SELECT folio_id, count(*) AS count FROM (
                SELECT folio_id FROM pages UNION ALL SELECT folio_id FROM staged_pages
            ) GROUP BY folio_id
        ) AS found ON found.folio_id = folios.id
        WHERE folios.pages <> ifnull(found.count, 0) LIMIT ?
    """,
    "the number of topics is below that of topic {}": """
        SELECT last FROM (SELECT max(id) AS last FROM topics)
        WHERE last > (SELECT max(seq) FROM sqlite_sequence WHERE name = 'topics') LIMIT ?
    """,
}
"""Queries for rows that contradict others, by the problem."""

PROBLEMS_MAX = 100
"""Problems of one file that SQLite is asked for."""


def integrity_problems(
    connection: sqlite3.Connection, problems_max: int = PROBLEMS_MAX
) -> Iterator[str]:
    """Yield what SQLite finds wrong in its file: trees, records, and indexes against their tables.

    Blocks for as long as reading the whole file takes.

    Raises:
        One of `FAULTS`: The file is damaged so much that SQLite cannot look at all of it.
    """
    with closing(connection.execute(f"PRAGMA integrity_check({problems_max})")) as cursor:
        for (found,) in cursor:
            if found != "ok":
                yield " ".join(found.split())


def open_to_check(path: Path) -> sqlite3.Connection:
    """Open a database to read it, beside a process that has it open or at rest; writes nothing.

    Damaged text reads as text that no sound one equals.

    Raises:
        sqlite3.Error: It cannot be opened.
    """
    uri = f"{path.absolute().as_uri()}?mode=ro"
    if not path.with_name(f"{path.name}-wal").exists():
        uri += "&immutable=1"  # No process has it open: SQLite need not create what those share.
    connection = sqlite3.connect(uri, uri=True, isolation_level=None)
    connection.text_factory = _text
    add_row_checksum(connection)
    return connection


def _row_problems(connection: sqlite3.Connection, table: str, checksum: str) -> Iterator[str]:
    columns = {row[1] for row in connection.execute(f"PRAGMA table_xinfo({table})")}
    if "checksum" not in columns:
        return  # Of an earlier version, which the next start brings up to date.
    rows = connection.execute(
        f"SELECT {_KEYS[table]} FROM {table} WHERE checksum IS NOT ({checksum}) LIMIT ?",
        (PROBLEMS_MAX,),
    )
    for (key,) in rows:
        yield f"the row of {table} {key} is not what was written"


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def is_empty(path: Path) -> bool:
    """Tell whether there is no file, or one that SQLite takes for new: shorter than any page."""
    return not path.exists() or path.stat().st_size < PAGE_BYTES_MIN


def metadata_problems(path: Path) -> Iterator[str]:
    """Yield what is wrong with a file of metadata, beside a process that has it open or at rest."""
    if is_empty(path):
        yield "it is empty"
        return
    yield from DatabaseFile.log_problems_of(path)
    try:
        with closing(open_to_check(path)) as connection:
            yield from integrity_problems(connection)
            for table, checksum in CHECKSUMS.items():
                yield from _row_problems(connection, table, checksum)
            for message, query in _DISAGREEING.items():
                for (found,) in connection.execute(query, (PROBLEMS_MAX,)):
                    yield message.format(found)
    except FAULTS as error:
        yield str(error)
