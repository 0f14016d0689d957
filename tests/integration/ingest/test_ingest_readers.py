"""Options of the readers in `[files]`: CSV's forms, paths, patterns and ORC, without Spark."""

import json
import math
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas  # pyright: ignore[reportMissingTypeStubs]
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet
import pytest
from fix_calls import Calls
from fix_files import ReadSizes
from fix_ingest import Ingest, write_jsonl

from wings_client.files import OpenFile, Part
from wings_core.errors import InvalidArgument
from wings_core.queue.journal import Fate
from wings_spark.ingest import status
from wings_spark.ingest.run import check

arrow: Any = pa
orc: Any = pyarrow.orc


@pytest.mark.parametrize("rescued", [False, True])
def test_csv_of_another_form_is_read_as_the_settings_say(ingest: Ingest, rescued: bool) -> None:
    columns = {"id": "int64", "name": "string", "price": "double"}
    ingest.create(columns | ({"rest": "string"} if rescued else {}))
    text = "id;name;price\n1;'Zoë; \"B\"';NA\n-;'NA';2.5\n3;\\N;-\n" + (
        "x;y;z\n" if rescued else ""
    )
    (ingest.path / "a.csv").write_bytes(text.encode("latin-1"))
    files: dict[str, Any] = {
        "delimiter": ";",
        "encoding": "latin-1",
        "quote": "'",
        "null_texts": ["NA", "-", "\\N"],
    }
    if rescued:
        files["rescued_column"] = "rest"
    ingest.queue.send([str(ingest.path / "a.csv")])
    (outcome,) = ingest.drain(files=files)
    assert [file.fate for file in outcome.files] == [Fate.FINISHED]
    found = ingest.rows()
    assert [(row["id"], row["name"], row["price"]) for row in found[:3]] == [
        (1, 'Zoë; "B"', None),
        (None, "NA", 2.5),
        (3, None, None),
    ]
    if rescued:
        assert [row["rest"] is None for row in found] == [True, True, True, False]


def test_without_quotes_a_quote_is_a_character(ingest: Ingest) -> None:
    ingest.create({"name": "string", "size": "string"})
    (ingest.path / "a.tsv").write_text('name\tsize\nscreen\t27"\n"tv\t55"\n')
    ingest.queue.send([str(ingest.path / "a.tsv")])
    ingest.drain(files={"quote": ""})
    assert ingest.rows() == [
        {"name": "screen", "size": '27"'},
        {"name": '"tv', "size": '55"'},
    ]


def test_columns_of_a_path_have_the_types_of_the_topic(ingest: Ingest) -> None:
    columns = {"n": "int64", "day": "date32", "city": "string"}
    ingest.create(columns)
    names = ("day=2026-01-02/city=a%2Fb", "day=2026-01-03/city=__HIVE_DEFAULT_PARTITION__")
    bad = ("day=never/city=x", "city=x")
    for index, folders in enumerate((*names, *bad)):
        folder = ingest.path / "files" / folders
        folder.mkdir(parents=True)
        ingest.queue.send([str(write_jsonl(folder / "a.jsonl", range(index, index + 1)))])
    settings = ingest.source(
        files={"partition_columns": ["day", "city"]}, limits={"max_delivery_attempts": 1}
    )
    ingest.start(settings).drain()
    assert [
        (row["n"], str(row["day"]), row["city"])
        for row in sorted(ingest.rows(), key=lambda row: row["n"])
    ] == [(0, "2026-01-02", "a/b"), (1, "2026-01-03", None)]
    errors = [dead.error or "" for dead in ingest.wings.list_shards(settings.name, "dead")]
    assert any("column 'day' of its path: 'never'" in error for error in errors)
    assert any("has no folder 'day=" in error for error in errors)
    with pytest.raises(InvalidArgument, match="'land', which 'partition_columns' names"):
        check(ingest.source(files={"partition_columns": ["land"]}))


def test_a_number_of_a_path_that_its_type_cannot_hold_is_refused(ingest: Ingest) -> None:
    types = {"price": "decimal128(38, 2)", "size": "double", "code": "int64"}
    ingest.create({"n": "int64", **types})
    fits = f"price={'9' * 36}.99/size=inf/code=-7"
    bad = {
        "price": f"price={'1' * 38}/size=1/code=1",
        "size": "price=1/size=1e400/code=1",
        "code": "price=1/size=1/code=0xFFFFFFFFFFFFFFFF",
    }
    for folders in (fits, *bad.values()):
        folder = ingest.path / "files" / folders
        folder.mkdir(parents=True)
        ingest.queue.send([str(write_jsonl(folder / "a.jsonl", range(1)))])
    settings = ingest.source(
        files={"partition_columns": list(types)}, limits={"max_delivery_attempts": 1}
    )
    ingest.start(settings).drain()
    assert ingest.rows() == [
        {"n": 0, "price": Decimal(f"{'9' * 36}.99"), "size": math.inf, "code": -7}
    ]
    errors = [dead.error or "" for dead in ingest.wings.list_shards(settings.name, "dead")]
    assert len(errors) == len(bad)
    assert all(any(f"column '{name}' of its path" in error for error in errors) for name in bad), (
        errors
    )


