"""The Python client against plain pyarrow: what its comforts cost.

Batches of 1 MiB, narrow and wide as those of the scan suite, and small pushes.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.flight as flight

import wings_client
from benchmarks.harness import (
    Row,
    compare,
    compare_in_turn,
    create_topic,
    drain,
    median_seconds,
    narrow,
    open_put,
    push,
    rate,
    ticket,
    wide,
)
from wings_client import Client
from wings_server.testing import server_process

TIMES = 60
"""Batches of 1 MiB that are read at a time: for a tenth of a second, so that both sides are read in
turn many times."""

PARALLEL_TIMES = 600
SMALL_TIMES = 300


def run() -> Iterator[Row]:
    """Measure the client's reads and writes; only the scan has a bound."""
    with (
        server_process() as server,
        server.client() as plain,
        wings_client.connect(server.flight) as client,
    ):
        for name, batch, shown in (
            ("narrow", narrow(32_768), "4 columns"),
            ("wide", wide(1_310), "100 columns"),
        ):
            create_topic(plain, name, batch.schema)
            push(plain, name, batch, TIMES)
            yield compare_in_turn(
                f"client's scan, 1 MiB batches, {shown}",
                "M rows/s",
                0.95,
                rate(lambda name=name: _scan(client, name, 1)),
                rate(lambda name=name: drain(plain, ticket(kind="scan", topic=name))),
                runs=15,
            )
        create_topic(plain, "long", narrow(1).schema)
        push(plain, "long", narrow(32_768), PARALLEL_TIMES)
        yield compare(
            "client's scan, parallel=2 (no bound)",
            "M rows/s",
            0.0,
            rate(lambda: _scan(client, "long", 2)),
            rate(lambda: drain(plain, ticket(kind="scan", topic="long"))),
        )
        yield from _writes(plain, client)


def _writes(plain: flight.FlightClient, client: Client) -> Iterator[Row]:
    batch = narrow(32_768)
    create_topic(plain, "pushed", batch.schema)
    table = pa.Table.from_batches([batch] * 100)
    yield compare(
        "client's push, 1 MiB batches (no bound)",
        "M rows/s",
        0.0,
        rate(lambda: client.push("pushed", table, batch_rows=batch.num_rows).rows),
        rate(lambda: len(push(plain, "pushed", batch, 100)) * batch.num_rows),
    )
    small = narrow(10)
    create_topic(plain, "small", small.schema)
    writer, answers = open_put(plain, flight.FlightDescriptor.for_path("small"), small.schema)

    def by_hand() -> None:
        writer.write_batch(small)
        answers.read()

    with client.producer("small") as producer:
        yield compare(
            "producer's ack of a small push (no bound)",
            "ms",
            1_000.0,
            lambda: 1_000 * median_seconds(lambda: producer.send(small).result(), SMALL_TIMES),
            lambda: 1_000 * median_seconds(by_hand, SMALL_TIMES),
            more_is_better=False,
        )
    writer.close()


def _scan(client: Client, topic: str, parallel: int) -> int:
    return sum(batch.num_rows for batch in client.scan(topic, parallel=parallel))
