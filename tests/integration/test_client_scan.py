import threading
import time
from typing import Any, cast

import pyarrow as pa
import pytest
from arrow_strategies import arrow
from breakable_proxy import BreakableProxy
from fix_client import Connect, NewTopic, async_in_soak
from fix_server import Trim
from server_processes import until_let_go

from wings_client import Client, Topic
from wings_core.errors import InvalidArgument, InvalidFilter, OffsetOutOfRange, TopicNotFound
from wings_core.partitions import UNPARTITIONED, Partition
from wings_server.testing import RunningServer

ROWS = 200_000


@pytest.fixture
def numbers(wings: Client, new_topic: NewTopic) -> Topic:
    """A topic of the numbers up to `ROWS`, in many batches."""
    topic = new_topic()
    wings.push(topic, pa.table({"n": arrow.arange(0, ROWS)}), batch_rows=5_000)
    return topic


def wait_for_scan_threads(seconds: float = 60.0) -> None:
    """Return once no thread works for a scan; they are told to end, and then take their time.

    A thread that is kept for other work has another name by then.
    """
    end = time.monotonic() + seconds
    while names := [each.name for each in threading.enumerate() if "wings-scan" in each.name]:
        assert time.monotonic() < end, names
        time.sleep(0.002)


@pytest.mark.parametrize("connect", ["sync"], indirect=True)
def test_a_scan_is_a_record_batch_reader_of_what_is_committed(
    wings: Client, numbers: Topic
) -> None:
    reader = wings.scan(numbers)
    assert isinstance(reader, pa.RecordBatchReader)
    assert reader.schema == numbers.schema
    wings.push(numbers, {"n": [-1]})
    assert reader.read_all()["n"].to_pylist() == list(range(ROWS))


@async_in_soak
def test_a_scan_reads_a_range(wings: Client, numbers: Topic) -> None:
    part = wings.scan(numbers, offset=7_001, end_offset=12_345).read_all()
    assert part["n"].to_pylist() == list(range(7_001, 12_345))
    assert wings.scan(numbers, offset="latest").read_all().num_rows == 0
    assert wings.scan(numbers, offset=ROWS - 1, end_offset=10 * ROWS).read_all().num_rows == 1


@async_in_soak
@pytest.mark.parametrize("parallel", [1, 4])
@pytest.mark.parametrize("system_columns", [False, True])
def test_a_topic_without_a_key_is_one_partition_by_its_name_too(
    wings: Client, numbers: Topic, parallel: int, *, system_columns: bool
) -> None:
    def read(topic: str | Topic) -> pa.Table:
        reader = wings.scan(topic, offset=7, parallel=parallel, system_columns=system_columns)
        return reader.read_all().sort_by("n")

    assert read(numbers.name).equals(read(numbers))


@async_in_soak
def test_a_scan_by_name_does_not_look_the_topic_up(
    wings: Client, numbers: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Client, "topic", None)
    assert wings.scan(numbers.name, parallel=2).read_all().num_rows == ROWS


