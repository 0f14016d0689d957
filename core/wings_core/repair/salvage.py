"""Salvage of the sound rows of a damaged metadata file, tree by tree, page by page.

A row is sound if its record decodes to the types of its table, its checksum matches, and the
indexes with copies of its values agree. Pages cut off from their tree by a damaged parent are
assigned to tables by the shape of their rows.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from wings_core.errors import InvalidArgument
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.metadata.sqlite.files import CHECKSUMS, SCHEMA_PAGE, DatabaseFile, checksum_of
from wings_core.metadata.sqlite.schema import VERSIONS
from wings_core.model import TopicConfig
from wings_core.repair.records import Record, Trees, Value

Row = Mapping[str, Value]
"""Values by column."""

Key = tuple[Value, ...]

_TYPES: dict[str, type] = {"INTEGER": int, "TEXT": str, "BLOB": bytes}


@dataclass(frozen=True, slots=True)
class Index:
    """An index of all or some rows of a table."""

    name: str
    columns: tuple[str, ...]
    """Columns of its entries, including the key of the row."""
    types: tuple[type, ...]
    partial: bool

    def fits(self, record: Record) -> bool:
        """Return whether a record can be an entry of this index."""
        return len(record) == len(self.columns) and all(
            value is None or type(value) is kind
            for kind, value in zip(self.types, record, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Shape:
    """The structure of a table."""

    name: str
    columns: tuple[str, ...]
    """Columns of its records, in order."""
    types: tuple[type, ...]
    nullable: tuple[bool, ...]
    defaults: tuple[Value, ...]
    """Defaults of columns that older records lack."""
    key: tuple[str, ...]
    row_id: str | None
    """Column that aliases the row id, NULL in records; None if the tree is keyed by `key`."""
    stored: tuple[str, ...]
    """Columns to insert: all but those that SQLite computes."""
    indexes: tuple[Index, ...]

    def row(self, row_id: int | None, record: Record) -> Row | None:
        """Return a record as a row of this table; None if it does not fit or is damaged.

        A record from before a column was added ends before that column.
        """
        if (row_id is None) != (self.row_id is None) or len(record) > len(self.columns):
            return None
        padded = (*record, *self.defaults[len(record) :])
        row: dict[str, Value] = {}
        for column, kind, nullable, value in zip(
            self.columns, self.types, self.nullable, padded, strict=True
        ):
            if column == self.row_id:
                value = row_id if value is None else b""  # Not NULL: damaged.
            if type(value) is not kind and not (nullable and value is None):
                return None
            row[column] = value
        if self.name in CHECKSUMS and checksum_of(self.name, row) != row["checksum"]:
            return None
        return row

    def key_of(self, row: Row) -> Key:
        """Return the key of a row."""
        return tuple(row[column] for column in self.key)


@cache
def read_shapes() -> dict[str, Shape]:
    """Return the tables of this version's metadata, by name."""
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
            column or key[0]  # The row id, unnamed in an index.
            for (column,) in connection.execute(
                "SELECT name FROM pragma_index_xinfo(?) ORDER BY seqno", (name,)
            )
        )
        if origin != "pk":
            kinds = tuple(_TYPES[types[column]] for column in columns)
            found.append(Index(name, columns, kinds, bool(partial)))
    return tuple(found)


NOT_SALVAGED = {
    *("migrations", "fences", "leases", "nodes", "topic_tables", "table_segments"),
    *("consumer_groups", "consumer_group_members"),
}
"""Tables that are created anew, concern ended processes, or are derived from a catalog."""

NEVER_FROM_ORPHANS = {"tokens", "token_changes"}
"""Tables never read from orphaned pages, which may be outdated: a revoked token stays revoked."""

_SCHEMA_COLUMNS = 5

