"""The share stream by plain pyarrow, against a real server."""

import contextlib
import json
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from fix_calls import Calls
from fix_threads import Threads
from flight_calls import act, create_topic, numbers, push
from forked_commands import FORKED
from server_processes import until
from share_calls import Leased, Member, ShareStreamCall, create_group, offsets_of

from wings_core.errors import Unavailable
from wings_core.limits import Limits
from wings_core.share.coordinator.coordinator import Coordinator
from wings_core.share.dead_letters.writer import PendingLetters
from wings_core.share.delivery.stream_holds import StreamHolds
from wings_core.share.model import AcquireRequest
from wings_server.flight import share_stream
from wings_server.flight.share_ends import ShareWriter
from wings_server.flight.share_stream import REQUESTS_WAITING_MAX
from wings_server.testing import RunningServer, running_server

LONG = 20_000
"""Longer than anything that a test waits for, in milliseconds."""


@pytest.fixture
def topic(client: flight.FlightClient, new_topic_id: str) -> str:
    """A topic of ten messages, `n` being the offset, with a group of a long lock."""
    create_topic(client, new_topic_id, ["n: int64"])
    push(client, new_topic_id, numbers(*range(10)))
    create_group(client, new_topic_id, lock_duration_ms=12 * 3_600_000)
    return new_topic_id


def in_flight(client: flight.FlightClient, topic: str) -> int:
    (partition,) = Member(client, topic).describe()["partitions"]
    return partition["in_flight"]


def taken(stream: ShareStreamCall, messages: int) -> list[Leased]:
    """Return deliveries until they have so many messages."""
    found: list[Leased] = []
    while sum(len(each.offsets) for each in found) < messages:
        found.append(stream.delivery())
    return found


def test_deliveries_are_those_of_an_acquire(client: flight.FlightClient, topic: str) -> None:
    stream = ShareStreamCall(client, topic)
    leased = stream.delivery()
    assert leased.about == {
        "partition": None,
        "start_offset": 0,
        "end_offset": 9,
        "lease": leased.lease,
        "delivery_count": 1,
        "lock_duration_ms": 12 * 3_600_000,
    }
    assert leased.column("n") == list(range(10)) == leased.offsets
    assert leased.batch.schema.names == [
        "n", "__offset", "__timestamp", "__partition", "__delivery_count", "__lease",
    ]  # fmt: skip
    assert stream.answer(stream.acknowledge(leased.ack("accept"))) == [None]
    assert stream.close() == []
    (partition,) = Member(client, topic).describe()["partitions"]
    assert partition == {"partition": None, "start_offset": 10, "in_flight": 0, "lag": 0}


def test_no_more_than_the_credit_is_held_at_once(client: flight.FlightClient, topic: str) -> None:
    stream = ShareStreamCall(client, topic, credit=4)
    first = taken(stream, 4)
    assert offsets_of(first) == [0, 1, 2, 3]
    assert stream.answer(stream.acknowledge(first[0].ack("accept", 1, 2))) == [None]
    assert offsets_of(taken(stream, 2)) == [4, 5]
    assert in_flight(client, topic) == 4
    stream.send({"credit": 5})
    assert offsets_of([stream.delivery()]) == [6]
    stream.send({"credit": 0})
    ack = stream.acknowledge(first[0].ack("accept", 0, 0), first[0].ack("accept", 3, 3))
    assert stream.answer(ack) == [None, None]
    assert stream.answer(stream.acknowledge()) == [], "and nothing is delivered before it"
    assert in_flight(client, topic) == 3
    stream.send({"credit": 100})
    assert offsets_of(taken(stream, 3)) == [7, 8, 9]
    stream.close()


def test_a_delivery_has_no_more_messages_than_asked_for(
    client: flight.FlightClient, topic: str
) -> None:
    stream = ShareStreamCall(client, topic, max_messages=3)
    found = taken(stream, 10)
    assert [each.offsets for each in found] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    spans = [(each.about["start_offset"], each.about["end_offset"]) for each in found]
    assert spans == [(0, 2), (3, 5), (6, 8), (9, 9)]
    assert stream.answer(stream.acknowledge(*[each.ack("accept") for each in found])) == [None] * 4
    stream.close()