def test_all_partitions_come_each_by_offset(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic("key: int64", "n: int64", partition_key="key")
    for start in (0, 100):
        keys = [10, 2, -1] * 20
        wings.push(topic, {"key": keys, "n": list(range(start, start + 60))})
    table: Any = wings.scan(topic, system_columns=True).read_all()
    assert table.column_names == ["key", "n", "__partition", "__offset", "__timestamp"]
    for key in (-1, 2, 10):
        rows = [row for row in table.to_pylist() if row["key"] == key]
        assert [row["__offset"] for row in rows] == list(range(40))
        assert {row["__partition"] for row in rows} == {str(key)}
    assert table.num_rows == 120
    assert wings.scan(topic, 2).read_all()["key"].to_pylist() == [2] * 40


@async_in_soak
@pytest.mark.parametrize("kept", [2, 0])
@pytest.mark.parametrize("parallel", [1, 4])
@pytest.mark.parametrize("is_keyed", [False, True])
def test_a_scan_from_the_earliest_skips_what_retention_takes_before_it_is_read(
    wings: Client, new_topic: NewTopic, trim: Trim, is_keyed: bool, parallel: int, kept: int
) -> None:
    """Of one partition as of many, also where nothing is left; from a number on it is an error."""
    topic = new_topic("n: int64", "key: int64", partition_key="key" if is_keyed else None)
    for number in range(4):
        wings.push(topic, {"n": [number], "key": [7]})
    value, partition = (7, Partition("7")) if is_keyed else (None, UNPARTITIONED)
    reader = wings.scan(topic, value, parallel=parallel)
    bounded = wings.scan(topic, value, end_offset=3)
    numbered = wings.scan(topic, value, offset=0, parallel=parallel)
    trim(topic, 4 - kept, partition)
    assert reader.read_all()["n"].to_pylist() == [2, 3][2 - kept :]
    assert bounded.read_all()["n"].to_pylist() == [2][2 - kept :]
    with pytest.raises(OffsetOutOfRange) as caught:
        numbered.read_all()
    assert caught.value.log_start_offset == 4 - kept


@async_in_soak
@pytest.mark.parametrize("parallel", [2, 3, 8])
def test_a_parallel_scan_reads_every_row_once(wings: Client, numbers: Topic, parallel: int) -> None:
    reader = wings.scan(numbers, parallel=parallel)
    seen: list[Any] = []
    for batch in reader:
        values: list[Any] = batch.column(0).to_pylist()
        assert values == list(range(values[0], values[-1] + 1))
        seen += values
    assert sorted(seen) == list(range(ROWS))
    wait_for_scan_threads()


def test_a_parallel_scan_of_many_partitions(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic("key: int64", "n: int64", partition_key="key")
    wings.push(topic, {"key": [n % 50 for n in range(1000)], "n": list(range(1000))})
    found = wings.scan(topic, parallel=4, columns=["n"]).read_all()
    assert sorted(cast("list[int]", found["n"].to_pylist())) == list(range(1000))


@async_in_soak
def test_columns_and_filters_are_pushed_down(wings: Client, numbers: Topic) -> None:
    found = wings.scan(numbers, filter="n % 1000 = 7", system_columns=True).read_all()
    assert found["__offset"].to_pylist() == list(range(7, ROWS, 1000))
    with pytest.raises(InvalidFilter):
        wings.scan(numbers, filter="no_such_column = 1")


@async_in_soak
def test_a_scan_that_is_let_go_of_ends_its_streams(
    server: RunningServer, wings: Client, numbers: Topic
) -> None:
    for parallel in (1, 4):
        reader = wings.scan(numbers, parallel=parallel)
        next(iter(reader))
        del reader
        until_let_go(server)
        wait_for_scan_threads()


@async_in_soak
def test_leaving_the_loop_ends_a_scan(server: RunningServer, wings: Client, numbers: Topic) -> None:
    for _ in wings.scan(numbers, parallel=2):
        break
    server.wait_for_calls(0)


@async_in_soak
def test_a_scan_that_is_never_read_opens_no_stream(
    server: RunningServer, wings: Client, numbers: Topic
) -> None:
    readers = [wings.scan(numbers, parallel=parallel) for parallel in (1, 4)]
    server.wait_for_calls(0)
    wait_for_scan_threads()
    del readers


@async_in_soak
@pytest.mark.parametrize("parallel", [1, 4])
def test_a_scan_goes_on_where_a_connection_broke(
    shaky: Client, proxy: BreakableProxy, numbers: Topic, parallel: int
) -> None:
    seen: list[Any] = []
    for number, batch in enumerate(shaky.scan(numbers, parallel=parallel)):
        seen += batch.column(0).to_pylist()
        if number % 10 == 3:
            proxy.cut()
    assert sorted(seen) == list(range(ROWS))
    if parallel == 1:
        assert seen == list(range(ROWS))


@async_in_soak
@pytest.mark.parametrize("parallel", [1, 4])
def test_an_error_midway_is_raised_as_what_it_is(
    wings: Client, new_topic: NewTopic, parallel: int
) -> None:
    topic = new_topic("text: string")
    rows = ["1"] * 299_999 + ["x"]
    wings.push(topic, pa.table({"text": rows}), batch_rows=1_000)
    reader = wings.scan(topic, filter="CAST(text AS BIGINT) = 1", parallel=parallel)
    with pytest.raises(InvalidFilter):
        reader.read_all()


@async_in_soak
def test_a_topic_that_is_not_there_is_told_by_the_call(wings: Client, numbers: Topic) -> None:
    with pytest.raises(TopicNotFound):
        wings.scan("no-such-topic")
    with pytest.raises(InvalidArgument, match="parallel"):
        wings.scan(numbers, parallel=0)


def test_an_empty_topic_is_an_empty_reader(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic("key: int64", partition_key="key")
    for parallel in (1, 4):
        reader = wings.scan(topic, parallel=parallel)
        assert reader.schema == topic.schema
        assert reader.read_all().num_rows == 0


@async_in_soak
def test_a_slow_reader_outlasts_the_deadline_of_its_stream(
    server: RunningServer, wings: Client, numbers: Topic, connect: Connect
) -> None:
    pause = threading.Event()
    with connect(server.flight, timeout=1.0) as client:
        seen: list[Any] = []
        for number, batch in enumerate(client.scan(numbers)):
            seen += batch.column(0).to_pylist()
            if number < 2:
                pause.wait(1.1)
        assert seen == list(range(ROWS))


@pytest.mark.parametrize("connect", ["sync"], indirect=True)
def test_duckdb_and_polars_read_a_scan(wings: Client, numbers: Topic) -> None:
    polars = pytest.importorskip("polars")
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        connection.register("scanned", wings.scan(numbers))
        total = connection.execute("SELECT sum(n) FROM scanned").fetchall()
    assert total == [(sum(range(ROWS)),)]
    assert polars.DataFrame(wings.scan(numbers))["n"].sum() == sum(range(ROWS))


@async_in_soak
def test_the_tickets_of_a_scan_are_read_each_by_itself(
    server: RunningServer, wings: Client, numbers: Topic
) -> None:
    schema, tickets = wings.scan_tickets(numbers, splits=3)
    seen: list[Any] = []
    for ticket in tickets:
        reached = ticket.offset
        for batch, start_offset, end_offset in wings.read_ticket(ticket):
            assert (start_offset, batch.num_rows) == (reached, end_offset - start_offset + 1)
            assert batch.schema == schema
            reached = end_offset + 1
            seen += batch.column(0).to_pylist()
        assert reached == ticket.end_offset
    assert seen == list(range(ROWS))
    for _ in wings.read_ticket(tickets[0]):
        break
    server.wait_for_calls(0)
