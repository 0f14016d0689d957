"""kill -9 in a loop under load: what was acknowledged is there, and nothing else is visible."""

import json
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, cast

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from flight_calls import (
    Json,
    Stream,
    act,
    chunks,
    create_topic,
    get,
    numbers,
    push,
    ticket_of,
)
from forked_servers import ForkedServers

SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("producer", pa.int32(), nullable=False),
        pa.field("number", pa.int64(), nullable=False),
        pa.field("row", pa.int32(), nullable=False),
    ]
)
KEYS = ("a", "b", "c")
IN_FLIGHT_MAX = 8

IDEMPOTENT = (0, 1, 2)
"""Producers that number their batches, and after a crash send again what was not acknowledged."""
FORGETFUL = 3
"""A producer that never sends a batch twice."""


class Row(NamedTuple):
    """A row of a batch: which producer's, which batch's, and its place there."""

    producer: int
    number: int
    row: int


def rows_of(producer: int, number: int) -> list[tuple[str, Row]]:
    """Return the rows of a batch with their keys: the same at every retry, of 1 to 3 partitions."""
    count = 1 + (producer + number) % 7
    return [(KEYS[(number + row) % len(KEYS)], Row(producer, number, row)) for row in range(count)]


def batch_of(producer: int, number: int) -> pa.RecordBatch:
    rows = [{"key": key, **row._asdict()} for key, row in rows_of(producer, number)]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


@dataclass
class Producer:
    """Pushes batches by number, several in flight, until the server is gone."""

    producer: int
    acknowledged: dict[int, list[Json]] = field(default_factory=dict[int, list[Json]])
    """What each batch committed, by number."""
    unchecked: list[int] = field(default_factory=list[int])
    """Numbers acknowledged since the log was last looked at."""
    sent: int = 0
    """The number after the last one that was sent."""

    def run(self, server: str, stop: threading.Event) -> None:
        """Push until told to stop; every batch sent is acknowledged then, if the server lives."""
        if self.producer in IDEMPOTENT:
            self.sent = len(self.acknowledged)
        with flight.FlightClient(server) as client:
            try:
                for number, answer in self._push(client, stop):
                    assert "error" not in answer, answer
                    self.acknowledged[number] = answer["committed"]
                    self.unchecked.append(number)
            except flight.FlightError as error:
                if error.extra_info:
                    raise  # The server was not killed: it refused, and has no reason to.

    def _push(
        self, client: flight.FlightClient, stop: threading.Event
    ) -> Iterator[tuple[int, Json]]:
        command: Json = {}
        if self.producer in IDEMPOTENT:
            command = {"producer_id": f"p{self.producer}", "sequence": self.sent}
        stream = Stream(client, SCHEMA, "crash", **command)
        answered = self.sent
        try:
            while answered < self.sent or not stop.is_set():
                if self.sent - answered < IN_FLIGHT_MAX and not stop.is_set():
                    self.sent += 1
                    stream.send(batch_of(self.producer, self.sent - 1))
                    continue
                answer = stream.answer()
                if answer is None:
                    break
                yield answered, answer
                answered += 1
        finally:
            stream.close()


@dataclass
class Follower:
    """Follows a partition from an offset on, until the server is gone."""

    key: str
    start: int
    rows: list[Row] = field(default_factory=list[Row])

    def run(self, server: str) -> None:
        """Read until the server is gone."""
        ticket = ticket_of(kind="follow", topic="crash", partition=self.key, offset=self.start)
        with flight.FlightClient(server) as client:
            try:
                for chunk in chunks(client.do_get(ticket)):
                    assert chunk.data is not None
                    assert chunk.app_metadata is not None
                    said = json.loads(chunk.app_metadata.to_pybytes())
                    assert said["start_offset"] == self.start + len(self.rows), "a gap"
                    columns = (chunk.data[name].to_pylist() for name in Row._fields)
                    self.rows += [Row(*values) for values in zip(*columns, strict=True)]
            except flight.FlightError as error:
                if error.extra_info:
                    raise


@dataclass
class Found:
    """One partition as it was found after the last crash; it may only grow."""

    table: pa.Table | None = None
    rows: list[Row] = field(default_factory=list[Row])
    last: dict[int, Row] = field(default_factory=dict[int, Row])
    """The last row of each producer."""


