"""`POST /v1/push`: batches each on its own, in order, exact in every value."""

import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import flight_calls
import httpx
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from arrow_strategies import batches
from fix_calls import Calls
from flight_calls import get
from http_calls import (
    NAMESPACE,
    create_topic,
    entry,
    error,
    fetch,
    fetch_body,
    full,
    good,
    push,
    push_body,
    push_text,
)
from hypothesis import HealthCheck, given, settings
from property_examples import examples
from tables import each
from waiting import until

from wings_core.ingest.prepare import PENDING_BYTES
from wings_core.limits import Limits
from wings_core.model import CommitBatch
from wings_core.schemas import schema_to_ipc
from wings_server.http.service import WRITERS
from wings_server.testing import RunningServer, running_server

PUSHES = 48


def codes(results: list[dict[str, Any]]) -> list[str | None]:
    return [result.get("code") for result in results]


def test_what_is_committed_is_told(http: httpx.Client, new_topic_id: str) -> None:
    create_topic(http, new_topic_id, ["n: int64"])
    push(http, {"topic": new_topic_id, "data": [{"n": 1}]})
    (result,) = push(http, {"topic": full(new_topic_id), "data": [{"n": 2}, {"n": 3}]})
    timestamp = result["timestamp"]
    committed = {
        "partition_value": None,
        "start_offset": 1,
        "end_offset": 2,
        "timestamp": timestamp,
    }
    assert result == {
        "_tag": "success",
        "topic": full(new_topic_id),
        "committed": [committed],
        **committed,
    }
    assert len(timestamp) == len("2026-11-20T12:00:00.000000Z")
    assert timestamp.endswith("Z")


def test_rows_are_routed_by_their_key(http: httpx.Client, new_topic_id: str) -> None:
    create_topic(http, new_topic_id, ["k: string not null", "n: int64"], "k")
    rows = [{"k": "b", "n": 1}, {"k": "a", "n": 2}, {"k": "b", "n": 3}]
    (result,) = push(http, {"topic": new_topic_id, "data": rows})
    assert [
        (found["partition_value"], found["start_offset"], found["end_offset"])
        for found in result["committed"]
    ] == [("b", 0, 1), ("a", 0, 0)]


def test_an_empty_batch_commits_nothing(http: httpx.Client, new_topic_id: str) -> None:
    create_topic(http, new_topic_id, ["n: int64"])
    (result,) = push(http, {"topic": new_topic_id, "data": []})
    assert result == {"_tag": "success", "topic": full(new_topic_id), "committed": []}
    assert push(http) == []


def test_each_batch_stands_on_its_own_and_in_order(http: httpx.Client, new_topic_id: str) -> None:
    create_topic(http, new_topic_id, ["n: int64 not null"])
    results = push(
        http,
        {"topic": new_topic_id, "data": [{"n": 0}]},
        {"topic": new_topic_id, "data": [{"n": "bad"}]},
        {"topic": "none", "data": [{"n": 0}]},
        {"topic": new_topic_id, "data": [{"n": 1}, {}]},
        {"topic": new_topic_id, "data": [{"n": 1}, {"n": 2}]},
        {"topic": new_topic_id, "partition_value": 1, "data": []},
        {"topic": new_topic_id, "data": [{"n": 3}]},
    )
    assert codes(results) == [
        None,
        "SCHEMA_MISMATCH",
        "TOPIC_NOT_FOUND",
        "SCHEMA_MISMATCH",
        None,
        "PARTITION_NOT_ALLOWED",
        None,
    ]
    assert results[1]["message"] == (
        "row 0: column 'n': expected an integer in range (int64), got \"bad\""
    )
    assert results[3]["message"] == "row 1: column 'n': the field is required"
    assert [result["start_offset"] for result in results if "start_offset" in result] == [0, 1, 3]
    (read,) = fetch(http, entry(new_topic_id))
    assert [message["n"] for message in read["messages"]] == [0, 1, 2, 3]


