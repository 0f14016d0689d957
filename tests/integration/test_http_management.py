"""Namespaces, topics and metrics over HTTP: the answers of Flight's actions, at paths."""

import time
from typing import Any

import flight_calls
import httpx
import pyarrow.flight as flight
import pytest
from flight_calls import act, code_of, get
from http_calls import NAMESPACE, create_topic, entry, error, fetch, full, good, push
from tables import each

from wings_server.testing import RunningServer, running_server

SECONDS = 20.0
FIELDS = {"fields": [{"name": "n", "type": "int64"}]}


def test_namespaces_are_created_listed_and_deleted(http: httpx.Client, new_topic_id: str) -> None:
    name = f"tenants/acme/namespaces/{new_topic_id}"
    created = good(http.post("/v1/namespaces", json={"namespace": name}))
    assert created.keys() == {"namespace", "created_at"}
    assert created in good(http.get("/v1/namespaces"))
    again = http.post("/v1/namespaces", json={"namespace": name})
    assert error(again) == (409, "ALREADY_EXISTS")
    good(http.post(f"/v1/{name}/topics", json={"topic": "t", "schema": FIELDS}))
    assert error(http.delete(f"/v1/{name}")) == (409, "NAMESPACE_NOT_EMPTY")
    good(http.delete(f"/v1/{name}/topics/t"))
    assert good(http.delete(f"/v1/{name}")) == created
    assert error(http.delete(f"/v1/{name}")) == (404, "NAMESPACE_NOT_FOUND")
    assert error(http.get(f"/v1/{name}/topics")) == (404, "NAMESPACE_NOT_FOUND")


def test_answers_are_those_of_flights_actions(
    http: httpx.Client, client: flight.FlightClient, new_topic_id: str
) -> None:
    created = create_topic(http, new_topic_id, ["k: string not null", "n: int64"], "k")
    push(http, {"topic": new_topic_id, "data": [{"k": "b"}, {"k": "a"}]})
    path = f"/v1/{full(new_topic_id)}"
    assert created == act(client, "describe-topic", topic=new_topic_id)
    assert good(http.get(path)) == created
    assert good(http.get("/v1/namespaces")) == act(client, "list-namespaces")
    assert good(http.get(f"/v1/{NAMESPACE}/topics")) == act(client, "list-topics")
    states = good(http.get(f"{path}/partitions"))
    assert states == act(client, "partition-states", topic=new_topic_id)
    assert [state["partition"] for state in states] == ["a", "b"]
    assert good(http.delete(path)) == created
    assert error(http.get(path)) == (404, "TOPIC_NOT_FOUND")
    assert error(http.get(f"{path}/partitions")) == (404, "TOPIC_NOT_FOUND")
    assert error(http.delete(path)) == (404, "TOPIC_NOT_FOUND")


def test_a_topic_is_created_in_the_paths_namespace(http: httpx.Client, new_topic_id: str) -> None:
    name = f"tenants/acme/namespaces/{new_topic_id}"
    good(http.post("/v1/namespaces", json={"namespace": name}))
    bare = good(http.post(f"/v1/{name}/topics", json={"topic": "a", "schema": FIELDS}))
    assert bare["topic"] == f"{name}/topics/a"
    named = {"topic": f"{name}/topics/b", "schema": FIELDS}
    assert good(http.post(f"/v1/{name}/topics", json=named))["topic"] == named["topic"]
    foreign = http.post(f"/v1/{name}/topics", json={"topic": full("c"), "schema": FIELDS})
    assert error(foreign) == (400, "INVALID_ARGUMENT")


def test_a_topic_that_exists_may_be_asked_for_again(http: httpx.Client, new_topic_id: str) -> None:
    body: dict[str, Any] = {"topic": new_topic_id, "schema": FIELDS}
    path = f"/v1/{NAMESPACE}/topics"
    created = good(http.post(path, json=body))
    assert error(http.post(path, json=body)) == (409, "ALREADY_EXISTS")
    assert good(http.post(path, json={**body, "if_not_exists": True})) == created
    assert good(
        http.post(path, json={"topic": new_topic_id, "schema_ipc": created["schema_ipc"],
                              "if_not_exists": True})
    ) == created  # fmt: skip


