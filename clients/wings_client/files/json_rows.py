"""The reader of JSON lines, arrays and consecutive objects, split into rows and read in bulk."""

import codecs
import json
import math
import re
import shlex
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import pyarrow as pa
import pyarrow.json

from wings_client.files.formats import Blank
from wings_client.files.json_integers import first_changed, has_large, with_uint64
from wings_client.files.parts import ALL, ChosenColumns, Part, bad_row, first_refused, resolved_type
from wings_client.files.source import HEAD_BYTES, ROW_BYTES_MAX, Source, row_blocks
from wings_core.arrow_types import children, fields_of, with_children
from wings_core.errors import InvalidArgument, SchemaMismatch, WingsError, first_bad
from wings_core.json_rows import decode_rows, encode_rows

OBJECT_SEPARATOR = "\x1e"
"""Control character between objects, none of which has any; line ends may be within them."""

DEPTH_SAFE = 200
"""Number of brackets up to which a row is not nested too deeply for any reader."""

TIME_TYPES = (
    pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32(), pa.time64("us"),
)  # fmt: skip
"""Types tried in order for strings that look like times."""

arrow_json: Any = pyarrow.json
"""Untyped, as its stubs only accept paths and Python files."""

_SPACE: Any = re.compile(r"[ \t\n\r]*")
_OPEN = re.compile(r"[ \t\n\r]*\{[ \t\n\r]*")
_NAME = re.compile(r'("(?:[^"\\]|\\.)*+")[ \t\n\r]*:[ \t\n\r]*')
_SEPARATOR = re.compile(r"[ \t\n\r]*(?:,[ \t\n\r]*(?=\")|(?=\}))")
_CLOSE = re.compile(r"\}[ \t\n\r]*\Z")
_SCANNER: Any = json.JSONDecoder().raw_decode
_NO_OBJECT = re.compile(r"Column\(\) changed from object to (\S+)")
_TWICE = re.compile(r"(?s)Column\(/(.*)\) was specified twice")
_CHANGED = re.compile(r"(?s)Column\(/(.*)\) changed from (\S+) to (\S+)")

_GRAMMAR: dict[str, dict[str, str]] = {
    "start": {"[": "open", "{": "sequence"},
    "open": {"{": "item", "]": "closed"},
    "item": {",": "comma", "]": "closed"},
    "comma": {"{": "item"},
    "sequence": {"{": "sequence"},
    "closed": {},
}
"""Tokens allowed in each state, with the next state; for a brace, the state after its object."""

_NEAR_END = 16
"""Distance from the end within which an error may be due to an incomplete text."""


@dataclass(frozen=True)
class Block:
    """A block of rows, split only when needed."""

    text: bytes
    """The rows, with a separator after each, or between them."""
    first: int
    """Number of the first row, or of its line in the file, from 1."""
    named: Callable[[int], str]
    """Returns the position text of a row by its number, for errors."""
    separator: bytes = b"\n"
    """Byte that no row has."""

    @cached_property
    def rows(self) -> list[bytes]:
        """Rows that are not empty, as a line may be."""
        return [row for row in self.text.split(self.separator) if row and not row.isspace()]

    @cached_property
    def numbers(self) -> list[int]:
        """Numbers of these rows."""
        rows = enumerate(self.text.split(self.separator), self.first)
        return [number for number, row in rows if row and not row.isspace()]

    @property
    def count(self) -> int:
        """Number of rows; counts empty lines while the text is not split."""
        return len(self.rows) if "rows" in vars(self) else self.array()[1]

    @property
    def size(self) -> int:
        """Bytes of the text."""
        return len(self.text)

    def place(self, index: int) -> str:
        """Return the position text of a row by its index."""
        return self.named(self.numbers[index])

    def array(self) -> tuple[bytes, int]:
        """Return the rows as one array, and their number; no JSON if a line among them is empty."""
        text = self.text.strip()
        return b"[" + text.replace(self.separator, b",") + b"]", text.count(self.separator) + 1


