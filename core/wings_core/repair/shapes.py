"""What rows of each table of the embedded metadata look like in its file."""

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.metadata.sqlite.integrity import CHECKSUMS, checksum_of
from wings_core.repair.records import Record, Value

Row = Mapping[str, Value]
"""Values by column."""

Key = tuple[Value, ...]

_TYPES: dict[str, type] = {"INTEGER": int, "TEXT": str, "BLOB": bytes}


@dataclass(frozen=True, slots=True)
class Index:
    """An index of all rows of a table, or of some."""

    name: str
    columns: tuple[str, ...]
    """As its entries have them, the key of the row among them."""
    types: tuple[type, ...]
    partial: bool

    def fits(self, record: Record) -> bool:
        """Tell whether a record can be an entry of this index."""
        return len(record) == len(self.columns) and all(
            value is None or type(value) is kind
            for kind, value in zip(self.types, record, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Shape:
    """A table."""

    name: str
    columns: tuple[str, ...]
    """As its records have them."""
    types: tuple[type, ...]
    nullable: tuple[bool, ...]
    defaults: tuple[Value, ...]
    """Of columns that records from before do not have."""
    key: tuple[str, ...]
    row_id: str | None
    """The column that is the row id, which records have as NULL; None: the tree is keyed by
    `key`."""
    stored: tuple[str, ...]
    """The columns that are inserted: those that SQLite does not compute."""
    indexes: tuple[Index, ...]

    def row(self, row_id: int | None, record: Record) -> Row | None:
        """Return a record as a row of this table, None where it is none, or damaged.

        One from before a column was added ends before it.
        """
        if (row_id is None) != (self.row_id is None) or len(record) > len(self.columns):
            return None
        padded = (*record, *self.defaults[len(record) :])
        row: dict[str, Value] = {}
        for column, kind, nullable, value in zip(
            self.columns, self.types, self.nullable, padded, strict=True
        ):
            if column == self.row_id:
                value = row_id if value is None else b""  # Never there.
            if type(value) is not kind and not (nullable and value is None):
                return None
            row[column] = value
        if self.name in CHECKSUMS:
            numbers = {
                column: value for column, value in row.items() if not isinstance(value, str | bytes)
            }
            if checksum_of(self.name, numbers) != row["checksum"]:  # pyright: ignore[reportArgumentType] - such tables have no floats
                return None
        return row

    def key_of(self, row: Row) -> Key:
        """Return the key of a row."""
        return tuple(row[column] for column in self.key)


@cache
def read_shapes() -> dict[str, Shape]:
    """Return the tables of metadata of this version, by name."""
    with TemporaryDirectory(prefix="wings-repair-") as directory:
        path = Path(directory) / "metadata.sqlite"
        SqliteMetadata(path).close()
        with closing(sqlite3.connect(path)) as connection:
            return {
                name: _shape(connection, name, bool(without_row_id))
                for name, without_row_id in connection.execute(
                    "SELECT name, wr FROM pragma_table_list "
                    "WHERE schema = 'main' AND type = 'table' AND name NOT LIKE 'sqlite@_%' "
                    "ESCAPE '@'"
                ).fetchall()
            }


def _shape(connection: sqlite3.Connection, table: str, without_row_id: bool) -> Shape:
    found = connection.execute(
        'SELECT name, type, "notnull", pk, hidden, dflt_value FROM pragma_table_xinfo(?)', (table,)
    ).fetchall()
    key = tuple(name for name, _, _, pk, *_ in sorted(found, key=lambda each: each[3]) if pk)
    if without_row_id:
        last = len(found) + 1
        found.sort(key=lambda each: each[3] or last)
    else:
        assert len(key) == 1, "all such tables have a key of one number"
    return Shape(
        name=table,
        columns=tuple(name for name, *_ in found),
        types=tuple(_TYPES[kind] for _, kind, *_ in found),
        nullable=tuple(not required and not pk for _, _, required, pk, *_ in found),
        defaults=tuple(
            connection.execute(f"SELECT {default or 'NULL'}").fetchone()[0] for *_, default in found
        ),
        key=key,
        row_id=None if without_row_id else key[0],
        stored=tuple(name for name, *_, hidden, _ in found if not hidden),
        indexes=_indexes(connection, table, key, {name: kind for name, kind, *_ in found}),
    )


def _indexes(
    connection: sqlite3.Connection, table: str, key: Sequence[str], types: Mapping[str, str]
) -> tuple[Index, ...]:
    found: list[Index] = []
    for name, origin, partial in connection.execute(
        "SELECT name, origin, partial FROM pragma_index_list(?)", (table,)
    ).fetchall():
        columns = tuple(
            column or key[0]  # The row id has no name there.
            for (column,) in connection.execute(
                "SELECT name FROM pragma_index_xinfo(?) ORDER BY seqno", (name,)
            )
        )
        if origin != "pk":
            kinds = tuple(_TYPES[types[column]] for column in columns)
            found.append(Index(name, columns, kinds, bool(partial)))
    return tuple(found)
