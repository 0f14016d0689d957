"""Share groups over share streams: what a message costs, from its delivery to its acceptance.

Workers are processes of their own that use the client. Their rates are held against Redis Streams
with `appendfsync always` in the same run where it is installed (see `redis_streams`), else against
what it did on two quiet cores once; and against a bare DoExchange that syncs a row before each
answer.
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight

import wings_client
from benchmarks import redis_streams
from benchmarks.harness import Row, Workers, at_least, at_most, compare, cpu_seconds, median_seconds
from wings_server.testing import ServerProcess, hold_process, server_process

SECONDS = 1.5
RUNS = 3

BACKLOG = {1: 100_000, 100: 1_500_000}
"""Messages of a topic that workers take so many of at once, more than they manage in all runs."""

WORKER, REDIS_WORKER = "benchmarks.share_worker", "benchmarks.redis_streams"
FLOOR_WORKER = "benchmarks.synced_server"

BOUNDS = ((1, 1, 690), (1, 4, 1_795), (100, 1, 45_600), (100, 4, 69_300))
"""Messages taken at once, workers, and the messages a second of Redis on another machine."""

AHEAD = {1: 63, 100: 7}
"""Deliveries that come ahead to a worker that waits for no acceptance, by the size of each."""

REDIS_PAYLOAD = b"x" * 58
"""As many bytes as a row of the topics has."""

OF_FLOOR = 0.5
"""Of the rate of the least that is owed."""

IDLE_WORKERS = 50
PARTITIONS = 1_000
IDLE_PARTITIONS = 10_000
IDLE_SECONDS = 5.0
PUSHES = 50
REJECTED = 2_000
LEASES = 100


def run() -> Iterator[Row]:
    """Measure rates of workers, and what idle ones and rejections cost."""
    with server_process() as server:
        yield from _rates(server)
        yield from _against_bare(server)
        yield _rejections(server)
        yield _leases(server)
    yield from _against_replicas()
    with server_process() as server:
        yield from _wake_up(server)
        yield _idle(server)


def _rates(server: ServerProcess) -> Iterator[Row]:
    """Measure workers beside those of Redis, or its figures of another machine without it."""
    if not redis_streams.is_installed():
        for messages, workers, bound in BOUNDS:
            topic = _backlog(server, f"take-{messages}-workers-{workers}", messages)
            values = [_take(server.flight, topic, messages, workers) for _ in range(RUNS)]
            name = f"take {messages} and accept, {workers} workers (Redis is not installed here)"
            yield at_least(name, "messages/s", bound, values)
            values = [_take_ahead(server.flight, topic, messages, workers) for _ in range(RUNS)]
            yield at_least(f"{name}, without waiting", "messages/s", bound, values)
        return
    for messages, workers, _ in BOUNDS:
        with redis_streams.redis_process() as port:
            name = f"take-{messages}-workers-{workers}"
            topic = _backlog(server, name, messages)
            redis_streams.backlog(port, name, REDIS_PAYLOAD, BACKLOG[messages])
            yield compare(
                f"take {messages} and accept, {workers} workers: against Redis, fsync always",
                "messages/s",
                1.0,
                lambda: _take(server.flight, topic, messages, workers),  # noqa: B023
                lambda: _take(str(port), topic, messages, workers, REDIS_WORKER),  # noqa: B023
                runs=RUNS,
            )
            yield compare(
                f"take {messages}, accept without waiting, {workers} workers: against Redis, fsync "
                "always",
                "messages/s",
                1.0,
                lambda: _take_ahead(server.flight, topic, messages, workers),  # noqa: B023
                lambda: _take(str(port), topic, messages, workers, REDIS_WORKER),  # noqa: B023
                runs=RUNS,
            )


def _against_bare(server: ServerProcess) -> Iterator[Row]:
    """Measure a worker against the floors under it, and the higher of those against Redis."""
    topic = _backlog(server, "bare")
    with _synced_server() as port, flight.FlightClient(f"grpc://127.0.0.1:{port}") as client:
        yield compare(
            "take 1 and accept: against a bare exchange with a synced row, 1 worker",
            "messages/s",
            0.42,  # What Redis Streams did, of what the bare one did there.
            lambda: _take(server.flight, topic, 1, 1),
            lambda: _exchanges(client),
            runs=RUNS,
        )
        yield compare(
            "take 1 and accept: against the least that is owed, in Python, 1 worker",
            "messages/s",
            OF_FLOOR,
            lambda: _take(server.flight, topic, 1, 1),
            lambda: _take(str(port), "-", 1, 1, FLOOR_WORKER),
            runs=RUNS,
        )
        if not redis_streams.is_installed():
            return
        for messages, workers, _ in BOUNDS:
            with redis_streams.redis_process() as redis:
                redis_streams.backlog(redis, topic, REDIS_PAYLOAD, BACKLOG[messages])
                yield compare(
                    f"the floor: take {messages}, {workers} workers: the least that is owed, in "
                    "Python, against Redis, fsync always",
                    "messages/s",
                    0.0,  # It says what can be held.
                    lambda: _take(str(port), "-", messages, workers, FLOOR_WORKER),  # noqa: B023
                    lambda: _take(str(redis), topic, messages, workers, REDIS_WORKER),  # noqa: B023
                    runs=RUNS,
                )


def _against_replicas() -> Iterator[Row]:
    """Compare three replicas of holds in processes of their own with the embedded one."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        replicas = [
            stack.enter_context(hold_process(directory / f"holds-{number}")).address
            for number in range(3)
        ]
        flags = ["--hold-replicas", ",".join(replicas)]
        replicated = stack.enter_context(server_process(flags=flags))
        embedded = stack.enter_context(server_process())
        for messages, workers, bound in BOUNDS:
            topic = f"take-{messages}-workers-{workers}"
            _backlog(replicated, topic, messages)
            _backlog(embedded, topic, messages)
            yield compare(
                f"take {messages} and accept, {workers} workers: three replicas against one",
                "messages/s",
                0.4,
                lambda: _take(replicated.flight, topic, messages, workers),  # noqa: B023
                lambda: _take(embedded.flight, topic, messages, workers),  # noqa: B023
                runs=RUNS,
            )
            name = f"take {messages}, accept without waiting, {workers} workers: three replicas"
            values = [_take_ahead(replicated.flight, topic, messages, workers) for _ in range(RUNS)]
            yield at_least(name, "messages/s", 0.4 * bound, values)


