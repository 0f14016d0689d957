import gc
import json
import platform
import re
import resource
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from fix_client import NewTopic
from fix_spark import Load
from pyspark.errors import PySparkException

import wings_spark
from wings_client import Client
from wings_server.testing import RunningServer
from wings_spark.connection import prepare_worker
from wings_spark.options import SparkReadOptions, options_of
from wings_spark.reader import WingsReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def values(frame: "DataFrame", column: str = "n") -> list[int]:
    return sorted(row[0] for row in frame.select(column).collect())


def test_a_topic_is_found_by_the_name_of_the_format_alone(
    wings: Client, new_topic: NewTopic, load: Load
) -> None:
    topic = new_topic()
    wings.push(topic, {"n": list(range(100))})
    frame = load(topic.name)
    assert frame.schema.simpleString() == "struct<n:bigint>"
    assert values(frame) == list(range(100))


def test_keys_share_tasks_which_are_as_many_as_asked_for_and_no_row_is_lost(
    wings: Client, new_topic: NewTopic, load: Load
) -> None:
    topic = new_topic("key: string", "n: int64", partition_key="key")
    keys = [f"key-{n * n % 1_009}" for n in range(3_000)]  # Some 500 of them.
    wings.push(topic, {"key": keys, "n": list(range(3_000))})
    whole = load(topic.id, includeSystemColumns="true")
    assert whole.rdd.getNumPartitions() == 1
    for tasks, options in ((3, {"minPartitions": 3}), (2, {"maxRecordsPerPartition": 1_500})):
        cut = load(topic.id, **options)
        assert cut.rdd.getNumPartitions() == tasks
        assert values(cut) == list(range(3_000))
    # Each row where the log has it.
    expected: dict[str, list[int]] = {}
    for n, key in enumerate(keys):
        expected.setdefault(key, []).append(n)
    found = {(row["key"], row["__offset"]): row["n"] for row in whole.collect()}
    assert found == {
        (key, offset): n for key, ns in expected.items() for offset, n in enumerate(ns)
    }
    some = load(topic.id, columns="n", filter="n % 3 = 0", minPartitions=2)
    assert values(some) == list(range(0, 3_000, 3))


def test_system_columns_tell_where_each_row_lies(
    wings: Client, new_topic: NewTopic, load: Load
) -> None:
    topic = new_topic("key: string", "n: int64", partition_key="key")
    pushed = wings.push(topic, {"key": ["a", "b"] * 5, "n": list(range(10))})
    frame = load(topic.id, includeSystemColumns="true")
    assert frame.columns == ["key", "n", "__offset", "__timestamp"]
    rows = {(row["key"], row["__offset"]): row for row in frame.collect()}
    assert rows["b", 2]["n"] == 5
    found = frame.select("__timestamp").toArrow().column(0)
    assert {at.as_py() for at in found} == {each.timestamp for each in pushed.committed}


def test_only_the_columns_named_are_there_in_their_order(
    wings: Client, new_topic: NewTopic, load: Load
) -> None:
    topic = new_topic("a: int32", "b: string", "c: double")
    wings.push(topic, {"a": [1], "b": ["x"], "c": [0.5]})
    assert load(topic.id, columns="c, a").collect() == [(0.5, 1)]
    assert load(topic.id, columns='["b"]').collect() == [("x",)]


def test_a_schema_picks_columns_and_widens_their_types(
    wings: Client, new_topic: NewTopic, spark: "SparkSession", server: RunningServer
) -> None:
    topic = new_topic("a: int32", "b: string", "c: float")
    wings.push(topic, {"a": [1], "b": ["x"], "c": [0.5]})
    reader = spark.read.format("wings").option("endpoint", server.flight).option("topic", topic.id)
    frame = reader.schema("c double, __offset bigint, a bigint").load()
    assert frame.collect() == [(0.5, 0, 1)]
    assert reader.schema("__offset bigint").load().collect() == [(0,)]
    with pytest.raises(PySparkException, match="column 'b' is of type string"):
        reader.schema("b int").load().collect()
    with pytest.raises(PySparkException, match="no column 'd'"):
        reader.schema("d int").load().collect()


