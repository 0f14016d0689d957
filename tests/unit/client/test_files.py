import bz2
import gzip
import io
import json
import lzma
import re
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas  # pyright: ignore[reportMissingTypeStubs]
import polars
import pyarrow as pa
import pyarrow.csv
import pyarrow.orc
import pyarrow.parquet
import pytest
from fix_files import ReadSizes
from hypothesis import given
from hypothesis import strategies as st
from tables import each

from wings_client.files import FileFormat, infer_schema, open_file
from wings_client.files.arrow_batches import SourceFile
from wings_client.files.csv_rows import CsvRows
from wings_client.files.csv_text import Dialect
from wings_client.files.formats import Section
from wings_client.files.json_rows import object_blocks
from wings_client.files.opened import RECOGNISED, Folder, folders_of
from wings_client.files.parts import ChosenColumns, Part
from wings_client.files.source import HEAD_BYTES, Source, whole_lines
from wings_core.errors import Internal, InvalidArgument, SchemaMismatch, WingsError

arrow: Any = pa
arrow_csv: Any = pyarrow.csv

json_values: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
objects: Any = st.lists(st.dictionaries(st.text(), json_values, max_size=3), max_size=8)


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(path: Path, schema: pa.Schema | None = None, **options: Any) -> pa.Table:
    """Read a file by the columns it has, or those given."""
    with open_file(path, **options) as file:
        wanted = schema or file.schema({})
        return pa.Table.from_batches([part.batch for part in file.parts(wanted)], wanted)


def parts(path: Path, schema: pa.Schema) -> Iterator[Part]:
    with open_file(path) as file:
        yield from file.parts(schema)


class Pieces:
    """A source that comes in pieces of a few bytes."""

    def __init__(self, data: bytes, size: int) -> None:
        self._file = io.BytesIO(data)
        self._size = size
        self.ended = False
        self.row = "row {}".format

    def read(self, size: int = 1 << 20) -> bytes:
        block = self._file.read(min(size, self._size))
        self.ended = not block
        return block


@given(objects, st.sampled_from(["array", "pretty", "sequence"]), st.integers(1, 40), st.booleans())
def test_objects_are_cut_apart_wherever_the_pieces_end(
    rows: list[dict[str, object]], form: str, size: int, plain: bool
) -> None:
    if form == "sequence":
        text = "\n".join(json.dumps(row, ensure_ascii=plain) for row in rows)
    else:
        text = json.dumps(rows, ensure_ascii=plain, indent=2 if form == "pretty" else None)
    data: Any = Pieces(text.encode("utf-8", "surrogatepass"), size)
    blocks = list(object_blocks(data))
    assert [json.loads(row) for block in blocks for row in block.rows] == rows
    numbers = [number for block in blocks for number in block.numbers]
    assert numbers == list(range(1, len(rows) + 1))


@each(
    ("text", "problem"),
    [
        ('[{"a": 1}, {"a": 2', "row 2: not JSON"),
        ('[{"a": 1}', "row 2: the array is never closed"),
        ('[{"a": 1}, 7]', "row 2: expected {"),
        ('[{"a": 1},]', "row 2: expected {"),
        ('[{"a": 1} {"a": 2}]', "row 2: expected , or ]"),
        ('[{"a": 1}] x', "row 2: expected nothing more"),
        ('[{"a": 1}, {"a": flurb}, {"a": 3}' + " " * 50, "row 2: not JSON"),
        ("7", r"row 1: expected \[ or {"),
        ('[{"a": "\xff"}]', "not UTF-8"),
    ],
)
def test_an_array_that_is_none_names_the_row(tmp_path: Path, text: str, problem: str) -> None:
    path = write(tmp_path / "rows.json", text.encode("latin-1"))
    with pytest.raises(SchemaMismatch, match=problem):
        read(path)


def test_a_json_array_is_read_by_the_types_of_its_values(tmp_path: Path) -> None:
    rows = [
        {
            "i": 1,
            "f": 1,
            "at": "2026-01-01T00:00:00Z",
            "day": "2026-01-01",
            "s": "2026/01",
            "n": None,
        },
        {
            "i": None,
            "f": 2.5,
            "at": None,
            "day": "2026-01-02",
            "s": "12:00",
            "l": [],
            "o": {"x": 1},
        },
    ]
    table = read(write(tmp_path / "rows.json", json.dumps(rows)))
    assert dict(zip(table.schema.names, map(str, table.schema.types), strict=True)) == {
        "i": "int64",
        "f": "double",
        "at": "timestamp[us, tz=UTC]",
        "day": "date32[day]",
        "s": "string",
        "n": "string",
        "l": "list<item: string>",
        "o": "struct<x: int64>",
    }
    assert table.num_rows == 2


def test_integers_beyond_int64_are_uint64(tmp_path: Path) -> None:
    ids = [12345678901234567891, 12345678901234567899, None, 0]
    rows = [{"id": each, "in": {"ids": [each]}, "x": 1e300} for each in ids]
    path = write(tmp_path / "rows.jsonl", "\n".join(map(json.dumps, rows)))
    table = read(path)
    assert table.schema.field("id").type == pa.uint64()
    assert str(table.schema.field("in").type) == "struct<ids: list<item: uint64>>"
    assert table.schema.field("x").type == pa.float64()
    assert table.to_pylist() == rows


@each(
    ("other", "literal"),
    [
        ("0.5", "9007199254740993"),
        ("-1", "12345678901234567891"),
        ("1", "-9223372036854775809"),
        ("1", "1" * 400),
    ],
)
def test_an_integer_that_no_inferred_type_holds_is_refused(
    tmp_path: Path, other: str, literal: str
) -> None:
    path = write(tmp_path / "rows.json", f'[{{"id": {other}}}, {{"id":\n{literal}}}]')
    with pytest.raises(SchemaMismatch) as refused:
        read(path)
    told = f"row 2: column 'id': no double equals the integer {literal[:60]}"
    assert refused.value.message.startswith(f"{path}: {told}")
    assert "--field id:TYPE" in refused.value.message


