"""From a send to a consumer, a message each 10 ms: the least in Python over Flight and SQLite.

    python -m benchmarks.delivery_floor [rounds]

A bare pyarrow server hands each batch that it is sent to one reader: at once, or once it is durable
with what a log needs at least, or with all that is owed to a push (see `ack_floor`). Wings beside
it, by plain Flight and by its client. The producer and the consumer are two threads of one process,
apart from the servers, as in a service.
"""

import json
import queue
import statistics
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight

import wings_client
from benchmarks.ack_floor import Database
from benchmarks.acks import ack_server, batches, in_the_way, pushing, serve_or_measure
from benchmarks.harness import create_topic, ticket
from benchmarks.small import people
from wings_server.testing import server_process

MESSAGES = 150
"""Of each in a round; the first tenth does not count."""

ROUNDS = 3

PAUSE_SECONDS = 0.01

BARE, LEAST, OWED = "bare", "least", "owed"
FLIGHT, CLIENT = "wings, by Flight", "wings, by its client"


class RelayServer(flight.FlightServerBase):
    """Hands each batch that is sent to the reader of its way."""

    def __init__(self, directory: Path) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._directory = directory
        self._sent: dict[str, queue.SimpleQueue[pa.RecordBatch]] = {
            how: queue.SimpleQueue() for how in (BARE, LEAST, OWED)
        }

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        """Commit each batch, hand it on, and answer."""
        assert descriptor.command is not None
        how = json.loads(descriptor.command)
        with closing(Database(self._directory / how)) as database:
            commit_owed = database.commit_owed(reader.schema)
            for batch in batches(reader):
                answer = b"{}"
                if how == LEAST:
                    database.commit()
                elif how == OWED:
                    answer = commit_owed(batch)
                self._sent[how].put(batch)
                writer.write(pa.py_buffer(answer))

    def do_get(
        self, context: flight.ServerCallContext, ticket: flight.Ticket
    ) -> flight.FlightDataStream:
        """Stream what is sent, for ever."""
        sent = self._sent[ticket.ticket.decode()]

        def arriving() -> Generator[pa.RecordBatch]:
            while True:
                yield sent.get()

        return flight.GeneratorStream(people(1).schema, arriving())


def _milliseconds(send: Callable[[], object], receive: Callable[[], object]) -> float:
    """Return the median from a message's send until it is received."""
    received: list[float] = []
    one = threading.Semaphore(0)

    def consume() -> None:
        for _ in range(MESSAGES):
            receive()
            received.append(time.perf_counter())
            one.release()

    thread = threading.Thread(target=consume)
    thread.start()
    sent: list[float] = []
    for _ in range(MESSAGES):
        time.sleep(PAUSE_SECONDS)
        sent.append(time.perf_counter())
        send()
        assert one.acquire(timeout=60)
    thread.join()
    took = [end - start for start, end in zip(sent, received, strict=True)]
    return statistics.median(took[MESSAGES // 10 :]) * 1e3


def _reading(
    stack: ExitStack, client: flight.FlightClient, wanted: flight.Ticket
) -> Callable[[], object]:
    reader = client.do_get(wanted)
    stack.callback(reader.cancel)
    return reader.read_chunk


def measure(rounds: int) -> None:
    """Print the medians of each way, and their ratio to a bare relay."""
    with ExitStack() as stack:
        bare, _, _ = stack.enter_context(ack_server("benchmarks.delivery_floor"))
        wings = stack.enter_context(server_process())
        client = stack.enter_context(wings.client())
        ways: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {}
        for how in (BARE, LEAST, OWED):
            push = pushing(stack, bare, in_the_way(how))
            ways[how] = push, _reading(stack, bare, flight.Ticket(how.encode()))
        create_topic(client, "flight", people(1).schema)
        create_topic(client, "client", people(1).schema)
        push = pushing(stack, client, flight.FlightDescriptor.for_path("flight"))
        wanted = ticket(kind="follow", topic="flight")
        ways[FLIGHT] = push, _reading(stack, client, wanted)
        ours = stack.enter_context(wings_client.connect(wings.flight))
        producer = stack.enter_context(ours.producer("client"))
        follow = stack.enter_context(closing(ours.follow("client")))
        row = people(1)
        ways[CLIENT] = lambda: producer.send(row).result(), lambda: next(follow)
        found: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds + 1):
            for name, (send, receive) in ways.items():
                found[name].append(_milliseconds(send, receive))
    medians = {name: statistics.median(values[1:]) for name, values in found.items()}
    for name, median in medians.items():
        print(f"{name:22} {median:7.3f} ms {median / medians[BARE]:6.2f}")  # noqa: T201


if __name__ == "__main__":
    serve_or_measure(RelayServer, measure, ROUNDS)