def rewritten(block: Block, texts: frozenset[str], chosen: ChosenColumns) -> Block:
    """Return a block with rewritten rows at the same positions.

    Args:
        block: The block.
        texts: Columns whose values become text, numbers with their digits unchanged.
        chosen: Columns to keep.
    """
    # An empty line stays one, and so keeps the numbers of the next ones.
    rows = [_rewritten(row, texts, chosen) for row in block.text.split(block.separator)]
    return replace(block, text=block.separator.join(rows))


def _rewritten(row: bytes, texts: frozenset[str], chosen: ChosenColumns) -> bytes:
    """Return an object with the chosen values, some as text; other JSON is unchanged."""
    try:
        text = row.decode()
        values = values_of(text)
    except (ValueError, RecursionError):
        return row  # Decoding reports the error.
    pieces: list[str] = []
    for name, first, end in values:
        if chosen.takes(name):
            value = text[first:end]
            is_text = name not in texts or value[0] == '"' or value == "null"
            pieces.append(f"{json.dumps(name)}: {value if is_text else json.dumps(value)}")
    return f"{{{', '.join(pieces)}}}".encode()


def values_of(text: str) -> list[tuple[str, int, int]]:
    """Return the keys of an object, with the start and end of each value.

    Raises:
        ValueError: The text is not an object.
    """
    found: list[tuple[str, int, int]] = []
    place = _token(_OPEN, text, 0).end()
    while text[place : place + 1] != "}":
        name = _token(_NAME, text, place)
        first = name.end()
        _, end = _SCANNER(text, first)
        found.append((json.loads(name[1]) if "\\" in name[1] else name[1][1:-1], first, end))
        place = _token(_SEPARATOR, text, end).end()
    _token(_CLOSE, text, place)
    return found


def _token(pattern: re.Pattern[str], text: str, place: int) -> re.Match[str]:
    found = pattern.match(text, place)
    if found is None:
        raise ValueError(f"not an object, at {place}")
    return found


class JsonRows:
    """A file of JSON objects.

    Args:
        source: The file's bytes.
        by_line: Whether each line is an object; otherwise an array or consecutive objects.
        texts: Columns whose values are kept as text, as their JSON if they are not strings.
        chosen: The columns to read.
    """

    names = None

    def __init__(
        self,
        source: Source,
        *,
        by_line: bool,
        texts: frozenset[str] = frozenset(),
        chosen: ChosenColumns = ALL,
    ) -> None:
        if source.head().startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise InvalidArgument("the file is UTF-16: convert it to UTF-8, as JSON must be")
        self.found = 0
        self._source = source
        self._by_line = by_line
        self._texts = texts
        self._chosen = chosen
        self._unread: Iterator[Block] = line_blocks(source) if by_line else object_blocks(source)
        self._head: list[Block] = []

    def rows_before(self) -> int:
        """Return how many rows of the file precede those of the section."""
        return self._source.rows_before(Blank.SPACES)

    def schema(self) -> pa.Schema:
        """Infer columns from the first rows; see `infer`.

        Raises:
            SchemaMismatch: The rows contradict each other.
            InvalidArgument: There are no rows.
        """
        size = sum(block.size for block in self._head)
        while size < HEAD_BYTES and (block := next(self._unread, None)) is not None:
            self._head.append(block)
            self.found += len(block.rows)
            size += block.size
        sampled = self._source.samples(in_quotes=False) if self._by_line else []
        lines = [Block(text, first, self._source.line) for first, text in sampled]
        blocks: list[Block] = [*self._head, *lines]
        if self._texts or self._chosen != ALL:
            blocks = [rewritten(block, self._texts, self._chosen) for block in blocks]
        try:
            return infer(blocks)
        except RecursionError:
            raise SchemaMismatch("a value is nested too deeply") from None

    def blocks(self) -> Iterator[Block]:
        """Yield blocks of rows, with the chosen columns."""
        head, self._head = self._head, []
        yield from map(self._taken, head)
        for block in map(self._taken, self._unread):
            yield block
            self.found += block.count  # Exact by now, as the lines were split if one is empty.

    def parts(self, schema: pa.Schema, exact: Set[str] = frozenset()) -> Iterator[Part]:
        """Yield its rows; see `Rows.parts`."""
        inferred = [field for field in fields_of(schema) if field.name in exact]
        for block in self.blocks():
            batch = self._decoded(block, schema)
            columns = [batch.column(field.name) for field in inferred]
            changed = first_changed(columns, pa.schema(inferred), lambda block=block: block.rows)
            if changed is not None:
                raise bad_row(block.place(changed.row), changed.problem, changed.column)
            yield Part(batch, block.place)

    def _taken(self, block: Block) -> Block:
        return block if self._chosen == ALL else rewritten(block, frozenset(), self._chosen)

    def _decoded(self, block: Block, schema: pa.Schema) -> pa.RecordBatch:
        try:
            return decode_block(block, schema)
        except SchemaMismatch:
            if not self._texts:
                raise
            return decode_block(rewritten(block, self._texts, ALL), schema)


