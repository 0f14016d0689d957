"""JSON: lines, arrays and sequences of objects, cut into rows and read in bulk."""

import codecs
import json
import math
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, cast

import pyarrow as pa
import pyarrow.json

from wings_client.files.json_integers import first_changed, has_large, with_uint64
from wings_client.files.parts import Part, bad_row, resolved_type
from wings_client.files.source import HEAD_BYTES, Source
from wings_core.arrow_types import children, fields_of, with_children
from wings_core.errors import InvalidArgument, SchemaMismatch, WingsError
from wings_core.first_bad import first_bad
from wings_core.json_rows import decode_rows, encode_rows

ROW_BYTES_MAX = 64 * 1024 * 1024
"""A longer row is refused, as a server does."""

DEPTH_SAFE = 200
"""A row with no more brackets is not nested too deeply for any reader."""

TIME_TYPES = (
    pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32(), pa.time64("us"),
)  # fmt: skip
"""Types of strings that look like times, tried in order."""

arrow_json: Any = pyarrow.json
"""Untyped: its stubs accept paths and Python's own files alone."""

_BOM = codecs.BOM_UTF8
_SPACE: Any = re.compile(r"[ \t\n\r]*")
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
"""The tokens allowed next, with the state after each; for a brace, the state after its object."""

_NEAR_END = 16
"""Characters from the end within which an error may be due to an incomplete text."""


@dataclass(frozen=True, slots=True)
class Block:
    """The texts of some rows, and their numbers."""

    rows: list[bytes]
    first: int
    """The first row's number, from 1."""

    @property
    def numbers(self) -> Sequence[int]:
        """The numbers of the rows, from 1, as errors name them."""
        return range(self.first, self.first + len(self.rows))

    def place(self, index: int) -> str:
        """Return the place of a row, for errors."""
        return f"row {self.numbers[index]}"

    def array(self) -> tuple[bytes, int]:
        """Return the rows as one JSON array, and how many there are."""
        return b"[" + b",".join(self.rows) + b"]", len(self.rows)


@dataclass(frozen=True)
class LineBlock:
    """Whole lines with a row on each; split only when needed."""

    text: bytes
    first: int
    """The first line's number, from 1."""
    line: Callable[[int], str]
    """Returns the place of the line with a number, for errors."""

    @cached_property
    def rows(self) -> list[bytes]:
        """The lines that are not empty."""
        return [line for line in self.text.split(b"\n") if line and not line.isspace()]

    @cached_property
    def numbers(self) -> list[int]:
        """Of the lines that are not empty."""
        lines = enumerate(self.text.split(b"\n"), self.first)
        return [number for number, line in lines if line and not line.isspace()]

    def place(self, index: int) -> str:
        """Return the place of a row, for errors."""
        return self.line(self.numbers[index])

    def array(self) -> tuple[bytes, int]:
        """Return the lines as one JSON array, and how many there are; none if one is empty."""
        text = self.text.strip()
        return b"[" + text.replace(b"\n", b",") + b"]", text.count(b"\n") + 1


@dataclass(frozen=True, slots=True)
class TextsBlock:
    """Rows of a block, rewritten, in their places."""

    rows: list[bytes]
    numbers: Sequence[int]
    place: Callable[[int], str]

    def array(self) -> tuple[bytes, int]:
        """Return the rows as one JSON array, and how many there are."""
        return b"[" + b",".join(self.rows) + b"]", len(self.rows)


AnyBlock = Block | LineBlock | TextsBlock


def texts_block(block: AnyBlock, names: frozenset[str]) -> TextsBlock:
    """Return a block with text in place of all values of some columns: of numbers, their digits."""
    rows = [_with_texts(row, names) for row in block.rows]
    return TextsBlock(rows, block.numbers, block.place)


