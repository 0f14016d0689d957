"""Cells and records of the B-trees in an SQLite file, each decoded or rejected by itself."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from wings_core.metadata.sqlite.files import HEADER_BYTES, SCHEMA_PAGE, DatabaseFile

Value = int | float | str | bytes | None
Record = tuple[Value, ...]

PAYLOAD_BYTES_MAX = 1 << 30
"""Longest record in bytes; a longer one is damaged."""

_INTEGER_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
_FLOAT, _ZERO, _ONE, _BLOB = 7, 8, 9, 12


class DamagedError(Exception):
    """Bytes do not decode as expected."""


class Kind(IntEnum):
    """Kinds of tree pages, by their first byte."""

    INDEX_INTERIOR = 2
    TABLE_INTERIOR = 5
    INDEX_LEAF = 10
    TABLE_LEAF = 13

    @property
    def is_interior(self) -> bool:
        """Whether the page refers to child pages."""
        return self in {Kind.INDEX_INTERIOR, Kind.TABLE_INTERIOR}

    @property
    def is_table(self) -> bool:
        """Whether the tree is keyed by row ids."""
        return self in {Kind.TABLE_INTERIOR, Kind.TABLE_LEAF}


@dataclass(frozen=True, slots=True)
class Cell:
    """One entry of a page."""

    child: int | None
    """The child page before the entry, in interior pages."""
    row_id: int | None
    """Row id, in tables."""
    record: Record | None
    """Decoded values; None in interior pages of tables."""
    overflow: tuple[int, ...] = ()
    """Overflow pages of the record, in order."""


@dataclass(frozen=True, slots=True)
class TreePage:
    """A page of a tree."""

    kind: Kind
    cells: tuple[Cell, ...]
    last_child: int | None
    damaged: int
    """Number of cells that could not be decoded."""


def read_node(file: DatabaseFile, number: int) -> TreePage:
    """Decode a page of a tree.

    Raises:
        DamagedError: The page is not a tree page.
    """
    data = file.page(number)
    if data is None:
        raise DamagedError("the page is missing")
    at = HEADER_BYTES if number == SCHEMA_PAGE else 0
    try:
        kind = Kind(data[at])
    except ValueError:
        raise DamagedError("the page is not a tree page") from None
    count = int.from_bytes(data[at + 3 : at + 5], "big")
    pointers = at + (12 if kind.is_interior else 8)
    if pointers + 2 * count > len(data):
        raise DamagedError("the page cannot have so many entries")
    last_child = int.from_bytes(data[at + 8 : at + 12], "big") if kind.is_interior else None
    cells: list[Cell] = []
    damaged = 0
    for place in struct.unpack_from(f">{count}H", data, pointers):
        try:
            cells.append(_cell(file, kind, data, place))
        except (DamagedError, IndexError, struct.error, UnicodeDecodeError):
            damaged += 1
    return TreePage(kind, tuple(cells), last_child, damaged)


def _cell(file: DatabaseFile, kind: Kind, data: bytes, at: int) -> Cell:
    child = row_id = None
    if kind.is_interior:
        child = int.from_bytes(data[at : at + 4], "big")
        at += 4
        if kind.is_table:
            return Cell(child, _signed(_varint(data, at)[0]), None)
    length, at = _varint(data, at)
    if kind.is_table:
        row_id, at = _varint(data, at)
        row_id = _signed(row_id)
    if length > PAYLOAD_BYTES_MAX:
        raise DamagedError("no record is so long")
    usable = len(data)
    least = (usable - 12) * 32 // 255 - 23
    most = usable - 35 if kind.is_table else (usable - 12) * 64 // 255 - 23
    local = length
    if length > most:
        local = least + (length - least) % (usable - 4)
        local = local if local <= most else least
    if at + local > usable:
        raise DamagedError("the record reaches beyond its page")
    payload, overflow = data[at : at + local], ()
    if local < length:
        rest, overflow = _overflow(
            file, int.from_bytes(data[at + local : at + local + 4], "big"), length - local
        )
        payload += rest
    return Cell(child, row_id, _record(payload), overflow)


def _overflow(file: DatabaseFile, page: int, length: int) -> tuple[bytes, tuple[int, ...]]:
    parts: list[bytes] = []
    pages: dict[int, None] = {}
    while length > 0:
        data = file.page(page)
        if data is None or page in pages:
            raise DamagedError("the rest of the record is missing")
        pages[page] = None
        parts.append(data[4 : 4 + length])
        length -= len(parts[-1])
        page = int.from_bytes(data[:4], "big")
    return b"".join(parts), tuple(pages)


def _record(payload: bytes) -> Record:
    header, at = _varint(payload, 0)
    if header > len(payload):
        raise DamagedError("the record's header reaches beyond it")
    values: list[Value] = []
    place = header
    while at < header:
        kind, at = _varint(payload, at)
        value, size = _value(payload, place, kind)
        values.append(value)
        place += size
    if place != len(payload) or at != header:
        raise DamagedError("the record's lengths do not add up")
    return tuple(values)


def _value(payload: bytes, at: int, kind: int) -> tuple[Value, int]:
    if kind == 0:
        return None, 0
    if kind in {_ZERO, _ONE}:
        return kind - _ZERO, 0
    if kind >= _BLOB:
        size = (kind - _BLOB) // 2
        data = payload[at : at + size]
        if len(data) != size:
            raise DamagedError("a value reaches beyond its record")
        return (data.decode() if kind % 2 else data), size
    if kind == _FLOAT:
        return struct.unpack_from(">d", payload, at)[0], 8
    if kind not in _INTEGER_BYTES:
        raise DamagedError("a value has no type")
    size = _INTEGER_BYTES[kind]
    data = payload[at : at + size]
    if len(data) != size:
        raise DamagedError("a value reaches beyond its record")
    return int.from_bytes(data, "big", signed=True), size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a variable-length integer of up to nine bytes, and the position after it."""
    value = data[at]
    if value < 0x80:
        return value, at + 1
    value &= 0x7F
    for index in range(at + 1, at + 8):
        byte = data[index]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, index + 1
    return value << 8 | data[at + 8], at + 9


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


