"""Many partitions in one stream, by the client: fetch, scan and follow."""

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from breakable_proxy import BreakableProxy, breakable
from fix_client import EAGER, Connect, NewTopic, async_in_soak
from fix_server import Trim

from wings_client import Client, EndReason, RangesBatch, Topic
from wings_client.ranges import read_ranges
from wings_core.contracts.reads import PartitionEntry
from wings_core.contracts.tickets import ScanTicket
from wings_core.errors import InvalidTicket, OffsetOutOfRange, PartitionNotAllowed
from wings_core.partitions import Partition
from wings_server.testing import RunningServer, server_process

KEYED = ("key: int64", "n: int64")


@pytest.fixture
def topic(new_topic: NewTopic) -> Topic:
    return new_topic(*KEYED, partition_key="key")


def push(client: Client, topic: Any, rows: dict[int, list[int]]) -> None:
    """Push values of `n` by key, as one batch."""
    keys = [key for key, values in rows.items() for _ in values]
    client.push(topic, {"key": keys, "n": [value for values in rows.values() for value in values]})


class Seen:
    """What was read, checked as it comes: each offset once, in order."""

    def __init__(self) -> None:
        self.rows: dict[Any, list[Any]] = defaultdict(list)
        self.reached: dict[Any, int] = {}

    @property
    def total(self) -> int:
        return sum(map(len, self.rows.values()))

    def take(self, chunk: RangesBatch) -> None:
        assert sum(each.rows for each in chunk.ranges) == chunk.batch.num_rows
        for batch, partition, start_offset, end_offset in chunk.parts():
            assert start_offset == self.reached.get(partition, start_offset)
            self.reached[partition] = end_offset + 1
            assert set(batch.column("key").to_pylist()) <= {partition}
            self.rows[partition] += batch.column("n").to_pylist()

    def take_rows(self, chunks: Iterator[RangesBatch], rows: int) -> dict[Any, list[Any]]:
        """Read until there are so many rows in all."""
        while self.total < rows:
            self.take(next(chunks))
        return dict(self.rows)


def seen(chunks: Iterable[RangesBatch]) -> dict[Any, list[Any]]:
    found = Seen()
    for chunk in chunks:
        found.take(chunk)
    return dict(found.rows)


def values(table: Any) -> dict[Any, list[Any]]:
    """Return the values of `n` by key, in the order in which they came."""
    found: dict[Any, list[Any]] = defaultdict(list)
    for key, value in zip(table["key"].to_pylist(), table["n"].to_pylist(), strict=True):
        found[key].append(value)
    return dict(found)


# Fetch.


@async_in_soak
@pytest.mark.parametrize("by_name", [False, True])
def test_a_fetch_without_a_partition_is_of_all(wings: Client, topic: Topic, by_name: bool) -> None:
    push(wings, topic, {1: [10, 11], 2: [20]})
    result = wings.fetch(topic.name if by_name else topic, offset=0)
    assert values(result.table) == {1: [10, 11], 2: [20]}
    assert result.next_offsets == result.log_end_offsets == {1: 2, 2: 1}
    assert result.end == EndReason.MIN_MESSAGES
    assert sum(each.rows for ranges in result.ranges for each in ranges) == 3
    with pytest.raises(ValueError, match="next_offsets"):
        _ = result.next_offset


def test_fetches_of_all_go_on_from_each_other_and_see_what_is_born(
    wings: Client, topic: Topic
) -> None:
    push(wings, topic, {1: [10], 2: [20]})
    first = wings.fetch(topic, offset={})
    push(wings, topic, {2: [21], 3: [30, 31]})
    second = wings.fetch(topic, offset=first.next_offsets, min_messages=3)
    assert values(second.table) == {2: [21], 3: [30, 31]}
    third = wings.fetch(topic, offset=second.next_offsets, timeout=0)
    assert (third.num_rows, third.next_offsets) == (0, {1: 1, 2: 2, 3: 2})


