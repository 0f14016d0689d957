"""Tables as text: a line for each row, columns aligned, fitted to a width."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
import typer
from rich.cells import cell_len, set_cell_size

from wings_client.cli.values import printable
from wings_core.arrow_compute import pc
from wings_core.json_rows.encode import json_texts

CELL_CHARACTERS_MAX = 1_000
"""Longer values are truncated, whatever the table's width."""

CELL_WIDTHS = (64, 48, 40, 32, 24, 20, 16, 12)
"""Widths of a column, tried in order until the table fits."""

MARGIN = " │ "
GAP = "…"


def terminal_width() -> int | None:
    """Return the terminal's width in cells; None for a pipe or a file."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return int(columns)
    if not sys.stdout.isatty():
        return None
    return os.get_terminal_size(sys.stdout.fileno()).columns or None


class _Column:
    """The texts of a column: each on one line, nulls as `null`; numbers are right-aligned."""

    def __init__(self, name: str, texts: Iterable[str], *, is_number: bool) -> None:
        self.name = printable(name)
        self.texts = list(texts)
        self.is_number = is_number
        self.width = max(map(cell_len, (self.name, *self.texts)))

    @classmethod
    def of(cls, name: str, values: "pa.ChunkedArray[Any]") -> Self:
        """Return the column of an Arrow array."""
        kinds = pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal
        is_number = any(is_kind(values.type) for is_kind in kinds)
        return cls(name, cell_texts(values), is_number=is_number)


@dataclass(frozen=True, slots=True)
class Layout:
    """The shown columns, and their widths."""

    widths: tuple[int, ...]
    """Widths of all columns; 0 for those left out."""
    dropped: range
    """Columns left out, from the middle."""

    @classmethod
    def fit(cls, natural: Sequence[int], width: int | None) -> Self:
        """Choose widths: narrow the wide columns first, then leave out middle ones.

        Args:
            natural: Widths that the columns need.
            width: Width of the terminal; None for unbounded.
        """
        if width is None or _total(natural) <= width:
            return cls(tuple(natural), range(0))
        widths: list[int] = list(natural)
        for bound in CELL_WIDTHS:
            widths = [min(bound, each) for each in natural]
            if _total(widths) <= width:
                return cls(tuple(widths), range(0))
        left, right = 0, len(widths)
        room = width - len(GAP)
        while left < right:
            # The left end keeps one more, as the first columns identify a row.
            index = left if left <= len(widths) - right else right - 1
            room -= widths[index] + len(MARGIN)
            if room < 0:
                break
            left, right = (left + 1, right) if index == left else (left, right - 1)
        if left == 0:
            widths[0], left = max(1, width - len(MARGIN) - len(GAP)), 1
        dropped = range(left, right)
        return cls(
            tuple(0 if index in dropped else each for index, each in enumerate(widths)), dropped
        )

    def line(self, cells: Sequence[str], numbers: Sequence[bool], margin: str = MARGIN) -> str:
        """Return the cells of one row as a line."""
        shown: list[str] = []
        for index, (cell, width) in enumerate(zip(cells, self.widths, strict=True)):
            if width:
                shown.append(_fitted(cell, width, right=numbers[index]))
            elif index == self.dropped.start:
                shown.append(GAP)
        return margin.join(shown).rstrip()

    def rule(self) -> str:
        """Return the line under the names."""
        widths = [
            width or len(GAP)
            for index, width in enumerate(self.widths)
            if width or index == self.dropped.start
        ]
        return "─┼─".join("─" * width for width in widths)

    def note(self, names: Sequence[str]) -> str | None:
        """Return a note on the columns left out; None without any."""
        if not self.dropped:
            return None
        first, last = names[self.dropped.start], names[self.dropped.stop - 1]
        which = first if len(self.dropped) == 1 else f"{first} to {last}"
        return f"({len(self.dropped)} of {len(names)} columns left out: {which})"


class TableWriter:
    """A renderer of a table in parts; repeats the header when columns need more room.

    Args:
        width: Width of the lines in cells; None for unbounded.
    """

    def __init__(self, width: int | None) -> None:
        self._width = width
        self._natural: list[int] = []
        self._layout: Layout | None = None

    def lines(self, table: pa.Table) -> Iterator[str]:
        """Yield the lines of the next rows, after the header if needed."""
        columns = _columns(table)
        natural = self._natural or [0] * len(columns)
        self._natural = [
            max(before, column.width) for before, column in zip(natural, columns, strict=True)
        ]
        layout = Layout.fit(self._natural, self._width)
        if layout != self._layout:
            note = layout.note([column.name for column in columns])
            if note is not None and self._layout is None:
                yield note
            yield from _head(columns, layout)
            self._layout = layout
        yield from _rows(columns, layout)


def print_table(names: Sequence[str], rows: Iterable[Sequence[str | int | None]]) -> None:
    """Print a table at the terminal's width; numbers are right-aligned, None is a dash."""
    cells = list(zip(*rows, strict=True)) or [()] * len(names)
    columns = [
        _Column(
            name,
            ("-" if cell is None else printable(str(cell)) for cell in column),
            is_number=any(isinstance(cell, int) for cell in column),
        )
        for name, column in zip(names, cells, strict=True)
    ]
    for line in _rendered(columns, terminal_width()):
        typer.echo(line)


def render_table(table: pa.Table, width: int | None) -> Iterator[str]:
    """Yield the lines of an Arrow table, and a note if columns are left out."""
    yield from _rendered(_columns(table), width)


def _rendered(columns: Sequence[_Column], width: int | None) -> Iterator[str]:
    layout = Layout.fit([column.width for column in columns], width)
    yield from _head(columns, layout)
    yield from _rows(columns, layout)
    note = layout.note([column.name for column in columns])
    if note is not None:
        yield note


def _columns(table: pa.Table) -> list[_Column]:
    return list(map(_Column.of, table.schema.names, table.columns))


def _head(columns: Sequence[_Column], layout: Layout) -> Iterator[str]:
    yield layout.line([column.name for column in columns], [c.is_number for c in columns])
    yield layout.rule()


def _rows(columns: Sequence[_Column], layout: Layout) -> Iterator[str]:
    numbers = [column.is_number for column in columns]
    for cells in zip(*(column.texts for column in columns), strict=True):
        yield layout.line(cells, numbers)


def cell_texts(values: "pa.ChunkedArray[Any]") -> Iterator[str]:
    """Yield each value as text on one line; nested ones as JSON, nulls as `null`."""
    for chunk in values.chunks:
        yield from map(printable, _texts(chunk).to_pylist())


def _texts(values: Any) -> Any:
    data_type = values.type
    if pa.types.is_floating(data_type):
        # JSON has no infinities; `.0` is omitted.
        texts = values.cast(pa.float32() if pa.types.is_float16(data_type) else data_type)
        texts = texts.cast(pa.string())
    elif pa.types.is_string(data_type) or pa.types.is_large_string(data_type):
        texts = values
    else:
        texts = json_texts(values)
        if not pa.types.is_nested(data_type):
            texts = pc.utf8_trim(texts, characters='"')
    cut = pc.utf8_slice_codeunits(texts, 0, CELL_CHARACTERS_MAX)
    return pc.fill_null(cut.cast(pa.string()), "null")


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(MARGIN) * (len(widths) - 1)


def _fitted(cell: str, width: int, *, right: bool) -> str:
    needed = cell_len(cell)
    if needed > width:
        return set_cell_size(cell, width - 1) + GAP
    padding = " " * (width - needed)
    return padding + cell if right else cell + padding
