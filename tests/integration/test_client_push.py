from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from arrow_strategies import arrow
from breakable_proxy import BreakableProxy
from fix_client import NewTopic, async_in_soak

from wings_client import Client
from wings_core.errors import (
    BatchTooLarge,
    InvalidArgument,
    OffsetMismatch,
    PartitionTypeMismatch,
    SchemaMismatch,
    TopicNotFound,
)

KEYED = ("key: string not null", "n: int64")


def all_rows(client: Client, topic: Any) -> list[dict[str, Any]]:
    return client.scan(topic).read_all().to_pylist()


def test_a_push_tells_what_every_partition_got(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic(*KEYED, partition_key="key")
    wings.push(topic, {"key": ["a"], "n": [0]})
    result = wings.push(topic, {"key": ["b", "a", "b"], "n": [1, 2, 3]})
    assert (result.rows, result.batches) == (3, 1)
    ranges = [(each.partition, each.start_offset, each.end_offset) for each in result.committed]
    assert ranges == [("b", 0, 1), ("a", 1, 1)]
    assert abs(datetime.now(UTC) - result.committed[0].timestamp) < timedelta(minutes=1)


def test_a_topic_is_named_by_its_id_its_full_name_or_its_description(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    for named in (topic, topic.name, topic.id):
        wings.push(named, {"n": [1]})
    assert wings.fetch(topic, offset=0).num_rows == 3


@async_in_soak
def test_a_large_table_is_cut_pipelined_and_kept_in_order(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    table = pa.table({"n": arrow.arange(0, 100_000)})
    result = wings.push(topic, table, batch_rows=1_000)
    assert (result.rows, result.batches) == (100_000, 100)
    (whole,) = result.committed
    assert (whole.start_offset, whole.end_offset) == (0, 99_999)
    assert wings.scan(topic).read_all().equals(table)


def test_frames_of_pandas_and_polars_arrive_as_the_topics_types(
    wings: Client, new_topic: NewTopic
) -> None:
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    topic = new_topic("key: string", "n: int32", "at: timestamp[us]", partition_key="key")
    rows = [
        {"key": "a", "n": 1, "at": datetime(2026, 11, 20, 12)},  # noqa: DTZ001 - has no zone.
        {"key": "b", "n": None, "at": None},
    ]
    frame = pandas.DataFrame(rows).astype({"key": "category"})
    assert frame.dtypes["n"] == "float64"
    wings.push(topic, frame)
    wings.push(topic, polars.DataFrame(rows).cast({"key": polars.Categorical}))
    found = wings.scan(topic).read_all()
    assert found.schema == topic.schema
    assert found.to_pylist() == [rows[0], rows[0], rows[1], rows[1]]


def test_what_was_fetched_can_be_pushed(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    wings.push(topic, {"n": [1, 2]})
    wings.push(topic, wings.scan(topic))
    wings.push(topic, wings.fetch(topic, offset=0))
    assert wings.scan(topic).read_all()["n"].to_pylist() == [1, 2] * 4


@async_in_soak
def test_a_generator_is_read_as_the_push_goes_on(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    committed_midway: list[int] = []

    def source() -> Iterator[Any]:
        for index in range(200):
            if index == 150:
                committed_midway.append(wings.partitions(topic)[0].next_offset)
            yield {"n": index}

    wings.push(topic, source(), batch_rows=1)
    assert committed_midway[0] >= 150 - 64
    assert wings.scan(topic).read_all()["n"].to_pylist() == list(range(200))


def test_rows_go_to_the_partition_that_is_named(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic("key: binary", "n: int64", partition_key="key")
    wings.push(topic, {"key": [b"\xff"], "n": [1]}, partition=b"\xff")
    assert wings.fetch(topic, b"\xff", offset=0).table["n"].to_pylist() == [1]
    with pytest.raises(InvalidArgument):
        wings.push(topic, {"key": [b"\x00"], "n": [1]}, partition=b"\xff")
    with pytest.raises(PartitionTypeMismatch):
        wings.push(topic, {"key": [b"\x00"], "n": [1]}, partition=7)


def test_rows_bear_the_timestamp_that_is_given(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    noon = datetime(2020, 11, 20, 12, tzinfo=UTC)
    result = wings.push(topic, {"n": [1, 2]}, timestamp=noon, batch_rows=1)
    assert [each.timestamp for each in result.committed] == [noon]
    found = wings.fetch(topic, offset=0, system_columns=True).table
    assert found["__timestamp"].to_pylist() == [noon, noon]


def test_a_push_expects_an_offset(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    wings.push(topic, {"n": [1, 2]}, expected_offset=0)
    with pytest.raises(OffsetMismatch) as refused:
        wings.push(topic, {"n": [3]}, expected_offset=1)
    assert refused.value.next_offset == 2
    wings.push(topic, {"n": [3, 4]}, expected_offset=2, batch_rows=1)
    assert wings.fetch(topic, offset=0).num_rows == 4


def test_a_refusal_tells_what_was_committed_before_it(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic(*KEYED, partition_key="key")
    data = pa.table({"key": ["a", "b", None, "c"], "n": [1, 2, 3, 4]})
    with pytest.raises(SchemaMismatch) as refused:
        wings.push(topic, data, batch_rows=1)
    assert refused.value.column == "key"
    assert refused.value.rows_committed == 2
    assert refused.value.batches_committed == 2
    assert len(all_rows(wings, topic)) == 2


def test_a_value_that_does_not_fit_tells_what_was_committed_before_it(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic("n: int8")
    with pytest.raises(SchemaMismatch, match="300") as refused:
        wings.push(topic, pa.table({"n": [1, 2, 300, 4]}), batch_rows=1)
    assert refused.value.column == "n"
    assert refused.value.rows_committed == 2
    assert len(all_rows(wings, topic)) == 2


def test_an_error_of_the_callers_source_is_raised_as_it_is(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()

    def source() -> Iterator[Any]:
        yield pa.table({"n": [1]})
        raise KeyError("the source broke")

    with pytest.raises(KeyError, match="the source broke"):
        wings.push(topic, source())
    assert all_rows(wings, topic) == [{"n": 1}]


def test_a_row_beyond_the_topics_bound_is_refused(wings: Client, new_topic_id: str) -> None:
    topic = wings.create_topic(new_topic_id, {"text": "string"}, config={"batch_bytes_max": 2000})
    wings.push(topic, {"text": ["x" * 500] * 10})
    with pytest.raises(BatchTooLarge):
        wings.push(topic, {"text": ["x" * 5000]})
    assert len(all_rows(wings, topic)) == 10


def test_nothing_pushed_is_nothing_committed(wings: Client, new_topic: NewTopic) -> None:
    result = wings.push(new_topic(), [])
    assert (result.committed, result.rows, result.batches) == ((), 0, 0)


def test_a_topic_that_is_not_there_is_named(wings: Client, new_topic: NewTopic) -> None:
    with pytest.raises(TopicNotFound, match="no-such-topic"):
        wings.push("no-such-topic", {"n": [1]})
    topic = new_topic()
    wings.delete_topic(topic)
    with pytest.raises(TopicNotFound):
        wings.push(topic, {"n": [1]})


@async_in_soak
def test_a_topic_created_again_takes_pushes_at_once(wings: Client, new_topic_id: str) -> None:
    for kind in ("int64", "string", "int64"):
        topic = wings.create_topic(new_topic_id, {"x": kind})
        for _ in range(3):
            wings.push(new_topic_id, {"x": [1] if kind == "int64" else ["one"]})
        assert len(all_rows(wings, topic)) == 3
        wings.delete_topic(topic)


@async_in_soak
def test_a_topic_that_was_made_anew_takes_nothing_that_is_meant_for_the_first(
    wings: Client, new_topic_id: str
) -> None:
    first = wings.create_topic(new_topic_id, {"n": "int64"})
    wings.push(first, {"n": [1]})
    wings.delete_topic(first)
    second = wings.create_topic(new_topic_id, {"n": "int64"})
    for _ in range(2):
        with pytest.raises(TopicNotFound, match="another of its name was made since"):
            wings.push(first, {"n": [2]})
    with pytest.raises(TopicNotFound, match="another"), wings.producer(first) as producer:
        producer.send({"n": [2]})
    with pytest.raises(TopicNotFound, match="another"), wings.stage(first, "anew") as stage:
        stage.write({"n": [2]})
    wings.push(new_topic_id, {"n": [3]})
    wings.push(second, {"n": [4]})
    assert wings.scan(second).read_all()["n"].to_pylist() == [3, 4]


@async_in_soak
def test_a_push_over_a_breaking_connection_writes_every_row_once(
    shaky: Client, proxy: BreakableProxy, new_topic: NewTopic
) -> None:
    topic = new_topic()

    def source() -> Iterator[Any]:
        for index in range(300):
            if index % 30 == 29:
                proxy.cut()
            yield {"n": index}

    result = shaky.push(topic, source(), batch_rows=3)
    assert result.rows == 300
    (whole,) = result.committed
    assert (whole.start_offset, whole.end_offset) == (0, 299)
    assert shaky.scan(topic).read_all()["n"].to_pylist() == list(range(300))
