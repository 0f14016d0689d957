"""Sections of a file: their rows, put one after another, are those of the file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from fix_files import ReadSizes

from wings_client.files.formats import Blank, FileFormat, Section, rows_in
from wings_client.files.opened import open_file
from wings_core.errors import InvalidArgument, SchemaMismatch

arrow: Any = pa
SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
ROWS = 500


def read(path: Path, section: Section | None) -> tuple[list[Any], int]:
    """Return the rows of a section, and how many it says come before."""
    with open_file(path, section=section) as opened:
        assert not opened.is_ambiguous
        rows = [row for part in opened.parts(SCHEMA) for row in part.batch.to_pylist()]
        return rows, opened.rows.rows_before()


def table(rows: int = ROWS) -> pa.Table:
    return arrow.table({"n": range(rows), "s": [f"row {n}" * (n % 7) for n in range(rows)]})


def lines(path: Path) -> None:
    found = [f'{{"n": {row["n"]}, "s": "{row["s"]}"}}' for row in table().to_pylist()]
    # Some lines hold nothing, some end as on Windows, and the last has no end.
    path.write_bytes("\n".join(line + "\n  \n\r" * (i % 5 == 0) for i, line in enumerate(found))
                     .replace("}\n  ", "}\r\n  ").encode("utf-8-sig"))  # fmt: skip


def csv_text(path: Path) -> None:
    rows = [f"{row['n']},{row['s']}" + "\n" * (row["n"] % 9 == 0) for row in table().to_pylist()]
    path.write_text('"n","s"\n' + "\n".join(rows))


def quoted_csv(path: Path) -> None:
    rows = [f'{row["n"]},"{row["s"]}\n,9"' for row in table().to_pylist()]
    path.write_text("n,s\n" + "\n".join(rows) + "\n")


def parquet(path: Path) -> None:
    pyarrow.parquet.write_table(table(), path, row_group_size=33)


def arrow_file(path: Path) -> None:
    options = arrow.ipc.IpcWriteOptions(compression="zstd")
    with arrow.ipc.new_file(str(path), SCHEMA, options=options) as file:
        file.write_table(table(), max_chunksize=41)


def arrow_stream(path: Path) -> None:
    with arrow.ipc.new_stream(str(path), SCHEMA) as file:
        file.write_table(table(), max_chunksize=41)


@pytest.mark.parametrize("count", [2, 3, 60])
@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.jsonl", lines),
        ("a.csv", csv_text),
        ("b.csv", quoted_csv),
        ("a.parquet", parquet),
        ("a.arrow", arrow_file),
        ("b.arrow", arrow_stream),
    ],
)
def test_sections_have_the_rows_of_the_file_in_order(
    tmp_path: Path, name: str, write: Callable[[Path], None], count: int
) -> None:
    path = tmp_path / name
    write(path)
    whole, _ = read(path, None)
    assert [row["n"] for row in whole] == list(range(ROWS))
    joined: list[Any] = []
    for index in range(count):
        rows, before = read(path, Section(index, count))
        assert not rows or before == len(joined)
        joined += rows
    assert joined == whole
    shared = [bool(read(path, Section(index, 3))[0]) for index in range(3)]
    assert shared == [True, name[0] == "a", name[0] == "a"]


def test_a_quote_that_comes_late_makes_a_section_doubtful(
    tmp_path: Path, read_sizes: ReadSizes
) -> None:
    read_sizes(section_sample=100)
    path = tmp_path / "a.csv"
    path.write_text("n,s\n" + "".join(f"{n},a\n" for n in range(ROWS)) + '500,"b\nc"\n')
    found: list[bool] = []
    for index in range(4):
        with open_file(path, section=Section(index, 4)) as opened:
            found.append(opened.is_ambiguous)
    assert found == [False, False, False, True]


NUMBERS = [f"{n},x" for n in range(ROWS)]


@pytest.mark.parametrize(
    ("text", "read_by"),
    [
        ("n,s\r" + "\r".join(NUMBERS), "the first"),
        ("n,s\r" + "\n".join(NUMBERS), "all"),
        ("n,s\r\n" + "\r\n".join(NUMBERS), "all"),
        ("\ufeff\n\r\nn,s\r\n" + "\r\n".join(NUMBERS), "all"),
        ('n,"s"\n' + "\n".join(NUMBERS) + "\n4\r5,x\n", "nobody"),
        ('n,5" disk\n' + "\n".join(NUMBERS), "nobody"),
        ("n," + "s" * 2_000 + "\n" + "\n".join(NUMBERS), "nobody"),
    ],
    ids=["returns", "names", "windows", "marked", "late return", "quote", "long names"],
)
def test_rows_of_csv_are_read_once_whatever_ends_its_lines(
    tmp_path: Path, read_sizes: ReadSizes, text: str, read_by: str
) -> None:
    read_sizes(section_sample=100, section_names_max=1_000)
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode())
    read_in: list[int] = []
    numbers: list[Any] = []
    for index in range(4):
        with open_file(path, section=Section(index, 4)) as opened:
            if opened.is_ambiguous:
                continue
            rows = [row for part in opened.parts(SCHEMA) for row in part.batch.to_pylist()]
            assert not rows or opened.rows.rows_before() == len(numbers)
            numbers += [row["n"] for row in rows]
            read_in += [index] if rows else []
    if read_by == "nobody":
        assert len(read_in) < 4, "it is read again as a whole"
        assert len(numbers) < ROWS
    else:
        assert numbers == list(range(ROWS))
        assert read_in == ([0] if read_by == "the first" else [0, 1, 2, 3])


def test_an_error_in_a_section_names_the_line_of_the_file(tmp_path: Path) -> None:
    for name, names, row, bad in (
        ("a.jsonl", "", '{"n": 1, "s": "x"}\n', '{"n": "bad"}\n'),
        ("a.csv", "n,s\n", "1,x\n", "bad,x\n"),
    ):
        path = tmp_path / name
        path.write_text(names + row * 700 + bad + row * 50)
        line = 701 + bool(names)
        with pytest.raises(SchemaMismatch, match=f":{line}:"):
            read(path, None)
        with pytest.raises(SchemaMismatch, match=f":{line}:"):
            read(path, Section(2, 3))
        with pytest.raises(SchemaMismatch, match=r"line \d+ after byte \d+:"):
            read(path, Section(2, 3, is_alone=True))
    pyarrow.parquet.write_table(
        arrow.table({"n": [*range(90), 1.5], "s": ["x"] * 91}), tmp_path / "a.parquet",
        row_group_size=30,
    )  # fmt: skip
    with pytest.raises(SchemaMismatch, match="row 91:"):
        read(tmp_path / "a.parquet", Section(2, 3))


def test_what_has_no_sections_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("[]")
    with pytest.raises(InvalidArgument, match="sections"), open_file(path, section=Section(1, 2)):
        pass
    with (
        pytest.raises(InvalidArgument, match="sections"),
        open_file(path, FileFormat.JSON, section=Section(0, 2)),
    ):
        pass


@pytest.mark.parametrize("block", [1, 2, 3, 7, 1000])
def test_rows_are_counted_whatever_is_read_at_a_time(
    tmp_path: Path, read_sizes: ReadSizes, block: int
) -> None:
    read_sizes(section_block=block)
    path = tmp_path / "a"
    path.write_bytes(b"\n \na\n\r\nb\r\n\n\tc\n")
    counts = [rows_in(path, (0, path.stat().st_size), blank) for blank in Blank]
    assert counts == [7, 4, 3]
