"""A log with something of everything, and all that its clients can see of it."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
from flight_calls import act

from wings_client import Client, Retry
from wings_client._backup import take_backup
from wings_client._transport import Transport
from wings_core.backup.repository import Manifest, Repository
from wings_core.contracts.share import AcknowledgementEntry

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64()), ("text", pa.string())])

Json = dict[str, Any]


def rows(first: int, count: int, keys: int = 3) -> pa.RecordBatch:
    """Return rows whose `n` counts on from `first`."""
    numbers = range(first, first + count)
    return pa.record_batch(
        [
            pa.array([f"key-{number % keys}" for number in numbers]),
            pa.array(numbers, pa.int64()),
            pa.array([f"row {number}" for number in numbers]),
        ],
        schema=SCHEMA,
    )


def fill(client: Client) -> None:
    """Make topics, push to them, and have consumers and groups get on in them."""
    client.create_topic("orders", SCHEMA, partition_key="k")
    client.create_topic("plain", SCHEMA)
    client.create_topic("empty", SCHEMA)
    client.create_topic("gone", SCHEMA)
    client.push("gone", rows(0, 10))
    client.delete_topic("gone")
    for first in range(0, 100, 10):
        client.push("orders", rows(first, 10))
    client.push("plain", rows(0, 20_000))  # Too large for metadata to keep.
    client.push("plain", rows(20_000, 5))
    with client.producer("orders", producer_id="one") as producer:
        producer.send(rows(100, 10))
    client.commit_offsets("reader", "orders", {"key-0": 7, "key-1": 3})
    client.create_share_group("workers", "plain", {"start": "earliest"})
    (delivery,) = client.acquire_messages("workers", "plain", "member", max_messages=50)
    client.acknowledge_messages(
        "workers",
        "plain",
        "member",
        [
            AcknowledgementEntry(first=0, last=29, lease=delivery.lease, type="accept"),
            AcknowledgementEntry(first=30, last=49, lease=delivery.lease, type="release"),
        ],
    )


def seen(client: Client) -> Json:
    """Return all that can be seen of a log."""
    found: Json = {}
    for topic in client.topics():
        partitions = client.partitions(topic)
        found[topic.name] = {
            "schema": topic.schema,
            "config": topic.config,
            # Without their bytes, which change as small pushes are drained.
            "partitions": [replace(each, bytes=0) for each in partitions],
            "rows": {
                each.partition: table_of(client, topic.name, each.partition) for each in partitions
            },
            "groups": [client.share_group(each.name, topic) for each in client.share_groups(topic)],
        }
    found["offsets"] = client.committed_offsets("reader", "orders")
    return found


def rows_of(client: Client, topic: str, partition: Any = None) -> list[Json]:
    """Return the messages of a partition, with offsets and timestamps."""
    return table_of(client, topic, partition).to_pylist()


def table_of(client: Client, topic: str, partition: Any) -> pa.Table:
    """Return the same as a table."""
    return client.scan(topic, partition, system_columns=True).read_all()


def back_up(client: Client, dest: "Path | str | Repository") -> Manifest:
    """Take a backup."""
    repository = dest if isinstance(dest, Repository) else Repository.open(str(dest), create=True)
    with closing(Transport(client.endpoint, 60.0, Retry())) as transport:
        return take_backup(transport, repository)


def maintain(client: Client) -> None:
    """Have a server do what is due."""
    with flight.FlightClient(client.endpoint) as plain:
        assert act(plain, "maintain")["failures"] == 0