def test_a_value_that_a_narrower_type_does_not_hold_is_an_error(
    wings: Client, new_topic: NewTopic, spark: "SparkSession", server: RunningServer
) -> None:
    topic = new_topic()
    wings.push(topic, {"n": [1 << 40]})
    reader = spark.read.format("wings").option("endpoint", server.flight).option("topic", topic.id)
    with pytest.raises(PySparkException, match="column 'n'"):
        reader.schema("n int").load().collect()


def test_a_read_begins_and_ends_where_it_is_told_to(
    wings: Client, new_topic: NewTopic, load: Load
) -> None:
    topic = new_topic()
    for n in range(10):
        wings.push(topic, {"n": [n]}, timestamp=f"2026-01-01T00:00:0{n}Z")
    bounds = {"startingOffsets": f'{{"{topic.id}": {{"null": 2}}}}'}
    bounds["endingOffsets"] = f'{{"{topic.id}": 4}}'
    assert values(load(topic.id, **bounds)) == [2, 3]
    assert values(load(topic.id, startingTimestamp="2026-01-01T00:00:05Z")) == list(range(5, 10))


def test_offsets_are_named_by_the_values_of_partitions(
    wings: Client, new_topic: NewTopic, load: Load
) -> None:
    topic = new_topic("key: string", "n: int64", partition_key="key")
    wings.push(topic, {"key": ["a", "7"] * 5, "n": list(range(10))})
    frame = load(topic.id, startingOffsets=f'{{"{topic.id}": {{"a": 4, "7": "latest"}}}}')
    assert values(frame) == [8]


def test_the_server_filters(wings: Client, new_topic: NewTopic, load: Load) -> None:
    topic = new_topic("n: int64", "word: string")
    wings.push(topic, {"n": list(range(100)), "word": ["it's", "x"] * 50})
    frame = load(topic.id, filter="word = 'it''s' AND n >= 96", columns="n")
    assert values(frame) == [96, 98]


@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.soak)])
@pytest.mark.parametrize("pushdown", [pytest.param("false", marks=pytest.mark.soak), "true"])
def test_queries_of_one_data_frame_have_no_effect_on_one_another(
    wings: Client, new_topic: NewTopic, load: Load, spark: "SparkSession", pushdown: str, times: int
) -> None:
    topic = new_topic("n: int64", "word: string")
    wings.push(topic, {"n": list(range(6)), "word": ["it's", None] * 3})
    spark.conf.set(PUSHDOWN, pushdown)
    try:
        frame = load(topic.id)
        for appended in range(times + 1):
            # What was appended since is seen, or not: a frame may keep what a query has planned.
            late = range(appended + 1)
            for _ in range(times):
                assert frame.where("n = 1").count() == 1
                assert frame.count() - 6 in late
                assert values(frame.where('n > 3 AND word = "it\'s"')) == [4]
                assert values(frame.where("word IS NULL")) == [1, 3, 5]
                assert frame.where("n = 100").count() in late
                assert frame.where("n <> 1").count() - 5 in late
            wings.push(topic, {"n": [100], "word": ["late"]})
        assert load(topic.id).count() == 7 + times
        only = load(topic.id, filter="n >= 5")
        assert [only.where("word = 'late'").count(), only.count()] == [1 + times, 2 + times]
    finally:
        spark.conf.unset(PUSHDOWN)


def test_a_topic_is_a_table_of_sparks(
    wings: Client, new_topic: NewTopic, spark: "SparkSession", server: RunningServer
) -> None:
    topic = new_topic("n: int64", "word: string")
    wings.push(topic, {"n": [1, 2, 3], "word": ["a", "b", None]})
    name = topic.id.replace("-", "_")
    options = f"OPTIONS (endpoint '{server.flight}', topic '{topic.id}', columns 'n')"
    created = f"CREATE TABLE {name} USING wings {options}"
    spark.sql(f"{created} COMMENT 'mine' TBLPROPERTIES ('team' = 'x', 'topics' = 'y')")
    try:
        assert spark.sql(f"SELECT sum(n) FROM {name}").collect() == [(6,)]
        assert spark.table(name).where("n > 1").count() == 2
        assert spark.table(name).columns == ["n"]
        spark.sql(f"DROP TABLE {name}")
        spark.sql(created.replace(", columns 'n'", ""))
        spark.sql(f"INSERT INTO {name} VALUES (4, 'd')")
        assert sorted(values(spark.table(name))) == [1, 2, 3, 4]
        assert spark.readStream.table(name).isStreaming
        spark.sql(f"DROP TABLE {name}")
        with pytest.raises(PySparkException, match="unknown option 'tpic'"):
            spark.sql(created.replace("topic ", "tpic "))
        spark.sql(created.replace("USING", "(n BIGINT) USING"))
        with pytest.raises(PySparkException, match="create a table without columns"):
            spark.table(name).count()
    finally:
        spark.sql(f"DROP TABLE IF EXISTS {name}")


