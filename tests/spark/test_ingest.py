"""The pipeline on Spark: files that a queue announces are in the topic once."""

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.orc
import pytest
from fix_ingest import MakeSource, numbers

from wings_client import Client
from wings_core.errors import InvalidArgument
from wings_core.queue.sqlite import SqliteQueue
from wings_spark.ingest.run import start
from wings_spark.ingest.settings import SourceSettings
from wings_spark.ingest.status import history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

orc: Any = pyarrow.orc

SECONDS_MAX = 150
"""For one run of a query, on a busy machine."""


def write_jsonl(path: Path, rows: range) -> Path:
    text = "".join(json.dumps({"n": n, "file": path.name}) + "\n" for n in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def run_once(spark: "SparkSession", settings: SourceSettings) -> None:
    """Run the query until the queue has nothing more."""
    query = start(spark, settings, once=True)
    try:
        assert query.awaitTermination(SECONDS_MAX), "the query does not end"
    finally:
        query.stop()


def test_a_session_that_runs_tasks_twice_is_refused(
    spark: "SparkSession", wings: Client, source: MakeSource, new_topic_id: str
) -> None:
    wings.create_topic(new_topic_id, {"n": "int64"})
    spark.conf.set("spark.sql.legacy.setCommandRejectsSparkCoreConfs", "false")
    spark.conf.set("spark.speculation", "true")
    try:
        with pytest.raises(InvalidArgument, match="speculation"):
            start(spark, source())
    finally:
        spark.conf.unset("spark.speculation")
        spark.conf.unset("spark.sql.legacy.setCommandRejectsSparkCoreConfs")


def test_ten_files_and_two_duplicates_give_exactly_their_rows(
    spark: "SparkSession", wings: Client, source: MakeSource, tmp_path: Path, new_topic_id: str
) -> None:
    wings.create_topic(new_topic_id, {"n": "int64", "file": "string"})
    paths = [
        write_jsonl(
            tmp_path / f"{index}.jsonl{'.gz' * (index % 2)}", range(index * 10, index * 10 + 10)
        )
        for index in range(10)
    ]
    settings = source(limits={"files_per_trigger": 6})
    queue = SqliteQueue(tmp_path / "queue.sqlite")
    queue.send(str(path) for path in [*paths, paths[3], paths[9]])
    run_once(spark, settings)
    assert numbers(wings, new_topic_id) == list(range(100))
    assert queue.remaining == 0
    counts = wings.count_shards(settings.name)
    assert (counts.finished, counts.open, counts.position) == (10, 0, 100)
    queue.close()


def test_files_of_several_formats_are_read_recorded_and_archived(
    spark: "SparkSession", wings: Client, source: MakeSource, tmp_path: Path, new_topic_id: str
) -> None:
    wings.create_topic(new_topic_id, {"n": "int64", "file": "string", "day": "date32"})
    for day, name in (("02", "a.jsonl"), ("03", "b.csv"), ("03", "c.orc"), ("04", "d.txt")):
        folder = tmp_path / "in" / f"day=2026-01-{day}"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / name
        numbered = range(ord(name[0]), ord(name[0]) + 1)
        if path.suffix == ".orc":
            table = pa.table({"n": list(numbered), "file": [name]})
            orc.write_table(table, str(path))
        elif path.suffix == ".csv":
            path.write_text(f"n;file\n{numbered.start};{name}\n")
        else:
            write_jsonl(path, numbered)
    settings = source(
        queue={"kind": "directory", "path": "in"},
        files={
            "include": ["*.jsonl", "*.csv", "*.orc"],
            "partition_columns": ["day"],
            "delimiter": ";",
            "archive": "done",
        },
        history={"topic": f"{new_topic_id}-history"},
    )
    run_once(spark, settings)
    rows = wings.scan(new_topic_id).read_all().to_pylist()
    assert sorted((row["n"], row["file"], row["day"].day) for row in rows) == [
        (97, "a.jsonl", 2),
        (98, "b.csv", 3),
        (99, "c.orc", 3),
    ]
    archived = [path.name for path in (tmp_path / "done").rglob("*") if path.is_file()]
    assert sorted(archived) == ["a.jsonl", "b.csv", "c.orc"]
    assert (tmp_path / "in" / "day=2026-01-04" / "d.txt").exists()
    found = history(settings, 10)
    assert sorted(Path(row["uri"]).name for row in found) == ["a.jsonl", "b.csv", "c.orc"]
    assert all((row["outcome"], row["rows"]) == ("finished", 1) for row in found)
