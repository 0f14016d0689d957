import datetime
import decimal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from fix_client import NewTopic
from fix_spark import Load
from pyspark import TaskContext
from pyspark.errors import PySparkException

import wings_spark
from wings_client import Client, Topic
from wings_server.testing import RunningServer
from wings_spark.connection import ServerAccess
from wings_spark.writer import BatchCommitter, Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

Save = Callable[..., None]


@pytest.fixture
def small_batches(spark: "SparkSession") -> Iterator[None]:
    """Have Spark hand tasks 100 rows at a time, so that one that fails has staged some already."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = str(spark.conf.get(name))
    spark.conf.set(name, 100)
    yield
    spark.conf.set(name, before)


@pytest.fixture
def save(server: RunningServer) -> Save:
    """Append a frame to a topic of the module's server; options by their names."""

    def save_frame(frame: "DataFrame", topic: Topic, **options: object) -> None:
        writer = frame.write.format("wings").mode("append")
        for name, value in ({"endpoint": server.flight, "topic": topic.name} | options).items():
            writer = writer.option(name, str(value))
        writer.save()

    return save_frame


def rows_of(wings: Client, topic: Topic) -> list[dict[str, Any]]:
    """Return all rows, each partition's in order of offset."""
    return [
        row
        for partition in wings.partitions(topic)
        for batch in wings.scan(topic, partition.partition)
        for row in batch.to_pylist()
    ]


def stages_of(server: RunningServer, topic: Topic) -> list[str]:
    """Return the stages that are neither published nor deleted."""
    return [stage.stage for stage in server.server.log.stages.of_topic(topic.uuid)]


def test_rows_are_appended_in_the_order_of_the_frame(
    spark: "SparkSession", server: RunningServer, wings: Client, new_topic: NewTopic, save: Save
) -> None:
    topic = new_topic("n: int64", "text: string")
    save(spark.range(1000).selectExpr("id AS n", "string(id) AS text"), topic)
    save(spark.range(1000, 1010).selectExpr("string(id) AS text", "id AS n"), topic)
    assert rows_of(wings, topic) == [{"n": n, "text": str(n)} for n in range(1010)]
    assert stages_of(server, topic) == []


def test_rows_go_to_the_partitions_of_their_keys(
    spark: "SparkSession", wings: Client, new_topic: NewTopic, save: Save
) -> None:
    topic = new_topic("key: int32", "n: int64", partition_key="key")
    save(spark.range(100).selectExpr("id AS n", "int(id % 3) AS key"), topic)
    for key in range(3):
        (batch,) = wings.scan(topic, key)
        assert batch.column("n").to_pylist() == list(range(key, 100, 3))


def test_columns_of_any_type_come_back_as_they_were_written(
    spark: "SparkSession", wings: Client, new_topic: NewTopic, save: Save, load: Load
) -> None:
    topic = new_topic(
        "small: uint8", "large: uint64", "half: float16", "at: timestamp[ns, tz=Europe/Berlin]",
        "second: timestamp[s]", "day: date64", "span: duration[ms]", "blob: fixed_size_binary[2]",
        "price: decimal128(10, 2)", "list: list<item: int16>", "pair: struct<x: int8, y: string>",
        "map: map<string, float>", "flag: bool",
    )  # fmt: skip
    rows = [
        {
            "small": 255, "large": 2**64 - 1, "half": 0.5,
            "at": datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.UTC),
            "second": datetime.datetime.fromisoformat("1969-12-31T23:59:59"),
            "day": datetime.date(2026, 1, 2), "blob": b"\x00\xff",
            "span": datetime.timedelta(days=-1, milliseconds=1),
            "price": decimal.Decimal("-1.25"), "list": [1, None], "pair": {"x": 1, "y": None},
            "map": [("a", 0.5)], "flag": True,
        },
        dict.fromkeys(topic.schema.names),
    ]  # fmt: skip
    wings.push(topic, rows)
    save(load(topic.id), topic)
    (batch,) = wings.scan(topic)
    assert batch.slice(2).equals(batch.slice(0, 2))
    assert batch.num_rows == 4


