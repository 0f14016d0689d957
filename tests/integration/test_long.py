"""A server under load of all kinds for hours: what it uses stays level, and none is refused."""

import itertools
import os
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from flight_calls import act, create_topic, get, put_stream, ticket_of
from http_calls import NAMESPACE, push_body
from share_calls import Member, create_group
from test_kafka import Rdkafka, taken
from waiting import until

import wings_client
from wings_core.check import check_directory
from wings_core.storage.open import SEGMENT_GRACE_SECONDS
from wings_core.storage.segments import OPEN_SEGMENTS_MAX
from wings_server.testing import ServerProcess, server_process

MIB = 1024 * 1024
KEYS = ("a", "b", "c")
SOAK_MINUTES = int(os.environ.get("SOAK_MINUTES", "120"))
SAMPLES_PER_MINUTE = 6
PAUSE_SECONDS = 0.2
"""Between the turns of a client: what is looked for comes with time, not with speed."""
STEPS = 10
"""Rows of a transaction, and records of Kafka's producer, in a turn."""
BYTES_PER_HOUR_MAX = 32 * MIB
"""How much more memory may be used in an hour, once caches are full and the first of what is kept
for an hour is gone. A leak of 500 bytes a turn is more."""
LAG_ROWS_MAX = 60_000
"""Rows that no worker took, or no commit of the table: more than a minute of load."""
READERS_FEW, READERS = 20, 200
READER_BYTES = 4 * MIB
"""What a reader that reads nothing may cost: what gRPC and Arrow have ready for it."""

SETTINGS = {
    "WINGS_LIMITS__MEMORY_BYTES_MAX": str(256 * MIB),
    "WINGS_LIMITS__PAGE_CACHE_BYTES_MAX": str(16 * MIB),
    "WINGS_LIMITS__MAINTENANCE_SECONDS": "5",
    "WINGS_LIMITS__SEGMENT_BYTES_MAX": str(16 * MIB),
}


class Use(NamedTuple):
    """What a process uses."""

    bytes: int
    """Of its own: what is mapped of segments, the kernel takes back when it needs it."""
    threads: int
    descriptors: int
    """Other than of segments."""
    segments: int
    """Open ones: as many as there are, up to `OPEN_SEGMENTS_MAX`. A segment is there while it has a
    page of any topic, so how soon there are no more of them is the machine's matter."""
    files: int
    """In its directory."""
    disk_bytes: int
    """Of those."""


def use_of(server: ServerProcess) -> Use:
    process = Path(f"/proc/{server.pid}")
    lines = (process / "status").read_text(encoding="ascii").splitlines()
    found = dict(line.split(":", 1) for line in lines)
    resident = int(found["RssAnon"].split()[0]) * 1024
    opened = list(_opened(process / "fd"))
    segments = sum(name.endswith((".segment", ".segment (deleted)")) for name in opened)
    used = resident, int(found["Threads"]), len(opened) - segments, segments
    return Use(*used, *_files_of(server.data_dir))


def _files_of(directory: Path) -> tuple[int, int]:
    """Return how many files there are, and their bytes."""
    sizes: list[int] = []
    for parent, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                sizes.append(Path(parent, name).stat().st_size)
    return len(sizes), sum(sizes)


def _opened(descriptors: Path) -> Iterator[str]:
    """Yield what the descriptors of a process are open on."""
    for each in descriptors.iterdir():
        with suppress(FileNotFoundError):  # It was closed meanwhile.
            yield os.readlink(each)  # noqa: PTH115 - some are no paths


def rows(count: int) -> pa.RecordBatch:
    keys = list(itertools.islice(itertools.cycle(KEYS), count))
    numbers = pa.array(range(count), pa.int64())
    return pa.record_batch({"key": pa.array(keys, pa.string()), "n": numbers})