def _rejections(server: ServerProcess) -> Row:
    """Measure what it costs to reject many messages at once, each into a dead letter."""
    with wings_client.connect(server.flight) as client:
        client.create_topic("rejected", {"n": "int64", "text": "string"})
        client.push("rejected", _rows(REJECTED * RUNS))
        config = {"start": "earliest", "dlq_topic": "dead-letters"}
        client.create_share_group("workers", "rejected", config)
        values: list[float] = []
        with client.share_consumer("workers", "rejected", max_messages=REJECTED) as consumer:
            for _ in range(RUNS):
                delivery = next(consumer)
                assert len(delivery) == REJECTED
                values.append(_cpu_ms(server, lambda: consumer.reject(delivery)))  # noqa: B023
    name = f"{REJECTED:,} rejections into dead letters: CPU of the server"
    return at_most(name, "ms", 1_000, values)


def _leases(server: ServerProcess) -> Row:
    """Compare deliveries of a message each with one of all, on a stream that holds as many."""
    topic = _backlog(server, "leases")
    command = {"kind": "share", "group": "workers", "topic": topic, "member": "m"}
    with flight.FlightClient(server.flight) as client:

        def cpu_ms(messages: int) -> float:
            exchange = {**command, "credit": LEASES, "max_messages": messages}
            descriptor = flight.FlightDescriptor.for_command(json.dumps(exchange).encode())
            writer, reader = client.do_exchange(descriptor)
            writer.write_metadata(_json(credit=LEASES))

            def take(number: int) -> None:
                acks: list[dict[str, object]] = []
                for _ in range(LEASES // messages):
                    metadata = reader.read_chunk().app_metadata
                    assert metadata is not None
                    found = json.loads(metadata.to_pybytes())
                    first, last = found["start_offset"], found["end_offset"]
                    lease = {"lease": found["lease"], "type": "accept"}
                    acks.append({"first": first, "last": last, **lease})
                writer.write_metadata(_json(request=number, acks=acks))
                assert reader.read_chunk().app_metadata is not None

            def take_all() -> None:
                for number in range(1, 21):
                    take(number)

            spent = _cpu_ms(server, take_all)
            writer.done_writing()
            for _ in iter(lambda: next(reader, None), None):
                pass  # It ends when what it held is released.
            writer.close()
            return spent / 20

        return compare(
            f"{LEASES} deliveries of 1 message: CPU of the server against one of {LEASES}",
            "ms",
            5.0,
            lambda: cpu_ms(1),
            lambda: cpu_ms(LEASES),
            runs=RUNS,
            more_is_better=False,
        )


def _wake_up(server: ServerProcess) -> Iterator[Row]:
    """Measure a message that is pushed to one of many partitions, taken, and accepted.

    By a stream of its own, which takes longer to open than the rest of a push, and by a producer.
    """
    name = (
        f"one message to {PARTITIONS:,} partitions, {IDLE_WORKERS} idle workers: CPU of the server"
    )
    with _idle_workers(server, "woken", PARTITIONS) as (client, accepted):
        one = _rows(1)
        topic = client.topic("woken")  # To look it up for each message is no part of its cost.

        def cpu_ms(push: Callable[[], object]) -> float:
            def push_each() -> None:
                for _ in range(PUSHES):
                    push()
                    assert accepted.acquire(timeout=30)

            return _cpu_ms(server, push_each) / PUSHES

        with client.producer(topic) as producer:
            pushes: dict[str, Callable[[], object]] = {
                name: lambda: client.push(topic, one),
                f"{name}, sent by a producer": lambda: producer.send(one).result(),
            }
            for push in pushes.values():
                cpu_ms(push)
            for each, push in pushes.items():
                yield at_most(each, "ms", 5, [cpu_ms(push) for _ in range(RUNS)])


def _idle(server: ServerProcess) -> Row:
    """Measure what workers cost that wait for messages of many partitions."""
    with _idle_workers(server, "idle", IDLE_PARTITIONS):
        time.sleep(IDLE_SECONDS)  # Until all of them have looked.
        values = [
            _cpu_ms(server, lambda: time.sleep(IDLE_SECONDS)) / IDLE_SECONDS / 10
            for _ in range(RUNS)
        ]
    name = f"{IDLE_WORKERS} idle workers on {IDLE_PARTITIONS:,} partitions"
    return at_most(name, "% of a core", 1, values)


@contextmanager
def _idle_workers(
    server: ServerProcess, topic: str, partitions: int
) -> Generator[tuple[wings_client.Client, threading.Semaphore]]:
    """Have workers wait for messages of a topic; yields what counts those they accept."""
    with wings_client.connect(server.flight) as client, ExitStack() as stack:
        client.create_topic(topic, {"n": "int64", "text": "string"}, partition_key="n")
        client.push(topic, _rows(partitions))
        client.create_share_group("workers", topic)
        accepted = threading.Semaphore(0)

        def work(consumer: wings_client.ShareConsumer) -> None:
            for delivery in consumer:
                consumer.accept(delivery)
                accepted.release()

        for _ in range(IDLE_WORKERS):
            consumer = client.share_consumer("workers", topic, max_messages=1)
            thread = threading.Thread(target=work, args=(consumer,))
            thread.start()
            stack.callback(thread.join)
            stack.enter_context(closing(consumer))
        yield client, accepted


def _backlog(server: ServerProcess, topic: str, taken: int = 1) -> str:
    """Create a topic with messages to take, so many at once, and a group; returns the topic."""
    rows = _rows(50_000)
    with wings_client.connect(server.flight) as client:
        client.create_topic(topic, {"n": "int64", "text": "string"})
        for _ in range(0, BACKLOG[taken], rows.num_rows):
            client.push(topic, rows)
        client.create_share_group("workers", topic, {"start": "earliest"})
    return topic


def _rows(count: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(count), pa.int64()), "text": ["x" * 50] * count})