def test_times_are_the_same_moments_whatever_the_time_zone_of_the_session(
    spark: "SparkSession",
    server: RunningServer,
    wings: Client,
    new_topic: NewTopic,
    save: Save,
    load: Load,
) -> None:
    topic = new_topic("at: timestamp[us, tz=UTC]", "local: timestamp[us]")
    # By the clocks of New York, there is no such time on the second day.
    moments = [
        datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC),
        datetime.datetime(2026, 3, 8, 2, 30, tzinfo=datetime.UTC),
    ]
    pushed = {"at": moments, "local": [moment.replace(tzinfo=None) for moment in moments]}
    wings.push(topic, pushed)
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        save(load(topic.id), topic)
        fast = wings_spark.read(
            spark, server.flight, topic.id, endingOffsets=f'{{"{topic.id}": 2}}'
        )
        shown = fast.selectExpr("unix_seconds(at)", "string(at)", "string(local)").collect()
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    first, second = (int(moment.timestamp()) for moment in moments)
    assert shown == [
        (first, "2026-01-01 07:00:00", "2026-01-01 12:00:00"),
        (second, "2026-03-07 21:30:00", "2026-03-08 02:30:00"),
    ]
    written = pa.table(wings.scan(topic).read_all()).slice(2)
    assert written.to_pydict() == pushed


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("'x' AS text", "columns that are missing: 'n'"),
        ("id AS n, 'x' AS text, 1 AS more", "columns that the topic does not have: 'more'"),
        ("string(id) AS n, 'x' AS text", "'n' \\(string, the topic's int64\\)"),
        ("id AS n, timestamp(id) AS text", "'text' \\(timestamp.*, the topic's string\\)"),
        ("id AS N, 'x' AS text", "missing: 'n'; .* not have: 'N'; upper and lower case differ"),
        ("null AS n, 'x' AS text", "'n' \\(nothing but nulls"),
    ],
)
def test_rows_that_do_not_fit_are_refused_before_any_task_runs(
    spark: "SparkSession", server: RunningServer, new_topic: NewTopic, save: Save,
    columns: str, message: str,
) -> None:  # fmt: skip
    topic = new_topic("n: int64 not null", "text: string")
    ran = spark.sparkContext.accumulator(0)

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            ran.add(1)
            yield batch

    frame = spark.range(10).mapInArrow(count, "id long")
    with pytest.raises(PySparkException, match=message):
        save(frame.selectExpr(*columns.split(", ")), topic)
    assert ran.value == 0
    assert stages_of(server, topic) == []


@pytest.mark.parametrize(
    ("column", "expression", "message"),
    [
        ("n: int64 not null", "nullif(id, 900)", "null"),
        ("n: uint8", "id", "value 256 not in range: 0 to 255"),
        ("n: timestamp[s, tz=UTC]", "timestamp_micros(id)", "lose data"),
    ],
)
@pytest.mark.usefixtures("small_batches")
def test_a_value_that_does_not_fit_fails_the_job_and_leaves_nothing(
    spark: "SparkSession", server: RunningServer, wings: Client, new_topic: NewTopic, save: Save,
    column: str, expression: str, message: str,
) -> None:  # fmt: skip
    topic = new_topic(column)
    frame = spark.range(0, 1000, 1, 1).selectExpr(f"{expression} AS n")
    with pytest.raises(PySparkException, match=message):
        save(frame, topic)
    assert rows_of(wings, topic) == []
    assert stages_of(server, topic) == []


def test_a_task_that_is_tried_again_is_written_once(
    spark: "SparkSession", server: RunningServer, wings: Client, new_topic: NewTopic, save: Save
) -> None:
    topic = new_topic()

    def fail_at_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = cast("Any", TaskContext.get())
        yield from batches
        if context.attemptNumber() == 0:
            raise RuntimeError("the first attempt ends after all its rows")

    save(spark.range(0, 100, 1, 3).mapInArrow(fail_at_first, "id long").toDF("n"), topic)
    assert [row["n"] for row in rows_of(wings, topic)] == list(range(100))
    assert stages_of(server, topic) == []


