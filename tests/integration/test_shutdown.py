"""A server that is told to stop: what it received is committed or refused, never dropped."""

import signal
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from flight_calls import (
    Stream,
    code_of,
    create_topic,
    get,
    numbers,
    push,
    read_answer,
    ticket_of,
)
from waiting import until

import wings_client
from wings_server.flight import service
from wings_server.testing import running_server, server_process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_rows_received_before_a_stop_survive_it(tmp_path: Path, number: signal.Signals) -> None:
    acknowledged: list[list[int]] = [[] for _ in range(4)]
    sent = [0] * 4

    def produce(endpoint: str, producer: int) -> None:
        try:
            with flight.FlightClient(endpoint) as client:
                stream = Stream(client, numbers().schema, "t")
                while True:
                    value = producer * 1_000_000 + sent[producer]
                    sent[producer] += 1
                    answer = stream.push(numbers(value))
                    if "error" in answer:
                        assert answer["error"]["code"] == "UNAVAILABLE"
                        return
                    acknowledged[producer].append(value)
        except (flight.FlightError, pa.ArrowException, OSError, AssertionError):
            return  # The server is gone; nothing was said of the last batch.

    with server_process(tmp_path / "data") as server:
        with server.client() as client:
            create_topic(client, "t", ["n: int64"])
        producers = [threading.Thread(target=produce, args=(server.flight, n)) for n in range(4)]
        for producer in producers:
            producer.start()
        until(lambda: sum(len(values) for values in acknowledged) >= 200)
        assert server.signal(number) == 0
        for producer in producers:
            producer.join(timeout=20)
            assert not producer.is_alive()
    with running_server(tmp_path / "data") as server:
        rows = get(server.client(), kind="scan", topic="t").column("n")
    assert len(set(rows)) == len(rows)
    assert {value for values in acknowledged for value in values} <= set(rows)
    for producer in range(4):
        ours = [value for value in rows if value // 1_000_000 == producer]
        assert ours == sorted(ours)
        assert len(ours) <= sent[producer]


def test_waiting_polls_end_with_unavailable(tmp_path: Path) -> None:
    ended: list[BaseException] = []

    with server_process(tmp_path / "data") as server:
        client = server.client()
        create_topic(client, "t", ["n: int64"])
        readers = [
            client.do_get(ticket_of(topic="t", offset=0, timeout_ms=60_000)),
            client.do_get(ticket_of(kind="follow", topic="t")),
        ]

        def read(reader: flight.FlightStreamReader) -> None:
            try:
                read_answer(reader)
            except flight.FlightError as error:
                ended.append(error)

        threads = [threading.Thread(target=read, args=(reader,)) for reader in readers]
        for thread in threads:
            thread.start()
        assert server.terminate() == 0
        for thread in threads:
            thread.join(timeout=20)
            assert not thread.is_alive()
    assert len(ended) == 2
    for error in ended:
        assert isinstance(error, flight.FlightUnavailableError)
        assert code_of(error) == "UNAVAILABLE"


def test_an_idle_stream_does_not_hold_up_the_stop_of_a_server_in_process() -> None:
    with running_server(drain_seconds=600.0) as server:  # Longer than a test may take.
        client = server.client()
        create_topic(client, "t", ["n: int64"])
        stream = Stream(client, numbers().schema, "t")
        stream.push(numbers(1))
        server.stop()
        with pytest.raises(flight.FlightError):
            push(client, "t", numbers(2))


def test_what_a_member_holds_is_acknowledged_in_a_stop_and_no_more_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "DRAIN_SECONDS_MAX", 60.0)
    with (
        running_server(tmp_path / "data", drain_seconds=60.0) as server,
        wings_client.connect(server.flight) as client,
    ):
        client.create_topic("jobs", {"n": "int64"})
        client.push("jobs", {"n": list(range(30))})
        client.create_share_group("workers", "jobs", {"start": "earliest"})
        with client.share_consumer("workers", "jobs", max_messages=10) as consumer:
            held = next(consumer)
            stop = threading.Thread(target=server.stop)
            stop.start()
            until(lambda: not server.server.ready)
            consumer.accept(held)
            stop.join()
    with (
        running_server(tmp_path / "data") as again,
        wings_client.connect(again.flight) as client,
    ):
        (partition,) = client.share_group("workers", "jobs").partitions
        assert (partition.lag, partition.in_flight) == (20, 0)