def line_blocks(source: Source) -> Iterator[Block]:
    """Yield the lines of a file in non-empty blocks."""
    for text, first in row_blocks(source, lambda text: text.rfind(b"\n") + 1):
        if not text.isspace():
            yield Block(text, first, source.line)


def object_blocks(source: Source) -> Iterator[Block]:
    """Split an array of objects, or consecutive objects, into blocks of rows."""
    cutter = _Cutter(source.row)
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    while True:
        data = source.read()
        first = cutter.rows + 1
        try:
            text = decoder.decode(data, final=source.ended)
        except UnicodeDecodeError:
            raise bad_row(f"{source.row(first)} or later", "not UTF-8") from None
        if rows := list(cutter.feed(text, final=source.ended)):
            data = OBJECT_SEPARATOR.join(rows).encode()
            yield Block(data, first, source.row, OBJECT_SEPARATOR.encode())
        if source.ended:
            return


class _Cutter:
    """A splitter of text, fed in pieces, into objects.

    Args:
        named: Returns the position text of an object by its number, for errors.

    Attributes:
        rows: Number of objects found.
    """

    def __init__(self, named: Callable[[int], str]) -> None:
        self.rows = 0
        self._named = named
        self._text = ""
        self._place = 0
        self._state = "start"

    def feed(self, text: str, *, final: bool) -> Iterator[str]:
        """Yield the texts of the objects completed by `text`.

        Raises:
            SchemaMismatch: The text is not JSON, or not of objects.
        """
        self._text = self._text[self._place :] + text
        self._place = 0
        while self._at_object():
            end = self._end(final=final)
            if end is None:
                if len(self._text) - self._place > ROW_BYTES_MAX:
                    raise self._bad(f"longer than {ROW_BYTES_MAX} characters, or never closed")
                return
            yield self._text[self._place : end]
            self.rows += 1
            self._place = end
            self._state = _GRAMMAR[self._state]["{"]
        if final and self._state in {"open", "item", "comma"}:
            raise self._bad("the array is never closed")

    def _at_object(self) -> bool:
        """Skip separators; returns whether an object begins here."""
        while True:
            self._place = _SPACE.match(self._text, self._place).end()
            if self._place == len(self._text):
                return False
            character = self._text[self._place]
            follows = _GRAMMAR[self._state]
            if character not in follows:
                found = self._text[self._place : self._place + 20]
                raise self._bad(f"expected {' or '.join(follows) or 'nothing more'}, got {found!r}")
            if character == "{":
                return True
            self._state = follows[character]
            self._place += 1

    def _end(self, *, final: bool) -> int | None:
        """Return the end of the object here; None if it is incomplete."""
        try:
            return _SCANNER(self._text, self._place)[1]
        except json.JSONDecodeError as error:
            cut_off = error.msg.startswith("Unterminated string")
            if not final and (cut_off or error.pos >= len(self._text) - _NEAR_END):
                return None
            raise self._bad(f"not JSON: {error.msg}") from None
        except RecursionError:
            raise self._bad("nested too deeply") from None

    def _bad(self, problem: str) -> SchemaMismatch:
        return bad_row(self._named(self.rows + 1), problem)