def test_a_table_of_a_topic_that_has_grown_says_what_alters_it(
    wings: Client,
    new_topic: NewTopic,
    spark: "SparkSession",
    server: RunningServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = new_topic("n: int32")
    wings.push(topic, {"n": [1]})
    name = topic.id.replace("-", "_")
    created = f"TABLE {name} USING wings OPTIONS (endpoint '{server.flight}', topic '{topic.id}')"
    spark.sql(f"CREATE {created}")

    def told() -> list[str]:
        """Return what a reader of the table says, which Spark makes in another process."""
        caplog.clear()
        schema = spark.table(name).schema
        WingsReader(SparkReadOptions.parse(options_of({}, schema)), schema)
        return re.findall("ALTER TABLE … ([^;]*)", caplog.text.replace("\n", ";"))

    try:
        assert told() == []
        wings.alter_schema(topic, add={"a`b": "string", "u": "uint8"}, widen={"n": "int64"})
        wings.push(topic.id, {"n": [1 << 40], "a`b": ["x"], "u": [7]})
        changes = told()
        assert changes == [
            "ALTER COLUMN `n` TYPE bigint",
            "ADD COLUMN `a``b` string",
            "ADD COLUMN `u` smallint",
        ]
        for change in changes:
            spark.sql(f"ALTER TABLE {name} {change}")
        assert told() == []
        expected = [(1, None, None), (1 << 40, "x", 7)]
        assert sorted(spark.table(name).collect()) == expected
        wings.alter_schema(topic, add={"late": "int64"})
        assert told() == ["ADD COLUMN `late` bigint"]
        spark.sql(f"CREATE OR REPLACE {created}")
        assert sorted(spark.table(name).collect()) == [(*row, None) for row in expected]
    finally:
        spark.sql(f"DROP TABLE IF EXISTS {name}")


HOSTILE_NAMES = (
    "a b", "a.b", "a`b", 'a"b', "a'b", 'x" OR 1=1 --', "select", "NULL", "ünïcödé", "日本", "%s",
    "{n}", "$1", "a;b", "a\\b", "a\nb", "a,b", "1", " ", "struct<n:bigint>", "/*", "a\u200db",
)  # fmt: skip


def test_columns_of_hostile_names_are_read_and_filtered_by(
    wings: Client, new_topic_id: str, load: Load
) -> None:
    rows = pa.table({name: [index, 100, None] for index, name in enumerate(HOSTILE_NAMES)})
    topic = wings.create_topic(new_topic_id, rows.schema)
    wings.push(topic, rows)
    columns = ["`{}`".format(name.replace("`", "``")) for name in HOSTILE_NAMES]
    wanted = " AND ".join(f"{column} < 100" for column in columns)
    expected = [tuple(range(len(HOSTILE_NAMES)))]
    assert load(topic.id).where(wanted).collect() == expected
    for column in (columns[0], columns[-1]):  # By names alone, too.
        named = json.dumps([HOSTILE_NAMES[columns.index(column)]])
        assert load(topic.id, columns=named).where(f"{column} = 100").collect() == [(100,)]


def test_topics_that_match_a_pattern_are_one_frame(
    wings: Client, new_topic_id: str, load: Load
) -> None:
    namespace = f"tenants/default/namespaces/{new_topic_id}"
    wings.create_namespace(namespace)
    for name, first in (("part-1", 0), ("part-2", 10), ("other", 20)):
        topic = wings.create_topic(f"{namespace}/topics/{name}", {"n": "int64"})
        wings.push(topic, {"n": list(range(first, first + 10))})
    pattern = f"{namespace}/topics/part-.*"
    frame = load(topicsPattern=pattern, includeSystemColumns="true")
    assert values(frame) == list(range(20))
    topics = {row["__topic"] for row in frame.collect()}
    assert topics == {f"{namespace}/topics/part-{number}" for number in (1, 2)}
    wings.create_topic(f"{namespace}/topics/part-3", {"n": "int32"})
    with pytest.raises(PySparkException, match="part-1 and part-3 differ in column 'n'"):
        load(topicsPattern=pattern)


def test_an_empty_topic_is_an_empty_frame(new_topic: NewTopic, load: Load) -> None:
    frame = load(new_topic().id)
    assert frame.count() == 0
    assert frame.columns == ["n"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "no-such-topic"}, "no topic .*no-such-topic"),
        ({"topic": "t", "startingOffset": "5"}, "unknown option 'startingoffset'"),
        ({"topic": "t", "minPartitions": "none"}, "option 'minPartitions'"),
        ({}, "'topic' and 'topicsPattern'"),
        ({"topic": "t", "maxOffsetsPerTrigger": "5"}, "no topic"),
        ({"topic": "TOPIC", "columns": "nope"}, "option 'columns'.*'nope'"),
        ({"topic": "TOPIC", "filter": "n +"}, "filter"),
        ({"topic": "TOPIC", "endpoint": "grpc://127.0.0.1:1"}, "no server answers at grpc"),
    ],
)
def test_errors_name_what_is_wrong(
    new_topic: NewTopic, load: Load, options: dict[str, str], message: str
) -> None:
    topic = new_topic()
    given = {name: topic.id if value == "TOPIC" else value for name, value in options.items()}
    with pytest.raises(PySparkException, match=f"(?s){message}"):
        load(**given)


