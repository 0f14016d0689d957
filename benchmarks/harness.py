"""What all benchmarks share: runs in turn, ratios, a table and a JSON file.

A figure is never compared with one of another day or machine: each run measures the baseline and
Wings right after each other, the ratio is taken of that run, and the median of the runs' ratios is
what must hold.
"""

import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.flight as flight
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Row:
    """One figure: Wings against its baseline."""

    name: str
    unit: str
    wings: float
    """Median of the runs."""
    baseline: float
    """Median of the runs."""
    ratio: float
    """Median of the runs' ratios, Wings / baseline."""
    spread: float
    """Largest less smallest ratio of the runs."""
    runs: int
    hold: str
    """What must hold of the ratio (or of the value itself), for a person."""
    holds: bool


def compare(
    name: str,
    unit: str,
    hold: float,
    wings: Callable[[], float],
    baseline: Callable[[], float],
    *,
    runs: int = 9,
    more_is_better: bool = True,
) -> Row:
    """Measure both in turn, `runs` times after one run that does not count.

    Args:
        name: Of the figure.
        unit: Of both values.
        hold: The bound on the median ratio: at least, or at most where less is better.
        wings: Returns one measured value.
        baseline: Returns one measured value.
        runs: How often.
        more_is_better: Rates, not times.
    """
    baseline()
    wings()
    pairs = [(baseline(), wings()) for _ in range(runs)]
    return row_of(name, unit, hold, pairs, more_is_better=more_is_better)


def compare_in_turn(
    name: str,
    unit: str,
    hold: float,
    wings: Callable[[], float],
    baseline: Callable[[], float],
    *,
    runs: int = 9,
    times: int = 10,
    more_is_better: bool = True,
) -> Row:
    """Compare two short measurements, whose ratio is near the bound.

    A run takes both in turn, `times` times, each of them first every other time, and compares the
    medians: so what else the machine does, for longer than one of them takes, meets both alike.

    Args:
        name: Of the figure.
        unit: Of both values.
        hold: The bound on the median ratio: at least, or at most where less is better.
        wings: Returns one measured value.
        baseline: Returns one measured value.
        runs: How often.
        times: How often in a run.
        more_is_better: Rates, not times.
    """
    baseline()
    wings()
    pairs: list[tuple[float, float]] = []
    for _ in range(runs):
        theirs: list[float] = []
        ours: list[float] = []
        for index in range(times):
            both = [(theirs, baseline), (ours, wings)]
            for values, measure in both if index % 2 else reversed(both):
                values.append(measure())
        pairs.append((statistics.median(theirs), statistics.median(ours)))
    return row_of(name, unit, hold, pairs, more_is_better=more_is_better)


def row_of(
    name: str,
    unit: str,
    hold: float,
    pairs: list[tuple[float, float]],
    *,
    more_is_better: bool,
) -> Row:
    """Return the figure of runs, each of the baseline's value and Wings'; see `compare`."""
    ratios = [ours / theirs for theirs, ours in pairs]
    ratio = statistics.median(ratios)
    return Row(
        name=name,
        unit=unit,
        wings=statistics.median(ours for _, ours in pairs),
        baseline=statistics.median(theirs for theirs, _ in pairs),
        ratio=ratio,
        spread=max(ratios) - min(ratios),
        runs=len(pairs),
        hold=f"≥ {hold:g}" if more_is_better else f"≤ {hold:g}",
        holds=ratio >= hold if more_is_better else ratio <= hold,
    )


def at_most(name: str, unit: str, bound: float, values: list[float]) -> Row:
    """Hold a value itself against a bound, where the design gives no baseline."""
    median = statistics.median(values)
    return Row(
        name=name,
        unit=unit,
        wings=median,
        baseline=bound,
        ratio=median / bound,
        spread=(max(values) - min(values)) / bound,
        runs=len(values),
        hold=f"≤ {bound:g} {unit}",
        holds=median <= bound,
    )


def at_least(name: str, unit: str, bound: float, values: list[float]) -> Row:
    """Hold a rate itself against a bound, where the design gives no baseline."""
    row = at_most(name, unit, bound, values)
    return replace(row, hold=f"≥ {bound:g} {unit}", holds=row.wings >= bound)


def median_seconds(call: Callable[[], object], times: int) -> float:
    """Return the median time of a call, in seconds."""
    measured: list[float] = []
    for _ in range(times):
        started = time.perf_counter()
        call()
        measured.append(time.perf_counter() - started)
    return statistics.median(measured)


@contextmanager
def bare_server(certs: Path | None = None) -> Generator[flight.FlightClient]:
    """Run the bare Flight server in a process of its own and connect to it.

    Args:
        certs: What `wings cert dev` made: it is served over TLS.
    """
    command = [sys.executable, "-m", "benchmarks.bare_server"]
    if certs is not None:
        command += [str(certs / "server.pem"), str(certs / "server-key.pem")]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        scheme = "grpc" if certs is None else "grpc+tls"
        authority = None if certs is None else (certs / "ca.pem").read_text()
        address = f"{scheme}://127.0.0.1:{port}"
        with flight.FlightClient(address, tls_root_certs=authority) as client:
            yield client
    finally:
        child.terminate()
        child.wait(timeout=10)


def narrow(rows: int) -> pa.RecordBatch:
    """Return a batch of four int64 columns: 32 bytes a row, so 32,768 rows are 1 MiB."""
    return pa.record_batch({name: _count(rows) for name in ("a", "b", "c", "d")})


