"""A server under load of all kinds for minutes: what it uses stays level, and none is refused."""

import itertools
import os
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import httpx
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from flight_calls import act, create_topic, get, put_stream, ticket_of
from http_calls import NAMESPACE, push_body
from share_calls import Member, create_group
from waiting import until

from wings_core.storage.segments import OPEN_SEGMENTS_MAX
from wings_server.testing import ServerProcess, server_process

MIB = 1024 * 1024
KEYS = ("a", "b", "c")
SAMPLES = 60
READERS_FEW, READERS = 20, 200
READER_BYTES = 4 * MIB
"""What a reader that reads nothing may cost: what gRPC and Arrow have ready for it."""

SETTINGS = {
    "WINGS_LIMITS__MEMORY_BYTES_MAX": str(256 * MIB),
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


def use_of(server: ServerProcess) -> Use:
    process = Path(f"/proc/{server.pid}")
    lines = (process / "status").read_text(encoding="ascii").splitlines()
    found = dict(line.split(":", 1) for line in lines)
    resident = int(found["RssAnon"].split()[0]) * 1024
    opened = list(_opened(process / "fd"))
    segments = sum(name.endswith((".segment", ".segment (deleted)")) for name in opened)
    return Use(resident, int(found["Threads"]), len(opened) - segments, segments)


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
            )
        ]

    def run(self, seconds: float) -> list[Use]:
        """Run all of them so long; return what the server used at regular times."""
        used: list[Use] = []
        for thread in self._threads:
            thread.start()
        for _ in range(SAMPLES):
            time.sleep(seconds / SAMPLES)
            used.append(use_of(self._server))
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        return used

    def _repeat(self, name: str, turn: Callable[[flight.FlightClient], None]) -> None:
        while not self._stopping.is_set():
            try:
                with flight.FlightClient(self._server.flight) as client:
                    for _ in range(20):
                        turn(client)
                        self.turns[name] += 1
                        if self._stopping.wait(0.01):
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
        for topic in ("keyed", "plain", "queue"):
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


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with server_process(environment=SETTINGS) as running:
        client = running.client()
        create_topic(client, "keyed", ["key: string", "n: int64"], "key")
        for topic in ("plain", "queue"):
            create_topic(client, topic, ["key: string", "n: int64"])
        config = {"retention_bytes": 8 * MIB}
        for topic in ("keyed", "plain", "queue"):
            act(client, "alter-topic", topic=topic, config=config)
        create_group(client, "queue")
        yield running


@pytest.mark.soak
@pytest.mark.timeout(1_200)
def test_what_a_server_uses_is_level_under_ten_minutes_of_mixed_load(
    server: ServerProcess,
) -> None:
    load = Load(server)
    used = load.run(600)
    assert load.failed == []
    assert min(load.turns.values()) > SAMPLES, load.turns
    third = len(used) // 3
    before, after = (
        Use(*(round(statistics.median(values)) for values in zip(*part, strict=True)))
        for part in (used[third : 2 * third], used[2 * third :])
    )
    assert after.bytes <= before.bytes * 1.1 + 32 * MIB, used
    assert after.threads <= before.threads + 16, used
    assert after.descriptors <= before.descriptors + 16, used
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
