"""Finding the end of a log: as fast among a million locations as among a thousand."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow.flight as flight

from benchmarks.harness import (
    Row,
    compare,
    create_topic,
    drain,
    median_seconds,
    narrow,
    push,
    ticket,
)
from wings_core.data_directory import DataDirectory
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.model import CommitBatch, StoredPage
from wings_core.names import TopicName
from wings_core.partitions import UNPARTITIONED
from wings_server.testing import server_process

FETCHES = 500


def run() -> Iterator[Row]:
    """Measure a fetch of the last row on a long and on a short log, on one server."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "data"
        with server_process(path) as server, server.client() as client:
            for topic, pages in (("short", 1_000), ("long", 1_000)):
                create_topic(client, topic, narrow(1).schema)
                push(client, topic, narrow(1), pages)
        lengthen(path, "long", 1_000_000 - 1_000)
        with server_process(path) as server, server.client() as client:
            # The last row of the long log is a real one again.
            push(client, "long", narrow(1), 1)
            yield compare(
                "fetch at the end: 1,000,000 locations against 1,000",
                "ms",
                1.2,
                lambda: _fetch_ms(client, "long", 1_000_000),
                lambda: _fetch_ms(client, "short", 999),
                more_is_better=False,
            )


def lengthen(path: Path, topic: str, pages: int) -> None:
    """Commit locations in bulk through the registry itself; they share one page's place."""
    with DataDirectory.open(path) as directory, SqliteMetadata(directory.metadata) as metadata:
        uuid = metadata.admin.get_topic(TopicName.parse(topic)).uuid
        located = metadata.registry.locate(uuid, UNPARTITIONED, 999, 1)
        page = StoredPage(UNPARTITIONED, 1, located.locations[0].address)
        batch = CommitBatch(0, uuid, (page,))
        for start in range(0, pages, 10_000):
            metadata.registry.commit([batch] * min(10_000, pages - start))


def _fetch_ms(client: flight.FlightClient, topic: str, offset: int) -> float:
    wanted = ticket(topic=topic, offset=offset)
    assert drain(client, wanted) == 1
    return median_seconds(lambda: drain(client, wanted), FETCHES) * 1e3