def test_the_fast_path_reads_the_same(
    wings: Client, new_topic: NewTopic, load: Load, spark: "SparkSession", server: RunningServer
) -> None:
    topic = new_topic(
        "key: string",
        "n: int64",
        "at: timestamp[ns, tz=Europe/Zurich]",
        partition_key="key",
    )
    at = pa.array(range(1_000), pa.timestamp("ns", "Europe/Zurich"))
    keys = pa.array(["a", "b"] * 500)
    wings.push(topic, pa.table({"key": keys, "n": pa.array(range(1_000)), "at": at}))
    options: dict[str, Any] = {"includeSystemColumns": "true", "minPartitions": "5"}
    slow = load(topic.id, **options)
    fast = wings_spark.read(spark, server.flight, topic.id, **options)
    assert fast.schema == slow.schema
    order = ["key", "__offset"]
    assert fast.orderBy(*order).collect() == slow.orderBy(*order).collect()
    late = wings_spark.read(spark, server.flight, topic.id, columns=["n"], filter="n >= 990")
    assert values(late) == list(range(990, 1_000))
    empty = wings_spark.read(spark, server.flight, topic.id, startingOffsets="latest")
    assert empty.count() == 0


def test_register_sets_what_the_user_has_not_set_and_warns_of_lz4(spark: "SparkSession") -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "123")
    wings_spark.register(session)
    assert session.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") == "123"
    assert session.conf.get("spark.sql.execution.arrow.maxBytesPerBatch") == "2147483647"
    session.conf.set("spark.sql.execution.arrow.compression.codec", "lz4")
    with pytest.warns(UserWarning, match="lz4"):
        wings_spark.register(session)


def test_workers_leave_what_is_loaded_out_of_collections_as_users_do_not_and_keep_freed_memory(
    spark: "SparkSession",
) -> None:
    def faults_of_20_mib() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        pieces = [bytearray(b"x") * (1 << 20) for _ in range(20)]
        del pieces
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            gc.unfreeze()
            prepare_worker.cache_clear()  # The worker was prepared at its start.
            prepare_worker()
            faults_of_20_mib()
            yield pa.record_batch(
                {"left_out": [gc.get_freeze_count()], "faults": [faults_of_20_mib()]}
            )

    before = gc.get_freeze_count()
    prepare_worker()
    assert gc.get_freeze_count() == before
    frame = spark.range(0, 1, 1, 1).mapInArrow(look, "left_out long, faults long")
    (row,) = frame.collect()
    assert row["left_out"] > 10_000
    if platform.libc_ver()[0] == "glibc":  # No other keeps it.
        assert row["faults"] < (20 << 20) / resource.getpagesize() / 2