class Load:
    """Clients of all kinds, each in a thread that repeats its turn until `stop`.

    Args:
        server: Theirs.
    """

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._stopping = threading.Event()
        self.turns: Counter[str] = Counter()
        self.failed: list[str] = []
        self._stages = itertools.count()
        self._threads = [
            threading.Thread(target=self._repeat, args=(f"{turn.__name__}-{number}", turn))
            for turn, number in (
                *((self.push_small, number) for number in range(3)),
                (self.push_large, 0),
                (self.publish, 0),
                *((self.follow, number) for number in range(2)),
                (self.scan_filtered, 0),
                *((self.work, number) for number in range(2)),
                (self.manage, 0),
                *((self.use_http, number) for number in range(2)),
                (self.transact, 0),
                (self.use_kafka, 0),
                (self.query, 0),
                (self.fill_table, 0),
                (self.read_table, 0),
            )
        ]

    def run(self, minutes: int, say: Callable[[str], None]) -> list[Use]:
        """Run all of them so long; return what the server used at regular times.

        Args:
            minutes: How long.
            say: Called with a line each minute.
        """
        used: list[Use] = []
        for thread in self._threads:
            thread.start()
        for minute in range(minutes):
            for _ in range(SAMPLES_PER_MINUTE):
                time.sleep(60 / SAMPLES_PER_MINUTE)
                used.append(use_of(self._server))
            lag = self.lag()
            say(f"{minute + 1} min: {used[-1]}, lag {lag}, {self.turns.total()} turns")
            if self.failed or max(lag) > LAG_ROWS_MAX:
                break
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        return used

    def lag(self) -> tuple[int, int]:
        """Return how many rows wait for the workers, and for the table."""
        with self._server.client() as client:
            group = Member(client, "queue").describe()["partitions"]
            table = act(client, "describe-topic", topic="table")["table"]
        return sum(each["lag"] for each in group), table["lag_rows"]

    def _repeat(self, name: str, turn: Callable[[flight.FlightClient], None]) -> None:
        while not self._stopping.is_set():
            try:
                with flight.FlightClient(self._server.flight) as client:
                    for _ in range(20):
                        turn(client)
                        self.turns[name] += 1
                        if self._stopping.wait(PAUSE_SECONDS):
                            return
            except Exception as error:  # noqa: BLE001 - each is told
                self.failed.append(f"{name}: {error!r:.300}")
                return

    def push_small(self, client: flight.FlightClient) -> None:
        with put_stream(client, rows(0).schema, "keyed") as stream:
            for count in range(1, 20):
                stream.push(rows(count))

    def push_large(self, client: flight.FlightClient) -> None:
        with put_stream(client, rows(0).schema, "plain") as stream:
            stream.push(rows(100_000))
        self._stopping.wait(0.2)

    def publish(self, client: flight.FlightClient) -> None:
        number = next(self._stages)
        with put_stream(client, rows(0).schema, "keyed", stage=f"s{number}") as stream:
            stream.push(rows(10))
        act(client, "stage-publish", writer="w", batch=number, stages=[f"s{number}"])

    def follow(self, client: flight.FlightClient) -> None:
        ticket = ticket_of(
            kind="follow", topic="keyed", partitions="all", offset="latest", timeout_ms=500
        )
        client.do_get(ticket).read_all()

    def scan_filtered(self, client: flight.FlightClient) -> None:
        ticket = ticket_of(
            kind="scan", topic="keyed", partitions="all", filter="n % 7 = 3 AND key <> 'a'"
        )
        client.do_get(ticket).read_all()

    def work(self, client: flight.FlightClient) -> None:
        member = Member(client, "queue")
        for leased in member.acquire(max_messages=50, timeout_ms=200):
            member.acknowledge(leased.ack("accept"))
        with put_stream(client, rows(0).schema, "queue") as stream:
            stream.push(rows(20))

    def manage(self, client: flight.FlightClient) -> None:
        create_topic(client, "brief", ["n: int64"])
        act(client, "delete-topic", topic="brief")
        for topic in TOPICS:
            act(client, "maintain", topic=topic)
        self._stopping.wait(1)

    def use_http(self, client: flight.FlightClient) -> None:
        del client
        with httpx.Client(base_url=self._server.http, timeout=60) as http:
            body = push_body({"topic": "keyed", "data": [{"key": "a", "n": 1}] * 5})
            assert http.post("/v1/push", json=body).status_code == 200
            entry = {"topic": "queue", "offset": 1 << 40}
            body = {"namespace": NAMESPACE, "timeout_ms": 100, "topics": [entry]}
            assert http.post("/v1/fetch", json=body).status_code == 200
            assert http.get("/metrics").status_code == 200

    def transact(self, client: flight.FlightClient) -> None:
        """Copy what a push added, and commit the consumer's offset with the copy."""
        del client
        first = self.turns["transact-0"] * STEPS
        steps = range(first, first + STEPS)
        with wings_client.connect(self._server.flight) as wings:
            wings.push("steps", {"key": ["a"] * STEPS, "n": steps})
            transactions = wings.transactions("copy")
            with (
                wings.consumer("copy", "steps", auto_commit=False) as consumer,
                transactions.begin() as transaction,
            ):
                transaction.push("copies", next(consumer).batch)
                transaction.commit(consumer)
            copied = wings.fetch("copies", offset=first, system_columns=True).table
            assert copied["n"].to_pylist() == copied["__offset"].to_pylist() == list(steps)

    def use_kafka(self, client: flight.FlightClient) -> None:
        """Have a member of a group read what a producer sent, each record once."""
        del client
        rdkafka = Rdkafka(self._server.kafka)
        first = self.turns["use_kafka-0"] * STEPS
        values = [b"%d" % number for number in range(first, first + STEPS)]
        rdkafka.produce("records", values, **{"enable.idempotence": True})
        with closing(rdkafka.consumer("readers")) as consumer:
            consumer.subscribe(["records"])
            assert [each.value() for each in taken(consumer, STEPS)] == values
            consumer.commit(asynchronous=False)

    def query(self, client: flight.FlightClient) -> None:
        del client
        with wings_client.connect(self._server.flight) as wings:
            for topic in ("keyed", "table"):
                statement = f'select key, count(*), max(n) from "{topic}" group by key'
                assert wings.sql(statement).read_all().num_rows <= len(KEYS)

    def fill_table(self, client: flight.FlightClient) -> None:
        with put_stream(client, rows(0).schema, "table") as stream:
            stream.push(rows(200))

    def read_table(self, client: flight.FlightClient) -> None:
        """Read the table as other engines do, once a commit has made it."""
        (state,) = act(client, "partition-states", topic="table")
        if act(client, "describe-topic", topic="table")["table"]["rows"]:
            with wings_client.connect(self._server.flight) as wings:
                found = wings.table("table").scan(selected_fields=("__offset",)).to_arrow()
            offsets: list[Any] = found.sort_by("__offset")["__offset"].to_pylist()
            assert offsets == list(range(offsets[0], offsets[-1] + 1))
            assert offsets[0] >= state["log_start_offset"]
        self._stopping.wait(5)


