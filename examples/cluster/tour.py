"""A tour of a cluster: what one node is given, all have; and what is acknowledged, stays."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
from processes import Cluster

from wings_client import AlreadyExists, Client, Retry
from wings_core.storage.objects import open_objects

sys.path.insert(0, str(Path(__file__).parents[1]))
import flights

WAIT_SECONDS = 30.0
PAUSE_SECONDS = 0.05
BATCH_ROWS = 200
PERSISTENT = Retry(attempts=50, delay_max=0.5)


def say(text: str) -> None:
    """Print a line at once, also into a pipe."""
    print(text, flush=True)  # noqa: T201 - an example talks


def tour(cluster: Cluster, rows: int) -> None:
    """Show what the cluster does.

    Args:
        cluster: Freshly started.
        rows: How many flights to push.
    """
    with cluster.connect(cluster.addresses, retry=PERSISTENT) as client:
        push(client, rows)
        if cluster.hot is not None:
            look_into_the_bucket(cluster.hot)
        wake_a_long_poll(cluster)
        scan(cluster, client, rows)
        merge(cluster, client)
        kill_a_node_under_load(cluster, client)


def push(client: Client, rows: int) -> None:
    """Push flights to a topic that is partitioned by origin."""
    client.create_topic("flights", flights.SCHEMA, "origin")
    started = time.perf_counter()
    pushed = client.push("flights", flights.generate(rows))
    seconds = time.perf_counter() - started
    say(f"pushed {pushed.rows:,} flights through one node, durably, in {seconds:.2f} s")


def look_into_the_bucket(hot: str) -> None:
    """Count the objects that new messages are in, and try to overwrite one."""
    objects = open_objects(hot)
    until = time.monotonic() + 10
    # Small pushes are in metadata first, and in the bucket about a second later.
    while not (folios := list(objects.list("folios"))) and time.monotonic() < until:
        time.sleep(0.1)
    try:
        objects.put(folios[0].name, [b"something else"])
    except AlreadyExists:
        refused = "S3 refused to overwrite one"
    else:
        raise AssertionError("an object was overwritten")
    kilobytes = sum(folio.size for folio in folios) / 1e3
    say(f"at {hot} there are now {kilobytes:,.0f} kB, in objects: {len(folios)}; {refused}")


def wake_a_long_poll(cluster: Cluster) -> None:
    """Wait on one node, and push on another."""
    here, there = (cluster.connect(node.flight) for node in cluster.nodes[:2])
    with here, there:
        topic = here.create_topic("calls", {"n": "int64"})
        here.push(topic, {"n": [0]})
        there.fetch(topic, offset=0)
        woken: list[float] = []

        def wait() -> None:
            there.fetch(topic, offset=1, timeout=WAIT_SECONDS)
            woken.append(time.perf_counter())

        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.5)  # Long enough that the poll has surely begun to wait.
        pushed = time.perf_counter()
        here.push(topic, {"n": [1]})
        waiting.join()
    milliseconds = (woken[0] - pushed) * 1e3
    say(f"a long poll on node 2 was woken {milliseconds:.1f} ms after a push on node 1 began")


def scan(cluster: Cluster, client: Client, rows: int) -> None:
    """Read everything, from all nodes."""
    wait_until_listed(cluster, client)
    started = time.perf_counter()
    table = client.scan("flights", parallel=4).read_all()
    seconds = time.perf_counter() - started
    assert table.num_rows == rows
    nodes = len(client.locations("flights"))
    say(f"scanned {table.num_rows:,} flights from {nodes} nodes at once in {seconds:.2f} s")


def ordered(client: Client) -> pa.Table:
    """Return all flights by partition and offset: between partitions, a scan has no order."""
    table = client.scan("flights", system_columns=True).read_all()
    return table.sort_by([("__partition", "ascending"), ("__offset", "ascending")])


def merge(cluster: Cluster, client: Client) -> None:
    """Merge all that was pushed into compressed segments now, and read it again."""
    before = ordered(client)
    client.alter_topic("flights", {"tier_after_ms": 0})
    # The node that was told; the others know a second later at most.
    node = next(node for node in cluster.nodes if node.flight == client.endpoint)
    body = json.dumps({"topic": "flights"}).encode()
    authority = cluster.authority.read_text()
    bearer: Any = (b"authorization", f"Bearer {cluster.token}".encode())
    with flight.FlightClient(node.flight, tls_root_certs=authority) as plain:
        (answer,) = plain.do_action(
            flight.Action("maintain", body), flight.FlightCallOptions(headers=[bearer])
        )
    done = json.loads(answer.body.to_pybytes())
    assert done["failures"] == 0
    assert ordered(client).equals(before)
    say(
        f"merged {done['pages_merged']:,} pages into {done['segments']:,} segments"
        f"{'' if cluster.remote is None else f' at {cluster.remote}'}, "
        f"{done['bytes_merged'] / 1e3:,.0f} kB into {done['segment_bytes'] / 1e3:,.0f}: "
        "the same rows are read"
    )


def kill_a_node_under_load(cluster: Cluster, client: Client) -> None:
    """Kill the node that a producer writes through, and count what came of its rows."""
    client.create_topic("load", {"n": "int64"})
    stop = threading.Event()
    sent = 0
    with client.producer("load") as producer:

        def numbers() -> Iterator[pa.RecordBatch]:
            for first in range(0, 1_000_000, BATCH_ROWS):
                if stop.is_set():
                    return
                values = pa.array(range(first, first + BATCH_ROWS), pa.int64())
                yield pa.record_batch({"n": values})

        def load() -> None:
            nonlocal sent
            for batch in numbers():
                producer.send(batch)
                sent += BATCH_ROWS

        loading = threading.Thread(target=load)
        loading.start()
        wait_for_rows(producer.rows_committed, lambda: producer.rows_committed)
        victim = next(node for node in cluster.nodes if node.flight == client.endpoint)
        victim.kill()
        before = producer.rows_committed
        wait_for_rows(before, lambda: producer.rows_committed)
        cluster.start_node()
        stop.set()
        loading.join()
    found = client.scan("load").read_all()["n"].to_pylist()
    lost, doubled = sent - len(set(found)), len(found) - len(set(found))
    assert found == list(range(sent))
    say(
        f"killed node {cluster.nodes.index(victim) + 1} (process {victim.pid}) under load: "
        f"{producer.rows_committed:,} rows acknowledged, {lost} lost, {doubled} doubled"
    )
    wait_until_listed(cluster, client)
    say(f"started node {len(cluster.nodes)}; listed now: {' '.join(client.locations('flights'))}")


def wait_for_rows(before: int, committed: Callable[[], int]) -> None:
    """Wait until a producer has committed some more."""
    end = time.monotonic() + WAIT_SECONDS
    while committed() < before + 10 * BATCH_ROWS:
        if time.monotonic() > end:
            raise TimeoutError("the producer does not get on")
        time.sleep(PAUSE_SECONDS)


def wait_until_listed(cluster: Cluster, client: Client) -> None:
    """Wait until exactly the living nodes are listed."""
    end = time.monotonic() + WAIT_SECONDS
    while set(client.locations("flights")) != set(cluster.addresses):
        if time.monotonic() > end:
            raise TimeoutError("the nodes are not listed")
        time.sleep(PAUSE_SECONDS)