@async_in_soak
def test_the_limits_are_those_of_the_whole_fetch(wings: Client, topic: Topic) -> None:
    push(wings, topic, {key: list(range(10)) for key in range(5)})
    offsets: dict[Any, int] = {}
    found: dict[Any, list[Any]] = defaultdict(list)
    for _ in range(10):
        result = wings.fetch(topic, offset=offsets, max_messages=5)
        assert (result.num_rows, result.end) == (5, EndReason.MAX_MESSAGES)
        offsets = result.next_offsets
        for key, some in values(result.table).items():
            found[key] += some
    assert found == {key: list(range(10)) for key in range(5)}


def test_a_fetch_of_some_waits_for_these_alone(wings: Client, topic: Topic) -> None:
    push(wings, topic, {1: [10, 11], 2: [20]})
    result = wings.fetch(topic, offset={1: 1}, partitions=[1, 7])
    assert values(result.table) == {1: [11]}
    pusher = threading.Timer(0.1, lambda: push(wings, topic, {2: [21], 7: [70]}))
    pusher.start()
    result = wings.fetch(topic, offset=result.next_offsets, partitions=[1, 7], timeout=30)
    pusher.join()
    assert values(result.table) == {7: [70]}


def test_what_names_no_partitions_is_refused(wings: Client, topic: Topic) -> None:
    reads: list[Any] = [wings.fetch, wings.scan, wings.follow]
    bad: list[Any] = [{"partition": 1, "partitions": [1]}, {"partitions": []}]
    for read in reads:
        for keys in bad:
            with pytest.raises(InvalidTicket, match="partition"):
                read(topic, offset=0, **keys)


def test_of_a_topic_without_a_key_all_is_its_one_partition(
    wings: Client, new_topic: NewTopic
) -> None:
    plain = new_topic()
    wings.push(plain, {"n": [0, 1]})
    assert wings.fetch(plain, offset=0).next_offset == 2
    assert wings.fetch(plain, offset=0, partitions="all").next_offsets == {None: 2}
    assert wings.scan(plain, partitions="all").read_all()["n"].to_pylist() == [0, 1]
    assert wings.scan(plain, system_columns=True).schema.names == ["n", "__offset", "__timestamp"]
    with pytest.raises(PartitionNotAllowed):
        wings.fetch(plain, offset=0, partitions=[1])


# Scan.


@async_in_soak
def test_a_scan_of_some_partitions(wings: Client, topic: Topic) -> None:
    push(wings, topic, {key: [key * 10, key * 10 + 1] for key in range(5)})
    found = wings.scan(topic, partitions=[1, 3, 99], offset=1)
    assert values(found.read_all()) == {1: [11], 3: [31]}


@async_in_soak
@pytest.mark.parametrize("parallel", [1, 3])
def test_a_scan_of_many_opens_few_streams_and_goes_on_where_a_connection_broke(
    shaky: Client, proxy: BreakableProxy, wings: Client, topic: Topic, parallel: int
) -> None:
    expected: dict[int, list[int]] = {key: [] for key in range(200)}
    for start in range(0, 1_000, 100):
        rows = {key: list(range(start, start + 100)) for key in expected}
        push(wings, topic, rows)
        for key, some in rows.items():
            expected[key] += some
    reader = shaky.scan(topic, parallel=parallel)
    found: dict[Any, list[Any]] = defaultdict(list)
    for number, batch in enumerate(reader):
        for key, some in values(batch).items():
            found[key] += some
        if number in (0, 2):
            proxy.cut()
    if parallel > 1:  # In no order between streams.
        found = defaultdict(list, {key: sorted(some) for key, some in found.items()})
    assert found == expected


@pytest.mark.parametrize("connect", ["sync"], indirect=True)
def test_ranges_are_read_to_their_ends_over_broken_connections(
    shaky: Client, proxy: BreakableProxy, wings: Client, topic: Topic
) -> None:
    push(wings, topic, {key: list(range(3_000)) for key in range(40)})
    entries = tuple(PartitionEntry(key, key, 2_000) for key in range(40))
    found = Seen()
    for number, chunk in enumerate(
        read_ranges(shaky, ScanTicket(topic=topic.name, partitions=entries))
    ):
        found.take(chunk)
        if number % 2 == 0:
            proxy.cut()
    assert found.rows == {key: list(range(key, 2_000)) for key in range(40)}


