"""Make `directory.tar.gz` by the version of Wings that is imported; README.md says how.

python make.py EMPTY_DIRECTORY
"""

import json
import os
import sys
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa

import wings_client
from wings_client import Client
from wings_core.contracts.actions import Maintain, TokenCreate
from wings_core.limits import Limits
from wings_core.model import ShardProgress
from wings_server.testing import running_server

QUIET = Limits(maintenance_seconds=100_000)
"""Pages are merged only when a client says so."""

ROOT = "root-" + "r" * 40
READER = TokenCreate(name="reader", grants=("read=*",))
FORMATS = ("arrow", "parquet")


def rows_of(client: Client, topic: str) -> list[list[Any]]:
    """Return all rows of a topic by offset, with timestamps in microseconds."""
    table = client.scan(topic, system_columns=True).read_all()
    times = table.column("__timestamp").cast(pa.int64())
    table = table.set_column(table.column_names.index("__timestamp"), "__timestamp", times)
    return sorted(([*row.values()] for row in table.to_pylist()), key=str)


def act(client: Client, action: str, body: Any) -> Any:
    """Carry out an action that no method does."""
    transport = client._transport  # pyright: ignore[reportPrivateUsage]
    return transport.act(action, body, repeatable=False)


def merge(client: Client) -> None:
    """Merge the pages of all topics."""
    act(client, "maintain", Maintain())


def fill(client: Client) -> dict[str, Any]:
    """Leave some of all there is in metadata and files; returns what is expected of it."""
    for name in FORMATS:
        config = {"tier_after_ms": 0, "segment_format": name}
        client.create_topic(name, {"n": "int32"}, config=config)
        for number in range(3):
            time = f"2024-01-01T00:00:0{number}Z"
            client.push(name, {"n": list(range(10 * number, 10 * number + 10))}, timestamp=time)
        merge(client)
        client.alter_schema(name, add={"note": "string"}, widen={"n": "int64"})
        client.push(name, {"n": [2**40, 31], "note": ["x", None]}, timestamp="2024-01-02T00:00:00Z")
    client.create_topic("keyed", {"k": "string", "n": "int64"}, partition_key="k")
    client.push("keyed", {"k": ["a", "b", "a", "c"], "n": [1, 2, 3, 4]})
    client.push("keyed", {"k": ["large"] * 5_000, "n": list(range(5_000))})
    client.commit_offsets("reader", "keyed", {"a": 1, "b": 1})
    with client.producer("keyed", producer_id="till") as producer:
        producer.send({"k": ["a"], "n": [5]})
    client.open_shards("files", "me", ["one", "two"])
    with client.stage("keyed", "published") as stage:
        stage.write({"k": ["b"], "n": [6]})
    progress = [ShardProgress("files", "one", "me", 0, 10)]
    client.publish("import", 4, [stage.close()], progress)
    with client.stage("keyed", "pending") as stage:
        stage.write({"k": ["b"], "n": [7]})
    pending = stage.close().stage
    config = {"start": "earliest", "dlq_topic": "dead", "ordering": "partition"}
    client.create_share_group("workers", "arrow", config)
    with client.share_consumer("workers", "arrow", timeout=1, max_messages=10) as consumer:
        held = next(consumer)
        consumer.reject(held, rows=[0], reason="bad")
        consumer.accept(held, rows=slice(1, 5))
        consumer.release(held, rows=slice(5, 10))
    return {
        "rows": {topic: rows_of(client, topic) for topic in (*FORMATS, "keyed", "dead")},
        "lag": client.share_group("workers", "arrow").partitions[0].lag,
        "pending": pending,
        "token": act(client, "token-create", READER)["token"],
    }


def main(directory: Path) -> None:
    """Write the directory, what is expected of it, and the archive of both."""
    os.chdir(directory)
    with (
        running_server(Path("data"), limits=QUIET, root_token=ROOT) as server,
        wings_client.connect(server.flight, token=ROOT) as client,
    ):
        expected = fill(client)
    Path("expected.json").write_text(json.dumps(expected, default=str))
    with tarfile.open("directory.tar.gz", "w:gz") as archive:
        for name in ("data", "expected.json"):
            archive.add(name, filter=anonymous)


def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out who made the files, and the room that is kept for a full disk."""
    if entry.name.endswith("/RESERVE"):
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main(Path(sys.argv[1]))
