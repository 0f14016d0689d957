"""Sums for overviews: totals of topics, traffic, the lag of consumers, parts of lists."""

from typing import Any

import httpx
from fix_server import Trim
from http_calls import create_topic, entry, fetch_body, good, push

import wings_client
from wings_core.partitions import Partition
from wings_server.testing import RunningServer


def act(http: httpx.Client, action: str, **body: object) -> Any:
    return good(http.post(f"/v1/actions/{action}", json=body))


def rows(*values: str) -> list[dict[str, object]]:
    return [{"k": value, "n": number} for number, value in enumerate(values)]


def test_totals_are_sums_over_partitions(http: httpx.Client, new_topic_id: str) -> None:
    topic = create_topic(http, new_topic_id, ["n: int64", "k: string not null"], "k")["topic"]
    push(http, {"topic": new_topic_id, "data": rows("a", "b", "b")})
    totals: list[Any] = act(http, "topic-totals", topics=[new_topic_id, "not-there"], tiers=True)
    (found,) = totals
    states = act(http, "partition-states", topic=new_topic_id)
    assert (found["topic"], found["partitions"], found["rows"]) == (topic, 2, 3)
    assert found["bytes"] == sum(each["bytes"] for each in states)
    assert sum(tier["rows"] for tier in found["tiers"]) == 3


def test_traffic_counts_what_goes_in_and_out(
    http: httpx.Client, server: RunningServer, new_topic_id: str
) -> None:
    topic = create_topic(http, new_topic_id, ["n: int64", "k: string"])["topic"]
    push(http, {"topic": new_topic_id, "data": rows("a", "b", "c")})
    good(http.post("/v1/fetch", json=fetch_body(entry(new_topic_id, 1))))
    traffic: dict[str, list[dict[str, int | str]]] = act(http, "traffic", limit=1)
    (found,) = traffic["topics"]
    assert (found["topic"], found["rows_in"], found["rows_out"]) == (topic, 3, 2)
    assert found["bytes_in"]
    assert found["bytes_out"]
    from wings_client import connect

    with connect(server.flight) as client:
        client.push(new_topic_id, {"n": [1], "k": ["d"]})
        assert client.fetch(new_topic_id, offset=0).table.num_rows == 4
    again: dict[str, list[dict[str, int | str]]] = act(http, "traffic", limit=1)
    (found,) = again["topics"]
    assert (found["rows_in"], found["rows_out"]) == (4, 6)


def test_partitions_are_told_of_in_an_order_and_in_parts(
    http: httpx.Client, new_topic_id: str
) -> None:
    create_topic(http, new_topic_id, ["n: int64", "k: string not null"], "k")
    push(http, {"topic": new_topic_id, "data": rows("aa", "b", "b", "b", "ab", "ab")})
    push(http, {"topic": new_topic_id, "data": rows("aa")})

    def values(**body: object) -> list[str]:
        found: list[dict[str, str]] = act(http, "partition-states", topic=new_topic_id, **body)
        return [each["partition"] for each in found]

    assert values() == ["aa", "ab", "b"]
    assert values(order="rows", limit=1) == ["b"]
    assert values(order="last_timestamp", limit=1) == ["aa"]
    assert values(skip=1, limit=1) == ["ab"]
    assert values(contains="a") == ["aa", "ab"]


def test_consumers_are_listed_with_their_lag(http: httpx.Client, new_topic_id: str) -> None:
    topic = create_topic(http, new_topic_id, ["n: int64", "k: string not null"], "k")["topic"]
    push(http, {"topic": new_topic_id, "data": rows("a", "a", "b", "b", "b")})
    offsets = [{"topic": new_topic_id, "partition": key, "offset": 1} for key in "ab"]
    act(http, "commit-offsets", consumer=f"reader-{new_topic_id}", offsets=offsets)
    (found,) = act(http, "list-consumers", contains=new_topic_id)
    (lag,) = found["topics"]
    assert (lag["topic"], lag["partitions"], lag["lag"]) == (topic, 2, 3)
    assert act(http, "list-consumers", contains=new_topic_id, after="z") == []
    lags: dict[str, list[dict[str, object]]] = act(
        http, "consumer-lag", consumer=f"reader-{new_topic_id}", limit=1
    )
    (most,) = lags["partitions"]
    assert (most["partition"], most["lag"], most["next_offset"]) == ("b", 2, 3)


def test_messages_that_are_gone_are_no_lag(
    http: httpx.Client, server: RunningServer, new_topic_id: str, trim: Trim
) -> None:
    create_topic(http, new_topic_id, ["n: int64", "k: string not null"], "k")
    for _ in range(4):
        push(http, {"topic": new_topic_id, "data": rows("a", "b")})
    reader = f"reader-{new_topic_id}"
    offsets = [{"topic": new_topic_id, "partition": key, "offset": 1} for key in "ab"]
    act(http, "commit-offsets", consumer=reader, offsets=offsets)
    with wings_client.connect(server.flight) as client:
        trim(client.topic(new_topic_id), 3, Partition('"a"'))
    (found,) = act(http, "list-consumers", contains=new_topic_id)
    assert found["topics"][0]["lag"] == 1 + 3
    lags: dict[str, list[dict[str, object]]] = act(http, "consumer-lag", consumer=reader)
    assert [(each["partition"], each["lag"]) for each in lags["partitions"]] == [("b", 3), ("a", 1)]
    offsets[0]["offset"] = 5
    refused = http.post("/v1/actions/commit-offsets", json={"consumer": reader, "offsets": offsets})
    assert (refused.status_code, refused.json()["code"]) == (416, "OFFSET_OUT_OF_RANGE")
    assert refused.json()["message"].startswith('offset 5 is past the end of partition "a" of ')
