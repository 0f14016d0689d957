"""What the ack of a one-row push costs at least over PostgreSQL: the floor under that of a node.

    python -m benchmarks.ack_floor_postgres [rounds]

A bare pyarrow server answers a batch once it is committed to the PostgreSQL that a node keeps its
metadata in, in ways that differ in one thing each, and the node beside it. As in `ack_floor`, all
are pushed to in turn, one push each, in an order that differs each time. The ratio is to a bare
commit there, which `benchmarks.nodes` holds a node to, and the last line says whether a server that
does the least could keep to it on this machine.
"""

import itertools
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.flight as flight

from benchmarks.acks import Acks, ack_server, batches, in_the_way, pushing, take_in_turn
from benchmarks.harness import create_topic
from benchmarks.small import people
from wings_core.metadata.postgres import PostgresMetadata
from wings_core.metadata.postgres.connections import PostgresConnections
from wings_core.metadata.postgres.store import SCHEMA
from wings_core.model import INLINE_SUFFIX, CommitBatch, InlineFolio, PageAddress, StoredPage
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.partitions import Partition
from wings_server.testing import node_process
from wings_server.testing_postgres import postgres_server

PUSHES = 200
"""Of each, in a round."""

ROUNDS = 5

ROW_BYTES = 600
"""About what a page of one row has."""

HOLD = 3.0
"""What `benchmarks.nodes` holds the ack to."""

ANSWERED, COMMITTED, LEAST, FUNCTION = "answered", "committed", "least", "function"
NODE, POSTGRES = "node", "postgres"
HOWS = {
    ANSWERED: "nothing is kept: the bare round trip",
    COMMITTED: "one insert, committed by the call's own thread",
    LEAST: "and where it lies, and where its partition ends: the least that a log needs",
    FUNCTION: "the commit that a node makes for a push, judged and called",
}
"""How each batch is answered."""

INSERT = "INSERT INTO public.bare (data) VALUES (%b)"

TOPIC = DEFAULT_NAMESPACE.topic("floor")

_TABLES = """
CREATE TABLE bare (id BIGINT GENERATED ALWAYS AS IDENTITY, data BYTEA);
CREATE TABLE least_partitions (id BIGINT PRIMARY KEY, next_offset BIGINT, bytes BIGINT)
    WITH (fillfactor = 50);
CREATE TABLE least_bytes (id BIGINT PRIMARY KEY, data BYTEA);
CREATE TABLE least_pages (partition_id BIGINT, end_offset BIGINT, bytes_id BIGINT, length BIGINT,
    PRIMARY KEY (partition_id, end_offset));
INSERT INTO least_partitions VALUES (1, 0, 0);
CREATE FUNCTION commit_least(row_data BYTEA) RETURNS BIGINT LANGUAGE plpgsql AS $function$
DECLARE
    place BIGINT;
BEGIN
    UPDATE public.least_partitions
    SET next_offset = next_offset + 1, bytes = bytes + length(row_data)
    WHERE id = 1 RETURNING next_offset INTO place;
    INSERT INTO public.least_bytes VALUES (place, row_data);
    INSERT INTO public.least_pages VALUES (1, place, place, length(row_data));
    RETURN place;
END
$function$
"""


class AckServer(flight.FlightServerBase):
    """Answers each batch of a stream in one of the `HOWS`, which its command names.

    Args:
        url: Of an empty database.
    """

    def __init__(self, url: str) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._url = url
        with psycopg.connect(url) as connection:
            connection.execute(_TABLES)
        self._metadata = PostgresMetadata(url)
        self._metadata.admin.create_topic(TOPIC, people(1).schema)

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        """Answer each batch until the client ends."""
        assert descriptor.command is not None
        how = json.loads(descriptor.command)
        data = os.urandom(ROW_BYTES)
        connections = PostgresConnections(self._url, SCHEMA)
        # With the settings of a node's session, which a bare insert needs none of.
        with closing(connections), closing(connections.open()) as connection:
            commit: Callable[[], object] = {
                ANSWERED: lambda: None,
                COMMITTED: lambda: connection.execute(INSERT, (data,), prepare=True),
                LEAST: lambda: connection.execute(
                    "SELECT public.commit_least(%b)", (data,), prepare=True
                ),
                FUNCTION: self._commits(data).__next__,
            }[how]
            for _ in batches(reader):
                commit()
                writer.write(pa.py_buffer(b"{}"))

    def _commits(self, data: bytes) -> Iterator[None]:
        """Yield after each commit that a node would make for a push of so many bytes."""
        topic = self._metadata.admin.get_topic(TOPIC)
        for number in itertools.count():
            folio = InlineFolio(f"{number}{INLINE_SUFFIX}", data)
            address = PageAddress(folio.name, 0, len(data))
            page = StoredPage(Partition("null"), 1, address)
            batch = CommitBatch(0, topic.uuid, (page,), None, None, None)
            self._metadata.registry.commit([batch], inline=folio)
            yield


def measure(rounds: int) -> list[Acks]:
    """Push to all in turn, and commit to the same PostgreSQL; see `take_in_turn`."""
    with ExitStack() as stack:
        server = stack.enter_context(postgres_server(sync=True))
        url = server.new_database()
        bare, bare_pid, _ = stack.enter_context(ack_server("benchmarks.ack_floor_postgres", url))
        objects = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        node = stack.enter_context(
            node_process(server.new_database(), objects.as_uri(), ready_seconds=120)
        )
        client = stack.enter_context(node.client())
        create_topic(client, "acks", people(1).schema)
        connection = stack.enter_context(psycopg.connect(url, autocommit=True))
        data = os.urandom(ROW_BYTES)
        calls: dict[str, tuple[Callable[[], object], int]] = {
            how: (pushing(stack, bare, in_the_way(how)), bare_pid) for how in HOWS
        }
        ours = pushing(stack, client, flight.FlightDescriptor.for_path("acks"))
        calls[NODE] = ours, node.pid
        calls[POSTGRES] = lambda: connection.execute(INSERT, (data,), prepare=True), 0
        return take_in_turn(calls, PUSHES, rounds)


def main() -> None:
    """Serve, or measure and print it."""
    if sys.argv[1:2] == ["serve"]:
        server = AckServer(sys.argv[2])
        print(server.port, "ready", flush=True)  # noqa: T201 - told to the parent process
        threading.Event().wait()
    acks = Acks.median_of(measure(int(sys.argv[1]) if sys.argv[1:] else ROUNDS))
    bare = acks.seconds[POSTGRES]
    print(f"{'':10} {'p50, ms':>8} {'CPU, µs':>8} {'ratio':>6}")  # noqa: T201
    for name, seconds in acks.seconds.items():
        print(  # noqa: T201
            f"{name:10} {seconds * 1e3:8.3f} {acks.cpu_us[name]:8.0f} "
            f"{seconds / bare:6.2f}  {HOWS.get(name, '')}"
        )
    least, function, ours = (acks.seconds[name] / bare for name in (LEAST, FUNCTION, NODE))
    print(  # noqa: T201
        f"{HOLD:g} can{'' if least <= HOLD else 'not'} be held here by Python over PostgreSQL: the "
        f"least takes {least:.2f} of a bare commit, with Wings' own call {function:.2f}, a node "
        f"{ours:.2f}"
    )


if __name__ == "__main__":
    main()
