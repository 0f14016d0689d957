"""Drive PostgreSQL with the metadata load of many nodes: `python -m benchmarks.metadata_load`.

No messages are stored. Each process does as a node's metadata does while large pushes come in: it
commits flushes that touch each of its partitions, each flush an object; small pushes, which stay
inline; looks of readers at where pages lie; and merges of the pages of a partition into one. It
prints rates, what PostgreSQL's processor, log and connections take, and what `docs/scale.md` needs.
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pyarrow as pa

from wings_core.metadata.maintenance import MaintenanceLease
from wings_core.metadata.postgres import PostgresMetadata
from wings_core.model import (
    INLINE_SUFFIX,
    CommitBatch,
    InlineFolio,
    PageAddress,
    PageFormat,
    Replacement,
    StoredPage,
    Topic,
)
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.partitions import Partition
from wings_server.testing_postgres import postgres_server

NAME = DEFAULT_NAMESPACE.topic("load")
MERGED_PAGES = 32
"""Pages of a partition that become one."""
SMALL = bytes(1_000)


@dataclass(frozen=True, slots=True)
class Load:
    """What each node does, again and again.

    Attributes:
        nodes: How many.
        partitions: Of each node, all of them in each flush.
        smalls: Small pushes beside each large flush.
        looks: Looks of readers beside each.
        seconds: How long.
        pause: Between large flushes, in seconds; 0: as fast as it goes.
    """

    nodes: int
    partitions: int
    smalls: int
    looks: int
    seconds: float
    pause: float


@dataclass(slots=True)
class Done:
    """What a node did."""

    large: list[float] = field(default_factory=list[float])
    """Seconds of each large flush."""
    small: list[float] = field(default_factory=list[float])
    merges: int = 0
    looks: int = 0


class _Node:
    def __init__(self, url: str, number: int, load: Load) -> None:
        self._metadata = PostgresMetadata(url)
        self._topic: Topic = self._metadata.admin.get_topic(NAME)
        self._number = number
        self._load = load
        self._keys = [Partition(f'"{number}-{each}"') for each in range(load.partitions)]
        self._flushes = 0
        self.done = Done()
        name = f"load-{number}"
        token = self._metadata.maintenance.acquire_lease(name, name, 3_600)
        assert token is not None
        self._lease = MaintenanceLease(name, name, token)

    def run(self) -> None:
        """Work until the time is over."""
        end = time.monotonic() + self._load.seconds
        due = time.monotonic()
        while time.monotonic() < end:
            self._flush()
            for _ in range(self._load.smalls):
                self._push_small()
            for _ in range(self._load.looks):
                self._look()
            # As many pages are merged as are made.
            for place in range(self._load.partitions):
                if (self._flushes + place) % MERGED_PAGES == 0:
                    self._merge(self._keys[place])
            due = max(due + self._load.pause, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
        self._metadata.close()

    def _flush(self) -> None:
        folio = f"{self._number}-{self._flushes}.folio"
        self._flushes += 1
        pages = tuple(
            StoredPage(key, 1_000, PageAddress(folio, place * 40_000, 40_000))
            for place, key in enumerate(self._keys)
        )
        began = time.perf_counter()
        self._metadata.registry.commit([CommitBatch(0, self._topic.uuid, pages, None, None, None)])
        self.done.large.append(time.perf_counter() - began)

    def _push_small(self) -> None:
        name = f"{self._number}-{len(self.done.small)}{INLINE_SUFFIX}"
        key = self._keys[len(self.done.small) % len(self._keys)]
        pages = (StoredPage(key, 1, PageAddress(name, 0, len(SMALL))),)
        batch = CommitBatch(0, self._topic.uuid, pages, None, None, None)
        began = time.perf_counter()
        self._metadata.registry.commit([batch], inline=InlineFolio(name, SMALL))
        self.done.small.append(time.perf_counter() - began)

    def _look(self) -> None:
        self.done.looks += 1
        key = self._keys[self.done.looks % len(self._keys)]
        self._metadata.registry.locate(self._topic.uuid, key, 1_000 * (self._flushes - 1), 65_536)

    def _merge(self, key: Partition) -> None:
        uuid = self._topic.uuid
        state = self._metadata.registry.partition_state(uuid, key)
        old = self._metadata.registry.locate(uuid, key, max(0, state.next_offset - 40_000), 1 << 40)
        pages = [page for page in old.locations if page.format is not PageFormat.SEGMENT]
        pages = pages[-MERGED_PAGES:]
        if not pages:
            return
        folio = f"{self._number}-{self.done.merges}.segment"
        new = pages[0]._replace(
            end_offset=pages[-1].end_offset,
            timestamp=pages[-1].timestamp,
            first_timestamp=pages[0].timestamp,
            address=PageAddress(folio, 0, sum(page.bytes for page in pages) // 2),
            format=PageFormat.SEGMENT,
        )
        replacement = Replacement(uuid, key, tuple(pages), (new,))
        (replaced,) = self._metadata.maintenance.replace_all([replacement], self._lease)
        self.done.merges += replaced


def _run(url: str, number: int, load: Load, results: "multiprocessing.Queue[Done]") -> None:
    node = _Node(url, number, load)
    node.run()
    results.put(node.done)


def drive(url: str, load: Load) -> tuple[list[Done], int]:
    """Run the load; return what each node did, and the connections at most."""
    with PostgresMetadata(url) as metadata:
        metadata.admin.create_topic(NAME, pa.schema([("key", pa.string())]), "key")
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[Done] = context.Queue()
    nodes = [
        context.Process(target=_run, args=(url, number, load, results))
        for number in range(load.nodes)
    ]
    connections = 0
    with psycopg.connect(url, autocommit=True) as watching:
        for node in nodes:
            node.start()
        done: list[Done] = []
        while len(done) < len(nodes):
            row = watching.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'wings'"
            ).fetchone()
            assert row is not None
            connections = max(connections, row[0])
            time.sleep(0.2)
            while not results.empty():
                done.append(results.get())
    for node in nodes:
        node.join()
    return done, connections


def _milliseconds(values: Sequence[float], share: float) -> str:
    return f"{sorted(values)[int(share * (len(values) - 1))] * 1e3:.2f} ms" if values else "-"


def main() -> None:
    """Print what was done."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.metadata_load", description=__doc__)
    parser.add_argument("--url", help="of an empty database; default: a PostgreSQL of its own")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--partitions", type=int, default=200, help="of each node, in each flush")
    parser.add_argument("--smalls", type=int, default=1, help="small pushes for each large flush")
    parser.add_argument("--looks", type=int, default=4, help="looks of readers for each")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument(
        "--pause", type=float, default=0.25, help="between flushes of a node; 0: none"
    )
    options = parser.parse_args()
    given = vars(options)
    url: str | None = given.pop("url")
    load = Load(**given)
    with ExitStack() as stack:
        postmaster = None
        if url is None:
            server = stack.enter_context(postgres_server(sync=True))
            url, postmaster = server.new_database(), server.pid
        with psycopg.connect(url, autocommit=True) as asked:
            wal = _wal(asked)
            done, connections = drive(url, load)
            wal_bytes = _wal(asked) - wal
            cpu = 0.0 if postmaster is None else _cpu_seconds(postmaster)
    large = [each for one in done for each in one.large]
    small = [each for one in done for each in one.small]
    pages = load.partitions * len(large) + len(small)
    merges = sum(one.merges for one in done)
    looks = sum(one.looks for one in done)
    seconds = load.seconds
    report = f"""\
{load.nodes} nodes, {load.partitions} partitions each, {seconds:g} s, \
{len(os.sched_getaffinity(0))} cores, {connections} connections
large flushes {len(large) / seconds:,.0f}/s, median {_milliseconds(large, 0.5)}, \
99 % {_milliseconds(large, 0.99)}
small pushes {len(small) / seconds:,.0f}/s, median {_milliseconds(small, 0.5)}, \
99 % {_milliseconds(small, 0.99)}
pages indexed {pages / seconds:,.0f}/s, merged {merges * MERGED_PAGES / seconds:,.0f}/s \
in {merges / seconds:,.0f} merges/s, looks {looks / seconds:,.0f}/s
PostgreSQL: log {wal_bytes / seconds / 1e6:,.1f} MB/s, {wal_bytes / pages:,.0f} bytes a page; \
cores {cpu / seconds:.2f}, {cpu / pages * 1e6:,.0f} µs a page
"""
    sys.stdout.write(report)


def _wal(connection: psycopg.Connection) -> int:
    row = connection.execute("SELECT pg_current_wal_lsn() - '0/0'").fetchone()
    assert row is not None
    return int(row[0])


def _cpu_seconds(postmaster: int) -> float:
    """Return the processor time of a server and of all its processes that have ended or run."""
    children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
    ticks = 0
    for process in (postmaster, *children):
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
        # Its own, and for the postmaster also that of its children that have ended.
        ticks += sum(int(each) for each in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
