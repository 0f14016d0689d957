"""Share groups over HTTP, against a real server."""

import json
import socket
import threading
import time
from http.client import HTTPResponse
from typing import Any

import httpx
import pyarrow.flight as flight
import pytest
from fix_calls import Calls
from flight_calls import act
from http_calls import NAMESPACE, Json, create_topic, error, full, good, push
from share_calls import create_group
from waiting import until

from wings_core.limits import Limits
from wings_server.testing import RunningServer, running_server

LONG = 100_000
"""Longer than anything that a test waits for, in milliseconds."""


@pytest.fixture
def topic(http: httpx.Client, client: flight.FlightClient, new_topic_id: str) -> str:
    """A topic of five messages, and the group `billing`."""
    create_topic(http, new_topic_id, ["n: int64"])
    push(http, {"topic": new_topic_id, "data": [{"n": n} for n in range(5)]})
    create_group(client, new_topic_id)
    return new_topic_id


def acquire(http: httpx.Client, topic: str, member: str = "one", **keys: Any) -> Json:
    """Acquire, and check the form of the answer."""
    body = {"group": "billing", "topic": topic, "member": member, **keys}
    answer = good(http.post("/v1/share/acquire", json=body, timeout=60))
    assert list(answer) == ["deliveries", "end"]
    for delivery in answer["deliveries"]:
        assert list(delivery) == [
            "partition", "start_offset", "end_offset", "lease", "delivery_count",
            "lock_duration_ms", "messages",
        ]  # fmt: skip
    return answer


def acknowledge(http: httpx.Client, topic: str, *acks: Json, member: str = "one") -> list[Json]:
    body = {"group": "billing", "topic": topic, "member": member, "acks": list(acks)}
    return good(http.post("/v1/share/acknowledge", json=body))["results"]


def ack(delivery: Json, kind: str, first: int, last: int) -> Json:
    about = {key: delivery[key] for key in ("partition", "lease")}
    return {**about, "first": first, "last": last, "type": kind}


def test_messages_are_acquired_and_acknowledged(http: httpx.Client, topic: str) -> None:
    answer = acquire(http, topic, timeout_ms=5)
    (delivery,) = answer["deliveries"]
    assert (delivery["start_offset"], delivery["end_offset"], answer["end"]) == (
        0,
        4,
        "min_messages",
    )
    message = delivery["messages"][3]
    assert {key: message[key] for key in message if key != "__timestamp"} == {
        "n": 3,
        "__offset": 3,
        "__partition": "null",
        "__delivery_count": 1,
        "__lease": delivery["lease"],
    }
    assert message["__timestamp"].endswith("Z")
    results = acknowledge(
        http, topic, ack(delivery, "accept", 0, 2), ack(delivery, "release", 3, 4)
    )
    assert results == [
        {"partition": None, "first": 0, "last": 2, "code": None},
        {"partition": None, "first": 3, "last": 4, "code": None},
    ]
    again = acquire(http, topic, "two", namespace=NAMESPACE, max_messages=2)
    assert again["end"] == "max_messages"
    (delivery,) = again["deliveries"]
    assert [each["n"] for each in delivery["messages"]] == [3, 4]
    (result,) = acknowledge(http, topic, ack(delivery, "accept", 3, 4))
    assert result["code"] == "INVALID_RECORD_STATE"
    assert result["message"]


def test_an_acquire_without_messages_ends_at_its_deadline(http: httpx.Client, topic: str) -> None:
    assert acquire(http, topic)["deliveries"]
    assert acquire(http, topic, timeout_ms=20) == {"deliveries": [], "end": "deadline"}


def test_a_release_ends_the_wait_of_another_member(http: httpx.Client, topic: str) -> None:
    (delivery,) = acquire(http, topic)["deliveries"]
    found: list[Json] = []
    waiting = threading.Thread(
        target=lambda: found.append(acquire(http, topic, "two", timeout_ms=LONG))
    )
    waiting.start()
    acknowledge(http, topic, ack(delivery, "release", 2, 3))
    waiting.join(LONG / 1000)
    ((again,),) = [each["deliveries"] for each in found]
    assert ([each["n"] for each in again["messages"]], again["delivery_count"]) == ([2, 3], 2)


def test_a_release_just_before_a_wait_is_not_missed(
    server: RunningServer, http: httpx.Client, topic: str, calls: Calls
) -> None:
    (delivery,) = acquire(http, topic)["deliveries"]
    coordinator = server.server.log.shares.coordinator
    release = ack(delivery, "release", 2, 3)
    calls.before(coordinator, "watch", lambda *_: acknowledge(http, topic, release), times=1)
    began = time.monotonic()
    (again,) = acquire(http, topic, "two", timeout_ms=LONG)["deliveries"]
    assert [each["n"] for each in again["messages"]] == [2, 3]
    assert time.monotonic() - began < LONG / 2000