def test_an_absent_key_is_filled_and_a_differing_one_is_an_error(
    http: httpx.Client, new_topic_id: str
) -> None:
    create_topic(http, new_topic_id, ["k: binary not null", "n: int64"], "k")
    rows = [{"n": 1}, {"k": "QQ==", "n": 2}]
    good_batch, differing = push(
        http,
        {"topic": new_topic_id, "partition_value": "QQ==", "data": rows},
        {"topic": new_topic_id, "partition_value": "Qg==", "data": rows},
    )
    assert good_batch["partition_value"] == "QQ=="
    assert differing["code"] == "INVALID_ARGUMENT"
    (read,) = fetch(http, entry(new_topic_id, partition_value="QQ=="))
    assert read["messages"] == [{"k": "QQ==", "n": 1}, {"k": "QQ==", "n": 2}]


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("7", "PARTITION_TYPE_MISMATCH"), (7.0, "PARTITION_TYPE_MISMATCH"),
        (True, "PARTITION_TYPE_MISMATCH"), ([7], "PARTITION_TYPE_MISMATCH"),
        (1 << 63, "PARTITION_TYPE_MISMATCH"),
    ],
)  # fmt: skip
def test_a_partition_value_of_another_kind_is_an_error(
    http: httpx.Client, new_topic_id: str, value: Any, code: str
) -> None:
    create_topic(http, new_topic_id, ["k: int64 not null"], "k")
    (result,) = push(http, {"topic": new_topic_id, "partition_value": value, "data": [{"k": 7}]})
    assert result["code"] == code


def test_a_null_key_without_a_partition_value_is_an_error(
    http: httpx.Client, new_topic_id: str
) -> None:
    create_topic(http, new_topic_id, ["k: int64", "n: int64"], "k")
    results = push(
        http,
        {"topic": new_topic_id, "data": [{"n": 1}]},
        {"topic": new_topic_id, "data": [{"k": None, "n": 1}]},
    )
    assert codes(results) == ["PARTITION_REQUIRED", "PARTITION_REQUIRED"]


@pytest.mark.parametrize("row", [{"n": 1, "m": 2}, {"N": 1}, {"s": {"x": 1, "y": 2}}])
def test_an_unknown_field_is_an_error_and_not_dropped(
    http: httpx.Client, new_topic_id: str, row: Any
) -> None:
    create_topic(http, new_topic_id, ["n: int64", "s: struct<x: int64>"])
    (result,) = push(http, {"topic": new_topic_id, "data": [{}, row]})
    assert result["code"] == "SCHEMA_MISMATCH"
    assert ": there is no such field; " in result["message"]
    assert fetch(http, entry(new_topic_id), timeout_ms=2)[0]["messages"] == []


def test_a_timestamp_of_the_producer_is_kept(
    http: httpx.Client, client: flight.FlightClient, new_topic_id: str
) -> None:
    create_topic(http, new_topic_id, ["n: int64"])
    given, earlier, ahead = push(
        http,
        {"topic": new_topic_id, "timestamp": "2026-11-20T14:00:00.5+02:00", "data": [{"n": 1}]},
        {"topic": new_topic_id, "timestamp": "2026-11-19T12:00:00Z", "data": [{"n": 2}]},
        {"topic": new_topic_id, "timestamp": "9999-01-01T00:00:00Z", "data": [{"n": 3}]},
    )
    assert given["timestamp"] == "2026-11-20T12:00:00.500000Z"
    assert earlier["timestamp"] == "2026-11-20T12:00:00.500000Z", "timestamps never decrease"
    assert ahead["code"] == "INVALID_ARGUMENT"
    table = get(client, topic=new_topic_id, kind="scan", system_columns=True).table
    assert table["__offset"].to_pylist() == [0, 1]


def test_a_topics_own_bound_on_batches_holds(http: httpx.Client, new_topic_id: str) -> None:
    body = {
        "topic": new_topic_id,
        "schema": {"fields": [{"name": "n", "type": "int64"}]},
        "config": {"batch_bytes_max": 100},
    }
    good(http.post(f"/v1/{NAMESPACE}/topics", json=body))
    results = push(
        http,
        {"topic": new_topic_id, "data": [{"n": n} for n in range(100)]},
        {"topic": new_topic_id, "data": [{"n": 1}]},
    )
    assert codes(results) == ["BATCH_TOO_LARGE", None]


# What fails the request: then nothing of it is committed.

ROWS = {"topic": "t", "data": [{"n": 1}]}


@pytest.fixture
def body_of_two(http: httpx.Client, new_topic_id: str) -> bytes:
    """A good body of two batches; `%s` stands for what comes after the first."""
    create_topic(http, new_topic_id, ["n: int64"])
    first = json.dumps({"topic": new_topic_id, "data": [{"n": 1}]})
    return f'{{"namespace": "{NAMESPACE}", "batches": [{first}%s]}}'.encode()