def infer(blocks: Sequence[Block]) -> pa.Schema:
    """Infer columns from rows.

    A column of strings becomes a time type if all values have its JSON form. A column of nulls
    becomes string, and one with integers beyond int64 becomes uint64 if all fit.

    Raises:
        SchemaMismatch: The values of a column have different kinds, or are integers that its type
            would change; the message names the first row.
        InvalidArgument: There are no rows.
    """
    rows = [row.replace(b"\n", b" ") for block in blocks for row in block.rows]
    if not rows:
        raise InvalidArgument("there are no rows to infer columns from")
    _check_depth(rows, blocks)
    if rows[0].strip() == b"null":  # Arrow's reader crashes.
        raise bad_row(_places(blocks)[0], "expected an object, got: null")
    try:
        table = _read(b"\n".join(rows))
    except pa.ArrowInvalid as error:
        raise _explained(error, blocks) from None
    fields: list[Any] = []
    for field in fields_of(table.schema):
        data_type = resolved_type(_timeless(field.type))
        if pa.types.is_timestamp(field.type) or pa.types.is_time(field.type):
            data_type = _time_type(rows, field.name)
        fields.append(pa.field(field.name, data_type))
    return _exact(pa.schema(fields), table, rows, blocks)


def _check_depth(rows: Sequence[bytes], blocks: Sequence[Block]) -> None:
    """Check that rows are not nested so deeply that Arrow's reader would crash.

    Raises:
        SchemaMismatch: A row is nested too deeply; the message names it.
    """
    for index, row in enumerate(rows):
        if row.count(b"[") + row.count(b"{") <= DEPTH_SAFE:
            continue
        try:
            json.loads(row)
        except RecursionError:
            raise bad_row(_places(blocks)[index], "nested too deeply") from None
        except ValueError:
            continue  # Arrow's reader reports the problem.


def _exact(
    schema: pa.Schema, table: pa.Table, rows: Sequence[bytes], blocks: Sequence[Block]
) -> pa.Schema:
    """Return an inferred schema whose types preserve all integers.

    Raises:
        SchemaMismatch: There are no such types.
    """
    if not any(has_large(column) for column in table.columns):
        return schema
    schema = with_uint64(schema, rows)
    changed = first_changed(table.columns, schema, lambda: rows)
    if changed is None:
        return schema
    option = shlex.quote(f"{changed.column}:TYPE")
    raise bad_row(
        _places(blocks)[changed.row],
        f"{changed.problem}, and not all values fit uint64: write them as strings; --field "
        f"{option} then sets the type, like string or decimal128(38, 2)",
        changed.column,
    )


def _read(data: bytes, schema: pa.Schema | None = None) -> pa.Table:
    options: Any = pyarrow.json.ParseOptions(
        explicit_schema=schema, unexpected_field_behavior="infer" if schema is None else "ignore"
    )
    read = pyarrow.json.ReadOptions(block_size=len(data) + 1, use_threads=False)
    return arrow_json.read_json(pa.BufferReader(data), read, options)


def _timeless(data_type: pa.DataType) -> pa.DataType:
    """Return a type with strings in place of times, nested types included."""
    if pa.types.is_temporal(data_type):
        return pa.string()
    parts = [
        pa.field(child.name, _timeless(child.type), nullable=child.nullable)
        for child in children(data_type)
    ]
    return with_children(data_type, parts)


