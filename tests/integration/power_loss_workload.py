"""A workload of a server that is recorded, and whether what it left has all that was acknowledged.

Syncs may fail in it: what is refused then is to stay invisible, and a batch of which it is not
known whether it was committed is sent again with its sequence.
"""

import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

import confluent_kafka as ck
import pyarrow as pa
import pyarrow.flight as flight
from backup_world import back_up
from flight_calls import Json, act, code_of, create_topic, get, put_stream
from power_loss import Change, Disk
from share_calls import Member, create_group

import wings_client
from wings_core.backup.repository import Repository
from wings_core.backup.restore import restore
from wings_core.check import check_directory
from wings_core.limits import Limits
from wings_server.testing import running_server

SEGMENT_BYTES = 256 * 1024
KEYS = ("a", "b", "c")
LARGE_ROWS = 12_000
"""Of a batch that goes into a segment at once; small ones go there with a drain."""
INLINE_ROWS = 3_000
"""Of one that is as large as metadata takes."""
ROWS_MAX = 100_000
LIMITS = Limits(segment_bytes_max=SEGMENT_BYTES, maintenance_seconds=100_000)
SCHEMA = pa.schema([("key", pa.string()), ("n", pa.int64())])
FIELDS = ["key: string", "n: int64"]
LATER = 60.0
"""How long what is awaited may take on a busy machine."""
WRITER = "w"
"""Publishes, and is the consumer whose offset goes with it."""
PRODUCER = "p"
"""Of the batches of the topic `keyed`, which have sequences."""


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
    refused: dict[int, int] = field(default_factory=dict[int, int])
    """Of batches: from when on they are not visible any more."""
    together: list[list[int]] = field(default_factory=list[list[int]])
    """Batches that one publish makes visible."""
    committed: list[tuple[int, Committed]] = field(default_factory=list[tuple[int, Committed]])
    accepted: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    starts: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    offsets: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    deleted: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    transacted: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """When a transaction was committed, and the first of its two batches."""
    backup: tuple[int, int, str] | None = None
    """When a backup began and was there, and its name."""
    restored: int = sys.maxsize
    """When it was restored."""
    failures: Counter[str] = field(default_factory=Counter[str])
    """What failed, by the code of its error."""

    @property
    def now(self) -> int:
        """The length of the record."""
        return self.record.stat().st_size

    def refuse(self, batches: Iterable[int]) -> None:
        """Say that batches were refused, for good."""
        self.refused.update(dict.fromkeys(batches, self.now))