def wide(rows: int) -> pa.RecordBatch:
    """Return a batch of 100 int64 columns: 800 bytes a row."""
    return pa.record_batch({f"c{index}": _count(rows) for index in range(100)})


def _count(rows: int) -> pa.Int64Array:
    return pa.arange(0, rows)  # pyright: ignore[reportAttributeAccessIssue] - not in the stubs


def ticket(**keys: object) -> flight.Ticket:
    """Return a JSON ticket."""
    return flight.Ticket(json.dumps(keys).encode())


def act(client: flight.FlightClient, action: str, **body: object) -> object:
    """Call an action of Wings."""
    results = client.do_action(flight.Action(action, json.dumps(body).encode()))
    return json.loads(next(iter(results)).body.to_pybytes())


def create_topic(
    client: flight.FlightClient, topic: str, schema: pa.Schema, **config: object
) -> None:
    """Create an unpartitioned topic."""
    fields = [{"name": field.name, "type": str(field.type)} for field in schema]
    act(client, "create-topic", topic=topic, schema={"fields": fields}, config=config)


def open_put(
    client: flight.FlightClient, descriptor: flight.FlightDescriptor, schema: pa.Schema
) -> tuple[flight.FlightStreamWriter, flight.FlightMetadataReader]:
    """Open a stream of batches and one of their answers."""
    return client.do_put(descriptor, schema)  # pyright: ignore[reportReturnType] - the stubs are wrong


def push(client: flight.FlightClient, topic: str, batch: pa.RecordBatch, times: int) -> list[str]:
    """Push a batch `times` times on one stream, pipelined; return the commits' timestamps."""
    descriptor = flight.FlightDescriptor.for_path(topic)
    writer, answers = open_put(client, descriptor, batch.schema)
    timestamps: list[str] = []
    unread = 0
    for _ in range(times):
        writer.write_batch(batch)
        unread += 1
        if unread > 1_000:  # The server's answers must not pile up unread.
            timestamps += _answers(answers, 1)
            unread -= 1
    writer.done_writing()
    timestamps += _answers(answers, unread)
    writer.close()
    return timestamps


def _answers(answers: flight.FlightMetadataReader, count: int) -> list[str]:
    timestamps: list[str] = []
    for _ in range(count):
        answer = answers.read()
        assert answer is not None, "the stream ended before its answers"
        committed = json.loads(answer.to_pybytes())["committed"]
        timestamps += [part["timestamp"] for part in committed]
    return timestamps


def drain(client: flight.FlightClient, wanted: flight.Ticket) -> int:
    """Read a stream to its end, chunk by chunk; return the rows."""
    rows = 0
    reader = client.do_get(wanted)
    while True:
        try:
            batch = reader.read_chunk().data
        except StopIteration:
            return rows
        assert batch is not None
        rows += batch.num_rows


def rate(read: Callable[[], int]) -> Callable[[], float]:
    """Return a measure of the rows per second, in millions, of a call that returns rows."""

    def measure() -> float:
        started = time.perf_counter()
        rows = read()
        return rows / (time.perf_counter() - started) / 1e6

    return measure


class Workers:
    """Processes that are told what to do by lines, and answer each by a line.

    Args:
        command: Of each.
        count: How many.
    """

    def __init__(self, command: Sequence[str], count: int) -> None:
        self._stack = ExitStack()
        self._started = [
            self._stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for _ in range(count)
        ]

    def __enter__(self) -> Self:
        """Return them."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close their inputs, at which they end, and wait for that."""
        self._stack.close()

    def tell(self, lines: Iterable[str]) -> None:
        """Send each its line."""
        for worker, line in zip(self._started, lines, strict=False):
            assert worker.stdin is not None
            worker.stdin.write(line + "\n")
            worker.stdin.flush()

    def answers(self) -> list[str]:
        """Return the next line of each; blocks until all have said one."""
        return [worker.stdout.readline().strip() for worker in self._started if worker.stdout]

    def start(self) -> None:
        """Wait until each is ready, and have all begin at once."""
        assert {*self.answers()} == {"ready"}
        self.tell(itertools.repeat("go"))


def status_kib(pid: int, field: str) -> int:
    """Return a figure of /proc/PID/status, in KiB (or a bare number)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise KeyError(field)


_CLOCK_OF_ALL_THREADS = 2
"""`CPUCLOCK_SCHED` of Linux, with which the clock of a process is named by its id."""


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used, in seconds, exact to the microsecond.

    By the clock that Linux keeps for each process; `/proc` counts ticks of 10 ms, a third of what
    is compared here.
    """
    return time.clock_gettime((~pid << 3) | _CLOCK_OF_ALL_THREADS)


def report(rows: list[Row], path: Path) -> None:
    """Print the table and write the JSON."""
    table = Table(title="Wings against its baselines, in one run")
    for column in ("figure", "wings", "baseline", "unit", "ratio", "spread", "runs", "hold", ""):
        table.add_column(column, justify="left" if column in {"figure", "unit"} else "right")
    for row in rows:
        table.add_row(
            row.name,
            f"{row.wings:,.4g}",
            f"{row.baseline:,.4g}",
            row.unit,
            f"{row.ratio:.2f}",
            f"{row.spread:.2f}",
            str(row.runs),
            row.hold,
            "holds" if row.holds else "MISSED",
        )
    Console(width=140 if not sys.stdout.isatty() else None).print(table)
    machine = {
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "pyarrow": pa.__version__,
    }
    body = {"machine": machine, "rows": [asdict(row) for row in rows]}
    path.write_text(json.dumps(body, indent=2) + "\n")
