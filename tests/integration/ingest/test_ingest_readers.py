"""Options of the readers in `[files]`: CSV's forms, paths, patterns and ORC, without Spark."""

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc
import pytest
from fix_ingest import MakeSource, Start, numbers, write_jsonl

from wings_client import Client
from wings_core.errors import InvalidArgument
from wings_core.queue.claims import Fate
from wings_core.queue.sqlite import SqliteQueue
from wings_spark.ingest import status
from wings_spark.ingest.run import check

arrow: Any = pa
orc: Any = pyarrow.orc


def rows_of(client: Client, topic: str) -> list[Any]:
    found: list[Any] = client.scan(topic).read_all().to_pylist()
    return found


@pytest.mark.parametrize("rescued", [False, True])
def test_csv_of_another_form_is_read_as_the_settings_say(
    wings: Client,
    source: MakeSource,
    start: Start,
    queue: SqliteQueue,
    new_topic_id: str,
    tmp_path: Path,
    rescued: bool,
) -> None:
    columns = {"id": "int64", "name": "string", "price": "double"}
    wings.create_topic(new_topic_id, columns | ({"rest": "string"} if rescued else {}))
    text = "id;name;price\n1;'Zoë; \"B\"';NA\n-;'NA';2.5\n3;\\N;-\n" + (
        "x;y;z\n" if rescued else ""
    )
    (tmp_path / "a.csv").write_bytes(text.encode("latin-1"))
    files: dict[str, Any] = {
        "delimiter": ";",
        "encoding": "latin-1",
        "quote": "'",
        "null_texts": ["NA", "-", "\\N"],
    }
    if rescued:
        files["rescued_column"] = "rest"
    queue.send([str(tmp_path / "a.csv")])
    (outcome,) = start(source(files=files)).drain()
    assert [file.fate for file in outcome.files] == [Fate.FINISHED]
    found = rows_of(wings, new_topic_id)
    assert [(row["id"], row["name"], row["price"]) for row in found[:3]] == [
        (1, 'Zoë; "B"', None),
        (None, "NA", 2.5),
        (3, None, None),
    ]
    if rescued:
        assert [row["rest"] is None for row in found] == [True, True, True, False]


def test_without_quotes_a_quote_is_a_character(
    wings: Client,
    source: MakeSource,
    start: Start,
    queue: SqliteQueue,
    new_topic_id: str,
    tmp_path: Path,
) -> None:
    wings.create_topic(new_topic_id, {"name": "string", "size": "string"})
    (tmp_path / "a.tsv").write_text('name\tsize\nscreen\t27"\n"tv\t55"\n')
    queue.send([str(tmp_path / "a.tsv")])
    start(source(files={"quote": ""})).drain()
    assert rows_of(wings, new_topic_id) == [
        {"name": "screen", "size": '27"'},
        {"name": '"tv', "size": '55"'},
    ]


def test_columns_of_a_path_have_the_types_of_the_topic(
    wings: Client,
    source: MakeSource,
    start: Start,
    queue: SqliteQueue,
    new_topic_id: str,
    tmp_path: Path,
) -> None:
    columns = {"n": "int64", "day": "date32", "city": "string"}
    wings.create_topic(new_topic_id, columns)
    names = ("day=2026-01-02/city=a%2Fb", "day=2026-01-03/city=__HIVE_DEFAULT_PARTITION__")
    bad = ("day=never/city=x", "city=x")
    for index, folders in enumerate((*names, *bad)):
        folder = tmp_path / "files" / folders
        folder.mkdir(parents=True)
        queue.send([str(write_jsonl(folder / "a.jsonl", range(index, index + 1)))])
    settings = source(
        files={"partition_columns": ["day", "city"]}, limits={"max_delivery_attempts": 1}
    )
    start(settings).drain()
    assert [
        (row["n"], str(row["day"]), row["city"])
        for row in sorted(rows_of(wings, new_topic_id), key=lambda row: row["n"])
    ] == [(0, "2026-01-02", "a/b"), (1, "2026-01-03", None)]
    errors = [dead.error or "" for dead in wings.list_shards(settings.name, "dead")]
    assert any("day='never'" in error for error in errors)
    assert any("has no folder 'day=" in error for error in errors)
    with pytest.raises(InvalidArgument, match="'land', which 'partition_columns' names"):
        check(source(files={"partition_columns": ["land"]}))


