"""Consumer groups and transactions: against one consumer, and a publish without offsets."""

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count, product
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa

import wings_client
from benchmarks.harness import Row, at_most, compare, compare_in_turn
from wings_client import AssignedSlots, Client
from wings_core.consumer_groups.coordinator import GroupCoordinator
from wings_core.consumer_groups.group import Heartbeat, TopicSlots
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.partitions import first_slots
from wings_server.testing import ServerProcess, server_process

PARTITIONS = 300
ROWS = 10_000_000
ROWS_PUSHED = 500_000
MEMBERS = 3
SESSION = 6
MANY_PARTITIONS, MANY_MEMBERS, MANY_CLIENTS = 10_000, 100, 10
GROUPS, MEMBERS_EACH = 1_000, 10
TRANSACTION_ROWS = 1_000
SLOTS = 256
BEATS = 2_000
SETTLING_ROUNDS = 4


def run() -> Iterator[Row]:
    """Measure reads, takeovers, joins, transactions and idle groups."""
    with server_process() as server, wings_client.connect(server.flight, timeout=300) as client:
        yield compare(
            f"group of {MEMBERS} over {PARTITIONS} partitions, against one consumer",
            "M rows/s",
            0.9,
            lambda: _read_rate(server, MEMBERS),
            lambda: _read_rate(server, 0),
        )
        yield at_most(
            f"partitions of a killed member are read again, session of {SESSION} s",
            "s",
            SESSION + 2,
            [_takeover(server, client) for _ in range(3)],
        )
        client.create_topic("many", {"key": "int64"}, "key")
        client.push("many", {"key": np.arange(MANY_PARTITIONS)})
        yield at_most(
            f"{MANY_MEMBERS} members join a group of {MANY_PARTITIONS:,} partitions and settle",
            "s",
            10,
            [_join(server) for _ in range(3)],
        )
        yield _transactions(client)
    yield _idle()


READER = """
import sys
import wings_client

held = 0

def changed(sign):
    def note(slots):
        global held
        held += sign * sum(len(each.slots) for each in slots)
        print("slots", held, flush=True)
    return note

options = {}
if sys.argv[3] == "group":
    options = {"group": True, "on_assigned": changed(1), "on_revoked": changed(-1)}
with wings_client.connect(sys.argv[1], timeout=300) as client:
    with client.consumer(sys.argv[2], sys.argv[2], timeout=None, **options) as consumer:
        if not options:
            print("slots", sys.argv[4], flush=True)
        for taken in consumer:
            print("rows", taken.batch.num_rows, flush=True)
"""