TOO_LARGE = [
    (pa.decimal128(38, 2), "1" * 38),
    (pa.decimal128(38, 2), "1" * 1000),
    (pa.decimal128(38, 2), "1e37"),
    (pa.decimal32(9, 2), "12345678"),
    (pa.decimal128(10, 2), "1.555"),
    (pa.float64(), "1e400"),
    (pa.float64(), "-1e400"),
    (pa.float32(), "1e39"),
    (pa.float16(), "65520"),
]


@each("form", ["csv", "jsonl"])
@each(("data_type", "text"), TOO_LARGE)
def test_a_number_that_its_type_cannot_hold_names_its_row(
    tmp_path: Path, data_type: pa.DataType, text: str, form: str
) -> None:
    shown = json.dumps(text) if form == "jsonl" and pa.types.is_decimal(data_type) else text
    values = ["1", shown, "1"]
    if form == "csv":
        content = "a\n" + "\n".join(values)
    else:
        content = "\n\n".join(f'{{"a": {value}}}' for value in values)
        content = content.replace('"a": 1}', '"a": null}')
    path = write(tmp_path / f"rows.{form}", content)
    with pytest.raises(SchemaMismatch, match=r":3: column 'a'") as refused:
        read(path, pa.schema([pa.field("a", data_type)]))
    assert refused.value.column == "a"


@each(
    ("data_type", "text"),
    [
        (pa.int8(), "0xFF"),
        (pa.int16(), "0xFFFFFFFFFFFFFFFF"),
        (pa.int32(), "0X80000000"),
        (pa.int64(), "0xFFFFFFFFFFFFFFFF"),
    ],
)
def test_a_hexadecimal_of_csv_has_no_sign(
    tmp_path: Path, data_type: pa.DataType, text: str
) -> None:
    schema = pa.schema([("a", data_type)])
    assert read(write(tmp_path / "rows.csv", "a\n0x7F\n-1\n"), schema).to_pydict() == {
        "a": [127, -1]
    }
    path = write(tmp_path / "rows.csv", f"a\n0x7F\n-1\n{text}\n")
    with pytest.raises(SchemaMismatch, match=f":4: column 'a': '{text}' is not a value"):
        read(path, schema)
    assert infer_schema(path, {}).types == [pa.string()]


NUMBERS = [
    (pa.decimal128(38, 2), "+1.5, .5, 5., -.5e1, 000000000000000000000000000000000000000001"),
    (pa.decimal256(76, 0), f"{'9' * 76}, -{'9' * 76}"),
    (pa.float64(), "inf, -inf, Infinity, +INF, 9007199254740993, 1e-400, -0.0, 0.1, 5."),
    (pa.float32(), "inf, 0.1, 16777217, 1e-60"),
    (pa.float16(), "inf, 0.1, 65519"),
    (pa.int64(), "9223372036854775807, -9223372036854775808, 0x10, 007"),
]


@each(("data_type", "texts"), NUMBERS)
def test_numbers_of_csv_are_the_nearest_of_their_type(
    tmp_path: Path, data_type: pa.DataType, texts: str
) -> None:
    values = [text.strip() for text in texts.split(",")]
    path = write(tmp_path / "rows.csv", "a,b\n" + "".join(f" {each} ,\n" for each in values))
    found = read(path, pa.schema([("a", data_type), ("b", pa.int8())])).column("a").to_pylist()
    if pa.types.is_integer(data_type):
        assert found == [int(each, 16 if "x" in each else 10) for each in values]
    elif pa.types.is_decimal(data_type):
        assert found == [Decimal(each) for each in values]
    else:
        nearest: Any = pa.array([float(each) for each in values]).cast(data_type)
        assert found == nearest.to_pylist()


def test_nan_of_csv_is_a_value_and_nothing_is_null(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", "a,b\nnan,1\n,1\nNaN,\n")
    table = read(path, pa.schema([("a", pa.float64()), ("b", pa.decimal128(3, 1))]))
    assert [each is not None and each != each for each in table["a"].to_pylist()] == [
        True,
        False,
        True,
    ]
    assert table["b"].to_pylist() == [Decimal(1), Decimal(1), None]


@each("text", ["9007199254740993", "[0.5, -9007199254740993]"])
def test_a_long_integer_of_json_is_the_nearest_double(tmp_path: Path, text: str) -> None:
    inner = pa.float64() if text[0] != "[" else pa.list_(pa.float64())
    path = write(tmp_path / "rows.jsonl", f'{{"a": {text}}}\n')
    found = read(path, pa.schema([pa.field("a", inner)])).column("a")[0].as_py()
    assert found == (2.0**53 if text[0] != "[" else [0.5, -(2.0**53)])


def test_large_integers_that_are_doubles_and_large_doubles_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", '{"a": 100000000000000000000}\n{"a": 1.5e300}\n')
    assert read(path).to_pylist() == [{"a": 1e20}, {"a": 1.5e300}]


def test_empty_lines_count_and_bad_ones_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", '\ufeff{"a": 1}\r\n\n{"a": 2}\n{"a": "x"}\n{"a": 4}')
    schema = pa.schema([("a", pa.int64())])
    with pytest.raises(SchemaMismatch, match=r":4: column 'a'"):
        list(parts(path, schema))
    with pytest.raises(SchemaMismatch, match=":4: column 'a' changes from number to string"):
        infer_schema(path, {})


@each("text", ['{"a": 1}\n{"a": 2},{"a": 3}\n', '{"a": 1}\n{"a": 2\n', '{"a": 1}\n"b": 2}\n'])
def test_what_is_not_one_object_on_a_line_is_named(tmp_path: Path, text: str) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    with pytest.raises(SchemaMismatch, match=r":2: "):
        list(parts(write(tmp_path / "rows.jsonl", text), schema))


@each("names", ["a,b", "\ufeffa,b", '"a","b"', "a,b\n"])
def test_csv_of_names_alone_has_no_rows(tmp_path: Path, names: str) -> None:
    path = write(tmp_path / "a.csv", names)
    found = read(path)
    assert (found.column_names, found.num_rows) == (["a", "b"], 0)
    assert read(path, pa.schema([("b", pa.int64()), ("a", pa.date32())])).num_rows == 0


def test_csv_of_a_name_whose_quote_is_never_closed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="CSV"):
        read(write(tmp_path / "a.csv", '"a,b'), pa.schema([("a,b", pa.int64())]))