@dataclass
class Workload:
    """Pushes, transactions, share groups, retention and merges, in turn, over several lives.

    Attributes:
        history: What came of it.
        batches: How many were sent, by which they are numbered.
        sequence: That of the next batch of `PRODUCER`.
        unknown: Batches of it that are to be sent again, in order: their numbers and rows.
        rounds: How many were done.
    """

    history: History
    batches: int = 0
    sequence: int = 0
    unknown: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    rounds: int = 0

    def begin(self, client: flight.FlightClient) -> None:
        """Make the topics and the group that are not there, and see what is."""
        names = [each["topic"].rpartition("/")[2] for each in act(client, "list-topics")]
        for topic, key in (("keyed", "key"), ("plain", None), ("old", None)):
            if topic not in names:
                self._try(create_topic, client, topic, FIELDS, key)
            else:
                self._look_back(client, topic)
        self._try(act, client, "alter-topic", topic="plain", config={"tier_after_ms": 0})
        self._try(create_group, client, "plain", lock_duration_ms=600_000)  # Or it is there.

    def run(self, client: flight.FlightClient, rounds: int) -> None:
        """Do some rounds of all of it."""
        for number in range(self.rounds, self.rounds + rounds):
            self.push(client, "keyed", 1 + number % 5, 3)
            self.push(client, "keyed", 1, 1)
            rows = {3: LARGE_ROWS, 5: INLINE_ROWS}.get(number % 8, 2)
            self.push(client, "plain", rows, 2)
            if number % 4 == 1:
                self._try(self.publish, client)
            if number % 3 == 2:
                self._try(self.accept, client)
            if number % 10 == 7:
                self._try(act, client, "maintain", topic="plain")
            if number % 10 == 9:
                self._try(self.expire, client)
            self._try(self.commit_offset, client, number)
        self.rounds += rounds

    def push(self, client: flight.FlightClient, topic: str, rows: int, times: int) -> None:
        """Push batches on a stream."""
        keyed = topic == "keyed"
        again = self.unknown if keyed else []
        self.unknown = [] if keyed else self.unknown
        new = [(self.batches + each, rows) for each in range(times)]
        for number, _ in new:
            self.history.sent[number] = self.history.now, rows
        self.batches += times
        waiting = again + new
        command = {"producer_id": PRODUCER, "sequence": self.sequence} if keyed else {}
        code = "UNAVAILABLE"
        try:
            with put_stream(client, SCHEMA, topic, **command) as stream:
                for number, size in waiting:
                    stream.send(batch_of(number, size))
                while waiting:
                    answer = stream.answer()
                    if answer is None or "error" in answer:
                        break
                    number, size = waiting.pop(0)
                    self._answered(topic, answer["committed"], batch_of(number, size))
                    self.sequence += keyed
        except (flight.FlightError, pa.ArrowException) as error:
            with suppress(AssertionError):  # The connection broke.
                code = code_of(error)
            self.history.failures[code] += 1
        if waiting and code != "UNAVAILABLE":
            # Those that were sent again may be there yet.
            self.history.refuse(each[0] for each in waiting if each not in again)
        elif keyed:
            self.unknown = waiting

    def publish(self, client: flight.FlightClient) -> None:
        """Stage two batches and publish them together, with a consumer's offset."""
        first = self.batches
        self.batches += 2
        for number, topic in enumerate(("keyed", "plain"), first):
            self.history.sent[number] = sys.maxsize, 3
            with put_stream(client, SCHEMA, topic, stage=f"{topic}-{first}") as stream:
                stream.send(batch_of(number, 3))
                answer = stream.answer()
                assert answer is None or "staged" in answer or "error" in answer
        asked = self.history.now
        for number in (first, first + 1):
            self.history.sent[number] = asked, 3
        self.history.together.append([first, first + 1])
        stages = [f"{topic}-{first}" for topic in ("keyed", "plain")]
        position = {"topic": "keyed", "partition": "a", "offset": len(self.history.together)}
        offsets = {"consumer": WRITER, "offsets": [position]}
        try:
            answer = act(
                client, "stage-publish", writer=WRITER, batch=first, stages=stages, offsets=offsets
            )
        except flight.FlightError as error:
            if code_of(error) != "UNAVAILABLE":
                self.history.refuse([first, first + 1])
            raise
        for each in answer["committed"]:
            topic = each["topic"].rpartition("/")[2]
            self._answered(topic, [each], batch_of(first if topic == "keyed" else first + 1, 3))

    def accept(self, client: flight.FlightClient) -> None:
        """Take some messages of the share group for good."""
        member = Member(client, "plain")
        for leased in member.acquire(max_messages=5):
            (code,) = member.acknowledge(leased.ack("accept"))
            now = self.history.now
            if code is None:
                self.history.accepted += [(now, offset) for offset in leased.offsets]
            else:
                self.history.failures[code] += 1

    def expire(self, client: flight.FlightClient) -> None:
        """Let messages go, and a topic."""
        self.push(client, "old", 50, 3)
        act(client, "alter-topic", topic="old", config={"retention_bytes": 1})
        act(client, "maintain", topic="old")
        (state,) = act(client, "partition-states", topic="old")
        self.history.starts.append((self.history.now, state["log_start_offset"]))
        act(client, "alter-topic", topic="old", config={"retention_bytes": None})
        topic = f"gone{self.batches}"
        create_topic(client, topic, FIELDS)
        self.push(client, topic, 2, 1)
        act(client, "delete-topic", topic=topic)
        self.history.deleted.append((self.history.now, topic))

    def commit_offset(self, client: flight.FlightClient, number: int) -> None:
        """Commit an offset of a consumer."""
        position = {"topic": "keyed", "partition": "a", "offset": number}
        act(client, "commit-offsets", consumer="etl", offsets=[position])
        self.history.offsets.append((self.history.now, number))

    def transact(self, client: flight.FlightClient, kafka: str) -> None:
        """Commit and abort transactions of a client of Kafka, each over two topics."""
        create_topic(client, "books", FIELDS)
        producer = ck.Producer({"bootstrap.servers": kafka, "transactional.id": "t"})
        producer.init_transactions(LATER)
        for commits in (True, False) * 5:
            first = self.batches
            self.batches += 2
            producer.begin_transaction()
            for number, topic in enumerate(("plain", "books"), first):
                self.history.sent[number] = sys.maxsize, 1
                producer.produce(topic, json.dumps({"n": number * ROWS_MAX}), partition=0)
            assert producer.flush(LATER) == 0
            if commits:
                asked = self.history.now
                self.history.sent |= dict.fromkeys((first, first + 1), (asked, 1))
                producer.commit_transaction(LATER)
                self.history.transacted.append((self.history.now, first))
            else:
                producer.abort_transaction(LATER)

    def back_up(self, server: str, root: Path) -> None:
        """Take a backup of the whole log, and restore it."""
        begun = self.history.now
        with wings_client.connect(server) as client:
            manifest = back_up(client, root / "backups")
        self.history.backup = begun, self.history.now, manifest.backup
        restore(Repository.open(str(root / "backups")), manifest, root / "restored")
        self.history.restored = self.history.now

    def _try(self, step: Callable[..., object], *arguments: object, **named: object) -> None:
        """Do something that may fail where a sync does."""
        try:
            step(*arguments, **named)
        except flight.FlightError as error:
            self.history.failures[code_of(error)] += 1

    def _look_back(self, client: flight.FlightClient, topic: str) -> None:
        """See what a topic has: what was shown once may not go."""
        for state in act(client, "partition-states", topic=topic):
            found = read(client, topic, state)
            if found:
                seen = Committed(topic, state["partition"], min(found), list(found.values()))
                self.history.committed.append((self.history.now, seen))

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