def _read_rate(server: ServerProcess, members: int) -> float:
    """Return how many million rows a second are read by members of a group, or one consumer.

    Each is a process of its own. They wait at an empty log, whose rows become visible at once.
    """
    name, left = f"log-{uuid4().hex}", ROWS
    lock, done = threading.Lock(), threading.Event()
    share = Shares(max(1, members))

    def hear(lines: Iterable[str], member: int) -> None:
        nonlocal left
        for line in lines:
            what, number = line.split()
            with lock:
                if what == "slots":
                    share.holds(member, int(number))
                    continue
                left -= int(number)
                if left <= 0:
                    done.set()

    command = [sys.executable, "-c", READER, server.flight, name]
    command += ["group" if members else "alone", str(SLOTS)]
    with wings_client.connect(server.flight, timeout=300) as client:
        topic = client.create_topic(name, {"key": "int64", "n": "int64"}, "key")
        with client.stage(topic, name, batch_rows=ROWS_PUSHED) as stage:
            numbers = np.arange(ROWS_PUSHED)
            keys = pa.array(numbers // (ROWS_PUSHED // PARTITIONS + 1))
            for first in range(0, ROWS, ROWS_PUSHED):
                stage.write(pa.table({"key": keys, "n": pa.array(numbers + first)}))
        with ExitStack() as stack:
            for member in range(max(1, members)):
                process = stack.enter_context(
                    subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
                )
                thread = threading.Thread(target=hear, args=(process.stdout, member))
                thread.start()
                stack.callback(thread.join)
                stack.callback(process.terminate)
            share.settled.wait()
            started = time.perf_counter()
            client.publish(name, 0, [name])
            done.wait()
            seconds = time.perf_counter() - started
        client.delete_topic(topic)
    assert left == 0, "a row was read twice"
    return ROWS / seconds / 1e6


class Shares:
    """How many slots of a topic the members of a group have.

    Args:
        members: How many members there are.

    Attributes:
        settled: Set once each has its share.
    """

    def __init__(self, members: int) -> None:
        self.settled = threading.Event()
        self._held = [0] * members
        self._lock = threading.Lock()

    def changed(self, member: int, sign: int) -> Callable[[Sequence[AssignedSlots]], None]:
        """Return a callback that adds a member's slots, or takes them away."""

        def note(slots: Sequence[AssignedSlots]) -> None:
            with self._lock:
                held = self._held[member] + sign * sum(len(each.slots) for each in slots)
            self.holds(member, held)

        return note

    def holds(self, member: int, slots: int) -> None:
        """Note how many slots a member has now."""
        with self._lock:
            self._held[member] = slots
            if sum(self._held) == SLOTS and max(self._held) - min(self._held) <= 1:
                self.settled.set()


MEMBER = """
import sys
import wings_client

with wings_client.connect(sys.argv[1]) as client:
    for taken in client.consumer(sys.argv[2], sys.argv[2], group=True, session=float(sys.argv[3])):
        print(taken.batch.num_rows, flush=True)
"""


def _takeover(server: ServerProcess, client: Client) -> float:
    """Return the seconds from the kill of a member until another one has read its partitions."""
    name = f"takeover-{uuid4().hex}"
    client.create_topic(name, {"key": "int64"}, "key")
    rows = {"key": list(range(PARTITIONS))}
    client.push(name, rows)
    command = [sys.executable, "-c", MEMBER, server.flight, name, str(SESSION)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as killed:
        assert killed.stdout is not None
        killed.stdout.readline()
        slots: list[AssignedSlots] = []
        with client.consumer(
            name, name, group=True, session=SESSION, timeout=0.2, on_assigned=slots.extend
        ) as consumer:
            while sum(len(each.slots) for each in slots) < SLOTS // 2:
                list(consumer)
            killed.kill()
            started = time.perf_counter()
            client.push(name, rows)
            left = PARTITIONS
            while left > 0:
                left -= sum(taken.batch.num_rows for taken in consumer)
            return time.perf_counter() - started


def _join(server: ServerProcess) -> float:
    """Return the seconds until every one of many members has its share."""
    name, share = uuid4().hex, Shares(MANY_MEMBERS)
    with ExitStack() as stack:
        connect = partial(wings_client.connect, server.flight, timeout=300)
        clients = [stack.enter_context(connect()) for _ in range(MANY_CLIENTS)]
        consumers = [
            clients[member % MANY_CLIENTS].consumer(
                name,
                "many",
                group=True,
                on_assigned=share.changed(member, 1),
                on_revoked=share.changed(member, -1),
            )
            for member in range(MANY_MEMBERS)
        ]
        threads = [threading.Thread(target=list, args=(consumer,)) for consumer in consumers]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        share.settled.wait()
        seconds = time.perf_counter() - started
        closing = [threading.Thread(target=consumer.close) for consumer in consumers]
        for thread in closing:
            thread.start()
        for thread in (*closing, *threads):
            thread.join()
        while any(each.members for each in clients[0].consumer_groups() if each.consumer == name):
            time.sleep(0.1)  # What they give up by leaving takes the server a while.
    return seconds


def _transactions(client: Client) -> Row:
    client.create_topic("source", {"n": "int64"})
    target = client.create_topic("target", {"n": "int64"})
    rows = pa.record_batch({"n": pa.array(np.arange(TRANSACTION_ROWS))})
    transactions = client.transactions("transactions")
    numbers = count()
    with client.consumer("transactions", "source", auto_commit=False) as consumer:

        def transaction() -> float:
            client.push("source", {"n": [1]})
            next(consumer)
            started = time.perf_counter()
            with transactions.begin() as opened:
                opened.push(target, rows)
                opened.commit(consumer)
            return 1e3 * (time.perf_counter() - started)

        def publish() -> float:
            number = next(numbers)
            started = time.perf_counter()
            with client.stage(target, f"stage-{number}") as stage:
                stage.write(rows)
            client.publish("publishes", number, [f"stage-{number}"])
            return 1e3 * (time.perf_counter() - started)

        return compare_in_turn(
            f"transaction of {TRANSACTION_ROWS:,} rows and offsets, against a publish without",
            "ms",
            1.5,
            transaction,
            publish,
            more_is_better=False,
        )


def _idle() -> Row:
    """Measure what idle groups take of a core in the server, without the calls' transport."""
    with tempfile.TemporaryDirectory() as directory:
        metadata = SqliteMetadata(Path(directory) / "metadata.sqlite")
        coordinator = GroupCoordinator(
            metadata.consumer_groups,
            metadata.maintenance,
            "node",
            lambda uuids: dict.fromkeys(uuids, TopicSlots(first_slots(SLOTS), first_slots(SLOTS))),
        )
        said: dict[tuple[str, str], Heartbeat] = {}
        names = list(product(map(str, range(GROUPS)), map(str, range(MEMBERS_EACH))))
        for name in names:
            said[name] = Heartbeat(name[1], 0, frozenset(["topic"]))
        for _, name in product(range(SETTLING_ROUNDS), names):
            beat = coordinator.heartbeat(name[0], said[name]).beat
            owned = said[name].owned if beat.assignment is None else beat.assignment
            said[name] = Heartbeat(name[1], beat.epoch, owned=owned)
        coordinator.tick()
        cores: list[float] = []
        for first in range(0, len(names), BEATS):
            started = time.process_time()
            beats_a_second = 0.0
            for name in names[first : first + BEATS]:
                answer = coordinator.heartbeat(name[0], said[name])
                beats_a_second += 1_000 / answer.heartbeat_ms
            each = (time.process_time() - started) / BEATS
            started = time.process_time()
            coordinator.tick()
            tick = time.process_time() - started
            cores.append(100 * (each * beats_a_second * len(names) / BEATS + tick))
        coordinator.close()
        metadata.close()
    return at_most(
        f"{GROUPS:,} groups of {MEMBERS_EACH} members idle, without the transport",
        "% of a core",
        3.0,
        cores,
    )