def test_a_lock_that_expires_ends_the_wait_of_another_member(
    http: httpx.Client, client: flight.FlightClient, topic: str
) -> None:
    config = {"lock_duration_ms": 1_000}
    act(client, "share-alter", group="billing", topic=topic, config=config)
    acquire(http, topic)
    (again,) = acquire(http, topic, "two", timeout_ms=LONG)["deliveries"]
    assert again["delivery_count"] == 2


def test_a_push_ends_the_wait_of_many_without_a_thread_each(
    server: RunningServer, http: httpx.Client, topic: str
) -> None:
    acquire(http, topic)
    threads = threading.active_count()
    body = json.dumps({"group": "billing", "topic": topic, "member": "m", "timeout_ms": LONG})
    head = (
        f"POST /v1/share/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    host, port = server.http.removeprefix("http://").split(":")
    waits = server.server.log.fetcher.waits
    before = waits.waiting
    connections = [socket.create_connection((host, int(port))) for _ in range(100)]
    for connection in connections:
        connection.sendall(head.encode() + body.encode())
    until(lambda: waits.waiting == before + 100)
    # The few that work are shared by all; they may have been started meanwhile.
    assert threading.active_count() <= threads + 40
    for connection in connections[1:]:
        connection.close()
    until(lambda: waits.waiting == before + 1)
    push(http, {"topic": topic, "data": [{"n": 5}]})
    connections[0].settimeout(LONG / 1000)
    with connections[0] as last, HTTPResponse(last) as answer:
        answer.begin()
        assert b'"n":5' in answer.read().replace(b" ", b"")


def test_more_than_an_answer_holds_is_given_back(new_topic_id: str) -> None:
    with (
        running_server(limits=Limits(http_bytes_max=20_000)) as server,
        httpx.Client(base_url=server.http) as http,
    ):
        create_topic(http, new_topic_id, ["n: int64", "text: string"])
        rows = [{"n": n, "text": "x" * 1_000} for n in range(40)]
        push(http, {"topic": new_topic_id, "data": rows})
        create_group(server.client(), new_topic_id, delivery_limit=100)
        taken: list[int] = []
        while len(taken) < 40:
            deliveries = acquire(http, new_topic_id, timeout_ms=LONG)["deliveries"]
            assert len(deliveries) >= 1
            for delivery in deliveries:
                assert delivery["delivery_count"] == 1, "what was released reached no member"
                first, last = delivery["start_offset"], delivery["end_offset"]
                assert [each["n"] for each in delivery["messages"]] == [*range(first, last + 1)]
                (result,) = acknowledge(http, new_topic_id, ack(delivery, "accept", first, last))
                assert result["code"] is None
                taken += range(first, last + 1)
        assert sorted(taken) == list(range(40))


def test_what_is_wrong_is_refused(http: httpx.Client, topic: str) -> None:
    good_body = {"group": "billing", "topic": topic, "member": "m", "timeout_ms": 5}
    for path, body, expected in (
        ("acquire", {"group": "no"}, (404, "GROUP_NOT_FOUND")),
        ("acquire", {"topic": "none"}, (404, "TOPIC_NOT_FOUND")),
        ("acquire", {"topic": "No"}, (400, "INVALID_NAME")),
        ("acquire", {"member": ""}, (400, "INVALID_ARGUMENT")),
        ("acquire", {"max_messages": 0}, (400, "INVALID_ARGUMENT")),
        ("acquire", {"timeout_ms": 1}, (400, "INVALID_ARGUMENT")),
        ("acquire", {"partition": 7}, (400, "PARTITION_NOT_ALLOWED")),
        ("acquire", {"x": 1}, (400, "INVALID_ARGUMENT")),
        ("acquire", {"namespace": "tenants/a/namespaces/b", "topic": full(topic)},
         (400, "INVALID_ARGUMENT")),
        ("acknowledge", {"acks": []}, (400, "INVALID_ARGUMENT")),  # It has timeout_ms.
    ):  # fmt: skip
        answer = http.post(f"/v1/share/{path}", json={**good_body, **body})
        assert error(answer) == expected, body
    assert error(http.post("/v1/share/acquire", content=b"{"))[0] == 400
    body = {"group": "no", "topic": topic, "member": "m", "acks": []}
    assert error(http.post("/v1/share/acknowledge", json=body)) == (404, "GROUP_NOT_FOUND")


def test_lag_and_messages_in_flight_are_metrics(http: httpx.Client, topic: str) -> None:
    acquire(http, topic, max_messages=2)
    text = http.get("/metrics").text
    labels = f'group="billing",topic="{full(topic)}"'
    assert f"wings_share_lag_messages{{{labels}}} 5.0" in text
    assert f"wings_share_in_flight_messages{{{labels}}} 2.0" in text
    of_partition = f'group="billing",partition="null",topic="{full(topic)}"'
    assert f"wings_share_partition_lag_messages{{{of_partition}}} 5.0" in text
