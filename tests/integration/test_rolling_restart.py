"""Every process of a log is drained and started again in turn, under load."""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fix_postgres import PostgresServer
from held_address import held_address

import wings_client
from wings_client import Client, Delivery, Retry
from wings_server.testing import (
    MetadataProcess,
    ServerProcess,
    metadata_process,
    node_process,
    server_process,
)

SCHEMA = pa.schema([("k", pa.string()), ("who", pa.string()), ("n", pa.int64())])

KEYS = 4
SECONDS = 120.0
BETWEEN = 10
"""Rounds of each producer between two restarts, at the least."""

PAUSE_SECONDS = 0.05
"""Of a producer after each round: more rounds would take time, and show no more."""

Start = Callable[[ExitStack], ServerProcess | MetadataProcess]


def one_server(directory: Path, stack: ExitStack) -> tuple[list[str], list[Start]]:
    """A server with a data directory of its own."""
    address = stack.enter_context(held_address())
    flags = ("--flight", address)
    return [address], [
        lambda stack: stack.enter_context(server_process(directory, flags=flags)),
    ]


def nodes_of_a_service(directory: Path, stack: ExitStack) -> tuple[list[str], list[Start]]:
    """A metadata service and two nodes that share a directory; all three are started again."""
    service, *nodes = [stack.enter_context(held_address()) for _ in range(3)]
    starts: list[Start] = [
        lambda stack: stack.enter_context(metadata_process(directory / "metadata", listen=service))
    ]
    for address in nodes:
        flags = ("--metadata", service, "--flight", address)
        start = partial(server_process, directory / "shared", flags=flags)
        starts.append(lambda stack, start=start: stack.enter_context(start()))
    return nodes, starts


def nodes_without_a_directory(
    directory: Path, stack: ExitStack, postgres: PostgresServer
) -> tuple[list[str], list[Start]]:
    """Two nodes over PostgreSQL and an object store."""
    nodes = [stack.enter_context(held_address()) for _ in range(2)]
    hot = (directory / "objects").as_uri()
    url = postgres.new_database()
    starts: list[Start] = []
    for address in nodes:
        start = partial(node_process, url, hot, flags=("--flight", address))
        starts.append(lambda stack, start=start: stack.enter_context(start()))
    return nodes, starts


class Load:
    """Clients that write and read until they are told to stop; each raises what it meets."""

    def __init__(self, endpoints: list[str]) -> None:
        self._endpoints = endpoints
        self._lock = threading.Lock()
        self._is_stopping = False
        self._pause = threading.Event()
        self.rounds = Counter[str]()
        """Of each client: so many batches were sent or read."""
        self.sent: dict[str, int] = {}
        """Of each producer, how many rows it has sent once it has ended, as far as is known."""

    def connect(self) -> Client:
        # A restart of all that serves takes seconds, beside what else runs here.
        patient = Retry(attempts=100, delay_max=0.5)
        return wings_client.connect(self._endpoints, retry=patient, timeout=SECONDS)

    def stop(self) -> None:
        with self._lock:
            self._is_stopping = True

    def _numbers(self, name: str) -> Iterator[dict[str, list[Any]]]:
        """Yield batches of two rows until it is time to stop, and then one more.

        A reader looks whether it has all once it has read something: so the last comes after that.
        """
        number = 0
        is_last = False
        while not is_last:
            with self._lock:
                is_last = self._is_stopping
                if not is_last:
                    self.sent[name] = number + 4
            rows = [number, number + 1]
            keys = [f"key-{each % KEYS}" for each in rows]
            yield {"k": keys, "who": [name, name], "n": rows}
            self._pause.wait(PAUSE_SECONDS)
            number += 2
            self.rounds[name] += 1

    def produce(self, name: str) -> None:
        with self.connect() as client, client.producer("events") as producer:
            for rows in self._numbers(name):
                producer.send(rows)
                if rows["n"][0] % 8 == 0:
                    producer.flush()

    def push(self, name: str) -> None:
        with self.connect() as client:
            for rows in self._numbers(name):
                client.push("events", rows)

    def consume(self, name: str) -> list[tuple[str, int]]:
        """Read all partitions as a named consumer that commits, until all that was sent came."""
        found: list[tuple[str, int]] = []
        with self.connect() as client, client.consumer(name, "events") as consumer:
            for consumed in consumer:
                found += pairs(consumed.batch.to_pydict())
                self.rounds[name] += 1
                if self._is_over(found):
                    break
        return found

    def follow(self, name: str) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        with self.connect() as client, client.follow("events", partitions="all") as followed:
            for chunk in followed:
                found += pairs(chunk.batch.to_pydict())
                self.rounds[name] += 1
                if self._is_over(found):
                    break
        return found

    def work(self, name: str) -> list[tuple[str, int]]:
        """Handle messages as a worker of a group, which accepts each."""
        found: list[tuple[str, int]] = []

        def handle(delivery: Delivery) -> None:
            found.extend(pairs(delivery.batch.to_pydict()))
            self.rounds[name] += 1

        with (
            self.connect() as client,
            client.worker("workers", "events", handle, each="batch") as worker,
        ):
            while not (worker.wait(0.05) or self._is_over(found)):
                pass
        return found

    def _is_over(self, found: Collection[tuple[str, int]]) -> bool:
        return self._is_stopping and len(set(found)) >= sum(self.sent.values())


