"""Memory of a server that streams a log far larger than what it keeps: flat."""

from collections.abc import Iterator

from benchmarks.harness import Row, at_most, create_topic, drain, narrow, push, status_kib, ticket
from wings_server.testing import server_process

LOG_MIB = 2_048
GROWTH_MIB_MAX = 64.0


def run() -> Iterator[Row]:
    """Measure the growth of RssAnon over three scans of 2 GiB, after a first one."""
    with server_process() as server, server.client() as client:
        batch = narrow(32_768)
        create_topic(client, "large", batch.schema)
        push(client, "large", batch, LOG_MIB)
        wanted = ticket(kind="scan", topic="large")
        drain(client, wanted)
        before = status_kib(server.pid, "RssAnon")
        growths: list[float] = []
        for _ in range(3):
            drain(client, wanted)
            growths.append((status_kib(server.pid, "RssAnon") - before) / 1024)
        yield at_most("RssAnon growth over a scan of 2 GiB", "MiB", GROWTH_MIB_MAX, growths)
