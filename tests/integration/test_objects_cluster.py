"""Nodes that share a bucket and nothing else but their metadata service."""

from contextlib import ExitStack
from pathlib import Path

from flight_calls import create_topic, get, numbers, push

from wings_core.storage.objects import open_objects
from wings_server.testing import metadata_process, server_process


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
        # The one that starts last looks for what nobody refers to, and finds nothing of the others.
        third = stack.enter_context(server_process(tmp_path / "three", flags=flags)).client()
        assert get(third, kind="scan", topic="events").column("n") == [1, 2, 3]
    assert len(list(open_objects(s3_url).list("folios"))) == 2
    assert not list(tmp_path.rglob("*.segment"))