def test_messy_csv_is_read_value_by_value(tmp_path: Path) -> None:
    text = (
        '\ufeffid,"a ""name""",zip,huge,when,nothing\r\n'
        '1,"two\nlines",00501,123456789012345678901,2026-01-01,\r\n'
        "\r\n"
        '2,"",10001,2,,\r\n'
        "3,,90210,3,2026-01-03,\r\n"
    )
    table = read(write(tmp_path / "messy.csv", text))
    assert table.schema.names == ["id", 'a "name"', "zip", "huge", "when", "nothing"]
    assert [str(each) for each in table.schema.types] == [
        "int64", "string", "string", "string", "date32[day]", "string",
    ]  # fmt: skip
    assert table.column(1).to_pylist() == ["two\nlines", "", None]
    assert table.column("zip").to_pylist() == ["00501", "10001", "90210"]
    assert table.column("nothing").null_count == 3


def test_a_csv_value_far_down_that_does_not_fit_names_its_line(
    tmp_path: Path, read_sizes: ReadSizes
) -> None:
    read_sizes(head=1_000, sample=0)
    plain = "id,v\n" + "".join(f"{index},{index}\n" for index in range(5_000)) + "x,1\n"
    quoted = plain.replace("7,7\n", '7,"7"\n', 1)
    for name, text in (("plain.csv", plain), ("quoted.csv", quoted)):
        path = write(tmp_path / name, text)
        assert infer_schema(path, {}).types == [pa.int64(), pa.int64()]
        with pytest.raises(SchemaMismatch, match=":5002: column 'id': 'x' is not a value"):
            read(path)
        text_schema = infer_schema(path, {"id": pa.field("id", pa.string())})
        assert read(path, text_schema).num_rows == 5_001


@each(
    ("text", "problem"),
    [
        ("a,b\n1,2\n3\n", ":3: Expected 2 columns, got 1"),
        ('a,b\n1,2\n3,"x\n4,y\n', ":3: a quote is never closed"),
        ("a,b\n1,x\n2,caf\xe9\n", ":3: column 'b': not UTF-8: give its encoding"),
        ("pr\xe9nom,b\n1,2\n", "the first line is not UTF-8: give its encoding"),
        ("\xff\xfea\x00\n\x00", "the file is UTF-16: give its encoding"),
        ("a\x00,\x00b\x00\n\x00", "a NUL byte in the first line: give its encoding"),
        (",a\n1,2\nx,3\n", ":3: column 1 has no name in the first line, and has a value, 'x'"),
        ("a,,b\n1,2,3\n", "column 2 has no name in the first line"),
        ("a,b,a\n1,2,3\n", "columns 1 and 3 are both named 'a'"),
        ("", "the file is empty"),
    ],
)
def test_csv_that_is_broken_names_the_line(tmp_path: Path, text: str, problem: str) -> None:
    path = write(tmp_path / "broken.csv", text.encode("latin-1"))
    with pytest.raises((SchemaMismatch, InvalidArgument), match=problem):
        read(path)


def test_text_of_any_encoding_is_read_whole(tmp_path: Path, read_sizes: ReadSizes) -> None:
    read_sizes(block=4099, head=10_001)  # Cuts characters in two.
    texts = [f"{index} é 中 𝄞" for index in range(3_000)]
    content = "a\n" + "\n".join(texts) + "\n"
    for encoding in ("utf-16", "utf-8-sig", "gb18030", "utf-32-be"):
        path = write(tmp_path / "rows.csv", content.encode(encoding))
        assert read(path, encoding=encoding).column("a").to_pylist() == texts
        packed = write(tmp_path / "rows.csv.gz", gzip.compress(content.encode(encoding)))
        assert read(packed, encoding=encoding).column("a").to_pylist() == texts
    broken = write(tmp_path / "rows.csv", content.encode("utf-16")[:-1])
    with pytest.raises(InvalidArgument, match="not utf-16"):
        read(broken, encoding="utf-16")


def test_an_empty_line_is_a_row_where_there_is_one_column(tmp_path: Path) -> None:
    assert read(write(tmp_path / "one.csv", "a\n1\n\n3\n")).to_pydict() == {"a": [1, None, 3]}


def test_values_are_separated_by_tabs_or_what_is_said(tmp_path: Path) -> None:
    expected = {"a": [1], "b": ["x,y"]}
    assert read(write(tmp_path / "rows.tsv", "a\tb\n1\tx,y\n")).to_pydict() == expected
    semicolons = write(tmp_path / "rows.csv", "a;b\n1;x,y\n")
    assert read(semicolons, delimiter=";").to_pydict() == expected


def test_types_that_csv_has_no_form_for_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", "a\n[1]\n")
    with pytest.raises(SchemaMismatch, match="which CSV cannot"):
        list(parts(path, pa.schema([("a", pa.list_(pa.int64()))])))


def test_csv_is_cast_to_the_topic_s_types(tmp_path: Path) -> None:
    schema = pa.schema(
        [("t", pa.timestamp("s", "UTC")), ("h", pa.float16()), ("d", pa.decimal32(5, 2))]
    )
    good = write(tmp_path / "good.csv", "t,h,d\n2026-01-01T00:00:00.000000Z,1.5,1.50\n")
    assert read(good, schema).schema == schema
    bad = write(
        tmp_path / "bad.csv", "t,h,d\n2026-01-01T00:00:00Z,1,1\n2026-01-01T00:00:00.5Z,1,1\n"
    )
    with pytest.raises(SchemaMismatch, match=":3: column 't'"):
        read(bad, schema)


