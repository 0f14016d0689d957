"""Gather over partitions of real topics."""

import threading
from typing import Any, Literal

import pytest
from fix_calls import Calls
from fix_client import NewTopic, async_in_soak
from fix_server import Trim

from wings_client import Client
from wings_client.gather import GatherReason, ManyReply, Request, _sources
from wings_core.errors import InvalidArgument, InvalidTicket, TopicNotFound
from wings_core.partitions import UNPARTITIONED, Partition
from wings_server.testing import RunningServer

KEYED = ("key: int64", "n: int64")


def test_replies_of_all_partitions_come_with_their_source(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic(*KEYED, partition_key="key")
    wings.push(topic, {"key": [1, 2, 2], "n": [10, 20, 21]})
    requests = [
        Request(topic.name, key, offset=0, kind=kind)
        for key in (1, 2)
        for kind in ("fetch", "scan")
    ]
    gather = wings.gather(requests, timeout=60)
    found = {
        (reply.request.partition, reply.request.kind): reply.batch.column("n").to_pylist()
        for reply in gather
    }
    assert found == {
        (1, "fetch"): [10],
        (1, "scan"): [10],
        (2, "fetch"): [20, 21],
        (2, "scan"): [20, 21],
    }
    assert gather.end is not None
    assert gather.end.reason == GatherReason.COMPLETE
    assert [each.next_offset for each in gather.end.sources] == [1, 1, 2, 2]


def test_the_end_chunk_of_an_idle_partition_is_no_reply(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    gather = wings.gather([Request(topic.name, offset="latest", timeout=0.1)], timeout=60)
    assert list(gather) == []
    assert gather.end is not None
    assert gather.end.reason == GatherReason.COMPLETE
    assert gather.end.sources[0].next_offset == 0


def test_rows_that_the_filter_dropped_are_not_read_again(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    wings.push(topic, {"n": [1, 2, 3]})
    gather = wings.gather([Request(topic.name, offset=0, filter="n > 3", timeout=0.1)], timeout=60)
    assert list(gather) == []
    assert gather.end is not None
    assert gather.end.sources[0].next_offset == 3


@async_in_soak
def test_a_push_wakes_a_gather_that_waits(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic(*KEYED, partition_key="key")
    requests = [Request(topic.name, key, offset=0) for key in range(10)]
    gather = wings.gather(requests, timeout=30, max_messages=1)
    pusher = threading.Timer(0.1, lambda: wings.push(topic, {"key": [7], "n": [1]}))
    pusher.start()
    (reply,) = gather
    pusher.join()
    assert reply.request.partition == 7


@async_in_soak
def test_more_partitions_than_threads_are_all_waited_for(
    server: RunningServer, wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic(*KEYED, partition_key="key")
    requests = [Request(topic.name, key, offset=0) for key in range(200)]
    gather = wings.gather(requests, timeout=30, max_messages=1)
    pusher = threading.Timer(0.1, lambda: wings.push(topic, {"key": [199], "n": [1]}))
    pusher.start()
    (reply,) = gather
    pusher.join()
    assert reply.request.partition == 199
    server.wait_for_calls(0)


def test_a_topic_that_is_not_there_is_a_server_error(wings: Client) -> None:
    gather = wings.gather([Request("no-such-topic")])
    assert list(gather) == []
    assert gather.end is not None
    assert gather.end.reason == GatherReason.SERVER_ERROR
    assert isinstance(gather.end.error, TopicNotFound)
    with pytest.raises(InvalidTicket, match="offset"):
        wings.gather([Request("no-such-topic", offset=2**63)])


@async_in_soak
def test_time_spent_with_a_reply_does_not_end_the_wait_of_others(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic(*KEYED, partition_key="key")
    wings.push(topic, {"key": [1], "n": [1]})
    requests = [Request(topic.name, key, offset=0) for key in (1, 2)]
    pause = threading.Event()
    values: list[object] = []
    gather = wings.gather(requests, timeout=3.0)
    for reply in gather:
        values.append(reply.request.partition)
        if len(values) == 1:
            # Longer than the total, and than a server waits for it.
            pause.wait(3.5)
            wings.push(topic, {"key": [2], "n": [2]})
    assert values == [1, 2]
    assert gather.end is not None
    assert gather.end.reason == GatherReason.COMPLETE


@async_in_soak
def test_what_differs_between_like_requests_is_sent_as_it_is(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic("key: string", "n: int64", partition_key="key")
    names = ["a", "b", "ü", 'q"', ""]
    wings.push(topic, {"key": names * 2, "n": list(range(10))})
    requests = [
        Request(topic.name, name, offset=offset, kind=kind, columns=columns)
        for name in names
        for offset in (0, 1, "earliest")
        for kind in ("fetch", "scan")
        for columns in (None, ("n",))
    ]
    found: dict[Request, list[Any]] = {
        reply.request: reply.batch.column("n").to_pylist()
        for reply in wings.gather(requests, timeout=30)
    }
    for request in requests:
        first = names.index(str(request.partition))
        assert found[request] == ([first + 5] if request.offset == 1 else [first, first + 5])


def test_a_request_that_is_like_a_good_one_is_checked_all_the_same(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic("key: string", "n: int64", partition_key="key")
    good = Request(topic.name, "a", offset=0)
    for bad in (
        Request(topic.name, "a", offset=2**63),
        Request(topic.name, "\ud800", offset=0),
        Request(topic.name, "a", offset=0, timeout=0),
        Request(topic.name, "a", offset=0, max_messages=0),
        Request(topic.name, "a", offset=0, columns=()),
    ):
        with pytest.raises(InvalidArgument):
            wings.gather([good, bad])


@async_in_soak
@pytest.mark.parametrize("kind", ["fetch", "scan", "follow"])
def test_every_row_of_real_topics_comes_once(
    wings: Client, new_topic: NewTopic, kind: Literal["fetch", "scan", "follow"]
) -> None:
    topic = new_topic("key: int64", "n: int64", partition_key="key")
    rows = list(range(3_000))
    for begin in range(0, 3_000, 500):
        part = rows[begin : begin + 500]
        wings.push(topic, {"key": [n % 3 for n in part], "n": part})
    offsets: list[int | Literal["earliest"]] = [0, "earliest"]
    for offset in offsets:
        list(wings.gather([Request(topic.name, 0, kind="scan")]))  # Finds that the server is near.
        requests = [Request(topic.name, key, offset=offset, kind=kind) for key in (0, 1, 2)]
        found: list[Any] = []
        with wings.gather(requests, timeout=30) as gather:
            for reply in gather:
                found += reply.batch.column("n").to_pylist()
                if len(found) == 3_000:
                    break
        assert sorted(found) == rows
        assert gather.end is not None
        assert [each.next_offset for each in gather.end.sources] == [1_000] * 3


@async_in_soak
def test_a_fetch_of_several_messages_waits_for_all_of_them(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    wings.push(topic, {"n": [1]})
    for count in (1, 100):  # With 100 sources, a server waits a slice of time for each.
        list(wings.gather([Request(topic.name, kind="scan")]))  # Finds that the server is near.
        last = wings.partitions(topic)[0].next_offset
        requests = [Request(topic.name, offset=last - 1, min_messages=2)] * count
        pusher = threading.Timer(0.4, lambda: wings.push(topic, {"n": [2]}))
        pusher.start()
        gather = wings.gather(requests, timeout=30)
        assert sum(reply.batch.num_rows for reply in gather) == 2 * count
        pusher.join()
        assert gather.end is not None
        assert gather.end.reason == GatherReason.COMPLETE


@pytest.mark.parametrize("connect", ["sync"], indirect=True)
@pytest.mark.parametrize("is_keyed", [False, True])
def test_a_source_from_the_earliest_goes_on_behind_what_retention_took(
    wings: Client,
    new_topic: NewTopic,
    trim: Trim,
    monkeypatch: pytest.MonkeyPatch,
    calls: Calls,
    is_keyed: bool,
) -> None:
    """Between two of its streams, as where sources outnumber threads."""
    topic = new_topic("key: int64", "n: int64", partition_key="key" if is_keyed else None)

    def push(n: int) -> None:
        wings.push(topic, {"key": [7], "n": [n]})

    monkeypatch.setattr(_sources, "THREADS_MAX", 1)
    passed = threading.Event()

    def pass_it(_: Request, __: float, offset: Any = None, *___: object) -> None:
        if offset in (2, {7: 2}) and not passed.is_set():
            passed.set()
            for n in range(2, 6):
                push(n)
            trim(topic, 4, Partition("7") if is_keyed else UNPARTITIONED)

    calls.before(Request, "to_ticket", pass_it)
    push(0)
    push(1)
    request = Request(topic.name, partitions="all" if is_keyed else None, min_messages=4)
    waits = Request(topic.name, 7 if is_keyed else None, offset=100, timeout=0.5)
    found: list[Any] = []
    gather = wings.gather([request, waits], timeout=30)
    for reply in gather:
        if reply.request == request:
            found += reply.batch.column("n").to_pylist()
    assert found == [0, 1, 4, 5], gather.end


@async_in_soak
@pytest.mark.parametrize("partitions", ["all", [1, 2, 3, 9]])
def test_many_partitions_of_a_server_are_one_source(
    wings: Client, new_topic: NewTopic, partitions: Literal["all"] | list[int]
) -> None:
    topic = new_topic(*KEYED, partition_key="key")
    wings.push(topic, {"key": [1, 2, 2, 3], "n": [10, 20, 21, 30]})
    request = Request(topic.name, kind="scan", partitions=partitions, offset={2: 1})
    gather = wings.gather([request], timeout=60)
    found: dict[Any, list[Any]] = {}
    for reply in gather:
        assert isinstance(reply, ManyReply)
        assert (reply.request, reply.start_offset, reply.end_offset) == (request, None, None)
        for batch, partition, _, _ in reply.parts():
            found.setdefault(partition, []).extend(batch.column("n").to_pylist())
    assert found == {1: [10], 2: [21], 3: [30]}
    assert gather.end is not None
    (source,) = gather.end.sources
    assert (gather.end.reason, source.rows, source.next_offset) == (GatherReason.COMPLETE, 3, None)
    born = {} if partitions == "all" else {9: 0}
    assert source.next_offsets == {1: 1, 2: 2, 3: 1, **born}
    # The next one goes on there.
    wings.push(topic, {"key": [2, 9], "n": [22, 90]})
    offsets = source.next_offsets
    again = Request(topic.name, partitions=partitions, offset=offsets, min_messages=2)
    rows = [row for reply in wings.gather([again], timeout=60) for row in reply.batch.to_pylist()]
    assert sorted(row["n"] for row in rows) == [22, 90]


@async_in_soak
def test_sources_of_many_partitions_go_on_where_their_streams_stopped(
    wings: Client, new_topic: NewTopic
) -> None:
    """More sources than threads: each stream waits for a time slice, and is opened again."""
    topic = new_topic(*KEYED, partition_key="key")
    wings.push(topic, {"key": [1, 2], "n": [10, 20]})
    requests = [Request(topic.name, kind="follow", partitions="all") for _ in range(70)]
    found: dict[int, list[int]] = {}
    gather = wings.gather(requests, timeout=30)
    pushed = False
    for reply in gather:
        values = found.setdefault(id(reply.request), [])
        values += [int(row["n"]) for row in reply.batch.to_pylist()]
        if len(found) == len(requests) and not pushed:
            pushed = True
            wings.push(topic, {"key": [2, 3], "n": [21, 30]})
        if pushed and all(len(each) == 4 for each in found.values()):
            break
    assert all(sorted(each) == [10, 20, 21, 30] for each in found.values())


def test_a_request_of_one_and_of_many_partitions_is_refused(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic(*KEYED, partition_key="key")
    for keys in ({"partition": 1, "partitions": "all"}, {"offset": {1: 0}}, {"partitions": []}):
        given: dict[str, Any] = {**keys}
        with pytest.raises(InvalidTicket):
            wings.gather([Request(topic.name, **given)])