@pytest.mark.parametrize(
    "after",
    [
        b"", b", {", b", {}", b', {"topic": "t"}', b', {"data": []}', b", 5", b", null", b", []",
        b', {"topic": "t", "data": {}}', b', {"topic": "t", "data": null}',
        b', {"topic": "t", "data": 0}', b', {"topic": "t", "data": "[]"}',
        b', {"topic": "t", "data": [], "more": 1}', b', {"topic": "t", "data": [}',
        b', {"topic": "t", "data": [{"n": 01}]}', b', {"topic": "t", "data": [{"n": 1},]}',
        b', {"topic": "t", "data": [{"n": NaN}]}', b', {"topic": "t", "data": [{"n": "\xff"}]}',
        b', {"topic": "t", "data": [{"n": "\\ud800"}]}', b', {"topic": "t", "data": [{"n" 1}]}',
        b', {"topic": "t", "data": [' + b"[" * 100_000 + b"]" * 100_000 + b"]}",
        b', {"topic": "t", "data": [], "data": []}', b', {"topic": "t", "topic": "t", "data": []}',
        b', {"topic": "t", "data": [], "timestamp": null}',
        b', {"topic": "t", "data": [], "timestamp": "now"}',
        b', {"topic": "t", "data": [], "timestamp": 5}',
        b', {"topic": "t", "data": []}], "batches": [', b', {"topic": "t", "data": []}], "x": [1',
        b'], "namespace": "tenants/a/namespaces/b", "x": [',
    ],
    ids=lambda after: repr(after[:60]),
)  # fmt: skip
def test_a_malformed_body_is_refused_whole(
    http: httpx.Client, new_topic_id: str, body_of_two: bytes, after: bytes
) -> None:
    if not after:
        assert codes(push_text(http, body_of_two % b"")) == [None]
        return
    assert error(http.post("/v1/push", content=body_of_two % after)) == (400, "INVALID_ARGUMENT")
    assert fetch(http, entry(new_topic_id), timeout_ms=2)[0]["messages"] == []


@each(
    ("body", "code"),
    [
        ({**push_body(ROWS), "more": 1}, "INVALID_ARGUMENT"),
        ({"batches": [ROWS]}, "INVALID_ARGUMENT"),
        ({"namespace": NAMESPACE}, "INVALID_ARGUMENT"),
        ({"namespace": NAMESPACE, "batches": {}}, "INVALID_ARGUMENT"),
        ({"namespace": NAMESPACE, "batches": None}, "INVALID_ARGUMENT"),
        ({"namespace": None, "batches": []}, "INVALID_ARGUMENT"),
        ({"namespace": "default", "batches": []}, "INVALID_NAME"),
        (push_body({"topic": "Bad Name", "data": []}), "INVALID_NAME"),
        (push_body({"topic": full("t").replace("default", "x"), "data": []}), "INVALID_ARGUMENT"),
        ([], "INVALID_ARGUMENT"),
        (None, "INVALID_ARGUMENT"),
    ],
)
def test_a_bad_body_is_refused(http: httpx.Client, body: Any, code: str) -> None:
    assert error(http.post("/v1/push", json=body)) == (400, code)


@each("content", [b"", b"   ", b"\xff", b"{} {}", b"[1"])
def test_a_body_that_is_no_json_object_is_refused(http: httpx.Client, content: bytes) -> None:
    assert error(http.post("/v1/push", content=content)) == (400, "INVALID_ARGUMENT")


def test_a_compressed_body_is_refused_by_its_encoding(http: httpx.Client) -> None:
    headers = {"content-encoding": "gzip"}
    refused = http.post("/v1/push", content=b"\x1f\x8b\xff", headers=headers)
    assert "content-encoding is gzip" in refused.json()["message"]


def test_rows_that_look_like_an_envelope_are_rows(http: httpx.Client, new_topic_id: str) -> None:
    create_topic(http, new_topic_id, ["topic: string", "data: list<item: int64>"])
    rows = [{"topic": '"data": [1]', "data": [0, 1]}, {"topic": "]}]}", "data": []}]
    results = push(
        http, {"data": rows, "topic": new_topic_id}, {"topic": new_topic_id, "data": rows}
    )
    assert codes(results) == [None, None]
    assert fetch(http, entry(new_topic_id))[0]["messages"] == rows + rows


# Bounds.


