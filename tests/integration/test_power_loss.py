"""Power is lost at any point of a workload: what was acknowledged is there, and nothing else."""

import shutil
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from flight_calls import Json, Stream, act, create_topic, get, put_stream
from power_loss import COMPILER, Change, Disk, read_record, recorder
from share_calls import Member, create_group

from wings_core.check import check_directory
from wings_core.limits import Limits
from wings_server.testing import running_server, server_process

pytestmark = pytest.mark.skipif(
    COMPILER is None or not sys.platform.startswith("linux"), reason="needs a C compiler on Linux"
)

ROUNDS = 40
SEGMENT_BYTES = 256 * 1024
KEYS = ("a", "b", "c")
LARGE_ROWS = 12_000
"""Of a batch that goes into a segment at once; small ones go there with a drain."""
ROWS_MAX = 100_000
LIMITS = Limits(segment_bytes_max=SEGMENT_BYTES, maintenance_seconds=100_000)
SCHEMA = pa.schema([("key", pa.string()), ("n", pa.int64())])


class Committed(NamedTuple):
    """An acknowledged range of a batch."""

    topic: str
    partition: str | None
    start: int
    numbers: list[int]


@dataclass
class History:
    """What was sent and answered, each with the length of the record by then."""

    record: Path
    sent: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    """Of each batch: when it was to become visible at the earliest, and its rows."""
    together: list[list[int]] = field(default_factory=list[list[int]])
    """Batches that one publish makes visible."""
    committed: list[tuple[int, Committed]] = field(default_factory=list[tuple[int, Committed]])
    accepted: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    starts: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    offsets: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    deleted: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])

    @property
    def now(self) -> int:
        """The length of the record."""
        return self.record.stat().st_size


class Workload:
    """Pushes, stages, share groups, retention and merges, one after another."""

    def __init__(self, client: flight.FlightClient, record: Path) -> None:
        self.client = client
        self.history = History(record)
        self.batches = 0

    def run(self) -> None:
        """Do all of it."""
        create_topic(self.client, "keyed", ["key: string", "n: int64"], "key")
        for topic in ("plain", "old"):
            create_topic(self.client, topic, ["key: string", "n: int64"])
        act(self.client, "alter-topic", topic="plain", config={"tier_after_ms": 0})
        create_group(self.client, "plain", lock_duration_ms=600_000)
        for number in range(ROUNDS):
            self.push("keyed", 1 + number % 5, 3)
            self.push("plain", LARGE_ROWS if number % 8 == 3 else 2, 2)
            if number % 4 == 1:
                self.publish()
            if number % 3 == 2:
                self.accept()
            if number % 10 == 7:
                act(self.client, "maintain", topic="plain")
            if number % 10 == 9:
                self.expire()
            position = {"topic": "keyed", "partition": "a", "offset": number}
            act(self.client, "commit-offsets", consumer="etl", offsets=[position])
            self.history.offsets.append((self.history.now, number))

    def push(self, topic: str, rows: int, times: int) -> None:
        """Push batches on a stream."""
        with put_stream(self.client, SCHEMA, topic) as stream:
            for _ in range(times):
                self._send(stream, rows, self.history.now)
            for number in range(self.batches - times, self.batches):
                answer = stream.answer()
                assert answer is not None
                self._answered(topic, answer["committed"], batch_of(number, rows))

    def publish(self) -> None:
        """Stage two batches and publish them together."""
        first = self.batches
        for topic in ("keyed", "plain"):
            with put_stream(self.client, SCHEMA, topic, stage=f"{topic}-{first}") as stream:
                self._send(stream, 3, sys.maxsize)
                assert stream.answer() is not None
        asked = self.history.now
        for number in (first, first + 1):
            self.history.sent[number] = asked, 3
        self.history.together.append([first, first + 1])
        stages = [f"{topic}-{first}" for topic in ("keyed", "plain")]
        answer = act(self.client, "stage-publish", writer="w", batch=first, stages=stages)
        for each in answer["committed"]:
            topic = each["topic"].rpartition("/")[2]
            batch = batch_of(first if topic == "keyed" else first + 1, 3)
            self._answered(topic, [each], batch)

    def accept(self) -> None:
        """Take some messages of the share group for good."""
        member = Member(self.client, "plain")
        for leased in member.acquire(max_messages=5):
            assert member.acknowledge(leased.ack("accept")) == [None]
            now = self.history.now
            self.history.accepted += [(now, offset) for offset in leased.offsets]

    def expire(self) -> None:
        """Let messages go, and a topic."""
        self.push("old", 50, 3)
        act(self.client, "alter-topic", topic="old", config={"retention_bytes": 1})
        act(self.client, "maintain", topic="old")
        (state,) = act(self.client, "partition-states", topic="old")
        self.history.starts.append((self.history.now, state["log_start_offset"]))
        act(self.client, "alter-topic", topic="old", config={"retention_bytes": None})
        topic = f"gone{self.batches}"
        create_topic(self.client, topic, ["key: string", "n: int64"])
        self.push(topic, 2, 1)
        act(self.client, "delete-topic", topic=topic)
        self.history.deleted.append((self.history.now, topic))

    def _send(self, stream: Stream, rows: int, visible_from: int) -> None:
        self.history.sent[self.batches] = visible_from, rows
        stream.send(batch_of(self.batches, rows))
        self.batches += 1

    def _answered(self, topic: str, committed: list[Json], batch: pa.RecordBatch) -> None:
        now = self.history.now
        keys: list[str] = batch.column("key").to_pylist()  # pyright: ignore[reportAssignmentType]
        numbers: list[int] = batch.column("n").to_pylist()  # pyright: ignore[reportAssignmentType]
        for each in committed:
            partition = each["partition"]
            found = [
                number
                for key, number in zip(keys, numbers, strict=True)
                if partition in (None, key)
            ]
            assert each["end_offset"] - each["start_offset"] + 1 == len(found)
            answered = Committed(topic, partition, each["start_offset"], found)
            self.history.committed.append((now, answered))


