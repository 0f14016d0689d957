from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from wings_client.cli.output import Layout, TableWriter, render_table, terminal_width


def lines_of(table: pa.Table, width: int | None = None) -> list[str]:
    return list(render_table(table, width))


def test_numbers_stand_right_and_nulls_are_told_from_nothing() -> None:
    table = pa.table({"n": [1, 200, None], "text": ["a", "", None]})
    assert lines_of(table) == [
        "   n │ text",
        "─────┼─────",
        "   1 │ a",
        " 200 │",
        "null │ null",
    ]


def test_names_with_spaces_brackets_and_symbols_are_shown_as_they_are() -> None:
    table = pa.table({"[red]a b[/red]": [1], "größe (%) 💡": ["[bold]x"]})
    head, _, row = lines_of(table)
    assert head == "[red]a b[/red] │ größe (%) 💡"
    assert row.endswith("1 │ [bold]x")


def test_what_would_act_on_a_terminal_is_escaped() -> None:
    (row,) = lines_of(pa.table({"x": ["a\n\t\x1b[31mb\u202e"]}))[2:]
    assert row == "a\\n\\t\\x1b[31mb\\u202e"


def test_values_of_every_kind_are_text() -> None:
    table = pa.table(
        {
            "f": pa.array([float("nan"), 1.0]),
            "d": pa.array([Decimal("1.50"), None]),
            "t": pa.array([0, None], pa.timestamp("us", "UTC")),
            "l": pa.array([[1, None], None]),
            "b": pa.array([b"hi", b""]),
            "o": pa.array([True, None]),
        }
    )
    assert [cell.strip() for cell in lines_of(table)[2].split("│")] == [
        "nan", "1.50", "1970-01-01T00:00:00.000000Z", "[1,null]", "aGk=", "true",
    ]  # fmt: skip


def test_wide_tables_leave_out_middle_columns_and_say_so() -> None:
    table = pa.table({f"column{index}": [index] for index in range(30)})
    head, rule, row, note = lines_of(table, 60)
    assert head.startswith("column0 │ column1 │")
    assert head.endswith("column29")
    assert " │ … │ " in head
    assert max(map(len, (head, rule, row))) <= 60
    assert note.startswith("(25 of 30 columns left out: column3 to column27)")


def test_wide_characters_count_double() -> None:
    lines = lines_of(pa.table({"a": ["日本語" * 20], "b": ["x"]}), 30)
    assert all(cell_len(line) <= 30 for line in lines)
    assert lines[2].endswith("│ x")


@given(st.lists(st.integers(1, 200), min_size=1, max_size=40), st.integers(12, 150))
def test_a_layout_never_exceeds_the_width(natural: list[int], width: int) -> None:
    layout = Layout.fit(natural, width)
    assert len(layout.rule()) <= width
    assert layout.widths[0] > 0
    assert all(ours <= theirs for ours, theirs in zip(layout.widths, natural, strict=True))
    if sum(natural) + 3 * (len(natural) - 1) <= width:
        assert layout.widths == tuple(natural)


def test_a_table_in_parts_repeats_its_head_where_columns_grow() -> None:
    writer = TableWriter(None)
    first = list(writer.lines(pa.table({"a": ["x"]})))
    second = list(writer.lines(pa.table({"a": ["y"]})))
    third = list(writer.lines(pa.table({"a": ["longer"]})))
    assert (first, second) == (["a", "─", "x"], ["y"])
    assert third == ["a", "──────", "longer"]


def test_the_width_is_the_environment_s_or_none_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    assert terminal_width() == 72
    monkeypatch.delenv("COLUMNS")
    assert terminal_width() is None
