"""Make `directory.tar.gz` by the version of Wings that is imported; README.md says how.

python make.py EMPTY_DIRECTORY
"""

import json
import os
import sqlite3
import sys
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa

import wings_client
from wings_client import Client
from wings_core.limits import Limits
from wings_core.model import ShardProgress
from wings_core.names import TopicName
from wings_server.testing import RunningServer, running_server

QUIET = Limits(maintenance_seconds=100_000)
"""Pages are merged only when a client says so."""

PAGES = """
SELECT topics.name, partitions.value, pages.end_offset, pages.first_timestamp IS NOT NULL
FROM pages JOIN partitions ON partitions.id = pages.partition_id
JOIN topics ON topics.id = partitions.topic_id ORDER BY 1, 2, 3
"""


def time(number: int) -> str:
    """Return a time in the past, so that pages are old wherever and whenever a copy is opened."""
    return f"2024-01-01T00:00:{number:02d}Z"


def orders(first: int, count: int = 20) -> dict[str, list[Any]]:
    return {
        "id": [*range(first, first + count)],
        "note": [
            None if number % 7 == 0 else f"order {number}" for number in range(first, first + count)
        ],
    }


def flights(first: int, count: int = 9) -> dict[str, list[Any]]:
    numbers = range(first, first + count)
    return {
        "origin": [("DEN", "OAK", "ZRH")[number % 3] for number in numbers],
        "delay": [number / 2 for number in numbers],
    }


def rows_of(client: Client, topic: str) -> list[list[Any]]:
    """Return all rows of a topic, with their offsets, and timestamps in microseconds."""
    table = client.scan(topic, system_columns=True).read_all()
    times = table.column("__timestamp").cast(pa.int64())
    table = table.set_column(table.num_columns - 1, "__timestamp", times)
    return [[*row.values()] for row in table.to_pylist()]


def merge(server: RunningServer, topic: str) -> None:
    log = server.server.log
    log.maintainer.run(log.admin.get_topic(TopicName.parse(topic)))


def first_run(server: RunningServer, client: Client) -> None:
    """Merge pages into the data directory itself."""
    client.create_topic("orders", {"id": "int64", "note": "string"}, config={"tier_after_ms": 0})
    client.create_topic(
        "flights",
        {"origin": "string", "delay": "float64"},
        partition_key="origin",
        config={"tier_after_ms": 0},
    )
    for number in range(3):
        client.push("orders", orders(20 * number), timestamp=time(number))
        client.push("flights", flights(9 * number), timestamp=time(number))
    merge(server, "orders")


def second_run(server: RunningServer, client: Client) -> dict[str, Any]:
    """Merge pages into the remote store, and leave some of all there is in metadata."""
    for number in range(3, 6):
        client.push("orders", orders(20 * number), timestamp=time(number))
        client.push("flights", flights(9 * number), timestamp=time(number))
    merge(server, "orders")
    merge(server, "flights")
    with client.producer("orders", producer_id="till") as producer:
        for number in range(6, 8):
            producer.send(orders(20 * number), timestamp=time(number))
    for number in range(6, 8):
        client.push("flights", flights(9 * number), timestamp=time(number))
    client.commit_offsets("reader", "orders", {None: 45})
    client.commit_offsets("reader", "flights", {"DEN": 7, "OAK": 3})
    with client.stage("orders", "published", timestamp=time(8)) as stage:
        stage.write(orders(160, 5))
    client.open_shards("files", "me", ["one.csv", "two.csv"])
    progress = ShardProgress("files", "one.csv", "me", 0, 77)
    client.publish("import", 4, [stage.close()], [progress])
    with client.stage("orders", "pending", timestamp=time(9)) as stage:
        stage.write(orders(165, 5))
    stage.close()
    client.create_share_group("billing", "orders", {"start": "earliest", "dlq_topic": "dead"})
    with client.share_consumer(
        "billing", "orders", member="one", timeout=1, max_messages=10
    ) as consumer:
        first, second = next(consumer), next(consumer)
        consumer.accept(first, rows=slice(0, 8))
        consumer.reject(first, rows=[8, 9], reason="bad")
        consumer.accept(second, rows=[0])
        consumer.release(second, rows=slice(1, 10))
    return {
        "rows": {topic: rows_of(client, topic) for topic in ("orders", "flights")},
        "dead_letters": client.fetch("dead", offset=0).num_rows,
        "lag": client.share_group("billing", "orders").partitions[0].lag,
    }


def main(directory: Path) -> None:
    """Write the directory, what is expected of it, and the archive of both."""
    os.chdir(directory)  # So that the remote store has a relative path, wherever the copy lies.
    with (
        running_server(Path("data"), limits=QUIET) as server,
        wings_client.connect(server.flight) as client,
    ):
        first_run(server, client)
    with (
        running_server(Path("data"), limits=QUIET, remote="remote") as server,
        wings_client.connect(server.flight) as client,
    ):
        expected = second_run(server, client)
    with closing(sqlite3.connect("data/metadata.sqlite")) as connection:
        expected["merged"] = [[*row[:3], bool(row[3])] for row in connection.execute(PAGES)]
    Path("expected.json").write_text(json.dumps(expected))
    with tarfile.open("directory.tar.gz", "w:gz") as archive:
        for name in ("data", "remote", "expected.json"):
            archive.add(name, filter=anonymous)


def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out who made the files."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main(Path(sys.argv[1]))