def _time_type(rows: Sequence[bytes], name: str) -> pa.DataType:
    """Return the time type of all values of a column, or string."""
    schema = pa.schema([pa.field(name, pa.string())])
    table = _read(b"\n".join(rows), schema).select([name]).combine_chunks()
    (batch,) = table.to_batches()
    data = encode_rows(batch)
    for data_type in TIME_TYPES:
        try:
            decode_rows(data, pa.schema([pa.field(name, data_type)]))
        except WingsError:
            continue
        return cast("pa.DataType", data_type)
    return pa.string()


def decode_block(block: Block, schema: pa.Schema) -> pa.RecordBatch:
    """Decode rows as a batch of a schema.

    Raises:
        SchemaMismatch: A row does not fit; the message has its position.
    """
    # In bulk; if that fails, bisection finds the bad row.
    text, count = block.array()
    with suppress(WingsError):
        batch = decode_rows(text, schema)
        if batch.num_rows == count:
            return batch
    try:
        return decode_objects(block.rows, schema)
    except WingsError as error:
        row, problem = first_refused(
            len(block.rows), lambda low, high: decode_objects(block.rows[low:high], schema), error
        )
    message = problem.message.removeprefix(f"row {problem.facts.get('row')}: ")
    message = message.replace("the rows are", "it is")
    raise bad_row(block.place(row), message, problem.facts.get("column"))


def decode_objects(rows: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
    """Decode the texts of rows as a batch of a schema.

    Raises:
        WingsError: A row does not fit, or is not one object.
    """
    batch = decode_rows(b"[" + b",".join(rows) + b"]", schema)
    if batch.num_rows != len(rows):
        raise SchemaMismatch("not one object on each line")
    return batch


def _places(blocks: Sequence[Block]) -> list[str]:
    return [block.place(index) for block in blocks for index in range(len(block.rows))]


def _root(row: bytes, path: str) -> str:
    """Return the column of a path into a row; its name may contain slashes."""
    names = [name for name, _, _ in values_of(row.decode()) if f"{path}/".startswith(f"{name}/")]
    return max(names, key=len, default=path)


def _infinite(row: bytes) -> str:
    """Return the first column with a number beyond the range of doubles; empty if none."""
    text = row.decode()
    found: list[bool] = []

    def look(digits: str) -> None:
        found.append(math.isinf(float(digits)))

    for name, first, end in values_of(text):
        json.loads(text[first:end], parse_float=look, parse_int=look)
        if any(found):
            return name
    return ""


def _explained(error: pa.ArrowInvalid, blocks: Sequence[Block]) -> SchemaMismatch:
    """Return an error that names the row contradicting earlier ones."""
    rows = [row.replace(b"\n", b" ") for block in blocks for row in block.rows]
    places = _places(blocks)
    problem = str(error)

    def contradicts(_: int, high: int) -> bool:
        nonlocal problem
        try:
            _read(b"\n".join(rows[:high]))
        except pa.ArrowInvalid as found:
            problem = str(found)
            return True
        return False

    row = first_bad(len(rows), contradicts)
    text = problem.removeprefix("JSON parse error: ").partition(" in row ")[0]
    changed = _CHANGED.fullmatch(text)
    if changed is not None:
        text = f"column {changed[1]!r:.80} changes from {changed[2]} to {changed[3]}"
        option = shlex.quote(f"{_root(rows[row], changed[1])}:string")
        text += f"; --field {option} keeps whatever is there as text"
    other = _NO_OBJECT.fullmatch(text)
    if other is not None:
        text = f"expected an object, got: {other[1]}"
    twice = _TWICE.match(text)
    if twice is not None:
        text = f"column {twice[1]!r:.80} is duplicate"
    if "too big" in text:
        column = _infinite(rows[row])
        return bad_row(places[row], f"column {column!r:.80}: {text[:300]}", column)
    return bad_row(places[row], f"{text[:300]}")
