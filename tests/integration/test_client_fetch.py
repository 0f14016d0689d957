import time
from datetime import UTC, datetime, timedelta
from threading import Thread, Timer
from typing import Any

import pyarrow as pa
import pytest
from fix_client import NewTopic, async_in_soak

from wings_client import Client, EndReason
from wings_core.errors import (
    InvalidFilter,
    InvalidTicket,
    PartitionNotAllowed,
    TopicNotFound,
)
from wings_server.testing import RunningServer


def test_a_fetch_returns_rows_and_where_they_lie(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    wings.push(topic, {"n": [10, 11, 12, 13]})
    result = wings.fetch(topic, offset=1, max_messages=2)
    assert result.table.to_pydict() == {"n": [11, 12]}
    assert result.schema == topic.schema
    assert (result.start_offset, result.end_offset, result.next_offset) == (1, 2, 3)
    assert (result.log_end_offset, result.end) == (4, EndReason.MAX_MESSAGES)
    assert (result.num_rows, len(result), len(result.batches)) == (2, 2, 1)


def test_a_fetch_that_finds_nothing_waits_and_is_empty(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    began = time.monotonic()
    result = wings.fetch(topic, offset=5, timeout=0.2)
    assert time.monotonic() - began >= 0.2
    assert result.table.num_rows == 0
    assert result.table.schema == topic.schema
    assert (result.start_offset, result.end_offset, result.next_offset) == (5, None, 5)
    assert result.end == EndReason.DEADLINE
    assert wings.fetch(topic, offset="latest", timeout=0).start_offset == 0


def test_a_waiting_fetch_is_woken_by_a_push(
    server: RunningServer, wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic("key: string", "n: int64", partition_key="key")

    def push() -> None:
        server.wait_for_waiting(1)
        wings.push(topic, {"key": ["a"], "n": [1]})

    pushing = Thread(target=push)
    pushing.start()
    result = wings.fetch(topic, "a", offset="latest", timeout=100)
    pushing.join()
    assert result.table["n"].to_pylist() == [1]
    assert result.start_offset == 0


def test_a_fetch_begins_at_a_time(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    noon = datetime(2020, 11, 20, 12, tzinfo=UTC)
    for hour in range(3):
        wings.push(topic, {"n": [hour]}, timestamp=noon + timedelta(hours=hour))
    result = wings.fetch(topic, offset=noon + timedelta(minutes=1))
    assert result.table["n"].to_pylist() == [1, 2]
    assert result.start_offset == 1


def test_columns_filters_and_system_columns(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic("a: int64", "b: string", "c: double")
    wings.push(topic, {"a": [1, 2, 3], "b": ["x", "y", "x"], "c": [0.1, 0.2, 0.3]})
    result = wings.fetch(topic, offset=0, columns=["c", "a"], filter="b = 'x'", system_columns=True)
    table: Any = result.table
    assert table.column_names == ["c", "a", "__offset", "__timestamp"]
    assert table["a"].to_pylist() == [1, 3]
    assert table["__offset"].to_pylist() == [0, 2]
    assert (result.start_offset, result.end_offset) == (0, 2)


def test_a_result_is_an_arrow_stream(wings: Client, new_topic: NewTopic) -> None:
    polars = pytest.importorskip("polars")
    duckdb = pytest.importorskip("duckdb")
    topic = new_topic()
    wings.push(topic, {"n": [1, 2, 3]})
    result = wings.fetch(topic, offset=0)
    assert pa.table(result).equals(result.table)
    assert polars.DataFrame(result)["n"].sum() == 6
    assert duckdb.sql("SELECT sum(n) FROM result").fetchall() == [(6,)]
    assert int(result.table.to_pandas()["n"].sum()) == 6


def test_bad_requests_name_what_is_wrong(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    bad: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"offset": 2**63}, InvalidTicket, "offset"),
        ({"offset": "newest"}, InvalidTicket, "offset"),
        ({"offset": 0, "min_messages": 0}, InvalidTicket, "min_messages"),
        ({"offset": 0, "min_messages": 2, "max_messages": 1}, InvalidTicket, "min_messages"),
        ({"offset": 0, "timeout": 301}, InvalidTicket, "timeout_ms"),
        ({"offset": 0, "columns": ["zz"]}, InvalidTicket, "zz"),
        ({"offset": 0, "columns": []}, InvalidTicket, "columns"),
        ({"offset": 0, "filter": "n +"}, InvalidFilter, "filter"),
        ({"offset": 0, "partition": "a"}, PartitionNotAllowed, "partition"),
    ]
    for keys, error, text in bad:
        with pytest.raises(error, match=text):
            wings.fetch(topic, **keys)
    with pytest.raises(TopicNotFound):
        wings.fetch("no-such-topic", offset=0)


def test_a_partition_that_is_not_there_is_empty(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic("key: int64", partition_key="key")
    assert wings.fetch(topic, 7, offset=0, timeout=0).end_offset is None


@async_in_soak
def test_a_topic_deleted_during_the_wait_ends_it(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    timer = Timer(0.1, lambda: wings.delete_topic(topic))
    timer.start()
    with pytest.raises(TopicNotFound):
        wings.fetch(topic, offset=0, timeout=30)
    timer.join()