def batch_of(number: int, rows: int) -> pa.RecordBatch:
    """Return a batch whose rows tell which they are."""
    keys = [KEYS[row % len(KEYS)] for row in range(rows)]
    numbers = pa.array(range(number * ROWS_MAX, number * ROWS_MAX + rows), pa.int64())
    return pa.record_batch([pa.array(keys), numbers], schema=SCHEMA)


@dataclass
class Recorded:
    """A workload that has ended."""

    root: Path
    changes: list[Change]
    history: History


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    directory = tmp_path_factory.mktemp("power")
    root = directory / "disk"
    root.mkdir()
    environment, record = recorder(directory, root)
    limits = {
        "WINGS_LIMITS__SEGMENT_BYTES_MAX": str(SEGMENT_BYTES),
        "WINGS_LIMITS__MAINTENANCE_SECONDS": "100000",
    }
    flags = ["--remote", str(root / "remote")]
    with server_process(
        root / "data", flags=flags, environment={**environment, **limits}
    ) as server:
        workload = Workload(server.client(), record)
        workload.run()
        server.kill()
    root.rename(directory / "as it was")
    return Recorded(root, read_record(record), workload.history)


@pytest.mark.parametrize(
    "states", [8, pytest.param(500, marks=[pytest.mark.soak, pytest.mark.timeout(3_600)])]
)
def test_what_was_acknowledged_is_there_wherever_power_is_lost(
    recorded: Recorded, states: int
) -> None:
    random = Random(states)
    points = frozenset(random.sample(range(len(recorded.changes)), states))
    disk = Disk(recorded.root)
    for index, change in enumerate(recorded.changes):
        disk.follow(change)
        if index in points:
            look_at(recorded, disk, random, change)


@pytest.mark.parametrize("name", ["metadata.sqlite-wal", ".segment"])
def test_a_sync_that_does_nothing_is_noticed(recorded: Recorded, name: str) -> None:
    """The test of this test: a disk that lies about the syncs of these files loses messages."""
    disk = Disk(recorded.root)
    for change in recorded.changes:
        if change.kind not in "be" or not change.path.name.endswith(name):
            disk.follow(change)
    with pytest.raises((AssertionError, pa.ArrowException)):
        look_at(recorded, disk, Random(0), recorded.changes[-1], keep=0)


