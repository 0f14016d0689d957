"""What benchmarks of the floor under an ack share: a bare server of acks, and pushes in turn."""

import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight

from benchmarks.harness import cpu_seconds, open_put
from benchmarks.small import people


@dataclass(frozen=True, slots=True)
class Acks:
    """What acks take, by the name of who makes them."""

    seconds: dict[str, float]
    """Medians."""
    cpu_us: dict[str, float]
    """On average, of the process that makes them."""

    @classmethod
    def median_of(cls, rounds: "Sequence[Acks]") -> "Acks":
        """Return the medians of rounds, in which all made acks."""
        first = rounds[0]
        return cls(
            {
                name: statistics.median(each.seconds[name] for each in rounds)
                for name in first.seconds
            },
            {
                name: statistics.median(each.cpu_us[name] for each in rounds)
                for name in first.cpu_us
            },
        )


@contextmanager
def ack_server(module: str, *arguments: str) -> Generator[tuple[flight.FlightClient, int, str]]:
    """Run `python -m MODULE serve ARGUMENTS`; yield a client, its process, and the word it tells.

    Its first line on standard output is its port and that word.
    """
    command = [sys.executable, "-m", module, "serve", *arguments]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        port, told = child.stdout.readline().split()
        with flight.connect(f"grpc://127.0.0.1:{port}") as client:
            yield client, child.pid, told
    finally:
        child.terminate()
        child.wait(timeout=10)


def serve_or_measure(
    server_of: Callable[[Path], flight.FlightServerBase],
    measure: Callable[[int], None],
    rounds: int,
) -> None:
    """Serve where the first argument is `serve`, from a new directory; else measure so many rounds.

    Args:
        server_of: Makes the server, given its directory, which is told to the parent process.
        measure: Measures; the first argument, if any, is the number of rounds.
        rounds: Without one.
    """
    if sys.argv[1:] == ["serve"]:
        with tempfile.TemporaryDirectory() as directory:
            server = server_of(Path(directory))
            print(server.port, directory, flush=True)  # noqa: T201
            threading.Event().wait()
    measure(int(sys.argv[1]) if sys.argv[1:] else rounds)


def batches(reader: flight.MetadataRecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a stream until its client ends it."""
    while True:
        try:
            batch = reader.read_chunk().data
        except StopIteration:
            return
        assert batch is not None
        yield batch


def pushing(
    stack: ExitStack, client: flight.FlightClient, descriptor: flight.FlightDescriptor
) -> Callable[[], None]:
    """Open a stream that the stack closes; return what pushes a row there and waits for its ack."""
    batch = people(1)
    writer, answers = open_put(client, descriptor, batch.schema)
    stack.callback(writer.close)

    def push() -> None:
        writer.write_batch(batch)
        answers.read()

    return push


def in_the_way(how: str) -> flight.FlightDescriptor:
    """Return what a server of acks is told: how to make them."""
    return flight.FlightDescriptor.for_command(json.dumps(how))


def take_in_turn(
    calls: dict[str, tuple[Callable[[], object], int]], times: int, rounds: int
) -> list[Acks]:
    """Call all in turn, in an order that differs each time: what one leaves, another waits for.

    Args:
        calls: Each with the process that answers it; 0: this one does, by itself.
        times: Of each in a round.
        rounds: After one that does not count.
    """
    order = list(calls.items())
    shuffle = random.Random(0).shuffle
    taken: list[Acks] = []
    for _ in range(rounds + 1):
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        cpu = dict.fromkeys(calls, 0.0)
        for _ in range(times):
            shuffle(order)
            for name, (call, pid) in order:
                used = cpu_seconds(pid) if pid else time.process_time()
                started = time.perf_counter()
                call()
                seconds[name].append(time.perf_counter() - started)
                cpu[name] += (cpu_seconds(pid) if pid else time.process_time()) - used
        taken.append(
            Acks(
                {name: statistics.median(values) for name, values in seconds.items()},
                {name: used / times * 1e6 for name, used in cpu.items()},
            )
        )
    return taken[1:]