def test_requests_are_answered_in_their_order_and_each_by_itself(
    client: flight.FlightClient, topic: str
) -> None:
    stream = ShareStreamCall(client, topic, max_messages=1)
    found = taken(stream, 10)
    requests = [stream.acknowledge(each.ack("accept")) for each in found[:5]]
    bad = stream.acknowledge(found[5].ack("accept"), {**found[6].ack("accept"), "lease": "x.1.y"})
    renewed = stream.acknowledge(found[5].ack("renew"), found[6].ack("renew"))
    released = stream.acknowledge(found[7].ack("release", delay_ms=3_600_000))
    assert [stream.answer(request) for request in requests] == [[None]] * 5
    assert stream.answer(bad) == ["INVALID_RECORD_STATE"] * 2
    assert stream.answer(renewed) == [None, None]
    assert stream.answer(released) == [None]
    stream.close()
    assert in_flight(client, topic) == 0


def test_a_partition_value_that_cannot_be_fails_its_entry_alone(
    client: flight.FlightClient, topic: str
) -> None:
    stream = ShareStreamCall(client, topic)
    leased = stream.delivery()
    impossible = {**leased.ack("accept"), "partition": "a"}
    codes = stream.answer(stream.acknowledge(impossible, leased.ack("accept")))
    assert codes == ["PARTITION_NOT_ALLOWED", None]
    stream.close()


def test_acceptances_one_by_one_are_carried_out_or_refused_together_and_told_of_each(
    client: flight.FlightClient, topic: str
) -> None:
    stream = ShareStreamCall(client, topic, max_messages=1, credit=8)
    leased = taken(stream, 8)

    def results(*acks: dict[str, Any]) -> list[dict[str, Any]]:
        request = stream.acknowledge(*acks)
        while not stream.answers:
            stream.read()  # Deliveries come between.
        answer = stream.answers.pop()
        assert answer["request"] == request
        return answer["results"]

    for result in results(*(each.ack("accept") for each in leased[:3])):
        assert result["code"] is None
    again = results(*(each.ack("accept") for each in leased[2:6]))
    assert [(each["first"], each["code"]) for each in again] == [
        (offset, "INVALID_RECORD_STATE") for offset in range(2, 6)
    ]
    for result in again:  # All or none, and why: 2 is not held any more, 3 to 5 are.
        assert "messages 2 to 2 of" in result["message"]
    foreign = {**leased[4].ack("accept"), "lease": "not one"}
    mixed = results(leased[3].ack("accept"), leased[4].ack("accept"), foreign)
    assert {each["code"] for each in mixed} == {"INVALID_RECORD_STATE"}
    assert {each["message"].split(" of ")[0] for each in mixed} == {"messages 4 to 4"}
    impossible = [{**each.ack("accept"), "partition": "a"} for each in leased[3:5]]
    found = results(*impossible, *(each.ack("accept") for each in leased[3:8]))
    assert [each["code"] for each in found] == ["PARTITION_NOT_ALLOWED"] * 2 + [None] * 5
    assert [each["first"] for each in found] == [3, 4, 3, 4, 5, 6, 7]
    stream.close()
    (partition,) = Member(client, topic).describe()["partitions"]
    assert (partition["start_offset"], partition["lag"]) == (8, 2)


def test_a_push_reaches_a_waiting_stream(client: flight.FlightClient, topic: str) -> None:
    stream = ShareStreamCall(client, topic)
    taken(stream, 10)
    push(client, topic, numbers(10, 11))
    assert stream.delivery().offsets == [10, 11]
    stream.close()