# Follow.


@async_in_soak
def test_a_follow_of_all_takes_in_what_is_born(wings: Client, topic: Topic) -> None:
    push(wings, topic, {1: [10]})
    found = Seen()
    with wings.follow(topic, partitions="all") as follow:
        found.take_rows(follow, 1)
        push(wings, topic, {2: [20]})
        found.take_rows(follow, 2)
        push(wings, topic, {1: [11], 3: [30]})
        assert found.take_rows(follow, 4) == {1: [10, 11], 2: [20], 3: [30]}
        assert follow.next_offsets == {1: 2, 2: 1, 3: 1}


def test_a_follow_without_a_partition_is_of_all(wings: Client, topic: Topic) -> None:
    push(wings, topic, {1: [10], 2: [20]})
    follow: Any = wings.follow(topic, timeout=0.2)
    assert seen(follow) == {1: [10], 2: [20]}


def test_a_follow_of_some_is_of_these_alone(wings: Client, topic: Topic) -> None:
    push(wings, topic, {1: [10, 11], 2: [20], 3: [30]})
    follow = wings.follow(topic, partitions=[1, 3, 9], offset={1: 1})
    found = Seen()
    found.take_rows(follow, 2)
    push(wings, topic, {2: [21], 9: [90]})
    assert found.take_rows(follow, 3) == {1: [11], 3: [30], 9: [90]}
    follow.close()


@async_in_soak
def test_a_follow_begins_at_the_ends_or_at_a_time_as_of_the_call(
    wings: Client, topic: Topic
) -> None:
    noon = datetime(2020, 11, 20, 12, tzinfo=UTC)
    for hour in range(3):
        wings.push(topic, {"key": [1, 2], "n": [hour] * 2}, timestamp=noon + timedelta(hours=hour))
    latest = wings.follow(topic, partitions="all", offset="latest")
    since = wings.follow(topic, partitions="all", offset=noon + timedelta(hours=1.5))
    push(wings, topic, {2: [7], 3: [8]})
    assert Seen().take_rows(latest, 2) == {2: [7], 3: [8]}
    assert Seen().take_rows(since, 4) == {1: [2], 2: [2, 7], 3: [8]}


def test_a_follow_goes_on_from_the_offsets_of_another(wings: Client, topic: Topic) -> None:
    push(wings, topic, {1: [10], 2: [20]})
    with wings.follow(topic, partitions="all") as follow:
        Seen().take_rows(follow, 2)
        offsets = follow.next_offsets
    push(wings, topic, {1: [11], 3: [30]})
    with wings.follow(topic, partitions="all", offset=offsets) as follow:
        assert Seen().take_rows(follow, 2) == {1: [11], 3: [30]}


@async_in_soak
def test_a_follow_outlasts_the_deadlines_of_its_streams(
    server: RunningServer, wings: Client, topic: Topic, connect: Connect
) -> None:
    pause = threading.Event()
    with connect(server.flight, timeout=0.1) as client:
        found = Seen()
        follow = client.follow(topic, partitions="all", offset={})  # It asks nothing yet.
        for number in range(6):
            push(wings, topic, {0: [number], number + 1: [number]})
            pause.wait(0.08)
        assert found.take_rows(follow, 12)[0] == list(range(6))


@async_in_soak
def test_breaking_connections_neither_lose_nor_double_anything(
    shaky: Client, proxy: BreakableProxy, wings: Client, topic: Topic
) -> None:
    follow = shaky.follow(topic, partitions="all")
    found = Seen()
    for number in range(40):
        push(wings, topic, {0: [number], number % 7 + 1: [number], 100 + number: [number]})
        if number % 5 == 4:
            proxy.cut()
        if number % 3 == 0:
            found.take(next(follow))
    rows = found.take_rows(follow, 120)
    assert rows[0] == list(range(40))
    assert all(rows[100 + number] == [number] for number in range(40))
    assert all(rows[key] == list(range(key - 1, 40, 7)) for key in range(1, 8))


