"""Sums for overviews: totals of topics, traffic, the lag of consumers, parts of lists."""

import itertools
import json
import re
import tempfile
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import flight_calls
import httpx
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from fix_commands import Command
from fix_server import Trim
from http_calls import create_topic, entry, fetch_body, good, push
from waiting import until

import wings_client
from wings_core.limits import MIB, Limits
from wings_core.partitions import Partition
from wings_core.storage.disk import free_bytes
from wings_core.times import format_timestamp, now_us
from wings_server.log_standing import SAMPLES_MAX, History, SeriesName, Standings
from wings_server.overview_actions import LAG_MIN
from wings_server.testing import RunningServer, running_server


def act(http: httpx.Client, action: str, **body: object) -> Any:
    return good(http.post(f"/v1/actions/{action}", json=body))


def rows(*values: str) -> list[dict[str, object]]:
    return [{"k": value, "n": number} for number, value in enumerate(values)]


def test_totals_are_sums_over_partitions(http: httpx.Client, new_topic_id: str) -> None:
    topic = create_topic(http, new_topic_id, ["n: int64", "k: string not null"], "k")["topic"]
    push(http, {"topic": new_topic_id, "data": rows("a", "b", "b")})

    def total() -> Any:
        topics = [new_topic_id, "not-there"]
        totals: list[Any] = act(http, "topic-totals", topics=topics, tiers=True)
        (found,) = totals
        return found

    def states() -> list[Any]:
        return act(http, "partition-states", topic=new_topic_id)

    # What is drained in between is of another size.
    until(lambda: total()["bytes"] == sum(each["bytes"] for each in states()))
    found = total()
    assert (found["topic"], found["partitions"], found["rows"]) == (topic, 2, 3)
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


def test_traffic_counts_staged_rows_once_when_they_are_published(
    http: httpx.Client, server: RunningServer, new_topic_id: str, command: Command, tmp_path: Path
) -> None:
    """Stages, transactions and files: nothing before their publish, nothing for a repeated one."""
    create_topic(http, new_topic_id, ["n: int64"])
    path = tmp_path / "rows.csv"
    path.write_text("n\n1\n2\n")
    total = "wings_push_rows_total"

    def counted() -> tuple[int, float]:
        (found,) = act(http, "topic-totals", topics=[new_topic_id])
        text = http.get("/metrics").text
        (metric,) = re.findall(rf'^{total}{{transport="flight"}} (\S+)$', text, re.MULTILINE)
        assert bool(found["traffic"]["bytes_in"]) == bool(found["rows"])
        return found["traffic"]["rows_in"], float(metric)

    before = counted()[1]
    with wings_client.connect(server.flight) as client:
        with client.stage(new_topic_id, f"{new_topic_id}-stage") as stage:
            stage.write({"n": [1, 2, 3]})
        assert counted() == (0, before)
        for _ in range(2):
            client.publish(new_topic_id, 0, [stage.id])
            assert counted() == (3, before + 3)
        transactions = client.transactions(new_topic_id + "-copy")
        consumed = client.consumer(new_topic_id + "-copy", new_topic_id, auto_commit=False)
        with consumed as consumer, transactions.begin() as transaction:
            transaction.push(new_topic_id, next(consumer).batch)
            transaction.commit(consumer)
        assert counted() == (6, before + 6)
    command("push", new_topic_id, path, "--endpoint", server.flight)
    assert counted() == (8, before + 8)


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


def test_an_hour_of_samples_is_kept_of_topics_consumers_and_groups(
    http: httpx.Client, server: RunningServer, new_topic_id: str
) -> None:
    topic = create_topic(http, new_topic_id, ["n: int64", "k: string"])["topic"]
    act(http, "share-create", group="g", topic=topic, config={"start": "earliest"})
    consumer = f"reader-{new_topic_id}"
    act(http, "commit-offsets", consumer=consumer, offsets=[{"topic": topic, "offset": 0}])
    ahead = itertools.count(step=10)
    history = History(server.server.log, Standings(server.server.log), lambda: next(ahead))
    for _ in range(2):
        push(http, {"topic": new_topic_id, "data": rows("a", "b", "c")})
        history.look()
    (kept, server.server.log.history) = (server.server.log.history, history)
    try:
        found: dict[str, list[Any]] = act(http, "history", topic=topic)
        assert found["columns"] == ["at", "rows_in", "bytes_in", "rows_out", "bytes_out"]
        assert [each[1] for each in found["samples"]] == [3, 6]
        found = act(http, "history", topic=topic, group="g")
        assert found["columns"][:3] == ["at", "lag", "in_flight"]
        assert [each[1] for each in found["samples"]] == [3]  # The second look came too soon.
        found = act(http, "history", consumer=consumer)
        assert [each[1] for each in found["samples"]] == [3]
        assert len(act(http, "history")["samples"]) == 2
        assert act(http, "history", consumer="nobody")["samples"] == []
        for _ in range(2 * SAMPLES_MAX):
            history.look()
        assert len(history.samples(SeriesName("topic", topic))) == SAMPLES_MAX
    finally:
        server.server.log.history = kept
    answer = http.post("/v1/actions/history", json={"group": "g"})
    assert answer.status_code == 400


SECONDS_AGO = re.compile(r" \d+ s ago")


