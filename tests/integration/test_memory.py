"""What comes in fits into the budget of memory, whatever it is, and its memory goes back."""

import json
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from flight_calls import Json, Stream, act, code_of, create_topic, error_of, get, push
from fuzz import flight_messages, path_descriptor
from http_calls import NAMESPACE
from waiting import until

from wings_core.limits import MIB, Limits
from wings_core.memory import RoomWaits
from wings_server.testing import ServerProcess, running_server, server_process

BUDGET = 256 * MIB
SECONDS_MAX = 60.0

UNREAD = 100
"""Answers that a server cannot write while its client reads none: 8 MB."""

ANSWERED = 100
"""Partitions in each of them, with long names."""

SLACK = 128 * MIB
"""What the process may have more than before, once all is done."""


def resident(server: ServerProcess, name: str = "VmRSS") -> int:
    """Return the resident memory of a server in bytes; `VmHWM`: the most that it ever had."""
    lines = Path(f"/proc/{server.pid}/status").read_text(encoding="ascii").splitlines()
    (line,) = [line for line in lines if line.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024


def wait_until_small(server: ServerProcess, base: int) -> None:
    end = time.monotonic() + SECONDS_MAX
    while resident(server) > base + SLACK:
        assert time.monotonic() < end, f"{resident(server)} bytes, and {base} before"
        time.sleep(0.05)


@contextmanager
def bounded_server(**limits: int) -> Generator[ServerProcess]:
    given = {"memory_bytes_max": BUDGET, **limits}
    environment = {f"WINGS_LIMITS__{name.upper()}": str(value) for name, value in given.items()}
    with server_process(environment=environment) as server:
        create_topic(server.client(), "t", ["n: int64"])
        push(server.client(), "t", pa.record_batch({"n": pa.array([1], pa.int64())}))
        yield server


def push_error(
    client: flight.FlightClient,
    topic: str,
    batch: pa.RecordBatch,
    options: flight.FlightCallOptions | None = None,
) -> Json:
    """Push a batch that is refused; return the error."""
    path = flight.FlightDescriptor.for_path(topic)
    writer, _ = client.do_put(path, batch.schema, options or flight.FlightCallOptions())
    with pytest.raises(flight.FlightError) as caught:
        _send(writer, batch)
    return error_of(caught.value)


def _send(writer: flight.FlightStreamWriter, batch: pa.RecordBatch) -> None:
    writer.write_batch(batch)
    writer.close()


@pytest.mark.parametrize("puts", [64, pytest.param(300, marks=pytest.mark.soak)])
def test_many_large_pushes_at_once_stay_within_the_budget(puts: int) -> None:
    batch = pa.record_batch({"n": pa.array(np.arange(MIB))})
    outcomes: Counter[str] = Counter()
    ended: Counter[str] = Counter()

    def put() -> None:
        try:
            with flight.FlightClient(server.flight) as client:
                stream = Stream(client, batch.schema, "t")
                stream.push(batch)
                outcomes["committed"] += 1
                try:
                    stream.close()
                except flight.FlightError as error:
                    # There was no room to read on, and so to see that nothing more comes.
                    ended[code_of(error)] += 1
        except Exception as error:  # noqa: BLE001 - each must be a typed refusal
            outcomes[code_of(error)] += 1

    with bounded_server() as server:
        base = resident(server)
        threads = [threading.Thread(target=put) for _ in range(puts)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert outcomes.keys() <= {"committed", "RESOURCE_EXHAUSTED"}
        assert outcomes["committed"] > 0
        assert outcomes.total() == puts
        assert ended.keys() <= {"RESOURCE_EXHAUSTED"}
        assert resident(server, "VmHWM") <= base + 2 * BUDGET
        wait_until_small(server, base)
        states = act(server.client(), "partition-states", topic="t")
        assert states[0]["next_offset"] == 1 + outcomes["committed"] * MIB


def test_memory_of_what_is_refused_goes_back() -> None:
    large = pa.record_batch({"n": pa.array(np.arange(12 * MIB))})
    packed = flight.FlightCallOptions(write_options=pa.ipc.IpcWriteOptions(compression="zstd"))
    with bounded_server() as server:
        client = server.client()
        base = resident(server)
        assert push_error(client, "t", large)["code"] == "BATCH_TOO_LARGE"
        assert push_error(client, "t", large, packed)["code"] == "BATCH_TOO_LARGE"
        with pytest.raises(flight.FlightError) as caught:
            client.do_get(flight.Ticket(bytes(100 * MIB))).read_all()
        assert code_of(caught.value) == "INVALID_TICKET"
        with pytest.raises(flight.FlightError) as caught:
            list(client.do_action(flight.Action("list-topics", bytes(100 * MIB))))
        assert code_of(caught.value) == "INVALID_ARGUMENT"
        wait_until_small(server, base)


def test_what_would_decompress_to_more_than_arrow_may_take_is_refused_before_it_does() -> None:
    large = pa.record_batch({"n": pa.repeat(pa.scalar(0, pa.int64()), 24 * MIB)})
    few = pa.record_batch({"n": pa.array(range(1000), pa.int64())})
    packed = flight.FlightCallOptions(write_options=pa.ipc.IpcWriteOptions(compression="zstd"))
    bounds = {"MIMALLOC_RESERVE_OS_MEMORY": "128MiB", "MIMALLOC_DISALLOW_OS_ALLOC": "1"}
    with server_process(environment=bounds) as server:
        client = server.client()
        create_topic(client, "t", ["n: int64"])
        push(client, "t", few)
        before = resident(server, "VmHWM")
        assert push_error(client, "t", large, packed)["code"] == "BATCH_TOO_LARGE"
        with grpc.insecure_channel(server.flight.removeprefix("grpc://")) as channel:
            put: Any = channel.stream_stream("/arrow.flight.protocol.FlightService/DoPut")
            rows = pa.Table.from_batches([few])
            sent = flight_messages(path_descriptor("t"), rows, compression="zstd")
            declared, huge = (size.to_bytes(8, "little") for size in (few.nbytes, 2**33))
            answers = put(iter([sent[0], sent[1].replace(declared, huge)]), timeout=20)
            with pytest.raises(grpc.RpcError):
                list(answers)
        error = json.loads(dict(answers.trailing_metadata())["grpc-status-details-bin"])
        assert (error["code"], error["bytes"], error["bytes_max"]) == (
            "BATCH_TOO_LARGE",
            2**33,
            64 * MIB,
        )
        assert resident(server, "VmHWM") <= before + SLACK
        push(client, "t", few)
        assert get(client, kind="scan", topic="t").table.num_rows == 2 * few.num_rows


def test_a_batch_of_too_many_rows_is_refused() -> None:
    with bounded_server(batch_rows_max=1000) as server:
        client = server.client()
        create_topic(client, "nothing", ["n: null"])
        error = push_error(client, "nothing", pa.record_batch({"n": pa.nulls(2**31 - 1)}))
        assert (error["code"], error["rows"], error["rows_max"]) == (
            "BATCH_TOO_LARGE",
            2**31 - 1,
            1000,
        )
        push(client, "nothing", pa.record_batch({"n": pa.nulls(1000)}))


def test_bodies_of_http_are_within_the_budget_too() -> None:
    with running_server(limits=Limits(memory_bytes_max=MIB)) as server:
        create_topic(server.client(), "t", ["n: int64"])
        room = server.server.log.memory.room()
        server.server.log.memory.add(room, MIB)
        body: Json = {"namespace": NAMESPACE, "batches": [{"topic": "t", "data": [{"n": 1}]}]}
        url = f"{server.http}/v1/push"
        refused = httpx.post(url, json=body)
        assert (refused.status_code, refused.json()["code"]) == (429, "RESOURCE_EXHAUSTED")
        room.close()
        assert httpx.post(url, json=body).status_code == 200


def test_a_producer_that_reads_no_answers_holds_no_room() -> None:
    """Its call goes on for as long as it likes; so do those of others, with all of the budget."""
    names = ["0", *(f"{number:0800}" for number in range(1, ANSWERED))]
    many = pa.record_batch({"n": pa.array(names)})
    large = pa.record_batch({"n": pa.repeat("0", MIB)})
    with running_server(limits=Limits(memory_bytes_max=BUDGET)) as server:
        client = server.client()
        create_topic(client, "t", ["n: string"], "n")
        stream = Stream(client, many.schema, "t")
        for _ in range(UNREAD):
            stream.writer.write_batch(many)
        stream.writer.write_batch(large)
        stream.writer.done_writing()
        until(lambda: _is_committed(client, UNREAD + MIB) and not server.server.log.memory.held)
        for number in range(UNREAD + 1):
            answer = stream.answer()
            assert answer is not None
            assert answer["batch"] == number
        stream.writer.close()


def _is_committed(client: flight.FlightClient, rows: int) -> bool:
    """Tell whether the partition of the large batch has so many rows."""
    states = act(client, "partition-states", topic="t")
    return any(state["partition"] == "0" and state["next_offset"] == rows for state in states)


def test_streams_that_are_idle_leave_http_its_room() -> None:
    one = pa.record_batch({"n": pa.array([1], pa.int64())})
    body: Json = {"namespace": NAMESPACE, "batches": [{"topic": "t", "data": [{"n": 1}]}]}
    with running_server(limits=Limits(memory_bytes_max=64 * MIB)) as server:
        budget = server.server.log.memory
        budget.waits = RoomWaits(idle_seconds=3_600.0, idle_seconds_max=3_600.0)
        create_topic(server.client(), "t", ["n: int64"])
        streams = [Stream(server.client(), one.schema, "t") for _ in range(4)]
        for stream in streams:
            stream.push(one)
        assert not budget.has_room(1)
        budget.waits = RoomWaits(idle_seconds=0.5, idle_seconds_max=0.5)
        until(lambda: httpx.post(f"{server.http}/v1/push", json=body).status_code == 200)
        for stream in streams:  # Theirs comes back when they need it.
            stream.push(one)
            stream.close()