def test_only_files_that_match_the_patterns_are_read_and_others_are_acknowledged(
    ingest: Ingest,
) -> None:
    ingest.create({"n": "int64"})
    names = ("a.jsonl", "b.txt", "deep/c.jsonl", "old/d.jsonl", "deep/old/e.jsonl")
    for index, name in enumerate(names):
        path = ingest.path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_jsonl(path, range(index, index + 1))
    pipeline = ingest.pipeline(
        queue={"kind": "directory", "path": "in"},
        files={"include": ["*.jsonl"], "exclude": ["old/**"], "format": "jsonl"},
    )
    pipeline.drain()
    assert ingest.numbers() == [0, 2, 4]
    assert pipeline.queue.pending() == 0
    assert status.backfill(pipeline.settings, str(ingest.path / "in")) == 3
    pipeline.drain()
    assert ingest.numbers() == [0, 2, 4]


@pytest.mark.parametrize("rescued", [False, True])
def test_orc_is_read_by_stripes_and_rescued_by_row(ingest: Ingest, rescued: bool) -> None:
    columns = {"n": "int32", "tags": "list<item: string>"}
    ingest.create(columns | ({"rest": "string"} if rescued else {}))
    last = 1 << 40 if rescued else 3
    table = arrow.table({"n": arrow.array([1, 2, last]), "tags": [["a"], None, ["b", "c"]]})
    orc.write_table(table, str(ingest.path / "a.orc"))
    (ingest.path / "b.orc").write_bytes((ingest.path / "a.orc").read_bytes()[:-9])
    ingest.queue.send([str(ingest.path / "a.orc"), str(ingest.path / "b.orc")])
    settings = ingest.source(
        files={"rescued_column": "rest"} if rescued else {}, limits={"max_delivery_attempts": 1}
    )
    ingest.start(settings).drain()
    found = ingest.rows()
    assert [row["n"] for row in found] == [1, 2, None if rescued else 3]
    assert [row["tags"] for row in found] == [["a"], None, None if rescued else ["b", "c"]]
    assert [dead.shard for dead in ingest.wings.list_shards(settings.name, "dead")] == [
        str(ingest.path / "b.orc")
    ]