def _now(needs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return needs with what was a few seconds ago as of now: calls are not at one moment."""
    return [{**each, "message": SECONDS_AGO.sub(" 0 s ago", each["message"])} for each in needs]


def test_health_lists_memory_that_requests_hold_and_not_what_idle_streams_lend() -> None:
    def has_need() -> bool:
        needs = good(httpx.get(f"{server.http}/v1/health"))["needs"]
        return "memory_nearly_full" in {each["kind"] for each in needs}

    limits = Limits(memory_bytes_max=64 * MIB)
    with running_server(limits=limits) as server, ExitStack() as streams:
        memory = server.server.log.memory
        client = server.client()
        flight_calls.create_topic(client, "t", ["n: int64"])
        descriptor = flight.FlightDescriptor.for_command(b'{"topic": "t"}')
        schema = pa.schema([("n", pa.int64())])
        for _ in range(4):
            streams.callback(client.do_put(descriptor, schema)[0].close)
        until(lambda: memory.held >= 60 * MIB)
        until(lambda: not has_need())
        assert memory.held >= 60 * MIB
        room = memory.room()
        memory.add(room, 60 * MIB)
        assert has_need()
        room.close()


def test_health_lists_what_needs_a_person(new_topic_id: str, command: Command) -> None:
    """One list, over Flight, HTTP and by the command: the most urgent first."""
    dead = f"{new_topic_id}-dead"
    with running_server() as alone, httpx.Client(base_url=alone.http) as http:
        found: dict[str, Any] = good(http.get("/v1/health"))
        assert (found["needs"], found["needs_left_out"]) == ([], 0)
        assert found["principal"] == {"name": "anyone", "grants": ["admin=*"]}
        assert (found["version"], found["tls"]) == (version("wings-flight"), False)
        assert [each["flight"] for each in found["nodes"]] == [alone.flight]
        create_topic(http, new_topic_id, ["n: int64", "k: string"])
        old = format_timestamp(now_us() - 49 * 3_600_000_000)
        many = {"data": rows(*["a"] * (LAG_MIN + 7)), "timestamp": old}
        push(http, {"topic": new_topic_id, **many})
        offset = {"topic": new_topic_id, "offset": 5}
        act(http, "commit-offsets", consumer="reader", offsets=[offset])
        config = {"start": "earliest", "dlq_topic": dead}
        act(http, "share-create", group="workers", topic=new_topic_id, config=config)
        of_group = {"group": "workers", "topic": new_topic_id, "member": "m"}
        acquire = {**of_group, "max_messages": 3}
        (held,) = good(http.post("/v1/share/acquire", json=acquire))["deliveries"]
        ack = {"partition": None, "first": 0, "last": 2, "lease": held["lease"], "type": "reject"}
        act(http, "share-acknowledge", **of_group, acks=[ack])
        alone.server.log.backups.last_at = now_us() - 8 * 24 * 3_600_000_000
        found = good(http.get("/v1/health"))
        with flight.FlightClient(alone.flight) as client:
            assert _now(found["needs"]) == _now(flight_calls.act(client, "health")["needs"])
        shown = command("status", "--endpoint", alone.flight)
        written = command("status", "--endpoint", alone.flight, "--format", "json")
    assert _now(json.loads(written.out)["needs"]) == _now(found["needs"])
    lines = shown.out.splitlines()
    assert lines[:3] == [
        f"endpoint:  {alone.flight}, without TLS",
        "token:     anyone: admin=*",
        f"versions:  client {version('wings-flight')}, server {version('wings-flight')}",
    ]
    assert lines[3].startswith(f"node:      {alone.flight}, {alone.http}, since ")
    assert lines[4].startswith("disk:      ")
    assert re.fullmatch(r"memory:    [\d,]+ MiB; requests hold 0 MiB of [\d,]+ MiB", lines[5])
    assert re.fullmatch(r"errors:    [\d.]+ a second in the last minute", lines[6])
    assert lines[7:9] == ["", "4 things need you:"]
    needs = _now(found["needs"])
    told = [f"- {each['message']}: {each['remedy']}" for each in needs]
    assert [SECONDS_AGO.sub(" 0 s ago", line) for line in lines[9:]] == told
    in_an_hour = ", 3 in the last hour, the last 0 s ago"
    assert [each["message"] for each in needs] == [
        "the last backup that this log knows of is 8 d old",
        f"3 dead letters of workers of {new_topic_id} in {dead}{in_an_hour}",
        f"the oldest of 10,004 messages that workers has not finished of {new_topic_id} is 2 d old",
        f"the consumer reader is 10,002 messages behind in {new_topic_id}, its last commit 0 s ago",
    ]
    assert [(each["kind"], each.get("count")) for each in found["needs"]] == [
        ("backup_old", None), ("dead_letters", 3), ("oldest_unfinished", 10_004),
        ("consumer_lag", 10_002),
    ]  # fmt: skip


@pytest.mark.parametrize(("share", "kind"), [(0.99, "disk_nearly_full"), (10, "pushes_refused")])
def test_health_tells_of_a_disk_that_fills(share: float, kind: str, command: Command) -> None:
    least = int(free_bytes(Path(tempfile.gettempdir())) * share)
    with running_server(limits=Limits(disk_free_bytes_min=least)) as full:
        found = json.loads(command("status", "--endpoint", full.flight, "--format", "json").out)
    (need,) = found["needs"]
    assert need["kind"] == kind
    assert "MiB free" in need["message"]
    assert found["disk"]["watermark_bytes"] == least


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
    lines = http.get("/metrics").text.splitlines()
    named = (each for each in lines if each.startswith("wings_consumer_lag") and reader in each)
    assert sorted(each.rpartition(" ")[2] for each in named) == ["1.0", "3.0"]
    offsets[0]["offset"] = 5
    refused = http.post("/v1/actions/commit-offsets", json={"consumer": reader, "offsets": offsets})
    assert (refused.status_code, refused.json()["code"]) == (416, "OFFSET_OUT_OF_RANGE")
    assert refused.json()["message"].startswith('offset 5 is past the end of partition "a" of ')