def test_a_job_that_fails_leaves_nothing(
    spark: "SparkSession", server: RunningServer, wings: Client, new_topic: NewTopic, save: Save,
    tmp_path: Path,
) -> None:  # fmt: skip
    topic = new_topic()
    ended = spark.sparkContext.accumulator(0)
    all_ended = tmp_path / "all-ended"

    def fail_in_one(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        if cast("Any", TaskContext.get()).partitionId() != 3:
            ended.add(1)
            return
        while not all_ended.exists():  # What still runs, when a job fails, is killed.
            time.sleep(0.01)
        raise RuntimeError("this one always fails")

    def let_it_fail() -> None:
        while ended.value < 3:  # The driver adds up what tasks have counted that ended well.
            time.sleep(0.01)
        all_ended.touch()

    frame = spark.range(0, 100, 1, 4).mapInArrow(fail_in_one, "id long").toDF("n")
    threading.Thread(target=let_it_fail, daemon=True).start()
    with pytest.raises(PySparkException, match="this one always fails"):
        save(frame, topic)
    assert rows_of(wings, topic) == []
    assert stages_of(server, topic) == []


@pytest.mark.soak  # Which has the basics by such workers too.
def test_workers_that_spark_starts_itself_as_for_users_write_and_read(
    spark: "SparkSession",
    server: RunningServer,
    new_topic: NewTopic,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            started = [sys.orig_argv[2] == "pyspark.daemon"] * batch.num_rows
            yield pa.record_batch({"n": batch.column("n"), "started": started})

    # Workers of functions and data sources that are made with other variables are other processes.
    monkeypatch.setitem(spark.sparkContext.environment, "WORKERS_LAUNCH", "")
    session = spark.newSession()
    wings_spark.register(session)
    given = {"endpoint": server.flight, "topic": new_topic().id}
    frame = session.range(0, 3, 1, 1).toDF("n")
    frame.write.format("wings").options(**given).mode("append").save()
    found = session.read.format("wings").options(**given).load()
    looked = found.mapInArrow(look, "n long, started boolean").collect()
    assert looked == [(0, True), (1, True), (2, True)]


def test_a_version_of_an_application_is_written_once(
    spark: "SparkSession", server: RunningServer, wings: Client, new_topic: NewTopic, save: Save
) -> None:
    topic = new_topic()
    for version, ids in ((1, range(10)), (1, range(10)), (2, range(10, 20))):
        frame = spark.range(ids.start, ids.stop).toDF("n")
        save(frame, topic, txnAppId="nightly", txnVersion=version)
    assert [row["n"] for row in rows_of(wings, topic)] == list(range(20))
    with pytest.raises(PySparkException, match=r"PublishFenced"):
        save(spark.range(1).toDF("n"), topic, txnAppId="nightly", txnVersion=0)
    assert stages_of(server, topic) == []


def test_an_abort_after_the_publish_takes_nothing_back(
    server: RunningServer, wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    committer = BatchCommitter(f"query-{topic.uuid}", 7, f"{topic.uuid}.7.")
    with wings.stage(topic, f"{committer.prefix}a") as stage:
        stage.write({"n": [1]})
    committer.publish(ServerAccess(server.flight), [stage.id])
    committer.abort(ServerAccess(server.flight))
    with wings.stage(topic, f"{committer.prefix}b") as again:
        again.write({"n": [1]})
    committer.publish(ServerAccess(server.flight), [again.id])
    assert [row["n"] for row in rows_of(wings, topic)] == [1]
    assert stages_of(server, topic) == []


def test_of_two_attempts_of_a_task_the_one_that_is_named_is_published_and_the_other_deleted(
    server: RunningServer, wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    committer = BatchCommitter(f"job-{topic.uuid}", 1, f"{topic.uuid}.1.")
    staged: list[str] = []
    # As speculation leaves them, the driver having heard of one; and one of another batch.
    for attempt in ("1.0", "1.1", "10.0"):
        with wings.stage(topic, f"{topic.uuid}.{attempt}") as stage:
            stage.write({"n": [int(attempt[-1])]})
        staged.append(stage.id)
    committer.publish(ServerAccess(server.flight), staged[1:2])
    assert [row["n"] for row in rows_of(wings, topic)] == [1]
    assert stages_of(server, topic) == staged[2:]


def test_a_task_that_outlives_its_job_deletes_what_it_staged(
    spark: "SparkSession", server: RunningServer, wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    sink = Sink(ServerAccess(server.flight), topic)
    committer = BatchCommitter(f"job-{topic.uuid}", 0, f"{topic.uuid}.")

    def outlive(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        def rows() -> Iterator[pa.RecordBatch]:
            yield from batches
            committer.close(sink.server)  # As the driver does while the task still runs.
            committer.abort(sink.server)

        part = sink.stage(committer, rows(), repeated=False)
        yield pa.record_batch({"rows": [part.rows], "staged": [part.stage is not None]})

    frame = spark.range(0, 10, 1, 1).toDF("n").mapInArrow(outlive, "rows long, staged boolean")
    assert frame.collect() == [(0, False)]
    assert rows_of(wings, topic) == []
    assert stages_of(server, topic) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "earliest"}, "unknown option"),
        ({"txnAppId": "me"}, "'txnAppId' and 'txnVersion' go together"),
        ({"txnAppId": "me", "txnVersion": -1}, "txnVersion"),
    ],
)
def test_a_write_that_makes_no_sense_is_refused(
    spark: "SparkSession", new_topic: NewTopic, save: Save, options: dict[str, Any], message: str
) -> None:
    topic = new_topic()
    with pytest.raises(PySparkException, match=message):
        save(spark.range(1).toDF("n"), topic, **options)
    with pytest.raises(PySparkException, match=r"there is no topic|not-there"):
        save(spark.range(1).toDF("n"), replace(topic, name="not-there"))


@pytest.mark.parametrize("mode", ["overwrite", "errorifexists", "ignore"])
def test_modes_other_than_append_are_refused(
    spark: "SparkSession", server: RunningServer, new_topic: NewTopic, mode: str
) -> None:
    topic = new_topic()
    writer = spark.range(1).toDF("n").write.format("wings").option("endpoint", server.flight)
    with pytest.raises(PySparkException, match=r"(?i)append"):
        writer.mode(mode).save(topic.id)


def test_a_write_without_the_columns_that_came_later_fits(
    spark: "SparkSession", wings: Client, new_topic: NewTopic, save: Save, load: Load
) -> None:
    topic = new_topic("n: int32")
    frame = spark.createDataFrame([(1,)], "n int")
    planned = load(topic.id)
    save(frame, topic)
    wings.alter_schema(topic, add={"added": "string"}, widen={"n": "int64"})
    save(frame, topic)
    assert load(topic.id).schema.simpleString() == "struct<n:bigint,added:string>"
    rows = load(topic.id).collect()
    assert [(row["n"], row["added"]) for row in rows] == [(1, None), (1, None)]
    assert planned.schema.simpleString() == "struct<n:int>"