@each(
    ("body", "code"),
    [
        ({"topic": "t"}, "INVALID_ARGUMENT"),
        ({"topic": "t", "schema": FIELDS, "more": 1}, "INVALID_ARGUMENT"),
        ({"topic": "T", "schema": FIELDS}, "INVALID_NAME"),
        ({"topic": "t", "schema": {"fields": [{"name": "n", "type": "int65"}]}}, "INVALID_SCHEMA"),
        (None, "INVALID_ARGUMENT"),
        ([], "INVALID_ARGUMENT"),
    ],
)
def test_a_bad_topic_is_refused(http: httpx.Client, body: Any, code: str) -> None:
    assert error(http.post(f"/v1/{NAMESPACE}/topics", json=body)) == (400, code)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/tenants/T/namespaces/n/topics", 400, "INVALID_NAME"),
        ("DELETE", "/v1/tenants/t/namespaces/-n", 400, "INVALID_NAME"),
        ("GET", f"/v1/{NAMESPACE}/topics/X", 400, "INVALID_NAME"),
        ("GET", f"/v1/{NAMESPACE}/topics/%ff", 400, "INVALID_NAME"),
        ("GET", f"/v1/{NAMESPACE}/topics/X/partitions", 400, "INVALID_NAME"),
        ("GET", f"/v1/{NAMESPACE}/topics/a%2Fpartitions", 404, "TOPIC_NOT_FOUND"),
        ("GET", "/v1", 404, "NOT_FOUND"),
        ("GET", "/v1/topics", 404, "NOT_FOUND"),
        ("GET", "/v1/fetch", 405, "METHOD_NOT_ALLOWED"),
        ("PUT", "/v1/namespaces", 405, "METHOD_NOT_ALLOWED"),
    ],
)
def test_a_bad_path_is_told(
    http: httpx.Client, method: str, path: str, status: int, code: str
) -> None:
    assert error(http.request(method, path)) == (status, code)


# Metrics.


def samples(http: httpx.Client) -> dict[str, float]:
    """The values of all series, by name with labels."""
    answer = http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_metrics_tell_what_was_done_and_where_the_log_stands() -> None:
    with running_server() as server, httpx.Client(base_url=server.http) as http:
        at_start = samples(http)
        assert at_start['wings_pushes_total{transport="http"}'] == 0
        assert at_start["wings_flushes_total"] == 0
        create_topic(http, "t", ["n: int64"])
        create_topic(http, "keyed", ["k: string not null"], "k")
        push(http, {"topic": "t", "data": [{"n": 1}, {"n": 2}]})
        push(http, {"topic": "keyed", "data": [{"k": 'a"b'}]}, {"topic": "none", "data": []})
        fetch(http, entry("t"))
        fetch(http, entry("t", 2), timeout_ms=300)
        error(http.get(f"/v1/{full('none')}"))
        _use_flight(server)
        found = _samples_after_flushes(http, 3)
    assert found['wings_pushes_total{transport="http"}'] == 2
    assert found['wings_push_rows_total{transport="http"}'] == 3
    assert found['wings_push_bytes_total{transport="http"}'] > 0
    assert found['wings_fetches_total{transport="http"}'] == 2
    assert found['wings_fetch_rows_total{transport="http"}'] == 2
    assert found['wings_fetch_bytes_total{transport="http"}'] > 0
    assert found['wings_errors_total{code="TOPIC_NOT_FOUND",transport="http"}'] == 2
    assert found['wings_pushes_total{transport="flight"}'] == 1
    assert found['wings_push_rows_total{transport="flight"}'] == 3
    assert found['wings_fetches_total{transport="flight"}'] == 1
    assert found['wings_fetch_rows_total{transport="flight"}'] == 5
    assert found['wings_errors_total{code="TOPIC_NOT_FOUND",transport="flight"}'] == 1
    assert found["wings_waits_total"] == 1
    assert found["wings_waiting_readers"] == 0
    assert found["wings_pending_bytes"] == 0
    assert found["wings_sql_queries"] == 0
    assert found["wings_flushes_total"] == found["wings_flush_duration_seconds_count"] == 3
    assert found["wings_flush_batches_total"] == 3
    assert found["wings_flush_failures_total"] == 0
    assert found[f'wings_topic_end_offset{{partition="null",topic="{full("t")}"}}'] == 5
    keyed = rf'wings_topic_end_offset{{partition="\"a\\\"b\"",topic="{full("keyed")}"}}'
    assert found[keyed] == 1
    lag = f'wings_consumer_lag_messages{{consumer="reader",partition="null",topic="{full("t")}"}}'
    assert found[lag] == 4
    assert found["wings_series_summed"] == 0


def _samples_after_flushes(http: httpx.Client, flushes: int) -> dict[str, float]:
    """Wait until so many flushes are counted: each is a moment after its pushes are answered."""
    deadline = time.monotonic() + SECONDS
    while (found := samples(http))["wings_flush_duration_seconds_count"] < flushes:
        assert time.monotonic() < deadline, "flushes are not counted"
    return found


def _use_flight(server: RunningServer) -> None:
    client = server.client()
    flight_calls.push(client, "t", flight_calls.numbers(3, 4, 5))
    assert get(client, topic="t", offset=0).column("n") == [1, 2, 3, 4, 5]
    offsets = [{"topic": "t", "offset": 1}]
    act(client, "commit-offsets", consumer="reader", offsets=offsets)
    with pytest.raises(flight.FlightServerError) as caught:
        act(client, "describe-topic", topic="none")
    assert code_of(caught.value) == "TOPIC_NOT_FOUND"