@async_in_soak
def test_a_killed_and_restarted_server_neither_loses_nor_doubles_anything(
    tmp_path: Path, connect: Connect
) -> None:
    with (
        server_process(tmp_path) as server,
        breakable(server.flight) as proxy,
        connect(proxy.endpoint, retry=EAGER) as client,
    ):
        topic = client.create_topic("crash", {"key": "int64", "n": "int64"}, "key")
        follow = client.follow(topic, partitions="all", system_columns=True)
        found = Seen()
        push(client, topic, {key: [0, 1] for key in range(20)})
        found.take_rows(follow, 40)
        server.kill()
        with server_process(tmp_path) as again:
            proxy.retarget(again.flight)
            push(client, topic, {key: [2] for key in range(30)})
            rows = found.take_rows(follow, 70)
            assert rows == {key: [0, 1, 2] if key < 20 else [2] for key in range(30)}
            follow.close()


@async_in_soak
def test_retention_that_passes_while_a_connection_is_lost(
    shaky: Client, proxy: BreakableProxy, wings: Client, topic: Topic, trim: Trim
) -> None:
    for number in range(4):
        push(wings, topic, {1: [number], 2: [number]})
    lenient, strict = Seen(), Seen()
    earliest = shaky.follow(topic, partitions="all")
    lenient.take_rows(earliest, 8)
    numbered = shaky.follow(topic, partitions="all", offset={1: 4, 2: 4})
    push(wings, topic, {3: [0]})
    strict.take_rows(numbered, 1)
    proxy.stop_listening()
    for number in range(4, 8):
        push(wings, topic, {1: [number], 2: [number]})
    trim(topic, 6, Partition("1"))
    trim(topic, 7, Partition("2"))
    proxy.listen_again()
    lenient.reached.clear()
    assert lenient.take_rows(earliest, 12) == {
        1: [0, 1, 2, 3, 6, 7], 2: [0, 1, 2, 3, 7], 3: [0]
    }  # fmt: skip
    with pytest.raises(OffsetOutOfRange) as caught:
        strict.take_rows(numbered, 2)
    assert caught.value.facts["partition"] in (1, 2)


@async_in_soak
def test_leaving_the_loop_ends_a_follow_on_the_server(
    server: RunningServer, wings: Client, topic: Topic
) -> None:
    push(wings, topic, {1: [10]})
    with wings.follow(topic, partitions="all") as follow:
        next(follow)
        server.wait_for_calls(1)
    server.wait_for_calls(0)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("connect", ["sync"], indirect=True)
def test_100000_partitions_are_scanned_followed_and_consumed(
    server: RunningServer, connect: Connect, new_topic: NewTopic
) -> None:
    topic = new_topic(*KEYED, partition_key="key")
    partitions = 100_000
    with connect(server.flight, timeout=120.0) as client:
        for first in range(0, partitions, 10_000):
            keys = list(range(first, first + 10_000))
            client.push(topic, {"key": keys, "n": keys})
        assert len(client.resolve_offsets(topic, "latest")) == partitions
        assert client.scan(topic, columns=["n"]).read_all().num_rows == partitions
        consumer = client.consumer("reader", topic, timeout=0.5)
        with consumer:
            rows = sum(taken.batch.num_rows for taken in consumer)
        assert rows == partitions
        # Its offsets, and so the positions of the next one's ticket, are all of them.
        assert len(client.committed_offsets("reader", topic)) == partitions
        client.push(topic, {"key": [7, partitions], "n": [1, 2]})
        with client.consumer("reader", topic, timeout=0.5) as again:
            found = [each.partition for taken in again for each in taken.ranges]
        assert len(found) == 2
        assert set(found) == {7, partitions}
