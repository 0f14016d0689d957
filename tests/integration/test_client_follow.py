import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from breakable_proxy import BreakableProxy, breakable
from fix_client import EAGER, Connect, NewTopic, async_in_soak

import wings_client
from wings_client import Chunk, Client, Follow, Retry
from wings_core.errors import TopicNotFound, Unavailable
from wings_server.testing import RunningServer, server_process


class Reader:
    """Reads a follow on a thread, up to a number of rows."""

    def __init__(self, follow: Follow, rows: int) -> None:
        self.chunks: list[Chunk] = []
        self.error: BaseException | None = None
        self._rows = rows
        self._follow = follow
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        seen = 0
        try:
            while seen < self._rows:
                self.chunks.append(next(self._follow))
                seen += self.chunks[-1].batch.num_rows
        except StopIteration:
            return
        except BaseException as error:  # noqa: BLE001 - looked at by the test.
            self.error = error

    def join(self) -> list[Any]:
        """Wait for the end, and return the values of the first column."""
        self._thread.join(100)
        assert not self._thread.is_alive()
        return [value for chunk in self.chunks for value in chunk.batch.column(0).to_pylist()]


@async_in_soak
def test_a_follow_hands_on_what_is_there_and_what_comes(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    wings.push(topic, {"n": [0, 1]})
    follow = wings.follow(topic)
    batch, start_offset, end_offset = next(follow)
    assert (batch.column(0).to_pylist(), start_offset, end_offset) == ([0, 1], 0, 1)
    reader = Reader(follow, 2)
    wings.push(topic, {"n": [2]})
    wings.push(topic, {"n": [3]})
    assert reader.join() == [2, 3]
    assert follow.next_offset == 4


def test_a_follow_ends_at_its_deadline(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    wings.push(topic, {"n": [0]})
    chunks = list(wings.follow(topic, timeout=0.2))
    assert [chunk.end_offset for chunk in chunks] == [0]


@async_in_soak
def test_a_follow_begins_at_the_end_or_at_a_time_as_of_the_call(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    noon = datetime(2020, 11, 20, 12, tzinfo=UTC)
    wings.push(topic, {"n": [0]}, timestamp=noon)
    latest = wings.follow(topic, offset="latest")
    wings.push(topic, {"n": [1]}, timestamp=noon + timedelta(hours=2))
    assert next(latest).start_offset == 1
    assert next(wings.follow(topic, offset=noon + timedelta(hours=1))).start_offset == 1


def test_a_follow_prunes_and_filters(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic("a: int64", "b: string")
    wings.push(topic, {"a": [0, 1, 2, 3], "b": ["x", "y", "x", "y"]})
    follow = wings.follow(topic, columns=["a"], filter="b = 'y'", system_columns=True)
    chunk = next(follow)
    assert chunk.batch.schema.names == ["a", "__offset", "__timestamp"]
    assert chunk.batch.column(0).to_pylist() == [1, 3]
    assert (chunk.start_offset, chunk.end_offset) == (0, 3)


def test_leaving_the_loop_ends_a_follow_on_the_server(
    server: RunningServer, wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    wings.push(topic, {"n": [0]})
    for _ in wings.follow(topic):
        break
    server.wait_for_calls(0)
    with wings.follow(topic) as follow:
        next(follow)
        server.wait_for_calls(1)
    server.wait_for_calls(0)


def test_closing_ends_a_follow_for_the_thread_that_waits_in_it(
    server: RunningServer, wings: Client, new_topic: NewTopic
) -> None:
    follow = wings.follow(new_topic())
    reader = Reader(follow, 1)
    server.wait_for_calls(1)
    follow.close()
    assert reader.join() == []
    assert reader.error is None
    server.wait_for_calls(0)
    assert list(follow) == []


@async_in_soak
def test_a_follow_that_is_never_read_opens_no_stream(
    server: RunningServer, wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    waits = server.server.log.fetcher.waits
    begun = waits.begun
    with wings.follow(topic):
        # While others are served, one that opened late would wait at the end of the topic.
        for number in range(3):
            wings.push(topic, {"n": [number]})
            assert wings.scan(topic).read_all().num_rows == number + 1
        server.wait_for_calls(0)
    assert waits.begun == begun


@async_in_soak
def test_a_follow_outlasts_the_deadlines_of_its_streams(
    server: RunningServer, wings: Client, new_topic: NewTopic, connect: Connect
) -> None:
    topic = new_topic()
    pause = threading.Event()
    with connect(server.flight, timeout=0.1) as client:
        reader = Reader(client.follow(topic, offset=0), 10)  # Asks nothing in so short a time.
        for number in range(10):
            wings.push(topic, {"n": [number]})
            pause.wait(0.08)
        assert reader.join() == list(range(10))


@async_in_soak
def test_a_breaking_connection_neither_loses_nor_doubles_anything(
    shaky: Client, proxy: BreakableProxy, wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    reader = Reader(shaky.follow(topic), 200)
    with wings.producer(topic) as producer:
        for number in range(200):
            producer.send({"n": [number]}).result()
            if number % 20 == 19:
                proxy.cut()
    assert reader.join() == list(range(200))
    ends = [chunk.end_offset for chunk in reader.chunks]
    starts = [chunk.start_offset for chunk in reader.chunks]
    assert starts == [0, *(end + 1 for end in ends[:-1])]


@async_in_soak
def test_a_killed_and_restarted_server_neither_loses_nor_doubles_anything(
    tmp_path: Path, connect: Connect
) -> None:
    with (
        server_process(tmp_path) as server,
        breakable(server.flight) as proxy,
        connect(proxy.endpoint, retry=EAGER) as client,
    ):
        client.create_topic("crash", {"n": "int64"})
        reader = Reader(client.follow("crash", system_columns=True), 100)
        client.push("crash", {"n": list(range(50))}, batch_rows=1)
        server.kill()
        with server_process(tmp_path) as again:
            proxy.retarget(again.flight)
            client.push("crash", {"n": list(range(50, 100))}, batch_rows=1)
            assert reader.join() == list(range(100))


@async_in_soak
def test_a_server_that_stays_away_ends_a_follow_in_bounded_time(
    proxy: BreakableProxy, wings: Client, new_topic: NewTopic, connect: Connect
) -> None:
    topic = new_topic()
    wings.push(topic, {"n": [0]})
    retry = Retry(delay=0.01, delay_max=0.05, reconnect_seconds=0.3)
    with connect(proxy.endpoint, retry=retry) as client:
        follow = client.follow(topic)
        next(follow)
        proxy.stop_listening()
        with pytest.raises(Unavailable):
            next(follow)


def test_a_deleted_topic_ends_a_follow(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    reader = Reader(wings.follow(topic), 1)
    wings.delete_topic(topic)
    reader.join()
    assert isinstance(reader.error, TopicNotFound)


def test_the_schema_of_a_follow_does_not_wait_for_another_ones_server(
    server: RunningServer, proxy: BreakableProxy
) -> None:
    asking = threading.Event()
    with (
        wings_client.connect(server.flight) as client,
        wings_client.connect(proxy.endpoint, retry=EAGER) as shaky,
    ):
        topic = client.create_topic("schema", {"n": "int64"})
        slow, quick = shaky.follow(topic), client.follow(topic)
        proxy.stall()

        def ask() -> None:
            asking.set()
            assert slow.schema == topic.schema

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            asking.wait()
            time.sleep(0.1)  # It is in the call, most likely.
            assert quick.schema == topic.schema
            assert thread.is_alive()
        finally:
            proxy.go_on()
            thread.join()


@async_in_soak
def test_a_follow_of_one_partition_of_many(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic("key: string", partition_key="key")
    follow = wings.follow(topic, "a", offset="latest")
    reader = Reader(follow, 1)
    wings.push(topic, {"key": ["b", "a"]})
    assert reader.join() == ["a"]