def _json(**message: object) -> pa.Buffer:
    return pa.py_buffer(json.dumps(message).encode())


def _cpu_ms(server: ServerProcess, call: Callable[[], object]) -> float:
    """Return the processor time that the server uses while a call runs, in milliseconds."""
    before = cpu_seconds(server.pid)
    call()
    return (cpu_seconds(server.pid) - before) * 1e3


def _take_ahead(address: str, topic: str, messages: int, workers: int) -> float:
    """Return the messages a second of workers that wait for no acceptance."""
    return _take(address, topic, messages, workers, ahead=AHEAD[messages])


def _take(
    address: str,
    topic: str,
    messages: int,
    workers: int,
    worker_module: str = WORKER,
    ahead: int | None = None,
) -> float:
    """Return the messages a second that workers take and accept."""
    command = [sys.executable, "-m", worker_module, address, topic]
    command += [str(messages), str(SECONDS), *([] if ahead is None else [str(ahead)])]
    with Workers(command, workers) as started:
        started.start()
        results = [json.loads(answer) for answer in started.answers()]
    return sum(done for done, _ in results) / max(seconds for _, seconds in results)


@contextmanager
def _synced_server() -> Generator[int]:
    command = [sys.executable, "-m", "benchmarks.synced_server"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        yield int(child.stdout.readline())
    finally:
        child.terminate()
        child.wait(timeout=10)


def _exchanges(client: flight.FlightClient) -> float:
    """Return the exchanges of a message a second, one after the other."""
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(b"0"))

    def exchange() -> None:
        writer.write_metadata(pa.py_buffer(b"{}"))
        reader.read_chunk()

    return _rate(writer, exchange)


def _rate(writer: flight.FlightStreamWriter, call: Callable[[], None]) -> float:
    """Return the calls a second, and end the exchange that they are made in."""
    call()
    started = time.perf_counter()
    done = 0
    while time.perf_counter() - started < SECONDS:
        median_seconds(call, 50)
        done += 50
    rate = done / (time.perf_counter() - started)
    writer.done_writing()
    writer.close()
    return rate