class Trees:
    """The trees of a file; records the visited pages, and their problems."""

    def __init__(self, file: DatabaseFile) -> None:
        self.file = file
        self.used: set[int] = set()

    def walk(self, root: int, problems: list[str]) -> Iterator[tuple[int | None, Record]]:
        """Yield row id and record of each decodable entry of a tree, in order.

        Args:
            root: Number of the root page.
            problems: Receives descriptions of damage.
        """
        stack: list[int | Cell] = [root]
        while stack:
            number = stack.pop()
            if isinstance(number, Cell):
                assert number.record is not None, "only cells with records are pushed"
                yield number.row_id, number.record
                continue
            if number in self.used:
                problems.append(f"page {number} is referenced twice")
                continue
            try:
                node = read_node(self.file, number)
            except DamagedError as error:
                problems.append(f"page {number}: {error}")
                continue
            self.used.add(number)
            if node.damaged:
                problems.append(f"page {number}: {node.damaged} entries cannot be read")
            if node.last_child is not None:
                stack.append(node.last_child)
            for cell in reversed(node.cells):
                self.used.update(cell.overflow)
                if cell.record is not None:
                    stack.append(cell)
                if cell.child is not None:
                    stack.append(cell.child)

    def orphans(self) -> Iterator[tuple[Kind, list[tuple[int | None, Record]]]]:
        """Yield the entries of each page that is neither free nor in a walked tree."""
        free = self.file.free_pages()
        for number in range(1, self.file.pages + 1):
            if number in self.used or number in free:
                continue
            try:
                node = read_node(self.file, number)
            except DamagedError:
                continue
            entries = [(cell.row_id, cell.record) for cell in node.cells if cell.record is not None]
            if entries:
                yield node.kind, entries