@each(
    ("zone", "text", "problem"),
    [
        ("UTC", "2026-01-02 03:04:05", " has no time zone, like the Z of"),
        ("Europe/Berlin", "2026-01-02", " has no time zone, like the Z of"),
        (None, "2026-01-02T03:04:05+01:00", " has a time zone, and the column has none"),
    ],
)
def test_a_time_with_the_zone_of_another_column_says_what_it_lacks(
    tmp_path: Path, zone: str | None, text: str, problem: str
) -> None:
    at = arrow.field("at", arrow.timestamp("us", zone))
    path = write(tmp_path / "a.csv", f"n,at\n1,\n2,{text}\n")
    for problems, field, folders in (
        (rf"a\.csv:3: column 'at': '{re.escape(text)}'{problem}", at, ()),
        (
            rf"a\.csv: column 'in' of its path: '{re.escape(text)}'{problem}",
            at.with_name("in"),
            (Folder("in", text),),
        ),
    ):
        with pytest.raises(SchemaMismatch, match=problems) as raised:
            read(path, arrow.schema([("n", pa.int64()), field]), folders=folders)
        assert "assume_timezone" not in str(raised.value)


def test_times_of_another_form_are_read_by_it(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "n,at\n1,2001/01/01 00:47\n2,2026-11-20 12:00:00\n")
    for unit, shown in (("s", "timestamp\\[s\\]"), ("ns", "timestamp\\[ns\\]")):
        schema = arrow.schema([("n", pa.int64()), ("at", arrow.timestamp(unit))])
        with pytest.raises(SchemaMismatch, match=f"'2001/01/01 00:47' is not .* type {shown}$"):
            read(path, schema)
        found = read(path, schema, time_format="%Y/%m/%d %H:%M")
        assert str(found["at"][0])[:19] == "2001-01-01 00:47:00"
    zoned = arrow.schema([("n", pa.int64()), ("at", arrow.timestamp("us", "UTC"))])
    path = write(tmp_path / "b.csv", "n,at\n1,01.02.2001 00:47 +0100\n")
    found = read(path, zoned, time_format="%d.%m.%Y %H:%M %z")
    assert found["at"].to_pylist() == [datetime(2001, 1, 31, 23, 47, tzinfo=UTC)]
    path = write(tmp_path / "c.json", "[]")
    with pytest.raises(InvalidArgument, match="time format is only for CSV"):
        read(path, zoned, time_format="%Y")


@each("kind", ["parquet", "file", "stream", "compressed"])
def test_arrow_and_parquet_come_as_they_are(tmp_path: Path, kind: str) -> None:
    table = pa.table({"a": [1, 2, 3], "b": pa.array(["x", "y", "x"]).dictionary_encode()})
    path = tmp_path / ("rows.parquet" if kind == "parquet" else "rows.arrow")
    if kind == "parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
        with new(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=1)
    if kind == "compressed":
        path = write(tmp_path / "rows.arrow.gz", gzip.compress(path.read_bytes()))
    found = read(path)
    assert found.schema == pa.schema([("a", pa.int64()), ("b", pa.string())])
    assert found.to_pydict() == {"a": [1, 2, 3], "b": ["x", "y", "x"]}


def test_a_row_that_cannot_be_cast_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pa.table({"a": [*range(1_000), 300, 2, 400]}), path)
    schema = pa.schema([("a", pa.int16())])
    assert read(path, schema).num_rows == 1_003
    with pytest.raises(SchemaMismatch, match=r"rows.parquet: row 129: column 'a'"):
        read(path, pa.schema([("a", pa.int8())]))