def test_a_body_above_the_bound_is_refused() -> None:
    with (
        running_server(limits=Limits(http_body_bytes_max=1_000)) as server,
        httpx.Client(base_url=server.http) as http,
    ):
        create_topic(http, "t", ["n: int64"])
        body = json.dumps(push_body({"topic": "t", "data": [{"n": 1}]})).encode()
        padded = body.ljust(1_000)
        good(http.post("/v1/push", content=padded))
        assert error(http.post("/v1/push", content=padded + b" ")) == (413, "BATCH_TOO_LARGE")
        # Without a length in front, too.
        pieces = iter([padded[:600], padded[600:], b" "])
        assert error(http.post("/v1/push", content=pieces)) == (413, "BATCH_TOO_LARGE")
        assert len(fetch(http, entry("t"))[0]["messages"]) == 1


def test_bodies_beyond_what_may_be_held_are_refused_for_now() -> None:
    with (
        running_server(limits=Limits(http_pending_bytes_max=1_000)) as server,
        httpx.Client(base_url=server.http) as http,
        httpx.Client(base_url=server.http) as other,
    ):
        create_topic(http, "t", ["n: int64"])
        body = json.dumps(push_body({"topic": "t", "data": [{"n": 1}]})).encode().ljust(900)
        first_sent, refused = threading.Event(), threading.Event()

        def slow() -> Any:
            yield body[:800]
            first_sent.set()
            assert refused.wait(100)
            yield body[800:]

        answers: list[httpx.Response] = []
        thread = threading.Thread(
            target=lambda: answers.append(http.post("/v1/push", content=slow(), timeout=150))
        )
        thread.start()
        first_sent.wait(100)
        # Whether the server has read the first piece is only known by its refusal.
        while (answer := other.post("/v1/push", content=body)).status_code == 200:
            pass
        assert error(answer) == (429, "RESOURCE_EXHAUSTED")
        refused.set()
        thread.join()
        good(answers[0])
        good(other.post("/v1/push", content=body))