def look_at(
    recorded: Recorded, disk: Disk, random: Random, last: Change, keep: float | None = None
) -> None:
    """Look at a state that is possible once a change was made."""
    disk.state(random, recorded.root, keep)
    try:
        look(recorded, last.end)
    finally:
        shutil.rmtree(recorded.root)


def look(recorded: Recorded, lost_at: int) -> None:
    """Start a server on a state of the disk, and compare what it has with the history."""
    history = recorded.history
    data, remote = recorded.root / "data", recorded.root / "remote"
    if not any(place <= lost_at for place, _ in history.committed):
        return  # It may not have been made in full.
    assert check_directory(data).problems == ()  # As it is, before a start mends it.
    with running_server(data, limits=LIMITS, remote=str(remote)) as server:
        client = server.client()
        seen: Counter[int] = Counter()
        rows: dict[tuple[str, str | None], dict[int, int]] = {}
        names = [each["topic"].rpartition("/")[2] for each in act(client, "list-topics")]
        assert not {topic for place, topic in history.deleted if place <= lost_at} & set(names)
        for topic in names:
            for state in act(client, "partition-states", topic=topic):
                found = read(client, topic, state)
                rows[topic, state["partition"]] = found
                seen.update(number // ROWS_MAX for number in found.values())
                assert len(set(found.values())) == len(found), "a row is there twice"
                _check_old(history, lost_at, topic, state)
        _check_committed(history, lost_at, rows)
        _check_whole(history, lost_at, rows, seen)
        _check_taken(history, lost_at, client)
    assert check_directory(data).problems == ()


def read(client: flight.FlightClient, topic: str, state: Json) -> dict[int, int]:
    """Return the rows of a partition by offset."""
    answer = get(
        client,
        kind="scan",
        topic=topic,
        partition=state["partition"],
        columns=["n"],
        system_columns=True,
    )
    found = dict(zip(answer.column("__offset"), answer.column("n"), strict=True))
    assert list(found) == list(range(state["log_start_offset"], state["next_offset"]))
    return found


def _check_old(history: History, lost_at: int, topic: str, state: Json) -> None:
    start = max((start for place, start in history.starts if place <= lost_at), default=0)
    if topic == "old":
        assert state["log_start_offset"] >= start
    else:
        assert state["log_start_offset"] == 0


def _check_committed(
    history: History, lost_at: int, rows: dict[tuple[str, str | None], dict[int, int]]
) -> None:
    for place, each in history.committed:
        found = rows.get((each.topic, each.partition))
        if place > lost_at or each.topic == "old" or each.topic.startswith("gone"):
            continue
        assert found is not None, each
        end = each.start + len(each.numbers)
        assert [found.get(offset) for offset in range(each.start, end)] == each.numbers


def _check_whole(
    history: History,
    lost_at: int,
    rows: dict[tuple[str, str | None], dict[int, int]],
    seen: Counter[int],
) -> None:
    old = {number // ROWS_MAX for number in rows.get(("old", None), {}).values()}
    for number, count in seen.items():
        visible_from, sent = history.sent[number]
        assert visible_from <= lost_at, "a batch that was not published"
        if number not in old:
            assert count == sent, "a part of a batch"
    for first, second in history.together:
        assert (first in seen) == (second in seen), "a part of a publish"


def _check_taken(history: History, lost_at: int, client: flight.FlightClient) -> None:
    done = {offset for place, offset in history.accepted if place <= lost_at}
    if done:
        again = [leased.offsets for leased in Member(client, "plain").acquire(timeout_ms=2)]
        assert done.isdisjoint(offset for offsets in again for offset in offsets)
    committed = max((offset for place, offset in history.offsets if place <= lost_at), default=-1)
    if committed >= 0:
        found = act(client, "get-offsets", consumer="etl")["offsets"]
        assert found[0]["offset"] >= committed