COPIED = {"topics", "namespaces"}
"""Tables with an index that holds whole rows."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """A value with two versions, and the row that has the first."""

    table: str
    row: Row
    column: str


@dataclass(frozen=True, slots=True)
class _Copies:
    """The entries of an index, by key."""

    rows: dict[Key, Row]
    is_complete: bool


@dataclass(slots=True)
class Table:
    """The rows found of one table."""

    shape: Shape
    rows: dict[Key, Row] = field(default_factory=dict[Key, Row])
    """Sound rows by key."""
    unproven: set[Key] = field(default_factory=set[Key])
    """Keys of rows from orphaned pages, which may be outdated."""
    doubted: set[Key] = field(default_factory=set[Key])
    """Keys of sound rows whose text values differ in an index."""
    lost: list[Row] = field(default_factory=list[Row])
    """Known columns of lost rows, from indexes."""
    problems: list[str] = field(default_factory=list[str])
    """Reasons why rows may be missing that no index has."""


@dataclass(slots=True)
class Salvaged:
    """The rows found in a metadata file."""

    tables: dict[str, Table]
    problems: list[str]
    """Faults of the file."""
    losses: list[str] = field(default_factory=list[str])
    """Faults that may have lost messages without another trace."""
    doubts: list[Doubt] = field(default_factory=list[Doubt])

    def rows(self, table: str) -> list[Row]:
        """Return the sound rows of a table."""
        return list(self.tables[table].rows.values())

    def lost(self, table: str) -> list[Row]:
        """Return the known columns of lost rows."""
        return self.tables[table].lost

    def is_complete(self, table: str) -> bool:
        """Return whether every missing row of a table is known to be missing."""
        return not self.tables[table].problems


def salvage(path: Path) -> Salvaged:
    """Read the sound rows of a metadata file; a missing file is read as empty.

    Blocks while the whole file is read, about 10 µs a row. Keeps all rows in memory.

    Raises:
        InvalidArgument: The file has an earlier or later version, or is not metadata of Wings.
        OSError: The file cannot be read.
    """
    shapes = read_shapes()
    tables = {name: Table(shape) for name, shape in shapes.items() if name not in NOT_SALVAGED}
    if not path.exists():
        for table in tables.values():
            table.problems.append("there is no file")
        return Salvaged(tables, ["there is no file"])
    with DatabaseFile(path) as file:
        return _Salvage(file, shapes, tables).run()


class _Salvage:
    def __init__(
        self, file: DatabaseFile, shapes: dict[str, Shape], tables: dict[str, Table]
    ) -> None:
        self._file = file
        self._shapes = shapes
        self._tables = tables
        self._trees = Trees(file)
        self._roots: dict[str, int] = {}
        self._problems: list[str] = []
        self._copies: dict[str, _Copies] = {}
        self._doubts: list[Doubt] = []

    def run(self) -> Salvaged:
        self._read_schema()
        self._check_version()
        for table in self._tables.values():
            self._read_table(table)
        for shape in self._shapes.values():
            for index in shape.indexes:
                self._read_index(shape, index)
        damaged = [table for table in self._tables.values() if table.problems]
        if damaged:
            self._read_orphans()
        for table in self._tables.values():
            self._compare(table)
            self._problems += [f"{table.shape.name}: {each}" for each in table.problems]
        problems = [*self._file.losses, *self._file.problems, *self._problems]
        return Salvaged(self._tables, problems, self._file.losses, self._doubts)

    def _read_schema(self) -> None:
        foreign = 0
        for _, record in self._trees.walk(SCHEMA_PAGE, self._problems):
            if len(record) == _SCHEMA_COLUMNS and isinstance(record[3], int):
                name = record[1]
                foreign += record[0] == "table" and name not in self._shapes
                foreign -= name == "sqlite_sequence"
                if isinstance(name, str) and record[3] > 0:
                    self._roots[name] = record[3]
        if not self._problems and foreign and "migrations" not in self._roots:
            raise InvalidArgument("the file is an SQLite database, but not metadata of Wings")

    def _check_version(self) -> None:
        root = self._roots.get("migrations")
        if root is None:
            return
        problems: list[str] = []
        versions = [version or 0 for version, _ in self._trees.walk(root, problems)]
        version = max(versions, default=0)
        # Each step left a row: if one is missing, the page is damaged or another table's.
        if problems or sorted(versions) != list(range(min(versions, default=0), version + 1)):
            return
        if 0 < version < VERSIONS.newest:
            raise InvalidArgument(
                f"the metadata is of version {version}, and only version {VERSIONS.newest} can be "
                "repaired: start a server of this version on a copy of the directory first, which "
                "brings it up to date"
            )
        if version > VERSIONS.newest:
            raise InvalidArgument(
                f"the metadata is of version {version}, newer than {VERSIONS.newest}, which this "
                "code knows: repair it with the Wings that wrote it"
            )

    def _walk(self, name: str, problems: list[str]) -> Iterator[tuple[int | None, Record]]:
        root = self._roots.get(name)
        if root is None:
            problems.append("its root page is not known")
            return iter(())
        return self._trees.walk(root, problems)

    def _read_table(self, table: Table) -> None:
        used = set(self._trees.used)
        damaged = 0
        for row_id, record in self._walk(table.shape.name, table.problems):
            row = table.shape.row(row_id, record)
            if row is None:
                damaged += 1
            else:
                table.rows.setdefault(table.shape.key_of(row), row)
        if damaged:
            table.problems.append(f"{damaged} rows do not match their checksums or types")
            if not table.rows:
                self._trees.used = used  # The tree belongs to another table.

    def _read_index(self, shape: Shape, index: Index) -> None:
        problems: list[str] = []
        copies: dict[Key, Row] = {}
        for _, record in self._walk(index.name, problems):
            if not index.fits(record):
                problems.append("an entry does not fit the index")
                continue
            entry = dict(zip(index.columns, record, strict=True))
            copies[shape.key_of(entry)] = entry
        if problems:
            self._problems.append(f"the index {index.name}: {problems[0]}")
        self._copies[index.name] = _Copies(copies, not problems)

    def _read_orphans(self) -> None:
        """Adopt the rows of orphaned pages that fit exactly one table."""
        shapes = [*self._shapes.values()]
        for kind, entries in self._trees.orphans():
            fits: Counter[str] = Counter()
            of_index = 0
            for row_id, record in entries:
                fits.update(shape.name for shape in shapes if shape.row(row_id, record) is not None)
                of_index += not kind.is_table and any(
                    index.fits(record) for shape in shapes for index in shape.indexes
                )
            checked = [name for name in fits if name in CHECKSUMS]
            if not checked and (of_index or len(fits) != 1):
                continue
            table = self._tables.get((checked or list(fits))[0])
            if table is None or table.shape.name in NEVER_FROM_ORPHANS or not table.problems:
                continue
            for row_id, record in entries:
                row = table.shape.row(row_id, record)
                if row is not None and table.shape.key_of(row) not in table.rows:
                    key = table.shape.key_of(row)
                    table.rows[key] = row
                    table.unproven.add(key)

    def _compare(self, table: Table) -> None:
        """Compare rows with their copies in indexes."""
        shape = table.shape
        indexes = [self._copies[index.name] for index in shape.indexes if not index.partial]
        doubtful: dict[Key, None] = {}
        for key, row in table.rows.items():
            copies = [found for index in indexes if (found := index.rows.get(key)) is not None]
            differs = any(row[column] != copy[column] for copy in copies for column in copy)
            # The numbers of a partition, its key included, have a checksum.
            unknown = indexes and not copies and all(index.is_complete for index in indexes)
            if differs or (unknown and shape.name != "partitions"):
                doubtful[key] = None
        for index in indexes:
            without = [
                row for key, row in table.rows.items() if key not in index.rows
            ]  # Few, or the index is damaged.
            for key, copy in index.rows.items():
                if key not in table.rows and not any(_nearly(copy, row) for row in without):
                    doubtful[key] = None
        for key in doubtful:
            if shape.name == "partitions" and key in table.rows:
                table.doubted.add(key)  # Its numbers are verified; the pages decide its value.
                continue
            row = table.rows.pop(key, None)
            copies = [found for index in indexes if (found := index.rows.get(key)) is not None]
            resolved = self._resolved(shape, row, copies)
            if resolved is not None:
                table.rows[key] = resolved
            else:
                known = dict[str, Value](row or {})
                for copy in copies:
                    known.update(copy)
                table.lost.append(known)

    def _resolved(self, shape: Shape, row: Row | None, copies: Sequence[Row]) -> Row | None:
        """Merge the versions of a row; None if they cannot be reconciled.

        Each value is that of most copies, or the only valid one.
        """
        if shape.name not in COPIED or not copies:
            return None
        witnesses = [row, *copies] if row is not None else copies
        resolved: dict[str, Value] = {}
        for column in shape.columns:
            counts = Counter(witness[column] for witness in witnesses if column in witness)
            if not counts:
                return None
            (best, most), *others = counts.most_common()
            tied = [value for value, count in others if count == most]
            if tied:
                sensible = [value for value in (best, *tied) if makes_sense(column, value)]
                best = (sensible or [best])[0]
                if len(sensible) != 1:
                    self._doubts.append(Doubt(shape.name, resolved, column))
            resolved[column] = best
        return resolved


def _nearly(copy: Row, row: Row) -> bool:
    """Return whether an index entry differs from a row in one value only."""
    return sum(row[column] != value for column, value in copy.items()) <= 1


def makes_sense(column: str, value: Value) -> bool:
    """Return whether a value of a topic or namespace is valid for its column."""
    try:
        if column == "schema" and isinstance(value, bytes):
            pa.ipc.read_schema(pa.py_buffer(value))
        if column == "config" and isinstance(value, str):
            TopicConfig.model_validate_json(value)
    except (pa.ArrowException, OSError, ValueError):
        return False
    return True
