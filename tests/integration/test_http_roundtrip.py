"""What a fetch gives, a push accepts, and the rows are the same: for every type, over HTTP."""

import json
from itertools import count
from typing import Any

import flight_calls
import httpx
import pyarrow as pa
import pyarrow.flight as flight
from arrow_strategies import batches
from flight_calls import get
from http_calls import NAMESPACE, entry, fetch_body, full, good, push_text
from hypothesis import HealthCheck, given, settings
from property_examples import examples

from wings_core.schemas import schema_to_ipc

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
