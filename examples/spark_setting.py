"""What the Spark examples share: a server, a topic of flights, and a voice."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager

import flights
import pyarrow as pa

import wings_client
from wings_server.testing import server_process

FLIGHTS = "flights"
"""The topic of flights, partitioned by origin."""


def say(text: str) -> None:
    """Print a line at once, also into a pipe."""
    print(text, flush=True)  # noqa: T201 - an example talks


@contextmanager
def server_at(endpoint: str | None) -> Generator[str]:
    """Hand on the address of a server; without one, run a server on a temporary directory."""
    if endpoint is not None:
        say(f"using the server at {endpoint}")
        yield endpoint
        return
    with server_process() as server:
        say(f"started a server at {server.flight}, on a temporary directory")
        yield server.flight
    say("stopped the server and removed its directory")


def push_flights(endpoint: str, batches: Sequence[pa.RecordBatch]) -> None:
    """Push flights to their topic, which is created where it is not there."""
    with wings_client.connect(endpoint) as client:
        topic = client.create_topic(FLIGHTS, flights.SCHEMA, "origin", if_not_exists=True)
        client.push(topic, batches)
    rows = sum(batch.num_rows for batch in batches)
    say(f"pushed {rows:,} flights to the topic {FLIGHTS}")
