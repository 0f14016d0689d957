"""Fan-out: one commit to hundreds of followers, against a bare server that hands it to each."""

import json
from collections.abc import Callable, Iterator

import pyarrow.flight as flight

from benchmarks.harness import (
    Row,
    bare_server,
    compare,
    cpu_seconds,
    create_topic,
    narrow,
    open_put,
    ticket,
)
from wings_server.testing import server_process

FOLLOWERS = 500
STREAMS_OF_A_CONNECTION = 100
"""gRPC allows about so many."""
COMMITS = 10
"""Of one measurement."""


def run() -> Iterator[Row]:
    """Measure what a server's processor does for each of many followers of a commit."""
    with bare_server() as bare, server_process() as server, server.client() as client:
        for topic in ("one", "filtered"):
            create_topic(client, topic, narrow(1).schema)
        command = json.dumps({"keep": "handed", "times": 1})
        writer, answers = open_put(
            bare, flight.FlightDescriptor.for_command(command), narrow(1).schema
        )
        writer.write_batch(narrow(1))
        answers.read()
        writer.close()
        to_bare = flight.FlightDescriptor.for_command(json.dumps({"hand": "handed"}))
        endpoint, pid = f"grpc://127.0.0.1:{_told(bare, 'port')}", _told(bare, "pid")
        handed = flight.Ticket(b"hand handed")
        baseline = _Followers(endpoint, handed, to_bare, pid)
        follow = ticket(kind="follow", topic="one", offset="latest")
        to_one = flight.FlightDescriptor.for_path("one")
        ours = _Followers(server.flight, follow, to_one, server.pid)
        try:
            yield _row(3.0, f"one row to {FOLLOWERS} followers", ours.measure, baseline.measure)
        finally:
            ours.close()
        columns = [narrow(1).schema.names[0]]
        filtered = ticket(
            kind="follow",
            topic="filtered",
            offset="latest",
            columns=columns,
            filter=f"{columns[0]} IS NOT NULL",
            partitions="all",
        )
        to_filtered = flight.FlightDescriptor.for_path("filtered")
        ours = _Followers(server.flight, filtered, to_filtered, server.pid)
        try:
            name = f"one row to {FOLLOWERS} followers of all partitions, with a filter"
            yield _row(4.0, name, ours.measure, baseline.measure)
        finally:
            ours.close()
            baseline.close()


def _told(bare: flight.FlightClient, what: str) -> int:
    return int(next(iter(bare.do_action(flight.Action(what, b"")))).body.to_pybytes())


def _row(hold: float, name: str, ours: Callable[[], float], bare: Callable[[], float]) -> Row:
    return compare(
        f"{name}: server CPU each, against bare handing",
        "µs",
        hold,
        ours,
        bare,
        runs=3,
        more_is_better=False,
    )


class _Followers:
    """Streams that wait for what is pushed.

    Args:
        endpoint: Of the server.
        wanted: The ticket of each.
        descriptor: Of the push.
        pid: The server's.
    """

    def __init__(
        self, endpoint: str, wanted: flight.Ticket, descriptor: flight.FlightDescriptor, pid: int
    ) -> None:
        self._pid = pid
        self._clients = [
            flight.connect(endpoint) for _ in range(0, FOLLOWERS, STREAMS_OF_A_CONNECTION)
        ]
        self._readers = [
            self._clients[index // STREAMS_OF_A_CONNECTION].do_get(wanted)
            for index in range(FOLLOWERS)
        ]
        self._writing = flight.connect(endpoint)
        self._writer, self._answers = open_put(self._writing, descriptor, narrow(1).schema)
        self._push()  # From now on they wait.

    def measure(self) -> float:
        """Return the server's processor time for each follower of a commit, in microseconds."""
        before = cpu_seconds(self._pid)
        for _ in range(COMMITS):
            self._push()
        return 1e6 * (cpu_seconds(self._pid) - before) / COMMITS / FOLLOWERS

    def _push(self) -> None:
        self._writer.write_batch(narrow(1))
        self._answers.read()
        for reader in self._readers:
            batch = reader.read_chunk().data
            assert batch is not None
            assert batch.num_rows == 1

    def close(self) -> None:
        """End all streams."""
        self._writer.close()
        for reader in self._readers:
            reader.cancel()
        for client in (*self._clients, self._writing):
            client.close()