def assert_kept(
    root: Path,
    history: History,
    disk: Disk,
    random: Random,
    last: Change,
    keep: float | None = None,
) -> None:
    """Look at a state that is possible once a change was made."""
    disk.state(random, root, keep)
    try:
        look(root, history, last.end)
    finally:
        shutil.rmtree(root)


def look(root: Path, history: History, lost_at: int) -> None:
    """Start a server on a state of the disk, and compare what it has with the history."""
    if not any(place <= lost_at for place, _ in history.committed):
        return  # It may not have been made in full.
    look_at_log(root / "data", root / "remote", history, lost_at)
    if history.backup is None or history.backup[1] > lost_at:
        return
    begun, _, name = history.backup
    repository, restored = Repository.open(str(root / "backups")), root / "restored"
    assert not [*repository.problems([repository.manifest(name)])]
    if not (restored / "FORMAT").exists():
        assert lost_at < history.restored
        restore(repository, repository.manifest(name), restored)
    look_at_log(restored, None, history, begun)


def look_at_log(data: Path, remote: Path | None, history: History, lost_at: int) -> None:
    """Compare what a directory has with the history up to a moment."""
    problems = check_directory(data).problems
    assert not problems, [str(each) for each in problems]  # As it is, before a start mends it.
    with running_server(data, limits=LIMITS, remote=remote and str(remote)) as server:
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
        _check_whole(history, lost_at, rows, seen, client)
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
    client: flight.FlightClient,
) -> None:
    old = {number // ROWS_MAX for number in rows.get(("old", None), {}).values()}
    for number, count in seen.items():
        visible_from, sent = history.sent[number]
        assert visible_from <= lost_at, "a batch that was not published"
        assert lost_at < history.refused.get(number, sys.maxsize), "a batch that was refused"
        if number not in old:
            assert count == sent, "a part of a batch"
    for first, second in history.together:
        assert (first in seen) == (second in seen), "a part of a publish"
    for place, first in history.transacted:
        assert (first in seen) == (first + 1 in seen), "a part of a transaction"
        assert place > lost_at or first in seen, "a transaction is lost"
    published = [at for at, (first, _) in enumerate(history.together, 1) if first in seen]
    found = act(client, "get-offsets", consumer=WRITER)["offsets"]
    assert [each["offset"] for each in found] == published[-1:], "a part of a transaction"


def _check_taken(history: History, lost_at: int, client: flight.FlightClient) -> None:
    done = {offset for place, offset in history.accepted if place <= lost_at}
    if done:
        again = [leased.offsets for leased in Member(client, "plain").acquire(timeout_ms=2)]
        assert done.isdisjoint(offset for offsets in again for offset in offsets)
    committed = max((offset for place, offset in history.offsets if place <= lost_at), default=-1)
    if committed >= 0:
        found = act(client, "get-offsets", consumer="etl")["offsets"]
        assert found[0]["offset"] >= committed