def test_a_number_of_a_path_that_its_type_cannot_hold_is_refused(
    wings: Client,
    source: MakeSource,
    start: Start,
    queue: SqliteQueue,
    new_topic_id: str,
    tmp_path: Path,
) -> None:
    types = {"price": "decimal128(38, 2)", "size": "double", "code": "int64"}
    wings.create_topic(new_topic_id, {"n": "int64", **types})
    fits = f"price={'9' * 36}.99/size=inf/code=-7"
    bad = {
        "price": f"price={'1' * 38}/size=1/code=1",
        "size": "price=1/size=1e400/code=1",
        "code": "price=1/size=1/code=0xFFFFFFFFFFFFFFFF",
    }
    for folders in (fits, *bad.values()):
        folder = tmp_path / "files" / folders
        folder.mkdir(parents=True)
        queue.send([str(write_jsonl(folder / "a.jsonl", range(1)))])
    settings = source(files={"partition_columns": list(types)}, limits={"max_delivery_attempts": 1})
    start(settings).drain()
    assert rows_of(wings, new_topic_id) == [
        {"n": 0, "price": Decimal(f"{'9' * 36}.99"), "size": math.inf, "code": -7}
    ]
    errors = [dead.error or "" for dead in wings.list_shards(settings.name, "dead")]
    assert len(errors) == len(bad)
    assert all(any(f"{name}='" in error for error in errors) for name in bad), errors


def test_only_files_that_match_the_patterns_are_read_and_others_are_acknowledged(
    wings: Client, source: MakeSource, start: Start, new_topic_id: str, tmp_path: Path
) -> None:
    wings.create_topic(new_topic_id, {"n": "int64"})
    names = ("a.jsonl", "b.txt", "deep/c.jsonl", "old/d.jsonl", "deep/old/e.jsonl")
    for index, name in enumerate(names):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_jsonl(path, range(index, index + 1))
    pipeline = start(
        source(
            queue={"kind": "directory", "path": "in"},
            files={"include": ["*.jsonl"], "exclude": ["old/**"], "format": "jsonl"},
        )
    )
    pipeline.drain()
    assert numbers(wings, new_topic_id) == [0, 2, 4]
    assert pipeline.queue.pending() == 0
    assert status.backfill(pipeline.settings, str(tmp_path / "in")) == 3
    pipeline.drain()
    assert numbers(wings, new_topic_id) == [0, 2, 4]


@pytest.mark.parametrize("rescued", [False, True])
def test_orc_is_read_by_stripes_and_rescued_by_row(
    wings: Client,
    source: MakeSource,
    start: Start,
    queue: SqliteQueue,
    new_topic_id: str,
    tmp_path: Path,
    rescued: bool,
) -> None:
    columns = {"n": "int32", "tags": "list<item: string>"}
    wings.create_topic(new_topic_id, columns | ({"rest": "string"} if rescued else {}))
    last = 1 << 40 if rescued else 3
    table = arrow.table({"n": arrow.array([1, 2, last]), "tags": [["a"], None, ["b", "c"]]})
    orc.write_table(table, str(tmp_path / "a.orc"))
    (tmp_path / "b.orc").write_bytes((tmp_path / "a.orc").read_bytes()[:-9])
    queue.send([str(tmp_path / "a.orc"), str(tmp_path / "b.orc")])
    settings = source(
        files={"rescued_column": "rest"} if rescued else {}, limits={"max_delivery_attempts": 1}
    )
    start(settings).drain()
    found = rows_of(wings, new_topic_id)
    assert [row["n"] for row in found] == [1, 2, None if rescued else 3]
    assert [row["tags"] for row in found] == [["a"], None, None if rescued else ["b", "c"]]
    assert [dead.shard for dead in wings.list_shards(settings.name, "dead")] == [
        str(tmp_path / "b.orc")
    ]
