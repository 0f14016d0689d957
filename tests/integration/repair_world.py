"""A directory with a little of everything, and what can be read of one: for tests of repair."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
from flight_calls import act, create_topic, numbers, push, put_stream
from share_calls import Member, create_group

from wings_core.data_directory import DataDirectory
from wings_core.errors import StorageCorrupt
from wings_core.limits import Limits
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.storage.codecs import Wanted, read_pages
from wings_core.storage.inline_folios import InlineFolios
from wings_core.storage.open import open_storage
from wings_server.testing import running_server

Row = tuple[int, tuple[Any, ...]]
"""The timestamp of a message, and its values."""

Partitions = dict[tuple[str, str], dict[int, Row | None]]
"""By topic and partition: the messages by offset; None: reading it is `STORAGE_CORRUPT`."""

MANY = 400
"""Partitions of a topic: so that metadata's trees have several levels."""

KEYS = ["a", "b", "c", "ü"]


def keyed(first: int, rows: int) -> pa.RecordBatch:
    """Return rows over all keys."""
    values = range(first, first + rows)
    return pa.record_batch(
        {"key": pa.array([KEYS[n % len(KEYS)] for n in values]), "n": pa.array(values, pa.int64())}
    )


def make_world(path: Path) -> None:
    """Fill a directory: pages that are merged, drained, large, staged, published and inline."""
    with running_server(path) as server, flight.connect(server.flight) as client:
        drain = server.server.log.drain
        assert drain is not None
        fields = ["key: string not null", "n: int64"]
        create_topic(client, "merged", ["n: int64"])
        create_topic(client, "orders", fields, "key")
        create_topic(client, "gone", ["n: int64"])
        act(client, "create-namespace", namespace="tenants/acme/namespaces/lab")
        lab = "tenants/acme/namespaces/lab/topics/plain"
        create_topic(client, lab, ["n: int64"])
        push(client, "gone", numbers(*range(10_000)))
        act(client, "delete-topic", topic="gone")

        push(client, "merged", *(numbers(*range(at, at + 50)) for at in range(0, 1_000, 50)))
        act(client, "alter-topic", topic="merged", config={"tier_after_ms": 0})
        act(client, "maintain")
        push(client, "merged", numbers(*range(1_000, 1_100)))
        act(client, "alter-topic", topic="merged", config={"tier_after_ms": 10**9})

        push(client, lab, *(numbers(*range(at, at + 10_000)) for at in range(0, 30_000, 10_000)))
        push(client, "orders", *(keyed(at, 40) for at in range(0, 800, 40)))
        create_topic(client, "many", ["n: int64 not null"], "n")
        push(client, "many", *(numbers(*range(MANY)) for _ in range(3)))
        assert drain.run()
        push(client, "orders", keyed(800, 8_000))
        stream = {"stage": "published"}
        with put_stream(client, keyed(0, 1).schema, "orders", **stream) as stage:
            stage.push(keyed(8_800, 8_000))
        act(client, "stage-publish", writer="job", batch=1, stages=["published"])
        with put_stream(client, keyed(0, 1).schema, "orders", stage="waiting") as stage:
            stage.push(keyed(0, 8_000))

        offsets = [{"topic": "orders", "partition": key, "offset": 100} for key in KEYS]
        act(client, "commit-offsets", consumer="etl", offsets=offsets)
        push(client, "merged", numbers(7), producer_id="p", sequence=0)
        create_group(client, "merged", lock_duration_ms=5_000)
        (leased, *_) = Member(client, "merged").acquire(max_messages=10)
        assert Member(client, "merged").acknowledge(leased.ack("accept", 0, 4)) == [None]
        create_topic(client, "inline", fields, "key")
        push(client, "inline", *(keyed(at, 8) for at in range(0, 80, 8)))


def read_world(path: Path) -> Partitions:
    """Read all messages of a directory at rest, each page by itself."""
    found: Partitions = {}
    with (
        DataDirectory.open_read_only(path) as directory,
        SqliteMetadata(directory.metadata, read_only=True) as metadata,
    ):
        inline = InlineFolios(metadata.registry.read_inline)
        with closing(open_storage(directory, Limits(), inline=inline).store) as store:
            for namespace in metadata.admin.list_namespaces():
                for topic in metadata.admin.list_topics(namespace.name):
                    for state in metadata.registry.partition_states(topic.uuid):
                        rows: dict[int, Row | None] = {}
                        found[str(topic.name), state.partition] = rows
                        offset = state.log_start_offset
                        while offset < state.next_offset:
                            located = metadata.registry.locate(
                                topic.uuid, state.partition, offset, 1
                            ).locations
                            page = located[0]
                            assert page.start_offset <= offset, "no offset is passed over"
                            offset = page.end_offset + 1
                            try:
                                (read,) = read_pages(store, topic, [page], Wanted(timestamps=True))
                            except StorageCorrupt:
                                rows.update(dict.fromkeys(range(page.start_offset, offset)))
                                continue
                            times = read.timestamps
                            columns = [column.to_pylist() for column in read.rows.columns]
                            values = zip(*columns, strict=True)
                            for at, row in enumerate(values):
                                time = times if isinstance(times, int) else times[at].value
                                rows[page.start_offset + at] = (time, row)
    return found