@pytest.mark.parametrize("pushes", [8, pytest.param(40, marks=pytest.mark.soak)])
def test_many_producers_push_at_once_and_lose_nothing(
    server: RunningServer, http: httpx.Client, new_topic_id: str, pushes: int
) -> None:
    create_topic(http, new_topic_id, ["producer: int64", "n: int64"])

    def produce(producer: int) -> None:
        with httpx.Client(base_url=server.http) as own:
            for n in range(pushes):
                row = {"producer": producer, "n": n}
                (result,) = push(own, {"topic": new_topic_id, "data": [row]})
                (read,) = fetch(own, entry(new_topic_id, result["start_offset"]), max_messages=1)
                assert read["messages"] == [row]

    threads = [threading.Thread(target=produce, args=(producer,)) for producer in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (read,) = fetch(http, entry(new_topic_id))
    for producer in range(8):
        mine = [row["n"] for row in read["messages"] if row["producer"] == producer]
        assert mine == list(range(pushes))


def test_what_http_pushed_flight_reads_in_the_topics_types(
    http: httpx.Client, client: flight.FlightClient, new_topic_id: str
) -> None:
    create_topic(http, new_topic_id, ["at: timestamp[us, tz=UTC]", "d: decimal128(10, 2)"])
    push(http, {"topic": new_topic_id, "data": [{"at": "2026-11-20T12:00:00Z", "d": "1.5"}]})
    table = get(client, topic=new_topic_id, offset=0).table
    assert table.schema.field("at").type == pa.timestamp("us", tz="UTC")
    assert str(table["d"][0]) == "1.50"


def test_a_push_under_way_at_a_stop_is_committed_and_answered(tmp_path: Path) -> None:
    body = json.dumps(push_body({"topic": "t", "data": [{"n": 1}]})).encode()
    stopping = threading.Event()

    def slow() -> Iterator[bytes]:
        yield body[:20]
        assert stopping.wait(100)
        yield body[20:]

    with running_server(tmp_path) as server, httpx.Client(base_url=server.http) as http:
        create_topic(http, "t", ["n: int64"])
        answers: list[httpx.Response] = []
        pushing = threading.Thread(
            target=lambda: answers.append(http.post("/v1/push", content=slow(), timeout=150))
        )
        pushing.start()
        until(lambda: server.server.http_service.calls_running)
        stop = threading.Thread(target=server.stop)
        stop.start()
        with httpx.Client(base_url=server.http) as other:
            while (refused := other.get("/v1/namespaces")).status_code == 200:
                pass
        assert error(refused) == (503, "UNAVAILABLE")
        stopping.set()
        pushing.join()
        stop.join()
    assert good(answers[0])["batches"][0]["_tag"] == "success"
    with running_server(tmp_path) as server, httpx.Client(base_url=server.http) as http:
        assert fetch(http, entry("t"))[0]["messages"] == [{"n": 1}]


def test_values_that_no_type_holds_are_refused_over_http(
    http: httpx.Client, new_topic_id: str
) -> None:
    columns = ["d: decimal128(38, 2)", "f: double", "m: map<string, int64>"]
    create_topic(http, new_topic_id, columns)
    twice = [{"key": "k", "value": 1}, {"key": "k", "value": 2}]
    for row in ({"d": "1" * 38}, {"d": "1" * 1000}, {"f": 1e308}, {"m": twice}):
        text = json.dumps(push_body({"topic": new_topic_id, "data": [{}, row]}))
        answer = http.post("/v1/push", content=text.replace("1e+308", "1e400"))
        (refused,) = answer.json()["batches"]
        assert refused["code"] == "SCHEMA_MISMATCH"
        assert refused["message"].startswith(f"row 1: column '{next(iter(row))}': ")
    (read,) = fetch(http, entry(new_topic_id), timeout_ms=2)
    assert read["messages"] == []


def test_single_rows_pushed_at_once_share_flushes(
    http: httpx.Client,
    server: RunningServer,
    new_topic_id: str,
    calls: Calls,
) -> None:
    create_topic(http, new_topic_id, ["n: int64"])
    log = server.server.log
    flushes: list[int] = []

    def gate(batches: Sequence[CommitBatch], *_: object, **__: object) -> None:
        # All that the writers can take at once are in this flush, or wait for the next.
        expected = min(WRITERS, PUSHES - sum(flushes)) * PENDING_BYTES
        until(lambda: log.group_commit.pending_bytes >= expected)
        flushes.append(len(batches))

    calls.before(log.registry, "commit", gate)
    with ThreadPoolExecutor(PUSHES) as threads:
        pushed = [
            threads.submit(push, http, {"topic": new_topic_id, "data": [{"n": n}]})
            for n in range(PUSHES)
        ]
        offsets = sorted(future.result()[0]["start_offset"] for future in pushed)
    assert offsets == list(range(PUSHES))
    assert sum(flushes) == PUSHES
    assert max(flushes) >= WRITERS // 2
    assert len(flushes) <= PUSHES // 3


# What a fetch gives, a push accepts, and the rows are the same: for every type, over HTTP. ########

_numbers = count()


def create(http: httpx.Client, schema: pa.Schema) -> str:
    topic = f"roundtrip-{next(_numbers)}"
    body = {"topic": topic, "schema_ipc": schema_to_ipc(schema)}
    good(http.post(f"/v1/{NAMESPACE}/topics", json=body))
    return topic


def fetch_text(http: httpx.Client, topic: str) -> bytes:
    """The messages of a fetch as they came, a JSON array."""
    answer = http.post("/v1/fetch", json=fetch_body(entry(topic)))
    good(answer)
    _, messages = answer.content.split(b'"messages": ', 1)
    assert messages.endswith(b"}]}")
    return messages.removesuffix(b"}]}")


@given(batches(rows_min=1))
@settings(
    max_examples=examples(8, 100),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_what_a_fetch_gives_a_push_accepts_and_the_rows_are_the_same(
    http: httpx.Client, client: flight.FlightClient, batch: pa.RecordBatch
) -> None:
    first, second = create(http, batch.schema), create(http, batch.schema)
    flight_calls.push(client, first, batch)
    messages = fetch_text(http, first)
    envelope = json.dumps({"namespace": NAMESPACE, "batches": [{"topic": second, "data": 0}]})
    (result,) = push_text(http, envelope.encode().replace(b'"data": 0', b'"data": ' + messages))
    assert result["_tag"] == "success", result
    assert fetch_text(http, second) == messages
    table: Any = get(client, topic=second, offset=0).table
    assert table.combine_chunks().to_batches()[0].equals(batch)
    for topic in (first, second):
        good(http.delete(f"/v1/{full(topic)}"))


def test_floats_that_json_lacks_become_null(
    http: httpx.Client, client: flight.FlightClient
) -> None:
    schema = pa.schema([pa.field("x", pa.float64()), pa.field("xs", pa.list_(pa.float32()))])
    nan, infinity = float("nan"), float("inf")
    topic = create(http, schema)
    batch = pa.RecordBatch.from_pylist([{"x": nan, "xs": [infinity, 1.0, -infinity]}], schema)
    flight_calls.push(client, topic, batch)
    assert json.loads(fetch_text(http, topic)) == [{"x": None, "xs": [None, 1.0, None]}]
