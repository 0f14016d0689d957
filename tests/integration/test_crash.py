"""kill -9 in a loop under load: what was acknowledged is there, and nothing else is visible."""

import json
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from flight_calls import act, create_topic, get

from wings_server.testing import ServerProcess, server_process

SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("producer", pa.int32(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("row", pa.int32(), nullable=False),
    ]
)
KEYS = ("a", "b", "c")
PRODUCERS = 3
IN_FLIGHT_MAX = 8


def batch_of(producer: int, sequence: int) -> pa.RecordBatch:
    """Make the batch of a sequence: the same at every retry, over one to three partitions."""
    rows = 1 + (producer + sequence) % 7
    return pa.RecordBatch.from_arrays(
        [
            pa.array([KEYS[(sequence + row) % len(KEYS)] for row in range(rows)]),
            pa.array([producer] * rows, pa.int32()),
            pa.array([sequence] * rows, pa.int64()),
            pa.array(range(rows), pa.int32()),
        ],
        schema=SCHEMA,
    )


@dataclass
class Producer:
    """Pushes its sequences in order, several in flight, and retries what was not acknowledged."""

    number: int
    acknowledged: list[list[dict[str, object]]] = field(default_factory=list)
    """What each sequence committed, by sequence."""

    def run(self, endpoint: str, stop: threading.Event) -> None:
        """Push until told to stop, or until the server is gone."""
        try:
            with flight.connect(endpoint) as client:
                self._push(client, stop)
        except flight.FlightError:
            return  # Killed in the middle: the next round retries.

    def _push(self, client: flight.FlightClient, stop: threading.Event) -> None:
        start = len(self.acknowledged)
        command = {"topic": "crash", "producer_id": f"p{self.number}", "sequence": start}
        descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
        writer, answers = client.do_put(descriptor, SCHEMA)
        sent = start
        while not stop.is_set() or sent > len(self.acknowledged):
            if not stop.is_set() and sent - len(self.acknowledged) < IN_FLIGHT_MAX:
                writer.write_batch(batch_of(self.number, sent))
                sent += 1
                continue
            answer = answers.read()
            if answer is None:
                return
            body = json.loads(answer.to_pybytes())
            assert "error" not in body, body
            self.acknowledged.append(body["committed"])
        writer.close()


def crash_rounds(directory: Path, rounds: int) -> None:
    producers = [Producer(number) for number in range(PRODUCERS)]
    for number in range(rounds):
        with server_process(directory) as server:
            if number == 0:
                with server.client() as client:
                    create_topic(
                        client,
                        "crash",
                        [f"{f.name}: {f.type} not null" for f in SCHEMA],
                        "key",
                    )
            else:
                check(server, producers)
            load_and_kill(server, producers, kill_after=3 + number * 7 % 40)
    with server_process(directory) as server:
        check(server, producers)
        finish = threading.Event()
        finish.set()
        for producer in producers:
            retry_in_flight(server, producer)
            producer.run(server.flight, finish)
        everything = check(server, producers)
        for producer in producers:
            done = {sequence for who, sequence in everything if who == producer.number}
            assert done == set(range(len(producer.acknowledged))), "a batch twice, or none"


def load_and_kill(server: ServerProcess, producers: list[Producer], kill_after: int) -> None:
    """Kill the server once so many more batches are acknowledged."""
    stop = threading.Event()
    before = sum(len(producer.acknowledged) for producer in producers)
    threads = [
        threading.Thread(target=producer.run, args=(server.flight, stop)) for producer in producers
    ]
    for thread in threads:
        thread.start()
    pause = threading.Event()
    while sum(len(producer.acknowledged) for producer in producers) < before + kill_after:
        assert any(thread.is_alive() for thread in threads), "the producers stopped by themselves"
        pause.wait(0.001)
    server.kill()
    stop.set()
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive()


def retry_in_flight(server: ServerProcess, producer: Producer) -> None:
    """Send again, without stopping, what may have been in flight at the last kill."""
    start = len(producer.acknowledged)
    command = {"topic": "crash", "producer_id": f"p{producer.number}", "sequence": start}
    with server.client() as client:
        descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
        writer, answers = client.do_put(descriptor, SCHEMA)
        for sequence in range(start, start + IN_FLIGHT_MAX):
            writer.write_batch(batch_of(producer.number, sequence))
            answer = json.loads(answers.read().to_pybytes())
            producer.acknowledged.append(answer["committed"])
        writer.close()


def check(server: ServerProcess, producers: list[Producer]) -> set[tuple[int, int]]:
    """Check all invariants of the log; return the (producer, sequence) that are visible."""
    rows: Counter[tuple[int, int]] = Counter()
    with server.client() as client:
        states = {s["partition"]: s for s in act(client, "partition-states", topic="crash")}
        for key, state in states.items():
            answer = get(client, kind="scan", topic="crash", partition=key, system_columns=True)
            offsets = answer.column("__offset")
            assert offsets == list(range(state["next_offset"])), "offsets have a gap"
            at = list(
                zip(
                    answer.column("producer"),
                    answer.column("sequence"),
                    answer.column("row"),
                    strict=True,
                )
            )
            assert len(set(at)) == len(at), "a row twice"
            rows.update((producer, sequence) for producer, sequence, _ in at)
            check_acknowledged(producers, key, at)
    for (producer, sequence), count in rows.items():
        assert count == batch_of(producer, sequence).num_rows, "part of a batch"
    return set(rows)


def check_acknowledged(producers: list[Producer], key: str, at: list[tuple[int, int, int]]) -> None:
    """Everything acknowledged in a partition is at its offsets, in its order."""
    for producer in producers:
        for sequence, committed in enumerate(producer.acknowledged):
            for part in committed:
                if part["partition"] != key:
                    continue
                start, end = int(str(part["start_offset"])), int(str(part["end_offset"]))
                batch = batch_of(producer.number, sequence).to_pylist()
                expected = [
                    (producer.number, sequence, row["row"]) for row in batch if row["key"] == key
                ]
                assert at[start : end + 1] == expected


@pytest.mark.timeout(300)
def test_nothing_acknowledged_is_lost_or_doubled_over_25_crashes(tmp_path: Path) -> None:
    crash_rounds(tmp_path / "data", 25)


@pytest.mark.soak
@pytest.mark.timeout(6 * 3600)
def test_nothing_acknowledged_is_lost_or_doubled_over_a_thousand_crashes(tmp_path: Path) -> None:
    crash_rounds(tmp_path / "data", 1_000)
