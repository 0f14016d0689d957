import bz2
import gzip
import io
import json
import lzma
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import each

from wings_client.files import FileFormat, infer_schema, open_file
from wings_client.files import source as source_module
from wings_client.files.json_rows import object_blocks
from wings_client.files.parts import Part
from wings_client.files.source import HEAD_BYTES, CsvFile, Source, SourceFile, whole_lines
from wings_core.errors import InvalidArgument, SchemaMismatch, WingsError

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
        return pa.Table.from_batches([part.batch for part in file.rows.parts(wanted)], wanted)


def parts(path: Path, schema: pa.Schema) -> Iterator[Part]:
    with open_file(path) as file:
        yield from file.rows.parts(schema)


class Pieces:
    """A source that comes in pieces of a few bytes."""

    def __init__(self, data: bytes, size: int) -> None:
        self._file = io.BytesIO(data)
        self._size = size

        self.ended = False

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
    assert refused.value.message.startswith(told)
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
    with pytest.raises(SchemaMismatch, match=r"^line 3: column 'a'") as refused:
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
    with pytest.raises(SchemaMismatch, match=f"^line 4: column 'a': '{text}' is not a value"):
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
    with pytest.raises(SchemaMismatch, match=r"^line 4: column 'a'"):
        list(parts(path, schema))
    with pytest.raises(SchemaMismatch, match="line 4: column 'a' changes from number to string"):
        infer_schema(path, {})


@each("text", ['{"a": 1}\n{"a": 2},{"a": 3}\n', '{"a": 1}\n{"a": 2\n', '{"a": 1}\n"b": 2}\n'])
def test_what_is_not_one_object_on_a_line_is_named(tmp_path: Path, text: str) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    with pytest.raises(SchemaMismatch, match=r"^line 2: "):
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "HEAD_BYTES", 1_000)
    monkeypatch.setattr(source_module, "SAMPLE_BYTES", 0)
    plain = "id,v\n" + "".join(f"{index},{index}\n" for index in range(5_000)) + "x,1\n"
    quoted = plain.replace("7,7\n", '7,"7"\n', 1)
    for name, text in (("plain.csv", plain), ("quoted.csv", quoted)):
        path = write(tmp_path / name, text)
        assert infer_schema(path, {}).types == [pa.int64(), pa.int64()]
        with pytest.raises(SchemaMismatch, match="line 5002: column 'id': 'x' is not a value"):
            read(path)
        text_schema = infer_schema(path, {"id": pa.field("id", pa.string())})
        assert read(path, text_schema).num_rows == 5_001


@each(
    ("text", "problem"),
    [
        ("a,b\n1,2\n3\n", "line 3: Expected 2 columns, got 1"),
        ('a,b\n1,2\n3,"x\n4,y\n', "line 3: a quote is never closed"),
        ("a,b\n1,x\n2,caf\xe9\n", "line 3: column 'b': not UTF-8: say which encoding it has"),
        ("pr\xe9nom,b\n1,2\n", "the first line is not UTF-8: say which encoding it has"),
        ("\xff\xfea\x00\n\x00", "the file is UTF-16: say which encoding it has"),
        (",a\n1,2\n", "column 1 has no name in the first line"),
        ("a,b,a\n1,2,3\n", "columns 1 and 3 are both named 'a'"),
        ("", "the file is empty"),
    ],
)
def test_csv_that_is_broken_names_the_line(tmp_path: Path, text: str, problem: str) -> None:
    path = write(tmp_path / "broken.csv", text.encode("latin-1"))
    with pytest.raises((SchemaMismatch, InvalidArgument), match=problem):
        read(path)


def test_text_of_any_encoding_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "BLOCK_BYTES", 4099)  # Cuts characters in two.
    monkeypatch.setattr(source_module, "HEAD_BYTES", 10_001)
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
    with pytest.raises(SchemaMismatch, match="which CSV has no form for"):
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
    with pytest.raises(SchemaMismatch, match="line 3: column 't'"):
        read(bad, schema)


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
    with pytest.raises(SchemaMismatch, match=r"^row 129: column 'a'"):
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
    path = write(tmp_path / "rows.txt", "a,b\n1,2\n")
    with pytest.raises(InvalidArgument, match="cannot tell"):
        read(path)
    assert read(path, given=FileFormat.CSV).num_rows == 1
    assert read(write(tmp_path / "rows", '{"a": 1}\n')).num_rows == 1


def test_a_file_is_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "rows.jsonl", "".join(f'{{"a": {index}}}\n' for index in range(1_000)))
    monkeypatch.setattr(source_module.Source.read, "__defaults__", (1_000,))
    found = list(parts(path, pa.schema([("a", pa.int64())])))
    assert len(found) > 5
    assert [value for part in found for value in part.batch.column(0).to_pylist()] == list(
        range(1_000)
    )
    last = found[-1]
    assert last.place(last.batch.num_rows - 1) == "line 1000"


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


def test_a_read_of_csv_ends_between_rows_wherever_the_pieces_end() -> None:
    text = 'a,b\n1,"x\n""y"\n2,z\n3,'
    pieces: Any = Pieces(text.encode(), 1)
    file = CsvFile(pieces)
    blocks = list(iter(file.read, b""))
    assert blocks == [b"a,b\n", b'1,"x\n""y"\n', b"2,z\n", b"3,"]


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
        positions = [file.position for _ in file.rows.parts(table.schema)]
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "HEAD_BYTES", 1_000)
    monkeypatch.setattr(source_module, "SAMPLE_BYTES", 100)
    path = write(tmp_path / "a.csv", "n\n" + "12345678901234567\n" * 80 + "0.5\n" * 5_000)
    assert infer_schema(path, {}).types == [pa.string()]
    path = write(tmp_path / "b.csv", "n\n" + "1234\n" * 300 + "0.5\n" * 5_000)
    assert infer_schema(path, {}).types == [pa.float64()]


def test_avro_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.avro"
    path.write_bytes(b"Obj\x01\x04\x14avro.codec")
    with pytest.raises(InvalidArgument, match="Avro is not read, as pyarrow has no reader"):
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
        ("a.jsonl", b"1\n2\n", "line 1: expected an object, got: number"),
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
    with pytest.raises(SchemaMismatch, match="line 2: column 'b': Number too big") as refused:
        infer_schema(path, {})
    assert refused.value.facts["column"] == "b"