def test_a_partition_born_later_reaches_a_waiting_stream(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    create_topic(client, new_topic_id, ["key: string", "n: int64"], "key")
    create_group(client, new_topic_id)
    stream = ShareStreamCall(client, new_topic_id)
    for key in ("a", "b"):
        push(client, new_topic_id, pa.record_batch({"key": [key], "n": pa.array([1], pa.int64())}))
        leased = stream.delivery()
        assert leased.about["partition"] == key
    stream.close()


def test_one_partition_alone_is_delivered_where_it_is_named(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    create_topic(client, new_topic_id, ["key: string", "n: int64"], "key")
    rows = {"key": ["a", "b", "a"], "n": pa.array([1, 2, 3], pa.int64())}
    push(client, new_topic_id, pa.record_batch(rows))
    create_group(client, new_topic_id)
    stream = ShareStreamCall(client, new_topic_id, partition="a")
    assert stream.delivery().column("n") == [1, 3]
    assert stream.answer(stream.acknowledge()) == []
    stream.close()


def test_what_a_stream_holds_is_released_when_its_client_ends_it(
    client: flight.FlightClient, topic: str
) -> None:
    stream = ShareStreamCall(client, topic, max_messages=5)
    first, second = stream.delivery(), stream.delivery()
    request = stream.acknowledge(first.ack("accept"), second.ack("release", 5, 6))
    assert stream.close() == [], "nor what it released"
    assert [answer["request"] for answer in stream.answers] == [request], "it is answered first"
    assert in_flight(client, topic) == 0
    again = Member(client, topic, name="two").acquire()
    assert offsets_of(again) == [5, 6, 7, 8, 9]
    assert {each.about["delivery_count"] for each in again} == {2}


def test_a_stream_that_breaks_releases_what_it_held_at_once(
    client: flight.FlightClient, topic: str
) -> None:
    stream = ShareStreamCall(client, topic)
    assert stream.delivery().offsets == [*range(10)]
    stream.cancel()
    (again,) = Member(client, topic, name="two").acquire(timeout_ms=LONG)
    assert (again.offsets, again.about["delivery_count"]) == ([*range(10)], 2)


def test_a_stream_that_breaks_releases_the_rest_of_what_was_acknowledged_beside_it(
    client: flight.FlightClient, topic: str
) -> None:
    stream = ShareStreamCall(client, topic)
    delivery = stream.delivery()
    assert Member(client, topic).acknowledge(delivery.ack("accept", 3, 3)) == [None]
    stream.cancel()
    other = Member(client, topic, name="two")
    again: list[int] = []
    while len(again) < 9:
        found = offsets_of(other.acquire(timeout_ms=LONG))
        assert found, "the rest is held"
        again += found
    assert sorted(again) == [0, 1, 2, *range(4, 10)]


def test_a_worker_that_dies_releases_what_it_held_at_once(
    server: RunningServer, client: flight.FlightClient, topic: str
) -> None:
    command = {"kind": "share", "group": "billing", "topic": topic, "member": "dies", "credit": 10}
    script = f"""
import sys, pyarrow as pa, pyarrow.flight as flight
client = flight.FlightClient({server.flight!r})
descriptor = flight.FlightDescriptor.for_command({json.dumps(command).encode()!r})
writer, reader = client.do_exchange(descriptor)
writer.write_metadata(pa.py_buffer(b'{{"credit": 10}}'))
print(reader.read_chunk().data.num_rows, flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", FORKED + script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline().strip() == "10"
        worker.kill()
    assert offsets_of(Member(client, topic).acquire(timeout_ms=LONG)) == [*range(10)]


def test_a_stream_ends_whose_client_dies_with_more_requests_than_may_wait(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        client = server.client()
        create_topic(client, "jobs", ["text: string"])
        create_group(client, "jobs")
        for _ in range(10):  # More than goes over the wire to a client that does not read.
            push(client, "jobs", pa.record_batch({"text": ["x" * 10_000] * 1_000}))
        command = {"kind": "share", "group": "billing", "topic": "jobs", "member": "dies"}
        command |= {"credit": 10_000}
        script = f"""
import pyarrow as pa, pyarrow.flight as flight
client = flight.FlightClient({server.flight!r})
descriptor = flight.FlightDescriptor.for_command({json.dumps(command).encode()!r})
writer, reader = client.do_exchange(descriptor)
writer.write_metadata(pa.py_buffer(b'{{"credit": 10000}}'))
reader.read_chunk()
for request in range(1, {REQUESTS_WAITING_MAX + 500}):
    writer.write_metadata(pa.py_buffer(b'{{"request": %d, "acks": []}}' % request))
    print(request, flush=True)
"""
        with subprocess.Popen(
            [sys.executable, "-c", FORKED + script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as worker:
            assert worker.stdout is not None
            for line in worker.stdout:
                if int(line) > REQUESTS_WAITING_MAX:
                    break
            worker.kill()
        server.wait_for_calls(0)


SOMETHING = [{"alive": True}, {"credit": 100}, {"request": 1, "acks": []}]
"""What a client says: any of it shows that its process runs."""


def a_lock_later(client: flight.FlightClient, topic: str) -> None:
    """Wait for as long as a lock lasts, which another group counts."""
    create_group(client, topic, "clock", lock_duration_ms=1_000)
    clock = Member(client, topic, "clock")
    assert clock.acquire(max_messages=1)
    until(lambda: clock.describe()["partitions"][0]["in_flight"] == 0)


@pytest.mark.parametrize("message", SOMETHING, ids=lambda each: str(next(iter(each))))
def test_a_client_that_stands_still_is_given_nothing_more_until_it_speaks(
    client: flight.FlightClient, new_topic_id: str, message: dict[str, Any]
) -> None:
    create_topic(client, new_topic_id, ["n: int64"])
    push(client, new_topic_id, numbers(*range(4)))
    create_group(client, new_topic_id, lock_duration_ms=1_000, delivery_limit=2)
    still = ShareStreamCall(client, new_topic_id, member="still")
    assert offsets_of(taken(still, 4)) == [*range(4)]
    until(lambda: in_flight(client, new_topic_id) == 0)
    a_lock_later(client, new_topic_id)
    (partition,) = Member(client, new_topic_id).describe()["partitions"]
    assert (partition["in_flight"], partition["lag"]) == (0, 4), "they wait"
    push(client, new_topic_id, numbers(4))
    others = Member(client, new_topic_id, name="two").acquire()
    counts = {each: leased.about["delivery_count"] for leased in others for each in leased.offsets}
    assert counts == {0: 2, 1: 2, 2: 2, 3: 2, 4: 1}
    push(client, new_topic_id, numbers(5))
    still.send(message)
    assert still.delivery().offsets == [5], "and not before it has spoken"
    still.close()


def test_a_client_that_has_said_nothing_for_a_lock_is_given_nothing(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    create_topic(client, new_topic_id, ["n: int64"])
    create_group(client, new_topic_id, lock_duration_ms=1_000)
    still = ShareStreamCall(client, new_topic_id, member="still")
    assert still.answer(still.acknowledge()) == []
    push(client, new_topic_id, numbers(0))
    assert still.answer(still.acknowledge(still.delivery().ack("accept"))) == [None]
    a_lock_later(client, new_topic_id)
    other = ShareStreamCall(client, new_topic_id, member="other", credit=1)
    assert other.answer(other.acknowledge()) == []
    push(client, new_topic_id, numbers(1))
    leased = other.delivery()
    assert (leased.offsets, leased.about["delivery_count"]) == ([1], 1)
    push(client, new_topic_id, numbers(2))
    still.send({"alive": True})
    assert still.delivery().offsets == [2]
    other.close()
    still.close()


def test_the_schema_of_a_stream_tells_for_how_long_its_client_may_be_silent(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    create_topic(client, new_topic_id, ["n: int64"])
    create_group(client, new_topic_id, lock_duration_ms=7_000)
    stream = ShareStreamCall(client, new_topic_id)
    assert stream.schema.metadata == {b"lock_duration_ms": b"7000", b"delivery_limit": b"5"}
    stream.close()


def test_what_is_released_comes_back_only_once_its_client_asks_for_more(
    client: flight.FlightClient, topic: str
) -> None:
    stream = ShareStreamCall(client, topic)
    leased = stream.delivery()
    assert stream.answer(stream.acknowledge(leased.ack("release", 3, 4))) == [None]
    stream.send({"alive": True})
    assert stream.answer(stream.acknowledge(leased.ack("accept", 5, 5))) == [None]
    assert stream.answer(stream.acknowledge()) == [], "and nothing is delivered before it"
    stream.send({"credit": 100})
    again = stream.delivery()
    assert (again.offsets, again.about["delivery_count"]) == ([3, 4], 2)
    stream.close()


def test_what_was_never_written_to_a_client_that_is_gone_was_not_delivered(
    server: RunningServer, client: flight.FlightClient, new_topic_id: str
) -> None:
    create_topic(client, new_topic_id, ["text: string"])
    # More than fits between the server and a client that reads nothing of it.
    push(client, new_topic_id, pa.record_batch({"text": ["x" * 75_000] * 200}))
    create_group(client, new_topic_id, lock_duration_ms=12 * 3_600_000)
    with server.client() as other:
        deaf = ShareStreamCall(other, new_topic_id, member="deaf", credit=200, max_messages=1)
        until(lambda: in_flight(client, new_topic_id) == 200)
        deaf.delivery()
        deaf.cancel()
    found: list[Leased] = []
    while len(offsets_of(found)) < 200:
        found += Member(client, new_topic_id, name="two").acquire(timeout_ms=LONG)
    counts = {each: leased.about["delivery_count"] for leased in found for each in leased.offsets}
    assert (counts[0], counts[199]) == (2, 1)


BAD_DESCRIPTORS: list[tuple[dict[str, Any], str]] = [
    ({"kind": "other"}, "INVALID_ARGUMENT"),
    ({"credit": 0}, "INVALID_ARGUMENT"),
    ({"credit": 10_001}, "INVALID_ARGUMENT"),
    ({"max_messages": 0}, "INVALID_ARGUMENT"),
    ({"more": 1}, "INVALID_ARGUMENT"),
    ({"member": ""}, "INVALID_ARGUMENT"),
    ({"topic": "no-such"}, "TOPIC_NOT_FOUND"),
    ({"group": "no-such"}, "GROUP_NOT_FOUND"),
    ({"partition": "a"}, "PARTITION_NOT_ALLOWED"),
]


@pytest.mark.parametrize(("keys", "code"), BAD_DESCRIPTORS, ids=lambda each: str(each))
def test_a_bad_descriptor_ends_the_stream_in_band(
    client: flight.FlightClient, topic: str, keys: dict[str, Any], code: str
) -> None:
    command = {"kind": "share", "group": "billing", "topic": topic, "member": "m", "credit": 5}
    stream = _raw(client, json.dumps({**command, **keys}).encode())
    end = stream.ended()
    assert end["end"] == code
    assert end["message"]


def _raw(client: flight.FlightClient, command: bytes) -> ShareStreamCall:
    return ShareStreamCall(client, "", credit=5, command=command)


@pytest.mark.parametrize("command", [b"", b"no JSON", b"[]", b"\xff", b'{"kind": "share"}'])
def test_a_descriptor_that_is_no_command_ends_the_stream_in_band(
    client: flight.FlightClient, command: bytes
) -> None:
    assert _raw(client, command).ended()["end"] == "INVALID_ARGUMENT"


BAD_MESSAGES = [
    b"no JSON",
    b"{}",
    b'{"credit": -1}',
    b'{"credit": 10001}',
    b'{"credit": 5, "more": 1}',
    b'{"request": 1}',
    b'{"request": 2, "acks": []}',
    b'{"request": 1, "acks": [{"first": 0}]}',
    b'{"request": 1, "acks": [], "credit": 1}',
    b'{"alive": false}',
    b'{"alive": true, "credit": 1}',
]


@pytest.mark.parametrize("message", BAD_MESSAGES)
def test_a_bad_message_ends_the_stream_in_band_and_what_it_held_is_released(
    client: flight.FlightClient, topic: str, message: bytes
) -> None:
    stream = ShareStreamCall(client, topic, max_messages=5)
    first, _ = stream.delivery(), stream.delivery()
    stream.send({"request": 1, "acks": [first.ack("accept")]})
    # Requests of the list are the first; here one was before.
    bad = re.sub(rb'"request": (\d)', lambda m: b'"request": %d' % (int(m[1]) + 1), message)
    stream.send_raw(bad)
    end = stream.ended()
    assert end["end"] == "INVALID_ARGUMENT"
    assert [answer["request"] for answer in stream.answers] == [1], "what came before is answered"
    assert offsets_of(Member(client, topic).acquire(timeout_ms=LONG)) == [5, 6, 7, 8, 9]


def test_nothing_is_delivered_before_the_first_message_is_read(
    client: flight.FlightClient, topic: str
) -> None:
    for message in BAD_MESSAGES:
        stream = ShareStreamCall(client, topic, begin=False)
        stream.send_raw(message)
        assert stream.ended()["end"] == "INVALID_ARGUMENT"
    stream = ShareStreamCall(client, topic, begin=False)
    stream.send({"credit": 0})
    assert stream.answer(stream.acknowledge()) == [], "and nothing is delivered before it"
    stream.send({"credit": 3})
    assert stream.delivery().about["delivery_count"] == 1
    stream.close()


def test_a_stream_that_begins_with_a_request_has_the_credit_of_its_descriptor(
    client: flight.FlightClient, topic: str
) -> None:
    stream = ShareStreamCall(client, topic, credit=3, begin=False)
    stream.acknowledge()
    assert stream.delivery().offsets == [0, 1, 2]
    stream.close()


@pytest.mark.parametrize("type_", ["accept", "release", "reject", "renew"])
def test_what_cannot_be_held_is_refused_by_itself(
    client: flight.FlightClient, topic: str, type_: str
) -> None:
    stream = ShareStreamCall(client, topic, credit=1)
    leased = stream.delivery()
    ack = leased.ack(type_)
    foreign = f"of another.1.{leased.lease.rsplit('.', 1)[1]}"
    for bad in (
        {"last": (1 << 63) - 1},
        {"first": 5, "last": 6},
        {"lease": foreign, "last": (1 << 63) - 1},
        {"lease": foreign.replace(" ", "\0")},
        {"lease": foreign.replace("1", "9" * 19)},
        {"lease": foreign.replace("1", "9" * 200)},
    ):
        answer = stream.answer(stream.acknowledge({**ack, **bad}))
        assert answer == ["INVALID_RECORD_STATE"], bad
    assert stream.answer(stream.acknowledge(ack)) == [None]
    stream.close()


def test_a_batch_of_the_client_ends_the_stream_in_band(
    client: flight.FlightClient, topic: str
) -> None:
    stream = ShareStreamCall(client, topic)
    stream.writer.begin(numbers(1).schema)
    stream.writer.write_batch(numbers(1))
    assert stream.ended()["end"] == "INVALID_ARGUMENT"


@pytest.mark.parametrize("credit", [10, 100], ids=["full", "waiting"])
@pytest.mark.parametrize("what", ["group", "topic"])
def test_a_deletion_ends_the_stream_in_band(
    client: flight.FlightClient, topic: str, what: str, credit: int
) -> None:
    stream = ShareStreamCall(client, topic, credit=credit)
    taken(stream, 10)
    if what == "group":
        act(client, "share-delete", group="billing", topic=topic)
    else:
        act(client, "delete-topic", topic=topic)
    assert stream.ended()["end"] == f"{what.upper()}_NOT_FOUND"


def test_a_stop_in_order_ends_streams_in_band_and_releases_what_they_hold(tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server:
        client = server.client()
        create_topic(client, "t", ["n: int64"])
        push(client, "t", numbers(*range(10)))
        create_group(client, "t", lock_duration_ms=12 * 3_600_000)
        stream = ShareStreamCall(client, "t", max_messages=5)
        first, _ = stream.delivery(), stream.delivery()
        assert stream.answer(stream.acknowledge(first.ack("accept"))) == [None]
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        end = stream.ended()
        assert (end["end"], "stopping" in end["message"]) == (None, True)
        stopping.join(30)
    with running_server(tmp_path / "data") as server:
        (again,) = Member(server.client(), "t").acquire(timeout_ms=LONG)
        assert (again.offsets, again.about["delivery_count"]) == ([5, 6, 7, 8, 9], 2)


def test_a_fault_at_the_end_of_a_stream_keeps_its_client_from_nothing(
    client: flight.FlightClient, topic: str, calls: Calls
) -> None:
    calls.fail(StreamHolds, "releases", ZeroDivisionError())
    stream = ShareStreamCall(client, topic)
    assert stream.delivery().offsets == list(range(10))
    act(client, "share-delete", group="billing", topic=topic)
    assert stream.ended()["end"] == "GROUP_NOT_FOUND"


@pytest.mark.parametrize("method", ["following", "settle"])
def test_a_fault_of_the_server_is_told_and_counted(
    server: RunningServer, client: flight.FlightClient, topic: str, calls: Calls, method: str
) -> None:
    """Of the stream's own thread, and of the one that serves all streams of a group."""
    _, before = server.server.log.traffic.errors()
    calls.fail(Coordinator, method, TypeError("a bug"), 1)
    assert ShareStreamCall(client, topic).ended()["end"] == "INTERNAL"
    assert server.server.log.traffic.errors()[1] == before + 1


def test_damage_that_keeps_messages_from_a_stream_is_counted(tmp_path: Path) -> None:
    with running_server(tmp_path, limits=Limits(inline_bytes_max=0)) as server:
        client = server.client()
        create_topic(client, "t", ["n: int64"])
        push(client, "t", numbers(1))
        create_group(client, "t")
    (segment,) = (tmp_path / "segments").iterdir()
    segment.unlink()
    with running_server(tmp_path) as server:
        stream = ShareStreamCall(server.client(), "t")
        until(lambda: server.server.log.traffic.errors()[1] > 0)
        stream.cancel()


def test_two_streams_get_each_message_once(client: flight.FlightClient, new_topic_id: str) -> None:
    create_topic(client, new_topic_id, ["n: int64"])
    push(client, new_topic_id, numbers(*range(500)))
    create_group(client, new_topic_id)
    streams = [
        ShareStreamCall(client, new_topic_id, member=name, credit=7, max_messages=3)
        for name in ("one", "two")
    ]
    taken_of_both: list[int] = []

    def work(stream: ShareStreamCall) -> None:
        with contextlib.suppress(flight.FlightError, pa.ArrowException):
            while len(taken_of_both) < 500:
                leased = stream.delivery()
                taken_of_both.extend(leased.offsets)
                stream.acknowledge(leased.ack("accept"))
        for each in streams:
            each.cancel()  # One of them waits.

    threads = [threading.Thread(target=work, args=(stream,), daemon=True) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(taken_of_both) == list(range(500))


def test_a_client_that_does_not_read_holds_up_its_own_stream_alone(
    server: RunningServer, client: flight.FlightClient, new_topic_id: str
) -> None:
    create_topic(client, new_topic_id, ["text: string"])
    push(client, new_topic_id, pa.record_batch({"text": ["x" * 10_000] * 400}))
    create_group(client, new_topic_id)
    with server.client() as other:
        # Far more than fits between the server and a client that reads nothing of it.
        deaf = ShareStreamCall(other, new_topic_id, member="deaf", credit=200, max_messages=1)
        while in_flight(client, new_topic_id) < 200:
            pass
        stream = ShareStreamCall(client, new_topic_id, credit=4, max_messages=2)
        done: list[int] = []
        while len(done) < 100:
            leased = stream.delivery()
            stream.acknowledge(leased.ack("accept"))
            done += leased.offsets
        deaf.cancel()
        stream.cancel()
    assert len(set(done)) == len(done)


def test_a_stream_that_waits_for_its_client_is_not_called_for_what_others_can_take(
    server: RunningServer,
    client: flight.FlightClient,
    new_topic_id: str,
    calls: Calls,
) -> None:
    writing, go, waited = threading.Event(), threading.Event(), list[bool]()

    def wait(_: ShareWriter, __: pa.RecordBatch, metadata: bytes) -> None:
        if b'"results"' in metadata and b'"last": 0' in metadata:
            writing.set()
            waited.append(go.wait(30))

    calls.before(ShareWriter, "_try_write", wait)
    create_topic(client, new_topic_id, ["n: int64"])
    push(client, new_topic_id, numbers(0))
    create_group(client, new_topic_id, lock_duration_ms=12 * 3_600_000)
    with server.client() as another:
        deaf = ShareStreamCall(another, new_topic_id, member="deaf", credit=2)
        leased = deaf.delivery()
        assert deaf.answer(deaf.acknowledge()) == []
        deaf.acknowledge(leased.ack("renew"))
        assert writing.wait(30)
        stream = ShareStreamCall(client, new_topic_id, credit=1)
        assert stream.answer(stream.acknowledge()) == []
        push(client, new_topic_id, numbers(1))
        assert stream.delivery().offsets == [1]
        go.set()
        deaf.close()
        stream.close()
    assert waited == [True]


def test_a_stream_that_pauses_after_a_failure_is_not_called_for_messages(
    client: flight.FlightClient, new_topic_id: str, monkeypatch: pytest.MonkeyPatch, calls: Calls
) -> None:
    failed, failures = threading.Event(), list[str]()

    def fail(method: str, acquires: Sequence[AcquireRequest]) -> None:
        if "failing" in [request.member for request in acquires]:
            failures.append(method)
            if method == "acquire_now":
                failed.set()
            raise Unavailable("no majority answered")

    def acquire(_: Coordinator, request: AcquireRequest) -> None:
        fail("acquire_now", [request])

    def settle(_: Coordinator, __: object, ___: object, acquires: Sequence[AcquireRequest]) -> None:
        fail("settle", acquires)

    monkeypatch.setattr(share_stream, "PAUSE_SECONDS", (3_600.0, 3_600.0))
    calls.before(Coordinator, "acquire_now", acquire)
    calls.before(Coordinator, "settle", settle)
    create_topic(client, new_topic_id, ["n: int64"])
    create_group(client, new_topic_id)
    failing = ShareStreamCall(client, new_topic_id, member="failing")
    assert failed.wait(60)
    other = ShareStreamCall(client, new_topic_id, member="other", credit=1)
    for number in range(20):
        push(client, new_topic_id, numbers(number))
        leased = other.delivery()
        assert leased.offsets == [number]
        assert other.answer(other.acknowledge(leased.ack("accept"))) == [None]
    assert failures.count("acquire_now") == 1
    failing.close()
    other.close()


def test_a_stream_that_gets_no_thread_tries_again(
    client: flight.FlightClient, topic: str, monkeypatch: pytest.MonkeyPatch, threads: Threads
) -> None:
    monkeypatch.setattr(share_stream, "PAUSE_SECONDS", (0.01, 0.01))
    threads.refuse("wings-share-stream", times=2)
    stream = ShareStreamCall(client, topic)
    assert stream.answer(stream.acknowledge(stream.delivery().ack("release"))) == [None]
    assert threads.refused.is_set()
    stream.close()


def test_a_rejection_that_waits_for_its_dead_letter_holds_up_no_other_stream(
    client: flight.FlightClient, new_topic_id: str, calls: Calls
) -> None:
    go = threading.Event()
    calls.before(PendingLetters, "finish", lambda *_: go.wait(30))
    create_topic(client, new_topic_id, ["n: int64"])
    push(client, new_topic_id, numbers(*range(4)))
    create_group(client, new_topic_id, dlq_topic=f"{new_topic_id}-dead")
    one = ShareStreamCall(client, new_topic_id, credit=1)
    rejected = one.acknowledge(one.delivery().ack("reject"))
    two = ShareStreamCall(client, new_topic_id, member="two", credit=1)
    for _ in range(3):
        leased = two.delivery()
        assert two.answer(two.acknowledge(leased.ack("accept"))) == [None]
    go.set()
    assert one.answer(rejected) == [None]
    one.close()
    two.close()


def test_what_was_held_for_an_acknowledgement_that_failed_is_released_undelivered(
    client: flight.FlightClient, topic: str
) -> None:
    stream = ShareStreamCall(client, topic, credit=1)
    leased = stream.delivery()
    codes = stream.answer(stream.acknowledge({**leased.ack("accept"), "lease": "x.1.y"}))
    assert codes == ["INVALID_RECORD_STATE"]
    assert stream.answer(stream.acknowledge()) == [], "and nothing is delivered before it"
    two = Member(client, topic, name="two")
    others = two.acquire(max_messages=1, timeout_ms=LONG)
    while others[-1].offsets != [1]:  # It may be released a moment after the answer.
        others += two.acquire(max_messages=1, timeout_ms=LONG)
    assert others[-1].about["delivery_count"] == 1
    assert stream.answer(stream.acknowledge(leased.ack("accept"))) == [None]
    assert stream.delivery().offsets == [1 + len(others)]
    stream.close()


def test_a_full_window_is_taken_from_again_once_there_is_room(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    create_topic(client, new_topic_id, ["n: int64"])
    push(client, new_topic_id, numbers(*range(10)))
    create_group(client, new_topic_id, in_flight_max=1)
    stream = ShareStreamCall(client, new_topic_id, credit=4)
    for offset in range(10):
        leased = stream.delivery()
        assert leased.offsets == [offset]
        assert stream.answer(stream.acknowledge(leased.ack("accept"))) == [None]
    stream.close()