TOPICS = ("keyed", "plain", "queue", "table", "steps", "copies", "records")
"""All move to the remote store: a segment file stays while it has a page of any of them."""
CONFIG = {"retention_bytes": MIB, "tier_after_ms": 5_000, "segment_bytes": MIB}
"""So little that all topics are full within half an hour: from then on a scan costs the same. A
large push is dropped before it moves, however slow the machine is."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    flags = ["--remote", str(tmp_path / "data" / "remote"), "--kafka", "127.0.0.1:0"]
    with server_process(tmp_path / "data", flags=flags, environment=SETTINGS) as running:
        Rdkafka(running.kafka).create("records")
        client = running.client()
        for topic in TOPICS:
            if topic != "records":
                key = "key" if topic == "keyed" else None
                create_topic(client, topic, ["key: string", "n: int64"], key)
            table = {"table": "iceberg"} if topic == "table" else {}
            act(client, "alter-topic", topic=topic, config=CONFIG | table)
        create_group(client, "queue")
        yield running


@pytest.mark.soak
@pytest.mark.timeout(SOAK_MINUTES * 60 + 600)
@pytest.mark.usefixtures("started_anew")  # A forked server has no bounds of Arrow's memory.
def test_what_a_server_uses_is_level_under_hours_of_everything_at_once(
    server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """For `SOAK_MINUTES` of the environment, two hours by default; at the end `wings check`."""
    load = Load(server)

    def say(line: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()

    used = load.run(SOAK_MINUTES, say)
    assert load.failed == []
    assert max(load.lag()) <= LAG_ROWS_MAX
    assert min(load.turns.values()) >= SOAK_MINUTES, load.turns
    assert server.terminate() == 0
    assert check_directory(server.data_dir).problems == ()
    third = len(used) // 3
    before, after = (
        Use(*(round(statistics.median(values)) for values in zip(*part, strict=True)))
        for part in (used[third : 2 * third], used[2 * third :])
    )
    assert after.bytes <= before.bytes * 1.1 + 32 * MIB, used
    assert after.threads <= before.threads + 16, used
    assert after.descriptors <= before.descriptors + 16, used
    if SOAK_MINUTES * 60 >= 2 * SEGMENT_GRACE_SECONDS:  # Until then what merges leave is kept.
        assert after.files <= before.files * 1.1 + 50, used
        assert after.disk_bytes <= before.disk_bytes * 1.1 + 32 * MIB, used
        last = [each.bytes for each in used[len(used) // 2 :]]
        growth = statistics.linear_regression(range(len(last)), last).slope
        assert growth * SAMPLES_PER_MINUTE * 60 <= BYTES_PER_HOUR_MAX, used
    # Of those in use more may be open for a moment.
    assert max(each.segments for each in used) <= OPEN_SEGMENTS_MAX + 16, used


@pytest.mark.parametrize("readers", [READERS_FEW, pytest.param(READERS, marks=pytest.mark.soak)])
def test_readers_that_never_read_hold_up_no_other(server: ServerProcess, readers: int) -> None:
    client = server.client()
    act(client, "alter-topic", topic="plain", config={"retention_bytes": None})
    with put_stream(client, rows(0).schema, "plain") as stream:
        for _ in range(8):
            stream.push(rows(500_000))
    expected = get(client, kind="scan", topic="plain").table.num_rows
    before = use_of(server)
    with ExitStack() as clients:
        kept = [
            clients.enter_context(flight.FlightClient(server.flight)).do_get(
                ticket_of(kind="scan", topic="plain")
            )
            for _ in range(readers)
        ]
        for _ in range(3):
            assert get(client, kind="scan", topic="plain").table.num_rows == expected
            with put_stream(client, rows(0).schema, "keyed") as stream:
                stream.push(rows(10))
        assert use_of(server).bytes <= before.bytes + readers * READER_BYTES + 128 * MIB
        for reader in kept:
            reader.cancel()
        kept.clear()
    until(lambda: use_of(server).threads <= before.threads + 16)