ROW_FORMATS = ("csv", "jsonl", "json")
TYPED_FORMATS = ("parquet", "orc", "arrow", "arrows")
ROWS: list[dict[str, Any]] = [{"n": 1, "s": "a"}, {"n": 2, "s": "b"}, {"n": 3, "s": None}]
KINDS = {
    "same": ROWS,
    "missing": [{"n": row["n"]} for row in ROWS],
    "new": [{**row, "x": row["n"] / 2} for row in ROWS],
    "unfit": [ROWS[0], {"n": 1 << 40, "s": "c"}, *ROWS[1:]],
    "ragged": [*ROWS, {"n": 4}],
    "later": [*ROWS, {"n": 4, "s": "d", "y": 0.5}],
}
"""Rows by what is odd about them; of the last two kinds for formats whose rows have their names."""


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write a file of the format that its name says; rows of CSV may be ragged."""
    if path.suffix == ".csv":
        lines = [
            ",".join("" if each is None else str(each) for each in row.values()) for row in rows
        ]
        path.write_text("\n".join([",".join(rows[0]), *lines]))
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=2))
    else:
        table = pa.Table.from_pylist(rows)
        if path.suffix == ".parquet":
            pyarrow.parquet.write_table(table, path)
        elif path.suffix == ".orc":
            orc.write_table(table, path)
        else:
            new = pa.ipc.new_file if path.suffix == ".arrow" else pa.ipc.new_stream
            with new(str(path), table.schema) as writer:
                writer.write_table(table)
    return path


@pytest.mark.parametrize(
    ("mode", "rescued"),
    [("fail", False), ("fail", True), ("evolve", False), ("evolve", True), ("rescue", True)],
)
def test_a_file_goes_in_with_all_of_its_rows_or_not_at_all(
    ingest: Ingest, mode: str, rescued: bool
) -> None:
    fields = {"n": "int32", "s": "string", "file": "string", "rest": "string"}
    ingest.create(fields if rescued else {**fields, "rest": "bool"})
    files: dict[str, Any] = {"on_new_columns": mode, "lineage": {"file": "file"}}
    if rescued:
        files["rescued_column"] = "rest"
    expected: dict[str, int] = {}
    for kind, rows in KINDS.items():
        by_row = kind in ("ragged", "later")
        for ending in ("csv", "jsonl", "json") if by_row else (*ROW_FORMATS, *TYPED_FORMATS):
            path = write_rows(ingest.path / f"{kind}.{ending}", rows)
            fits = kind in ("same", "missing") or (kind == "ragged" and ending != "csv")
            is_new = kind == "new" or (kind == "later" and ending != "csv")
            goes_in = fits or (mode != "fail" if is_new else rescued)
            expected[str(path)] = len(rows) if goes_in else 0
    ingest.queue.send(expected)
    pipeline = ingest.pipeline(files=files, limits={"max_delivery_attempts": 1})
    fates = {file.shard: file.fate for outcome in pipeline.drain() for file in outcome.files}
    assert fates == {
        file: Fate.FINISHED if count else Fate.DEAD for file, count in expected.items()
    }
    found = Counter(row["file"] for row in ingest.rows())
    assert found == Counter({file: count for file, count in expected.items() if count})


def test_a_file_of_which_rows_get_lost_is_not_finished(
    ingest: Ingest, topic: str, calls: Calls
) -> None:
    for ending in (*ROW_FORMATS, *TYPED_FORMATS):
        ingest.queue.send([str(write_rows(ingest.path / f"a.{ending}", KINDS["missing"]))])

    def fewer(parts: Iterator[Part], *_: object) -> Iterator[Part]:
        return (Part(part.batch.slice(1), part.place) for part in parts)

    calls.change(OpenFile, "parts", fewer)
    (outcome,) = ingest.drain(limits={"max_delivery_attempts": 1})
    assert {file.fate for file in outcome.files} == {Fate.DEAD}
    assert all("it has 3 rows, and 2 were read" in str(file.error) for file in outcome.files)
    assert ingest.numbers() == []


def test_a_line_of_two_objects_is_kept_as_a_whole(ingest: Ingest) -> None:
    ingest.create({"n": "int64", "rest": "string"})
    line = '{"x": 1} {"n": 2}'
    (ingest.path / "a.jsonl").write_text(f'{{"n": 1}}\n{line}\n')
    ingest.queue.send([str(ingest.path / "a.jsonl")])
    ingest.drain(files={"rescued_column": "rest"})
    assert ingest.rows() == [{"n": 1, "rest": None}, {"n": None, "rest": line}]


def test_columns_of_files_are_chosen_and_an_index_is_left_out(ingest: Ingest, topic: str) -> None:
    frame = pandas.DataFrame({"n": [1, 2], "__v": [0, 0], "m": ["x", "y"]}, index=[7, 3])
    frame.to_csv(ingest.path / "a.csv")
    frame.to_parquet(ingest.path / "b.parquet")
    frame.to_json(ingest.path / "c.jsonl", orient="records", lines=True)
    ingest.queue.send(str(path) for path in sorted(ingest.path.glob("?.*")))
    ingest.drain(files={"exclude_columns": ["__v", "m"]})
    assert ingest.numbers() == [1, 1, 1, 2, 2, 2]
    ingest.queue.send([str(write_rows(ingest.path / "d.jsonl", [{"n": 3, "__typename": "T"}]))])
    ingest.drain(files={"columns": ["n"]}, checkpoint="another")
    assert ingest.numbers()[-1] == 3


def test_a_column_that_a_topic_gets_of_csv_changes_no_value(
    ingest: Ingest, topic: str, read_sizes: ReadSizes
) -> None:
    read_sizes(head=100, sample=20)
    zips = ["12345"] * 300 + ["00501"] + ["54321"] * 300
    (ingest.path / "a.csv").write_text("n,zip\n" + "".join(f"1,{each}\n" for each in zips))
    ingest.queue.send([str(ingest.path / "a.csv")])
    ingest.drain(files={"on_new_columns": "evolve"})
    assert ingest.wings.scan(topic).read_all()["zip"].to_pylist() == zips


def test_int96_times_are_rescued_as_what_they_are(ingest: Ingest) -> None:
    ingest.create({"n": "int64", "rest": "string"})
    times = pa.array([datetime.fromisoformat("9999-12-31")], pa.timestamp("us"))
    pyarrow.parquet.write_table(
        pa.table({"n": [1], "until": times}),
        ingest.path / "a.parquet",
        use_deprecated_int96_timestamps=True,
    )
    ingest.queue.send([str(ingest.path / "a.parquet")])
    ingest.drain(files={"rescued_column": "rest"})
    assert ingest.rows() == [{"n": 1, "rest": '{"until":"9999-12-31T00:00:00.000000"}'}]