def _with_texts(row: bytes, names: frozenset[str]) -> bytes:
    """Return an object with text for the values of some names; what is no object, as it is."""
    try:
        text = row.decode()
        values = values_of(text)
    except ValueError:
        return row  # It is reported where it is decoded.
    pieces: list[str] = []
    place = 0
    for name, first, end in values:
        if name not in names or text[first] == '"' or text[first:end] == "null":
            continue
        pieces += [text[place:first], json.dumps(text[first:end])]
        place = end
    return "".join([*pieces, text[place:]]).encode()


def values_of(text: str) -> list[tuple[str, int, int]]:
    """Return the names of an object, and where the value of each begins and ends.

    Raises:
        ValueError: It is not an object.
    """
    decode = json.JSONDecoder().raw_decode
    found: list[tuple[str, int, int]] = []
    place = _after(text, 0, "{")
    while text[place : place + 1] != "}":
        name, end = decode(text, place)
        first = _after(text, end, ":")
        _, end = decode(text, first)
        found.append((name, first, end))
        place = _SPACE.match(text, end).end()
        if text[place : place + 1] == ",":
            place = _after(text, place, ",")
    return found


def _after(text: str, place: int, wanted: str) -> int:
    """Return where the next token begins after one that must be here."""
    place = _SPACE.match(text, place).end()
    if text[place : place + 1] != wanted:
        raise ValueError(f"expected {wanted}")
    return _SPACE.match(text, place + 1).end()


class JsonRows:
    """JSON objects, from either kind of file.

    Args:
        source: Its bytes.
        by_line: Whether each line is an object; else they come in an array or one after another.
        texts: Columns whose values are kept as text: of what is no string, its JSON.
    """

    def __init__(
        self, source: Source, *, by_line: bool, texts: frozenset[str] = frozenset()
    ) -> None:
        if source.head().startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise InvalidArgument("the file is UTF-16: JSON is read in UTF-8, so convert it before")
        self.rows: int | None = None
        self._source = source
        self._by_line = by_line
        self._texts = texts
        self._blocks: Iterator[AnyBlock] = line_blocks(source) if by_line else object_blocks(source)
        self._head: list[AnyBlock] = []

    def schema(self) -> pa.Schema:
        """Infer columns from the first rows; see `infer`.

        Raises:
            SchemaMismatch: They contradict each other.
            InvalidArgument: There are none.
        """
        size = 0
        while size < HEAD_BYTES and (block := next(self._blocks, None)) is not None:
            self._head.append(block)
            size += sum(map(len, block.rows))
        sampled = self._source.samples(in_quotes=False) if self._by_line else []
        lines = [LineBlock(text, first, self._source.line) for first, text in sampled]
        blocks: list[AnyBlock] = [*self._head, *lines]
        if self._texts:
            blocks = [texts_block(block, self._texts) for block in blocks]
        try:
            return infer(blocks)
        except RecursionError:
            raise SchemaMismatch("a value is nested too deeply") from None

    def parts(self, schema: pa.Schema) -> Iterator[Part]:
        """Yield its rows; see `Rows.parts`."""
        head, self._head = self._head, []
        for block in chain(head, self._blocks):
            yield Part(self._decoded(block, schema), block.place)

    def _decoded(self, block: "AnyBlock", schema: pa.Schema) -> pa.RecordBatch:
        try:
            return decode_block(block, schema)
        except SchemaMismatch:
            if not self._texts:
                raise
            return decode_block(texts_block(block, self._texts), schema)


def line_blocks(source: Source) -> Iterator[LineBlock]:
    """Yield the lines of a file in blocks; empty blocks are left out."""
    rest = b""
    first = 1
    ended = False
    while not ended:
        block = source.read()
        ended = source.ended
        data = rest + block
        if first == 1 and not source.begins_within:
            data = data.removeprefix(_BOM)
        cut = len(data) if ended else data.rfind(b"\n") + 1
        rest = data[cut:]
        if len(rest) > ROW_BYTES_MAX:
            number = first + data.count(b"\n")
            raise bad_row(source.line(number), f"longer than {ROW_BYTES_MAX} bytes")
        text = data[:cut]
        if text and not text.isspace():
            yield LineBlock(text, first, source.line)
        first += text.count(b"\n")