@each("name", ["cut.arrow", "cut.parquet", "cut.csv.gz"])
def test_a_file_that_was_cut_off_is_an_error(tmp_path: Path, name: str) -> None:
    table = pa.table({"a": list(range(100_000))})
    buffer = io.BytesIO()
    if name.endswith("parquet"):
        pyarrow.parquet.write_table(table, buffer)
    elif name.endswith("arrow"):
        with pa.ipc.new_stream(buffer, table.schema) as writer:
            writer.write_table(table)
    else:
        buffer.write(gzip.compress(("a\n" + "\n".join(map(str, range(100_000)))).encode()))
    path = write(tmp_path / name, buffer.getvalue()[: len(buffer.getvalue()) // 2])
    with pytest.raises(InvalidArgument):
        read(path)


def test_what_nothing_tells_the_format_of_is_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.txt", "a\n1\n")
    with pytest.raises(InvalidArgument, match=r"rows\.txt: unknown format"):
        read(path)
    assert read(path, given=FileFormat.CSV).num_rows == 1
    assert read(write(tmp_path / "rows", '{"a": 1}\n')).num_rows == 1
    assert read(write(tmp_path / "rows.txt", "a,b\n1,2\n")).to_pylist() == [{"a": 1, "b": 2}]


def test_a_file_is_read_in_blocks(tmp_path: Path, read_sizes: ReadSizes) -> None:
    path = write(tmp_path / "rows.jsonl", "".join(f'{{"a": {index}}}\n' for index in range(1_000)))
    read_sizes(block=1_000)
    found = list(parts(path, pa.schema([("a", pa.int64())])))
    assert len(found) > 5
    assert [value for part in found for value in part.batch.column(0).to_pylist()] == list(
        range(1_000)
    )
    last = found[-1]
    assert last.place(last.batch.num_rows - 1) == f"{path}:1000"


def test_the_head_is_read_again(tmp_path: Path) -> None:
    with Source(write(tmp_path / "rows", "0123456789")) as source:
        assert source.head() == b"0123456789"
        assert [source.read(4), source.read(4), source.read(4), source.read(4)] == [
            b"0123", b"4567", b"89", b"",
        ]  # fmt: skip


def test_types_are_inferred_from_whole_rows_of_a_csv_larger_than_its_head(tmp_path: Path) -> None:
    row = '12345,1.5,"a name, in quotes"\n'
    rows = HEAD_BYTES // len(row) + 1_000
    path = write(tmp_path / "rows.csv", "id,x,name\n" + row * rows)
    table = read(path)
    assert table.schema.types == [pa.int64(), pa.float64(), pa.string()]
    assert table.num_rows == rows
    assert table.slice(rows - 1).to_pylist() == [
        {"id": 12345, "x": 1.5, "name": "a name, in quotes"}
    ]


@each("name", ["rows.arrow", "rows.arrow.zst"])
def test_an_arrow_file_with_batches_across_its_head_is_read_whole(
    tmp_path: Path, name: str
) -> None:
    values = pa.array(range(HEAD_BYTES // 16), pa.int64())
    batches = [pa.record_batch({"a": values})] * 5
    sink: Any = pa.OSFile(str(tmp_path / name), "wb")
    if name.endswith("zst"):
        sink = pa.CompressedOutputStream(sink, "zstd")
    with sink, pa.ipc.new_file(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    table = read(tmp_path / name)
    assert table.equals(pa.Table.from_batches(batches))


def test_arrow_that_comes_in_pieces_is_read_whole() -> None:
    batch = pa.record_batch({"a": list(range(1_000))})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    pieces: Any = Pieces(sink.getvalue().to_pybytes(), 7)
    reader = pa.ipc.open_stream(pa.PythonFile(SourceFile(pieces), "r"))
    assert reader.read_all().equals(pa.Table.from_batches([batch]))


@each("name", ["rows.parquet", "rows.arrow"])
def test_the_position_in_a_file_moves_to_its_end(tmp_path: Path, name: str) -> None:
    table = pa.table({"a": list(range(300_000))})
    path = tmp_path / name
    if name.endswith("parquet"):
        pyarrow.parquet.write_table(table, path)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=100_000)
    with open_file(path) as file:
        assert file.total == path.stat().st_size
        positions = [file.position for _ in file.parts(table.schema)]
    assert positions == sorted(set(positions)) or name.endswith("arrow")
    assert positions[0] < positions[-1]
    assert positions[-1] > path.stat().st_size * 0.9


@given(
    lines=st.lists(st.sampled_from(["1,2", '"a', 'b",3', '"x\ny",4', '"",5', ""]), max_size=40),
    place=st.integers(0, 200),
    size=st.integers(0, 60),
)
def test_a_sample_has_whole_rows(lines: list[str], place: int, size: int) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    place = min(place, len(data))
    block = data[place : place + size]
    quotes = data[:place].count(b'"')
    first, end = whole_lines(block, is_open=quotes % 2 == 1, in_quotes=True)
    for cut in {place + first, place + end} if end > first else set[int]():
        assert data[cut - 1 : cut] == b"\n"
        assert data[:cut].count(b'"') % 2 == 0


def test_no_sample_makes_a_long_integer_another_number(
    tmp_path: Path, read_sizes: ReadSizes
) -> None:
    read_sizes(head=1_000, sample=100)
    path = write(tmp_path / "a.csv", "n\n" + "12345678901234567\n" * 80 + "0.5\n" * 5_000)
    assert infer_schema(path, {}).types == [pa.string()]
    path = write(tmp_path / "b.csv", "n\n" + "1234\n" * 300 + "0.5\n" * 5_000)
    assert infer_schema(path, {}).types == [pa.float64()]


def test_avro_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.avro"
    path.write_bytes(b"Obj\x01\x04\x14avro.codec")
    with pytest.raises(InvalidArgument, match="Avro is not supported, as pyarrow cannot read"):
        infer_schema(path, {})


@each("depth", [700, 100_000])
@each(("begin", "end"), [("[", "]"), ('{"a":', "}")])
def test_json_that_is_nested_too_deeply_is_refused(
    tmp_path: Path, depth: int, begin: str, end: str
) -> None:
    text = '{"b": 1}\n{"a":' + begin * depth + "null" + end * depth + "}\n"
    with pytest.raises(SchemaMismatch, match="nested too deeply"):
        infer_schema(write(tmp_path / "rows.jsonl", text), {})


@each(
    ("name", "data", "problem"),
    [
        (
            "a.csv",
            gzip.compress(b"n\n1\n", mtime=0),
            "compressed, by gzip: name it .gz, or decompress it",
        ),
        ("a.csv", bz2.compress(b"n\n1\n"), "compressed, by bz2"),
        ("a.csv.xz", lzma.compress(b"n\n1\n"), "compressed, by xz: decompress it"),
        ("a.xlsx", b"PK\x03\x04\x14", "compressed, by zip: decompress it"),
        ("a.jsonl", '{"a": 1}\n'.encode("utf-16"), "the file is UTF-16"),
        ("a.json", '[{"a": 1}]'.encode("utf-16"), "the file is UTF-16"),
        ("a.jsonl", b"1\n2\n", ":1: expected an object, got: number"),
        ("a.jsonl", b'\nnull\n{"a": 1}\n', ":2: expected an object, got: null"),
    ],
)
def test_what_is_no_file_of_its_name_says_what_it_is(
    tmp_path: Path, name: str, data: bytes, problem: str
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(WingsError, match=problem):
        infer_schema(path, {})


@each(
    ("text", "wanted"),
    [
        ('{"a": 1}\n{"a": 2}\n', FileFormat.JSONL),
        ('{"a": 1}', FileFormat.JSONL),
        ('{"a": 1\n{"a": 2}\n', FileFormat.JSONL),  # Its first line is named as the bad one.
        ('{\n "a": 1}\n', FileFormat.JSON),
        ('{ "a": [\n1]}\n{"a": []}', FileFormat.JSON),
    ],
)
def test_an_object_that_spreads_over_lines_is_recognised(
    tmp_path: Path, text: str, wanted: FileFormat
) -> None:
    path = tmp_path / "rows"
    path.write_text(text)
    with open_file(path) as opened:
        assert opened.format is wanted


def test_a_number_that_no_double_can_hold_is_named_where_types_are_inferred(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", '{"a": 1, "b": [1.5]}\n{"a": 2, "b": [1e400]}\n')
    with pytest.raises(SchemaMismatch, match=":2: column 'b': Number too big") as refused:
        infer_schema(path, {})
    assert refused.value.facts["column"] == "b"


def rows_of(text: bytes) -> list[list[str]]:
    """Return the rows of a text of CSV as Arrow divides it, of however many values."""
    ragged: list[list[str]] = []

    def keep(row: Any) -> str:
        ragged.append([row.text])
        return "skip"

    if not text:
        return []
    table = arrow_csv.read_csv(
        pa.BufferReader(text),
        arrow_csv.ReadOptions(column_names=["a", "b"], block_size=len(text), use_threads=False),
        arrow_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=keep),
        arrow_csv.ConvertOptions(column_types={"a": pa.string(), "b": pa.string()}),
    )
    return sorted([*([row["a"], row["b"]] for row in table.to_pylist()), *ragged])


@given(st.lists(st.sampled_from([*b',"\n\rab']), max_size=30).map(bytes))
def test_rows_of_csv_are_cut_apart_where_arrow_divides_them(text: bytes) -> None:
    dialect = Dialect(",", '"')
    text += b"\n" if dialect.open_quote(text, len(text)) < 0 else b'"\n'
    for size in range(len(text)):
        end = dialect.rows_end(text[:size])
        assert sorted(rows_of(text[:end]) + rows_of(text[end:])) == rows_of(text)
        assert dialect.rows_end(text[end:size]) == 0
    assert dialect.rows_end(text) == len(text)


@each("name", ["a.csv", "a.csv.gz"])
def test_a_line_end_in_quotes_is_kept_wherever_a_block_ends(
    tmp_path: Path, read_sizes: ReadSizes, name: str
) -> None:
    text = b'id,note\n1,"' + b"x" * 40 + b'\r\nend"\n2,y\r\n\r\n3,z\r\n'
    path = write(tmp_path / name, gzip.compress(text) if name.endswith("gz") else text)
    schema = pa.schema([("id", pa.int64()), ("note", pa.string())])
    read_sizes(head=5)
    for size in range(1, len(text)):
        read_sizes(block=size)
        with open_file(path) as file:
            found = list(file.parts(schema))
            rows = [row for part in found for row in part.batch.to_pylist()]
            assert [row["note"] for row in rows] == ["x" * 40 + "\r\nend", "y", "z"]
            assert [part.place(index) for part in found for index in range(len(part.batch))] == [
                f"{path}:2", f"{path}:4", f"{path}:6",
            ]  # fmt: skip
            file.check_complete(3)
            with pytest.raises(Internal, match="3 rows, and 2 were read"):
                file.check_complete(2)


def test_a_row_of_csv_is_as_long_as_one_of_json(tmp_path: Path, read_sizes: ReadSizes) -> None:
    read_sizes(head=1_000, block=1_000, row_max=50_000)
    path = write(tmp_path / "a.csv", f'a,b\n1,2\n3,"{"long, " * 8_000}"\n4,{"x" * 60_000}\n5,6\n')
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    found: list[Any] = []
    with pytest.raises(SchemaMismatch, match=r"a\.csv:4: longer than 50000 bytes"):
        found += parts(path, schema)
    lines = write(tmp_path / "a.jsonl", '{"a": 1}\n' + " " * 60_000 + "\n")
    with pytest.raises(SchemaMismatch, match=r"a\.jsonl:2: longer than 50000 bytes"):
        read(lines)
    assert read(write(tmp_path / "b.csv", path.read_text().split("\n4")[0]), schema).num_rows == 2


@each(
    ("types", "rows", "text", "told"),
    [
        ("int64", "12\n" * 3_000, "-007", "'-007' would be -7"),
        ("int64", "12\n" * 3_000, "0x1F", "'0x1F' would be 31"),
        ("double", "1.5\n" * 3_000, "007", "'007' would be 7.0"),
        ("bool", "true\n" * 3_000, "1", "'1' would be True"),
        ("double", "1.5\n" * 3_000, "1" * 25, f"'{'1' * 25}' would be 1.1"),
    ],
)
def test_a_type_that_was_inferred_changes_no_later_value(
    tmp_path: Path, read_sizes: ReadSizes, types: str, rows: str, text: str, told: str
) -> None:
    read_sizes(head=100, sample=20)
    path = write(tmp_path / "a.csv", f"n\n{rows[:6_000]}{text}\n{rows}")
    schema = infer_schema(path, {})
    assert [str(each) for each in schema.types] == [types]
    line = rows[:6_000].count("\n") + 2
    with (
        open_file(path) as file,
        pytest.raises(SchemaMismatch, match=f":{line}: column 'n': {told}"),
    ):
        list(file.parts(schema, exact={"n"}))
    assert read(path, schema).num_rows == path.read_text().count("\n") - 1  # A topic's type.
    with open_file(path) as file:
        assert isinstance(file.rows, CsvRows)
        assert file.rows.schema(every_row=True).types == [pa.string()]


def test_a_type_that_was_inferred_changes_no_later_integer_of_json(
    tmp_path: Path, read_sizes: ReadSizes
) -> None:
    read_sizes(head=100, block=1_000, sample=20)
    lines = '{"n": 1.5, "in": {"x": [0.5]}}\n' * 900
    path = write(tmp_path / "a.jsonl", lines + '{"in": {"x": [9007199254740993]}}\n' + lines)
    schema = infer_schema(path, {})
    with (
        open_file(path) as file,
        pytest.raises(SchemaMismatch, match=r":901: column 'in\.x\[\]': no double equals"),
    ):
        list(file.parts(schema, exact={"n", "in"}))
    assert read(path, schema).num_rows == 1_801


@each("name", ["rows.arrow", "rows.arrow.gz"])
def test_an_arrow_file_is_read_by_its_footer(tmp_path: Path, name: str) -> None:
    batch = pa.record_batch({"n": list(range(10))})
    sink = io.BytesIO()
    ends: list[int] = []
    with pa.ipc.new_file(sink, batch.schema) as writer:
        for _ in range(3):
            writer.write_batch(batch)
            ends.append(sink.tell())
    for end in [*ends, len(sink.getvalue()) - 1, 10]:
        cut = sink.getvalue()[:end]
        path = write(tmp_path / name, gzip.compress(cut) if name.endswith("gz") else cut)
        with pytest.raises(InvalidArgument, match=rf"{name}: not Arrow IPC, or truncated"):
            read(path)


def test_an_arrow_file_that_is_not_on_a_disk_is_read_by_no_thread_through_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[threading.Thread] = set()

    class Noted(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            threads.add(threading.current_thread())
            return super().read(size) or b""

    copy = tmp_path / "copy"
    monkeypatch.setattr("wings_client.files.source.TemporaryFile", lambda: Noted(copy, "w+b"))
    batch = pa.record_batch({"n": list(range(10))})
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    path = write(tmp_path / "rows.arrow.gz", gzip.compress(sink.getvalue()))
    assert read(path).num_rows == 10
    assert threads <= {threading.current_thread()}  # One that is left would abort Python's end.


@each("compression", ["uncompressed", "lz4", "zstd"])
def test_arrow_files_of_polars_are_read(tmp_path: Path, compression: Any) -> None:
    frame = polars.DataFrame({"n": range(3), "s": ["x", None, "a longer text, not inlined"]})
    frame.write_ipc(tmp_path / "a.arrow", compression=compression)
    frame.lazy().sink_ipc(tmp_path / "b.arrow", compression=compression)
    frame.write_ipc_stream(tmp_path / "c.arrow", compression=compression)
    for name in ("a.arrow", "b.arrow", "c.arrow"):
        assert read(tmp_path / name).to_pylist() == frame.to_dicts()
        packed = write(tmp_path / f"{name}.gz", gzip.compress((tmp_path / name).read_bytes()))
        assert read(packed).to_pylist() == frame.to_dicts()


def stream_of(*columns: Any) -> bytes:
    sink = io.BytesIO()
    for each_one in columns:
        batch = pa.record_batch(each_one)
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
    return sink.getvalue()


@each("name", ["rows.arrows", "rows.arrows.gz"])
def test_streams_of_arrow_are_read_one_after_another(tmp_path: Path, name: str) -> None:
    def given(data: bytes) -> Path:
        return write(tmp_path / name, gzip.compress(data) if name.endswith("gz") else data)

    several = stream_of({"n": [1, 2]}, {"n": [3]}, {"n": [4]})
    assert read(given(several)).to_pydict() == {"n": [1, 2, 3, 4]}
    with pytest.raises(InvalidArgument, match="after row 2: unreadable Arrow IPC"):
        read(given(stream_of({"n": [1, 2]}) + b"more"))
    with pytest.raises(InvalidArgument, match="a further stream begins there"):
        read(given(stream_of({"n": [1, 2]}, {"s": ["x"]})))


DAYS = ("9999-12-31T23:59:59.999999", None, "0001-01-01", "2026-01-01")


def int96(path: Path, table: pa.Table) -> Path:
    pyarrow.parquet.write_table(table, path, use_deprecated_int96_timestamps=True, row_group_size=2)
    return path


def test_int96_times_of_all_years_are_what_they_were(tmp_path: Path) -> None:
    days = [None if day is None else datetime.fromisoformat(day) for day in DAYS]
    times = pa.array(days, pa.timestamp("us"))
    nested = pa.array(
        [[{"t": day}] for day in days], pa.list_(pa.struct([("t", pa.timestamp("us"))]))
    )
    path = int96(tmp_path / "a.parquet", pa.table({"t": times, "l": nested, "n": [1, 2, 3, 4]}))
    table = read(path)
    assert table.schema.field("t").type == pa.timestamp("us")
    assert table["t"].to_pylist() == days
    assert table["l"].to_pylist() == [[{"t": day}] for day in days]
    with pytest.raises(SchemaMismatch, match="row 1: column 't'"):
        read(path, table.schema.set(0, pa.field("t", pa.timestamp("ns"))))


def test_int96_times_with_nanoseconds_keep_them(tmp_path: Path) -> None:
    fine = pa.array([1, -1, None, 10**18 + 999], pa.timestamp("ns"))
    path = int96(tmp_path / "a.parquet", pa.table({"t": fine}))
    assert read(path)["t"].combine_chunks().equals(fine)
    with pytest.raises(SchemaMismatch, match="row 1: column 't'"):
        read(path, pa.schema([("t", pa.timestamp("us"))]))
    other = pa.array([None, datetime.fromisoformat(DAYS[0]), None, None], pa.timestamp("us"))
    both = int96(path, pa.table({"t": fine, "n": [1, 2, 3, 4], "u": other}))
    assert read(both)["u"].combine_chunks().equals(other)
    assert read(both)["t"].combine_chunks().equals(fine)


def test_an_index_of_pandas_without_a_name_is_left_out(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"a": [1, 3], "b": ["x", "z"]})
    odd = frame.set_axis([7, 3])
    path = tmp_path / "a.parquet"
    odd.to_parquet(path)
    with_index = ChosenColumns(frozenset({"a", "__index_level_0__"}))
    assert read(path, chosen=with_index).column_names == ["a", "__index_level_0__"]
    for indexed in (odd, frame.set_index("b"), frame.set_index(["a", "b"])):
        indexed.to_parquet(path)
        assert set(read(path).column_names) == {"a", "b"}
    table = pa.Table.from_pandas(odd)
    with (
        pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as w,
    ):
        w.write_table(table)
    odd.to_csv(tmp_path / "a.csv")
    for name in ("a.arrow", "a.csv"):
        assert read(tmp_path / name).to_pydict() == {"a": [1, 3], "b": ["x", "z"]}


def test_an_index_of_an_old_pandas_is_left_out() -> None:
    folder = Path(pa.__file__).parent / "tests" / "data" / "parquet"
    names = read(folder / "v0.7.1.parquet").column_names
    assert (len(names), "__index_level_0__" in names) == (10, False)
    assert "__index_level_1__" not in read(folder / "v0.7.1.some-named-index.parquet").column_names


def test_long_rows_of_parquet_are_read_few_at_a_time(tmp_path: Path, read_sizes: ReadSizes) -> None:
    read_sizes(batch=100_000)
    texts = [[f"{index}" * 2_000] for index in range(1_000)]
    table = pa.table({"l": pa.array(texts, pa.list_(pa.string()))})
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(table, path, row_group_size=400)
    found = list(parts(path, table.schema))
    assert max(part.batch.num_rows for part in found) <= 20
    assert [text for part in found for text in part.batch.column(0).to_pylist()] == texts
    assert found[-1].place(0).endswith(f"row {1_001 - found[-1].batch.num_rows}")


def test_columns_are_chosen_in_every_format(tmp_path: Path) -> None:
    table = pa.table({"a": [1, 2], "b,c": ["x", "y"], "__v": [0.5, 1.5], "d.e": [True, False]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    pyarrow.orc.write_table(table, tmp_path / "a.orc")
    pyarrow.csv.write_csv(table, tmp_path / "a.csv")
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    lines = "".join(f"{json.dumps(row)}\n" for row in table.to_pylist())
    write(tmp_path / "a.jsonl", lines)
    write(tmp_path / "a.json", f"[{lines.replace(chr(10), ',')[:-1]}]")
    for ending in ("parquet", "orc", "csv", "arrow", "jsonl", "json"):
        path = tmp_path / f"a.{ending}"
        left = ChosenColumns(without=frozenset({"__v", "other"}))
        assert read(path, chosen=left).to_pylist() == table.drop_columns("__v").to_pylist()
        two = ChosenColumns(frozenset({"d.e", "a"}))
        assert read(path, chosen=two).to_pylist() == table.select(["a", "d.e"]).to_pylist()
        if not ending.startswith("json"):  # What a row of JSON lacks is null.
            with pytest.raises(InvalidArgument, match=f"{path}: there is no column 'x'"):
                read(path, chosen=ChosenColumns(frozenset({"x", "a"})))


@each("chosen", [ChosenColumns(frozenset("a")), ChosenColumns(without=frozenset("b"))])
def test_empty_lines_are_no_rows_whatever_columns_are_chosen(
    tmp_path: Path, read_sizes: ReadSizes, chosen: ChosenColumns
) -> None:
    path = write(tmp_path / "a.jsonl", '{"a": 1, "b": 2}\n\n{"a": 3, "b": 4}\n \n')
    schema = pa.schema([("a", pa.int64())])
    for size in (1, 1_000):
        read_sizes(head=5, block=size)
        with open_file(path, chosen=chosen) as file:
            found = [row for part in file.parts(schema) for row in part.batch.to_pylist()]
            assert found == [{"a": 1}, {"a": 3}]
            file.check_complete(2)


@each(
    ("text", "rows"),
    [
        ("sep=;\na;b\n1,5;x\n", [{"a": "1,5", "b": "x"}]),
        ('"sep=|"\r\na|b\r\n1|x\r\n', [{"a": 1, "b": "x"}]),
        ("\ufeffSEP=\t\na\tb\n1\tx\n", [{"a": 1, "b": "x"}]),
        (",a\n0,x\n1,y\n", [{"a": "x"}, {"a": "y"}]),
        ("a;b;\n1;x;\n2;y;\n", [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]),
        (",a,\n0,x,\n", [{"a": "x"}]),
        ("a,,b\n0,1,2\n", None),
        ("sep,b\n1,2\n", [{"sep": 1, "b": 2}]),
    ],
)
def test_csv_of_excel_and_pandas_is_read(
    tmp_path: Path, text: str, rows: list[dict[str, Any]] | None
) -> None:
    path = write(tmp_path / "a.csv", text)
    if rows is None:
        with pytest.raises(InvalidArgument, match="column 2 has no name"):
            read(path)
        return
    assert read(path, delimiter=RECOGNISED).to_pylist() == rows
    if ";\n" in text:
        return
    assert read(path).to_pylist() == rows
    for count in (1, 3):
        sections = [read(path, read(path).schema, section=Section(n, count)) for n in range(count)]
        assert pa.concat_tables(sections).to_pylist() == rows


def test_folders_of_a_path_are_columns(tmp_path: Path) -> None:
    paths = ["year=2026/day=2026-01-02/k=1/a.csv", "year=007/day=__HIVE_DEFAULT_PARTITION__/k=2/b"]
    first, second = folders_of([*paths, "c.csv"])[:2]
    assert [str(each.type) for each in first] == ["string", "date32[day]", "int64"]
    path = write(tmp_path / "a.csv", "k,n\n9,1\n9,2\n")
    assert read(path, folders=first).to_pylist() == [
        {"k": 9, "n": n, "year": "2026", "day": date(2026, 1, 2)} for n in (1, 2)
    ]
    found = read(path, folders=second, chosen=ChosenColumns(without=frozenset({"year", "k"})))
    assert found.to_pylist() == [{"n": 1, "day": None}, {"n": 2, "day": None}]
    lines = write(tmp_path / "a.jsonl", '{"n": 1}\n')
    assert read(lines, folders=first).to_pylist() == [
        {"n": 1, "year": "2026", "day": date(2026, 1, 2), "k": 1}
    ]
    schema = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("year", pa.int16())])
    assert read(path, schema, folders=second).to_pylist()[0] == {"k": 9, "n": 1, "year": 7}
    bad = pa.schema([("n", pa.int64()), ("k", pa.int64()), ("year", pa.date32())])
    problem = "column 'year' of its path: '007' is not a value of type"
    with pytest.raises(SchemaMismatch, match=problem):
        read(path, bad, folders=second)


@each("text", ['{"a": 1} {"a": 2}', '{"a": 1},', '{"a": 1}}', '{"a": 1, }', '{"a" 1}', "[1]"])
def test_no_more_of_a_line_is_left_out_than_its_columns(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "a.jsonl", f'{{"a": 1, "b": 2}}\n{text}\n')
    for chosen in (ChosenColumns(without=frozenset("b")), ChosenColumns(frozenset("a"))):
        with pytest.raises(SchemaMismatch, match=r"a\.jsonl:2: "):
            read(path, pa.schema([("a", pa.int64())]), chosen=chosen)