class Crashes:
    """One log that is crashed again and again.

    Args:
        servers: Forks the servers.
        directory: The data directory.
        seed: Of the moments of the crashes, as far as they can be told.
    """

    def __init__(self, servers: ForkedServers, directory: Path, seed: int) -> None:
        self._servers = servers
        self._directory = directory
        self._random = random.Random(seed)
        self._producers = [Producer(number) for number in (*IDEMPOTENT, FORGETFUL)]
        self._found = {key: Found() for key in KEYS}
        self._topics = 0
        self._followed: list[Follower] = []
        """Whose rows are not compared with the log so far."""

    def create(self) -> None:
        with self._servers.start(self._directory) as server:
            server.wait_until_ready()
            with flight.FlightClient(server.flight) as client:
                fields = [f"{field.name}: {field.type} not null" for field in SCHEMA]
                create_topic(client, "crash", fields, "key")

    def crash_under_load(self) -> None:
        """Start a server, check the log, and kill the server some batches later."""
        with self._servers.start(self._directory) as server:
            server.wait_until_ready()
            self.check(server.flight)
            with self._load(server.flight) as producers:
                wanted = self._acknowledged() + self._random.randrange(100)
                pause = threading.Event()
                while self._acknowledged() < wanted:
                    assert any(each.is_alive() for each in producers), "all stopped by themselves"
                    pause.wait(0.0005)
                server.kill()

    def crash_at(self, trap: str) -> None:
        """Start a server that kills itself at a step, push and read until then."""
        with self._servers.start(self._directory, trap) as server:
            server.wait_until_ready()
            self.check(server.flight)
            followers = [Follower(key, len(found.rows)) for key, found in self._found.items()]
            reading = [
                threading.Thread(target=follower.run, args=(server.flight,))
                for follower in followers
            ]
            for thread in reading:
                thread.start()
            with self._load(server.flight):
                server.wait_until_ended()
            for thread in reading:
                thread.join(timeout=100)
                assert not thread.is_alive()
        self._followed += followers

    @contextmanager
    def _load(self, server: str) -> Generator[list[threading.Thread]]:
        """Push during the block, which ends with the server; yields the producers' threads."""
        stop = threading.Event()
        producers = [
            threading.Thread(target=producer.run, args=(server, stop))
            for producer in self._producers
        ]
        threads = [*producers, threading.Thread(target=self._churn, args=(server, stop))]
        for thread in threads:
            thread.start()
        yield producers
        stop.set()
        for thread in threads:
            thread.join(timeout=100)
            assert not thread.is_alive()

    def crash_while_starting(self) -> None:
        """Kill a server at some moment of its recovery."""
        with self._servers.start(self._directory):
            threading.Event().wait(self._random.uniform(0, 0.2))

    def finish(self) -> None:
        """Let the producers push to the end, and check the whole log."""
        with self._servers.start(self._directory) as server:
            server.wait_until_ready()
            self.check(server.flight)
            for producer in self._producers:
                stop = threading.Event()
                # As many as may be there without an acknowledgement are sent again.
                wanted = len(producer.acknowledged) + 2 * IN_FLIGHT_MAX
                pushing = threading.Thread(target=producer.run, args=(server.flight, stop))
                pushing.start()
                while len(producer.acknowledged) < wanted:
                    assert pushing.is_alive()
                    stop.wait(0.005)
                stop.set()
                pushing.join()
            self.check(server.flight)
        rows = {(row.producer, row.number) for found in self._found.values() for row in found.rows}
        for producer in self._producers:
            visible = {number for who, number in rows if who == producer.producer}
            assert producer.acknowledged.keys() <= visible
            if producer.producer in IDEMPOTENT:
                assert visible == set(range(producer.sent)), "a batch is missing, or there twice"

    def check(self, server: str) -> None:
        """Check everything that must hold after a crash."""
        with flight.FlightClient(server) as client:
            states = {s["partition"]: s for s in act(client, "partition-states", topic="crash")}
            new: Counter[tuple[int, int]] = Counter()
            for key in states:
                answer = get(client, kind="scan", topic="crash", partition=key, system_columns=True)
                assert answer.next_offset == states[key]["next_offset"]
                new.update((row.producer, row.number) for row in self._grow(key, answer.table))
        for (producer, number), rows in new.items():
            assert rows == len(rows_of(producer, number)), "a part of a batch"
        for producer in self._producers:
            for number in producer.unchecked:
                self._check_acknowledged(producer, number)
            producer.unchecked.clear()
        for follower in self._followed:
            at = slice(follower.start, follower.start + len(follower.rows))
            assert self._found[follower.key].rows[at] == follower.rows
        self._followed.clear()

    def _grow(self, key: str, table: pa.Table) -> list[Row]:
        """Take a partition as it is now; return its new rows."""
        found = self._found[key]
        before = len(found.rows)
        if found.table is not None:
            assert table.slice(0, before).equals(found.table), "what was there has changed"
        found.table = table
        new = table.slice(before)
        assert new["__offset"].to_pylist() == list(range(before, table.num_rows)), "a gap"
        times = cast(
            "list[int]", table.slice(max(0, before - 1))["__timestamp"].cast(pa.int64()).to_pylist()
        )
        assert times == sorted(times), "timestamps decrease"
        columns = (new[name].to_pylist() for name in Row._fields)
        rows = [Row(*values) for values in zip(*columns, strict=True)]
        for row in rows:
            last = found.last.get(row.producer)
            assert last is None or last < row, "out of order, or twice"
            found.last[row.producer] = row
        found.rows += rows
        return rows

    def _check_acknowledged(self, producer: Producer, number: int) -> None:
        """What an acknowledgement named is there: these rows, at these offsets."""
        rows = rows_of(producer.producer, number)
        keys = list(dict.fromkeys(key for key, _ in rows))
        committed = producer.acknowledged[number]
        assert [part["partition"] for part in committed] == keys
        for part in committed:
            at = slice(part["start_offset"], part["end_offset"] + 1)
            expected = [row for key, row in rows if key == part["partition"]]
            assert self._found[part["partition"]].rows[at] == expected

    def _acknowledged(self) -> int:
        return sum(len(producer.acknowledged) for producer in self._producers)

    def _churn(self, server: str, stop: threading.Event) -> None:
        """Create topics, fill and delete them, so that space is reclaimed meanwhile."""
        with flight.FlightClient(server) as client:
            try:
                while not stop.is_set():
                    self._topics += 1
                    topic = f"other-{self._topics}"
                    create_topic(client, topic, ["n: int64"])
                    push(client, topic, numbers(*range(5_000)))
                    act(client, "delete-topic", topic=topic)
            except flight.FlightError as error:
                if error.extra_info:
                    raise


