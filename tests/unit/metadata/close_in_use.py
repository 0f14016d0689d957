"""Close what holds a handle of C while other threads use it, many times; a program of its own.

    python close_in_use.py WHAT[,WHAT...] ROUNDS DIRECTORY [URL]

What is closed while a call is inside it would end this process by a signal, after its name on
standard error. It ends with status 0 where each thread ended with `Unavailable`.
"""

import random
import sqlite3
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pyarrow as pa

from wings_core.errors import Unavailable, WingsError
from wings_core.metadata.sqlite.store import SqliteMetadata
from wings_core.metadata.sqlite.writer import SqliteWriter
from wings_core.model import Lease
from wings_core.names import NamespaceName
from wings_core.partitions import UNPARTITIONED
from wings_core.queue.sqlite import SqliteQueue
from wings_core.share.model import OffsetRange, ShareKey
from wings_core.share.replica.postgres_store import PostgresHoldStore
from wings_core.share.replica.replica import Replica
from wings_core.share.replica.requests import HoldRequest, TombstoneRequest
from wings_core.share.replica.sqlite_store import SqliteHoldStore
from wings_core.share.replica.store import HoldStore, PartitionWrite
from wings_core.storage.page import PageEncoder
from wings_core.storage.segments import SegmentStore

THREADS = 4
CALLS_MAX = 40
"""A round is closed after up to so many calls."""

KEY = ShareKey("group", "topic", UNPARTITIONED)
Call = Callable[[int], object]


class Opened(NamedTuple):
    """What is closed, and the calls that threads make meanwhile, each with a running number."""

    close: Callable[[], None]
    calls: tuple[Call, ...]


def writer(directory: Path) -> Opened:
    opened = SqliteWriter(directory / "writer.sqlite", sqlite3.Connection)
    with opened.transaction() as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS t (n INTEGER)")

    def write(number: int) -> None:
        with opened.transaction() as connection:
            connection.executemany("INSERT INTO t VALUES (?)", [(number,)] * 50)

    def read(_: int) -> None:
        with opened.transaction() as connection:
            connection.execute("SELECT count(*), sum(n) FROM t").fetchall()

    return Opened(opened.close, (write, read))


def calls_of_store(store: HoldStore) -> tuple[Call, ...]:
    lock = threading.Lock()  # Its calls do not overlap, says its contract; closing may.

    def write(number: int) -> None:
        rows = [(10 * n, 10 * n, 0) for n in range(number, number + 20)]
        with lock:
            store.write([PartitionWrite(KEY, 0, [first for first, _, _ in rows], rows)], {})

    def load(_: int) -> None:
        with lock:
            store.load()

    return write, load


def store(directory: Path) -> Opened:
    opened = SqliteHoldStore(directory / "holds.sqlite")
    opened.load()
    return Opened(opened.close, calls_of_store(opened))


def postgres(url: str) -> Opened:
    opened = PostgresHoldStore(url, "holds_of_closing", claim_seconds=0, lease_seconds=600)
    opened.load()
    return Opened(opened.close, calls_of_store(opened))


def replica(directory: Path) -> Opened:
    """A replica whose store is closed under it, as a simulated crash does."""
    opened = SqliteHoldStore(directory / "replica.sqlite")
    under_test = Replica(lambda: opened)

    def hold(number: int) -> None:
        lease = Lease("c", number, "m")
        held, finished = OffsetRange(number, number), OffsetRange(2 * number, 2 * number)
        for answer in under_test.perform(
            [
                HoldRequest(KEY, (held,), lease, 60_000, 1_000_000),
                TombstoneRequest(KEY, (), (finished,)),
            ]
        ):
            if isinstance(answer, WingsError):
                raise answer

    return Opened(opened.close, (hold,))


def metadata(directory: Path) -> Opened:
    opened = SqliteMetadata(directory / f"metadata-{uuid4().hex}.sqlite")
    admin = opened.admin

    def write(_: int) -> None:
        admin.create_namespace(NamespaceName("tests", f"n{uuid4().hex}"))

    def read(_: int) -> None:
        admin.list_namespaces()

    return Opened(opened.close, (write, read))


def queue(directory: Path) -> Opened:
    opened = SqliteQueue(directory / "queue.sqlite")

    def send(number: int) -> None:
        opened.send([f"body {number}"])

    def receive(_: int) -> None:
        opened.acknowledge([message.receipt for message in opened.receive(10, 60)])

    return Opened(opened.close, (send, receive))


def segments(directory: Path) -> Opened:
    opened = SegmentStore(directory / "segments", segment_bytes_max=100_000)
    topic, rows = uuid4().hex, pa.record_batch({"n": pa.array(range(50), pa.int64())})

    def write(_: int) -> None:
        (address,) = opened.write([PageEncoder(topic, rows.schema).encode(rows)])
        assert opened.read(address, topic, rows.schema).equals(rows)

    return Opened(opened.close, (write,))


def run(opened: Opened, close_after: int) -> None:
    """Call from threads, close after so many calls, and require `Unavailable` of each thread."""
    begun = threading.Semaphore(0)
    ended: list[Exception] = []

    def work(call: Call, first: int) -> None:
        try:
            for number in range(first, sys.maxsize, THREADS):
                begun.release()
                call(number)
        except Exception as error:  # noqa: BLE001 - it is told by the main thread.
            ended.append(error)
            begun.release(THREADS + CALLS_MAX)  # Where it ended too early, nothing waits for it.

    threads = [
        threading.Thread(target=work, args=(opened.calls[number % len(opened.calls)], number))
        for number in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for _ in range(THREADS + close_after):
        begun.acquire()
    opened.close()
    for thread in threads:
        thread.join()
    others = [error for error in ended if not isinstance(error, Unavailable)]
    if others:
        raise others[0]


def main() -> None:
    what, rounds, directory, *url = sys.argv[1:]
    rng = random.Random(1)
    opening: dict[str, Callable[[], Opened]] = {
        "writer": lambda: writer(Path(directory)),
        "store": lambda: store(Path(directory)),
        "replica": lambda: replica(Path(directory)),
        "metadata": lambda: metadata(Path(directory)),
        "segments": lambda: segments(Path(directory)),
        "queue": lambda: queue(Path(directory)),
        "postgres": lambda: postgres(url[0]),
    }
    for name in what.split(","):
        sys.stderr.write(f"{name}\n")
        for _ in range(int(rounds)):
            run(opening[name](), rng.randrange(CALLS_MAX))


if __name__ == "__main__":
    main()