def pairs(columns: dict[str, list[Any]]) -> list[tuple[str, int]]:
    return list(zip(columns["who"], columns["n"], strict=True))


@pytest.mark.parametrize(
    "world",
    [
        one_server,
        pytest.param(nodes_of_a_service, marks=pytest.mark.soak),
        nodes_without_a_directory,
    ],
)
def test_a_rolling_restart_under_load_is_no_error_to_a_client_and_every_row_is_there_once(
    world: Callable[..., tuple[list[str], list[Start]]],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    more = ()
    if world is nodes_without_a_directory:
        more = (request.getfixturevalue("postgres"),)
    with ExitStack() as stack:
        endpoints, starts = world(tmp_path, stack, *more)
        running = [start(stack) for start in starts]
        load = Load([f"grpc://{address}" for address in endpoints])
        with load.connect() as client:
            client.create_topic("events", SCHEMA, partition_key="k")
            lock = {"lock_duration_ms": 2_000}  # What a restart loses on its way comes again then.
            client.create_share_group("workers", "events", {"start": "earliest", **lock})
        with ThreadPoolExecutor(8) as threads:
            writers = [threads.submit(load.produce, "producer"), threads.submit(load.push, "push")]
            readers = {
                name: threads.submit(read, name)
                for name, read in (
                    ("consumer", load.consume),
                    ("follow", load.follow),
                    ("work", load.work),
                )
            }
            everything = [*writers, *readers.values()]

            def go_on() -> None:
                """Wait until each client has come further, or one has failed."""
                goals = {name: load.rounds[name] + 10 for name in readers}
                goals |= {name: load.rounds[name] + BETWEEN for name in ("producer", "push")}
                pause = threading.Event()
                while any(load.rounds[name] < goal for name, goal in goals.items()):
                    if any(each.done() for each in everything):
                        break
                    pause.wait(0.05)

            try:
                go_on()
                for index, start in enumerate(starts):
                    assert running[index].terminate() == 0, running[index].stderr
                    running[index] = start(stack)
                    go_on()
            finally:
                load.stop()
            for each in writers:
                each.result(SECONDS)
            read = {name: each.result(SECONDS) for name, each in readers.items()}
        with load.connect() as client:
            stored = pairs(client.scan("events").read_all().to_pydict())
    every = [(name, number) for name, count in load.sent.items() for number in range(count)]
    assert sorted(stored) == sorted(every)
    assert sorted(read["follow"]) == sorted(every)
    assert set(read["consumer"]) == set(every)
    assert set(read["work"]) == set(every)
