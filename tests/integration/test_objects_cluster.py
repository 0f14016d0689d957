"""Nodes that share a bucket and nothing else but their metadata service."""

import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from flight_calls import act, create_topic, error_of, get, numbers, push

from wings_core.storage.objects import open_objects
from wings_server.testing import ServerProcess, metadata_process, server_process

ROUNDS_MAX = 200
"""Of pushes, until both nodes have merged something."""


@pytest.mark.usefixtures("pushes_to_storage")
def test_nodes_with_directories_of_their_own_share_a_bucket(s3_url: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        metadata = stack.enter_context(metadata_process(tmp_path / "metadata"))
        flags = ("--metadata", metadata.address, "--hot", s3_url)
        nodes = [
            stack.enter_context(server_process(tmp_path / name, flags=flags))
            for name in ("one", "two")
        ]
        one, two = (node.client() for node in nodes)
        create_topic(one, "events", ["n: int64"])
        push(one, "events", numbers(1, 2))
        assert get(two, topic="events", offset=0, timeout_ms=20_000).column("n") == [1, 2]
        push(two, "events", numbers(3))
        assert get(one, kind="scan", topic="events").column("n") == [1, 2, 3]
        # Each would have a catalog of its own in its directory.
        with pytest.raises(pa.ArrowException) as caught:
            act(one, "alter-topic", topic="events", config={"table": "iceberg"})
        assert "--iceberg-catalog" in error_of(caught.value)["message"]
        # The last node looks for objects that no page refers to, and finds none of the others.
        third = stack.enter_context(server_process(tmp_path / "three", flags=flags)).client()
        assert get(third, kind="scan", topic="events").column("n") == [1, 2, 3]
    assert len(list(open_objects(s3_url).list("folios"))) == 2
    assert not list(tmp_path.rglob("*.segment"))


def maintained(node: ServerProcess, name: str) -> float:
    """Return a count of a node's maintenance."""
    text = urllib.request.urlopen(f"{node.http}/metrics").read().decode()
    series = f"\nwings_maintenance_{name}_total "
    return float(text.partition(series)[2].partition("\n")[0])


def test_two_nodes_that_merge_one_partition_all_the_time_lose_and_double_nothing(
    s3_url: str, tmp_path: Path
) -> None:
    environment = {
        "WINGS_LIMITS__MAINTENANCE_SECONDS": "0.01",
        "WINGS_LIMITS__OBJECT_FLUSH_SECONDS": "0.001",
    }
    with ExitStack() as stack:
        metadata = stack.enter_context(metadata_process(tmp_path / "metadata"))
        flags = ["--metadata", metadata.address, "--hot", f"{s3_url}/hot"]
        flags += ["--remote", f"{s3_url}/remote"]
        nodes = [
            stack.enter_context(
                server_process(tmp_path / name, flags=flags, environment=environment)
            )
            for name in ("one", "two")
        ]
        clients = [node.client() for node in nodes]
        create_topic(clients[0], "events", ["n: int64"])
        act(
            clients[0],
            "alter-topic",
            topic="events",
            config={"tier_after_ms": 0, "segment_bytes": 1},
        )
        values = count()
        pushed = 0
        with ThreadPoolExecutor(2) as both:
            for _ in range(ROUNDS_MAX):
                batches = [numbers(next(values), next(values)) for _ in range(4)]
                for pushing in [both.submit(push, each, "events", *batches) for each in clients]:
                    pushing.result()
                pushed += 2 * 2 * len(batches)
                if all(maintained(node, "segments") for node in nodes):
                    break
        assert all(maintained(node, "segments") for node in nodes)
        assert [maintained(node, "failures") for node in nodes] == [0, 0]
        found = [
            get(client, kind="scan", topic="events", system_columns=True) for client in clients
        ]
        assert found[0].table.equals(found[1].table)
        assert found[0].column("__offset") == list(range(pushed))
        # Each was pushed by both.
        assert sorted(found[0].column("n")) == sorted([*range(pushed // 2)] * 2)
        tiers = act(clients[0], "tier-states", topic="events")
        assert sum(tier["rows"] for tier in tiers) == pushed
