"""Nodes without a directory, and several processes over one: small pushes, and scans.

How much more several processes do than one is held where they have cores of their own. What a
push and a scan cost all of them together is told on any machine: that is what they repeat, or wait
for from their parent.
"""

import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pyarrow.flight as flight

from benchmarks import ack_floor_postgres as floor
from benchmarks.harness import (
    Row,
    Workers,
    bare_server,
    compare_in_turn,
    cpu_seconds,
    create_topic,
    drain,
    narrow,
    open_put,
    push,
    row_of,
    ticket,
)
from benchmarks.small import people
from wings_server.testing import ServerProcess, server_process

PRODUCER = [sys.executable, "-m", "benchmarks.push_worker"]

PRODUCERS = 8
"""Each in a process of its own: together they ask for more than one interpreter could."""

PUSHES = 1_000
"""Of each producer."""

SCANNERS = 8
SCANNED = 256
"""Batches of 1 MiB that each scanner reads."""

CORES_MIN = 8
"""Where four processes are to give three times as many pushes as one."""

PROCESSES = 4
"""That many are held to it."""

_topics = itertools.count()


def run() -> Iterator[Row]:
    """Measure against a bare commit of the same PostgreSQL, one process, and a bare server."""
    rounds = floor.measure(floor.ROUNDS)
    for how, name in (
        (floor.NODE, "ack of a one-row push over PostgreSQL, p50, against a bare commit there"),
        (floor.LEAST, "the same by a bare server that does the least that a log needs"),
    ):
        pairs = [(each.seconds[floor.POSTGRES] * 1e3, each.seconds[how] * 1e3) for each in rounds]
        yield row_of(name, "ms", floor.HOLD, pairs, more_is_better=False)
    with (
        server_process() as alone,
        bare_server() as bare,
        Workers(PRODUCER, PRODUCERS) as producers,
    ):
        _load(alone.client(), bare)
        for processes in (2, PROCESSES):
            with server_process(flags=["--processes", str(processes)]) as server:
                _load(server.client())
                yield from _processes(server, alone, bare, processes, producers)


def _load(client: flight.FlightClient, bare: flight.FlightClient | None = None) -> None:
    """Keep what is scanned."""
    batch = narrow(32_768)
    create_topic(client, "scanned", batch.schema)
    push(client, "scanned", batch, SCANNED)
    if bare is not None:
        kept = flight.FlightDescriptor.for_command(f'{{"keep": "scanned", "times": {SCANNED}}}')
        writer, answers = open_put(bare, kept, batch.schema)
        writer.write_batch(batch)
        answers.read()
        writer.close()


def _processes(
    server: ServerProcess,
    alone: ServerProcess,
    bare: flight.FlightClient,
    processes: int,
    producers: Workers,
) -> Iterator[Row]:
    """Measure so many processes against one, and against a bare server."""
    holds = processes == PROCESSES and len(os.sched_getaffinity(0)) >= CORES_MIN
    by = f"--processes {processes}"
    pushes, scanned = PRODUCERS * PUSHES, SCANNERS * SCANNED

    def compared(
        name: str,
        unit: str,
        hold: float,
        wings: Callable[[], float],
        baseline: Callable[[], float],
    ) -> Row:
        rate = unit.endswith("/s")
        return compare_in_turn(
            name, unit, hold, wings, baseline, runs=3, times=3, more_is_better=rate
        )

    yield compared(
        f"one-row pushes by {PRODUCERS} producers: {by} against none",
        "pushes/s",
        3.0 if holds else 0.0,
        lambda: pushes / _push(producers, server),
        lambda: pushes / _push(producers, alone),
    )
    yield compared(
        f"scan by {SCANNERS} clients: {by} against a bare server",
        "MiB/s",
        0.9 if holds else 0.0,
        lambda: scanned / _seconds(lambda: _scan(server)),
        lambda: scanned / _seconds(lambda: _drain([bare], flight.Ticket(b"scanned"))),
    )
    calls: tuple[tuple[str, Callable[[ServerProcess], object], int], ...] = (
        ("one-row push", partial(_push, producers), pushes),
        ("scanned MiB", _scan, scanned),
    )
    for what, call, per in calls:
        yield compared(
            f"CPU of a {what}: {by} against none (no bound)",
            "us",
            math.inf,
            lambda call=call, per=per: _cpu(server, call, _processes_of) / per * 1e6,
            lambda call=call, per=per: _cpu(alone, call, _processes_of) / per * 1e6,
        )
        yield compared(
            f"of that the parent's: {by} against all of none (no bound)",
            "us",
            math.inf,
            lambda call=call, per=per: _cpu(server, call, _parent_of) / per * 1e6,
            lambda call=call, per=per: _cpu(alone, call, _processes_of) / per * 1e6,
        )


def _push(producers: Workers, server: ServerProcess) -> float:
    """Have all push to a topic of their own, each at the next process.

    Returns:
        The seconds until all is acknowledged.
    """
    topic = f"t{next(_topics)}"
    create_topic(server.client(), topic, people(1).schema)
    addresses = itertools.cycle(_addresses(server, topic))
    producers.tell(f"{address} {topic} {PUSHES}" for address in addresses)
    producers.start()
    started = time.perf_counter()
    assert {*producers.answers()} == {"done"}
    return time.perf_counter() - started


def _seconds(call: Callable[[], None]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _cpu(
    server: ServerProcess,
    call: Callable[[ServerProcess], object],
    of: Callable[[ServerProcess], list[int]],
) -> float:
    """Return the processor time, in seconds, that processes of a server use for a call."""
    processes = of(server)
    before = sum(map(cpu_seconds, processes))
    call(server)
    return sum(map(cpu_seconds, processes)) - before


def _parent_of(server: ServerProcess) -> list[int]:
    return [server.pid]


def _processes_of(server: ServerProcess) -> list[int]:
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text()
    return [server.pid, *map(int, children.split())]


def _addresses(server: ServerProcess, topic: str) -> list[str]:
    """Return the addresses of all its processes."""
    info = server.client().get_flight_info(flight.FlightDescriptor.for_path(topic))
    others = [each.uri.decode() for each in info.endpoints[0].locations]
    return list(dict.fromkeys([server.flight, *others]))


def _scan(server: ServerProcess) -> None:
    """Have all scanners read what is kept, each at the next process."""
    with ExitStack() as stack:
        addresses = _addresses(server, "scanned")
        clients = [stack.enter_context(flight.FlightClient(each)) for each in addresses]
        _drain(clients, ticket(kind="scan", topic="scanned"))


def _drain(clients: Sequence[flight.FlightClient], wanted: flight.Ticket) -> None:
    def read(number: int) -> int:
        return drain(clients[number % len(clients)], wanted)

    with ThreadPoolExecutor(SCANNERS) as threads:
        list(threads.map(read, range(SCANNERS)))
