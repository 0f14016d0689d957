"""What a reader gets on the wire in rare cases, by a plain Flight client."""

import json
import struct
from typing import Any, cast

import grpc
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from fix_calls import Calls
from flight_calls import (
    act,
    chunks,
    code_of,
    create_topic,
    get,
    numbers,
    push,
    put_stream,
    ticket_of,
)
from waiting import until

from wings_core.limits import Limits
from wings_server.testing import RunningServer, server_process

MIB = 1024 * 1024

pytestmark = pytest.mark.server(limits=Limits(segment_bytes_max=MIB))


def wait_for_segments(server: RunningServer, segments: int) -> None:
    """Wait until at most so many finished segments are left."""
    until(lambda: len(server.server.log.store.folios()) <= segments)


@pytest.mark.parametrize("kind", ["scan", "follow"])
def test_a_topic_deleted_during_a_read_ends_it_with_topic_not_found(
    server: RunningServer, client: flight.FlightClient, new_topic_id: str, kind: str
) -> None:
    create_topic(client, new_topic_id, ["n: int64"])
    # More than the transport takes ahead of a reader.
    rows = numbers(*range(MIB // 8))
    for _ in range(48):
        push(client, new_topic_id, rows)
    read = chunks(client.do_get(ticket_of(topic=new_topic_id, kind=kind, offset=0)))
    next(read)
    act(client, "delete-topic", topic=new_topic_id)
    wait_for_segments(server, 0)
    with pytest.raises(flight.FlightServerError) as caught:
        list(read)
    assert code_of(caught.value) == "TOPIC_NOT_FOUND"


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("offset", [0, 1])
def test_rows_of_very_different_sizes_keep_to_the_bytes_of_a_batch_on_the_wire(
    client: flight.FlightClient, new_topic_id: str, offset: int, filtered: bool
) -> None:
    create_topic(client, new_topic_id, ["s: string"])
    rows = pa.record_batch({"s": pa.array(["x" * MIB] * 40 + ["y"] * 100_000)})
    push(client, new_topic_id, rows)
    keys = {"filter": "s is not null"} if filtered else {}
    ticket = ticket_of(topic=new_topic_id, kind="scan", offset=offset, **keys)
    batches = [chunk.data for chunk in chunks(client.do_get(ticket)) if chunk.data is not None]
    assert max(batch.nbytes for batch in batches) <= 16 * MIB
    assert sum(batch.num_rows for batch in batches) == rows.num_rows - offset


def test_a_row_above_the_bytes_of_a_batch_on_the_wire_comes_alone(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    create_topic(client, new_topic_id, ["s: string"])
    push(client, new_topic_id, pa.record_batch({"s": ["a", "x" * (17 * MIB), "b", "c"]}))
    answer = get(client, topic=new_topic_id, kind="scan")
    assert (1, 1) in answer.ranges
    assert [len(text) for text in answer.column("s")] == [1, 17 * MIB, 1, 1]


def test_a_filter_that_passes_one_row_of_many_pages_is_called_a_few_times(
    server: RunningServer,
    client: flight.FlightClient,
    new_topic_id: str,
    calls: Calls,
) -> None:
    create_topic(client, new_topic_id, ["n: int64"])
    push(client, new_topic_id, *map(numbers, range(500)))
    looks = calls.heard(server.server.log.registry, "locate")
    answer = get(client, topic=new_topic_id, offset=0, max_messages=1, filter="n = 499")
    assert (answer.column("n"), answer.end, answer.next_offset) == ([499], "max_messages", 500)
    assert len(looks) <= 12


def test_offsets_beyond_the_buffers_of_a_batch_that_is_too_large_do_not_crash_the_server() -> None:
    offsets = bytearray(struct.pack("<2i", 0, 1))
    values = pa.array(["a"])
    column = pa.Array.from_buffers(
        pa.list_(pa.string()),
        1,
        cast("Any", [None, pa.py_buffer(offsets)]),
        children=cast("Any", [values]),
    )
    rows = pa.record_batch({"x": column})
    # Only now, as pyarrow checks what it makes.
    offsets[:] = struct.pack("<2i", 0, 1 << 30)
    schema = {"fields": [{"name": "x", "type": "list<item: string>"}]}
    with server_process() as server:  # It would take the tests with it.
        client = server.client()
        body = {"topic": "nested", "schema": schema, "config": {"batch_bytes_max": 1}}
        act(client, "create-topic", **body)
        with (
            pytest.raises(flight.FlightServerError) as caught,
            put_stream(client, rows.schema, "nested") as stream,
        ):
            stream.send(rows)
        assert code_of(caught.value) == "SCHEMA_MISMATCH"
        assert act(client, "partition-states", topic="nested")[0]["next_offset"] == 0


def protobuf(number: int, value: bytes) -> bytes:
    """Return a field of a protobuf message."""
    field = bytearray()
    for left in (number << 3 | 2, len(value)):
        while left > 127:
            field.append(left & 127 | 128)
            left >>= 7
        field.append(left)
    return bytes(field) + value


def test_a_message_that_is_not_arrow_is_a_fault_of_its_sender(
    server: RunningServer, client: flight.FlightClient, new_topic_id: str
) -> None:
    create_topic(client, new_topic_id, ["n: int64"])
    rows = numbers(1, 2, 3)
    # Flight has messages without the eight bytes in front, and a batch's body apart.
    schema = rows.schema.serialize().to_pybytes()[8:]
    message = rows.serialize().to_pybytes()
    end = 8 + int.from_bytes(message[4:8], "little")
    path = b"\x08\x01" + protobuf(3, new_topic_id.encode())
    sent = [
        protobuf(1, path) + protobuf(2, schema),
        protobuf(2, message[8:end]) + protobuf(1000, message[end:]),
        protobuf(2, b"\xff" * 64) + protobuf(1000, message[end:]),
    ]
    with grpc.insecure_channel(server.flight.removeprefix("grpc://")) as channel:
        put: Any = channel.stream_stream("/arrow.flight.protocol.FlightService/DoPut")
        answers = put(iter(sent), timeout=20)
        with pytest.raises(grpc.RpcError):
            list(answers)
    trailers = dict(answers.trailing_metadata())
    assert json.loads(trailers["grpc-status-details-bin"])["code"] == "INVALID_ARGUMENT"
    assert get(client, topic=new_topic_id, offset=0).column("n") == [1, 2, 3]