@pytest.fixture(scope="module")
def servers() -> Iterator[ForkedServers]:
    with ForkedServers() as forking:
        yield forking


def check(directory: Path) -> None:
    """Make sure that `wings check` finds nothing."""
    command = [sys.executable, "-m", "wings_client.cli", "check", str(directory)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert checked.returncode == 0, checked.stdout + checked.stderr


STEPS = ("commit 9", "write 1", "swap 1")
"""Of the way of small pushes: in metadata, in a segment too, and there alone."""
MORE_STEPS = (*STEPS, "write 4", "swap 2", "swap 9")


@pytest.mark.parametrize(
    "steps",
    [
        STEPS,
        pytest.param(MORE_STEPS * 50, marks=[pytest.mark.soak, pytest.mark.timeout(3_600)]),
    ],
    ids=["each", "each many times"],
)
def test_a_crash_at_any_step_of_a_drain_loses_and_doubles_nothing(
    servers: ForkedServers, tmp_path: Path, steps: tuple[str, ...]
) -> None:
    crashes = Crashes(servers, tmp_path / "data", seed=len(steps))
    crashes.create()
    for step in steps:
        crashes.crash_at(step)
    crashes.finish()
    check(tmp_path / "data")


@pytest.mark.parametrize(
    "rounds", [4, pytest.param(1_000, marks=[pytest.mark.soak, pytest.mark.timeout(6 * 3_600)])]
)
def test_nothing_acknowledged_is_lost_or_doubled_over_many_crashes(
    servers: ForkedServers, tmp_path: Path, rounds: int
) -> None:
    crashes = Crashes(servers, tmp_path / "data", seed=rounds)
    crashes.create()
    for number in range(rounds):
        crashes.crash_under_load()
        if number % 3 == 0:
            crashes.crash_while_starting()
    crashes.finish()
    check(tmp_path / "data")