def object_blocks(source: Source) -> Iterator[Block]:
    """Cut an array of objects, or objects one after another, into blocks of rows."""
    cutter = _Cutter()
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    while True:
        data = source.read()
        first = cutter.rows + 1
        try:
            text = decoder.decode(data, final=source.ended)
        except UnicodeDecodeError:
            raise bad_row(f"row {first} or later", "not UTF-8") from None
        rows = [row.encode() for row in cutter.feed(text, final=source.ended)]
        if rows:
            yield Block(rows, first)
        if source.ended:
            return


class _Cutter:
    """Finds the end of each object in text fed in pieces.

    Attributes:
        rows: How many objects were found.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._text = ""
        self._place = 0
        self._state = "start"
        self._scan = json.JSONDecoder().raw_decode

    def feed(self, text: str, *, final: bool) -> Iterator[str]:
        """Yield the texts of the objects that this completes.

        Raises:
            SchemaMismatch: Not JSON, or not objects.
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
        """Skip what separates objects; returns whether one begins here."""
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
        """Return where the object here ends; None if its end was not fed yet."""
        try:
            return self._scan(self._text, self._place)[1]
        except json.JSONDecodeError as error:
            cut_off = error.msg.startswith("Unterminated string")
            if not final and (cut_off or error.pos >= len(self._text) - _NEAR_END):
                return None
            raise self._bad(f"not JSON: {error.msg}") from None
        except RecursionError:
            raise self._bad("nested too deeply") from None

    def _bad(self, problem: str) -> SchemaMismatch:
        return bad_row(f"row {self.rows + 1}", problem)


def infer(blocks: Sequence[AnyBlock]) -> pa.Schema:
    """Infer columns from rows.

    A column of strings is one of times if all are, in the form that topics have in JSON. A column
    of nulls becomes one of strings, integers beyond int64 uint64 where all fit.

    Raises:
        SchemaMismatch: Values of a column are of different kinds, or integers that its type would
            change; names the first row.
        InvalidArgument: There are no rows.
    """
    rows = [row.replace(b"\n", b" ") for block in blocks for row in block.rows]
    if not rows:
        raise InvalidArgument("there are no rows to infer columns from")
    _check_depth(rows, blocks)
    try:
        table = _read(b"\n".join(rows))
    except pa.ArrowInvalid as error:
        raise _explained(error, blocks) from None
    fields: list[Any] = []
    for field, values in zip(fields_of(table.schema), table.columns, strict=True):
        data_type = resolved_type(_timeless(field.type), pa.string())
        if pa.types.is_timestamp(field.type) or pa.types.is_time(field.type):
            data_type = _time_type(rows, field.name)
        elif pa.types.is_list(data_type) and values.null_count == len(values):
            data_type = resolved_type(data_type, pa.string())
        fields.append(pa.field(field.name, data_type))
    return _exact(pa.schema(fields), table, rows, blocks)


def _check_depth(rows: Sequence[bytes], blocks: Sequence[AnyBlock]) -> None:
    """Check that rows are not nested so deeply that Arrow's reader would end the process.

    Raises:
        SchemaMismatch: One is; names it.
    """
    for index, row in enumerate(rows):
        if row.count(b"[") + row.count(b"{") <= DEPTH_SAFE:
            continue
        try:
            json.loads(row)
        except RecursionError:
            raise bad_row(_places(blocks)[index], "nested too deeply") from None
        except ValueError:
            continue  # Arrow's reader says what is wrong with it.


def _exact(
    schema: pa.Schema, table: pa.Table, rows: Sequence[bytes], blocks: Sequence[AnyBlock]
) -> pa.Schema:
    """Return an inferred schema with types that change no integer.

    Raises:
        SchemaMismatch: There are none.
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
        f"{changed}, and not all values are of uint64: write them as strings; --field {option} "
        "then sets the type, like string or decimal128(38, 2)",
        changed.column,
    )


def _read(data: bytes, schema: pa.Schema | None = None) -> pa.Table:
    options: Any = pyarrow.json.ParseOptions(
        explicit_schema=schema, unexpected_field_behavior="infer" if schema is None else "ignore"
    )
    read = pyarrow.json.ReadOptions(block_size=len(data) + 1, use_threads=False)
    return arrow_json.read_json(pa.BufferReader(data), read, options)


def _timeless(data_type: pa.DataType) -> pa.DataType:
    """Return a type with strings in place of times, at every depth."""
    if pa.types.is_temporal(data_type):
        return pa.string()
    parts = [
        pa.field(child.name, _timeless(child.type), nullable=child.nullable)
        for child in children(data_type)
    ]
    return with_children(data_type, parts)


def _time_type(rows: Sequence[bytes], name: str) -> pa.DataType:
    """Return the type of time of all values of a column, else string."""
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


def decode_block(block: AnyBlock, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows as a batch of a schema.

    Raises:
        SchemaMismatch: A row does not fit; the message names its place.
    """
    # All at once; if that fails, by bisection to the row that does.
    text, count = block.array()
    with suppress(WingsError):
        batch = decode_rows(text, schema)
        if batch.num_rows == count:
            return batch
    problem: WingsError = SchemaMismatch("not one object on each line")
    try:
        batch = decode_rows(b"[" + b",".join(block.rows) + b"]", schema)
        if batch.num_rows == len(block.rows):
            return batch
    except WingsError as error:
        problem = error
    raise _error_of_first_bad(block, schema, problem)


def _error_of_first_bad(block: AnyBlock, schema: pa.Schema, problem: WingsError) -> WingsError:
    """Return the error of the first bad row; `problem` where it has none of its own."""

    def is_bad(low: int, high: int) -> bool:
        nonlocal problem
        try:
            batch = decode_rows(b"[" + b",".join(block.rows[low:high]) + b"]", schema)
        except WingsError as error:
            problem = error
            return True
        return batch.num_rows != high - low

    row = first_bad(len(block.rows), is_bad)
    is_bad(row, row + 1)  # Sets its own error, in case only those of several rows were seen.
    message = problem.message.removeprefix(f"row {problem.facts.get('row')}: ")
    message = message.replace("the rows are", "it is")
    return bad_row(block.place(row), message, problem.facts.get("column"))


def _places(blocks: Sequence[AnyBlock]) -> list[str]:
    return [block.place(index) for block in blocks for index in range(len(block.rows))]


def _root(row: bytes, path: str) -> str:
    """Return the column that a path into a row begins with; its own name may have slashes."""
    names = [name for name, _, _ in values_of(row.decode()) if f"{path}/".startswith(f"{name}/")]
    return max(names, key=len, default=path)


def _infinite(row: bytes) -> str:
    """Return the first column with a number that no double can hold; empty if there is none."""
    text = row.decode()
    found: list[bool] = []

    def look(digits: str) -> None:
        found.append(math.isinf(float(digits)))

    for name, first, end in values_of(text):
        json.loads(text[first:end], parse_float=look, parse_int=look)
        if any(found):
            return name
    return ""


def _explained(error: pa.ArrowInvalid, blocks: Sequence[AnyBlock]) -> SchemaMismatch:
    """Return the error that names the row which contradicts those before it."""
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
        text = f"column {twice[1]!r:.80} is there twice"
    if "too big" in text:
        column = _infinite(rows[row])
        return bad_row(places[row], f"column {column!r:.80}: {text[:300]}", column)
    return bad_row(places[row], f"{text[:300]}")
