"""A store with the journal is as one without it, whatever is done and whoever looks, and when."""

import itertools
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Iterator
from collections.abc import Sequence as Batches
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from fix_looks import LOOKS, PARTITIONS, all_of, outcome
from fix_metadata import DAY, HOUR, SCHEMA, SECOND, A, B, C, Clock
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.metadata.maintenance import Lease
from wings_core.metadata.sqlite import SqliteMetadata, journal
from wings_core.metadata.sqlite.connections import READERS_MAX
from wings_core.metadata.sqlite.database import Connection
from wings_core.model import (
    Accepted,
    CommitBatch,
    ExpectedOffset,
    FlushId,
    InlineFolio,
    Location,
    PageAddress,
    PageFormat,
    Replacement,
    Sequence,
    SeriesResults,
    StageEntry,
    StoredPage,
    Topic,
)
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.partitions import Partition
from wings_core.repair.journal import take_journal
from wings_core.repair.salvage import salvage

TOPICS = [
    ("00000000-0000-4000-8000-000000000001", DEFAULT_NAMESPACE.topic("one")),
    ("00000000-0000-4000-8000-000000000002", DEFAULT_NAMESPACE.topic("two")),
]


@dataclass(frozen=True)
class Push:
    """A batch to be; sequence and expected offset are relative to what would be right."""

    topic: int
    partition: Partition
    rows: tuple[int, ...]
    producer: tuple[str, int] | None
    expected: tuple[Partition, int] | None
    timestamp: int | None
    schema_version: int
    size: int
    flush: str


@dataclass(frozen=True)
class Act:
    """Anything else that is done or looked at."""

    what: str
    number: int


class Pair:
    """Two stores of one beginning to which the same is done, the second without the journal."""

    def __init__(self, directory: Path, opened: ExitStack) -> None:
        self.clock = Clock()
        self.paths = [directory / name / "metadata.db" for name in ("with", "without")]
        self.journaled = 0
        for path in self.paths:
            path.parent.mkdir()
        with SqliteMetadata(self.paths[0], clock=self.clock) as first:
            self.topics = [
                first.admin.create_topic(name, SCHEMA, "key", uuid=uuid) for uuid, name in TOPICS
            ]
        shutil.copyfile(*self.paths)
        self.stores = [SqliteMetadata(path, clock=self.clock) for path in self.paths]
        opened.callback(lambda: [store.close() for store in self.stores])
        self.directory = directory
        self.names = 0
        self.flushes = 0
        self.next: dict[tuple[str, str], int] = {}
        self.ends: dict[tuple[str, Partition], int] = {}
        self.staged: list[str] = []

    def both(self, work: Callable[[SqliteMetadata], object]) -> object:
        """Do the same to both, and compare what comes of it."""
        first, second = (outcome(work, store) for store in self.stores)
        assert repr(first) == repr(second)  # Errors are equal to themselves alone.
        return first

    def name(self, suffix: str = ".inline") -> str:
        self.names += 1
        return f"{self.names:06}{suffix}"

    def take(self, step: "list[Push] | tuple[Push, ...] | Act") -> None:
        match step:
            case Act():
                self.act(step)
            case tuple():
                for push in step:
                    self.push([push])
            case _:
                self.push(step, inline=sum(push.size for push in step) % 4 > 0)

    def compare(self) -> None:
        """Compare all that is to be seen of both, last of all the tables themselves."""
        for what in ("kill", "look at all"):
            self.act(Act(what, 0))
        first, second = map(tables_of, self.paths)
        assert first == second

    def push(self, pushes: list[Push], *, inline: bool = True) -> None:
        """Commit batches whose pages are in one folio."""
        self.clock.time += 1
        folio = self.name(".inline" if inline else "")
        batches: list[CommitBatch] = []
        data = b""
        for stream, push in enumerate(pushes):
            topic = self.topics[push.topic]
            sequence = expected = None
            if push.producer is not None:
                producer, ahead = push.producer
                sequence = Sequence(producer, self.next.get((topic.uuid, producer), 0) + ahead)
            if push.expected is not None:
                partition, ahead = push.expected
                expected = ExpectedOffset(
                    partition, self.ends.get((topic.uuid, partition), 0) + ahead
                )
            address = PageAddress(folio, len(data), push.size)
            data += bytes([self.names % 256]) * push.size
            page = StoredPage(
                push.partition, sum(push.rows), address, schema_version=push.schema_version
            )
            batches.append(
                CommitBatch(
                    stream,
                    topic.uuid,
                    (page,),
                    sequence,
                    expected,
                    None if push.timestamp is None else self.clock.time + push.timestamp,
                    series=push.rows if len(push.rows) > 1 and sequence and not expected else (),
                )
            )
        flush_id = None
        if pushes[0].flush != "none":
            self.flushes += pushes[0].flush == "new" or not self.flushes
            flush_id = FlushId("writer", self.flushes)
        given = InlineFolio(folio, data) if inline else None
        results = self.both(lambda store: store.registry.commit(batches, flush_id, given))
        assert isinstance(results, list)
        for batch, result in zip(batches, results, strict=False):
            self._learn(batch, result)

    def _learn(self, batch: CommitBatch, result: object) -> None:
        for each in result.each if isinstance(result, SeriesResults) else (result,):
            if not isinstance(each, Accepted):
                continue
            for got in each.committed:
                key = (batch.topic_uuid, got.partition)
                self.ends[key] = max(self.ends.get(key, 0), got.end_offset + 1)
            if batch.sequence is not None:
                known = (batch.topic_uuid, batch.sequence.producer_id)
                last = batch.sequence.sequence + max(1, len(batch.series))
                self.next[known] = max(self.next.get(known, 0), last)

    def act(self, act: Act) -> None:  # noqa: C901 - one act after another
        topic = self.topics[act.number % 2]
        partition = PARTITIONS[act.number % 3]
        match act.what:
            case "clock":
                self.clock.time += [SECOND, -SECOND, HOUR, 8 * DAY][act.number % 4]
            case "look":
                kinds = list(LOOKS)
                look = LOOKS[kinds[act.number % len(kinds)]]
                self.both(lambda store: look(store, self.topics))
            case "look at all":
                self.both(lambda store: all_of(store, self.topics))
            case "kill":
                self.look_at_killed()
            case "backup":
                self.look_at_backups()
            case "reopen":
                for store in self.stores:
                    store.close()
                self.stores[:] = [SqliteMetadata(path, clock=self.clock) for path in self.paths]
            case "stage":
                stage = f"stage-{act.number % 3}"
                entry = StageEntry(stage, f"{self.name()}", first=True)
                page = StoredPage(partition, 2, PageAddress(self.name(), 0, 7))
                given = InlineFolio(page.address.folio, b"s" * 7)
                batch = CommitBatch(0, topic.uuid, (page,), stage=entry)
                self.both(lambda store: store.registry.commit([batch], None, given))
            case "publish":
                stage = f"stage-{act.number % 3}"
                self.flushes += 1
                self.both(lambda store: store.stages.publish("publisher", self.flushes, [stage]))
                self._look_where_it_ends()
            case "offsets":
                offsets = [(topic, partition, act.number)]
                self.both(lambda store: store.registry.commit_offsets("consumer", offsets))
            case "expire":
                self.both(
                    lambda store: store.maintenance.expire(
                        topic.uuid,
                        partition,
                        age_us=HOUR if act.number % 2 else None,
                        bytes_kept=40,
                        pages_max=1 + act.number,
                    )
                )
            case "purge":
                self.both(lambda store: store.registry.purge(1 + act.number))
            case "drain":
                self.drain(act.number)
            case "merge":
                self.merge(topic, partition, act.number)
            case "retire":
                folios = ["merged", self.name("")]
                self.both(lambda store: store.registry.retire(folios))
            case "delete":
                self.both(lambda store: store.admin.delete_topic(topic.name).uuid)
            case _:
                raise AssertionError(act)

    def _look_where_it_ends(self) -> None:
        for topic in self.topics:
            states = self.both(lambda store, t=topic: store.registry.partition_states(t.uuid))
            for state in states if isinstance(states, list) else ():
                self.ends[topic.uuid, state.partition] = state.next_offset

    def leased(self) -> Lease:
        token = self.both(lambda store: store.maintenance.acquire_lease("drain", "one", 60))
        assert isinstance(token, int)
        return Lease("drain", "one", token)

    def drain(self, pages_max: int) -> None:
        """Put what is inline into segments, one for each partition."""
        lease, segment = self.leased(), self.name("")

        def work(store: SqliteMetadata) -> object:
            found: dict[tuple[str, Partition], list[Location]] = {}
            for page in store.maintenance.inline_backlog(1 + pages_max).pages:
                pages = found.setdefault((page.topic_uuid, page.partition), [])
                if not pages or pages[-1].end_offset + 1 == page.location.start_offset:
                    pages.append(page.location)
            return store.maintenance.replace_all(
                [
                    Replacement(*key, tuple(pages), (one_of(pages, segment, PageFormat.DRAINED),))
                    for key, pages in found.items()
                ],
                lease,
            )

        self.both(work)

    def merge(self, topic: Topic, partition: Partition, pages_max: int) -> None:
        lease, segment = self.leased(), self.name("")

        def work(store: SqliteMetadata) -> object:
            start = store.registry.partition_state(topic.uuid, partition).log_start_offset
            located = store.registry.locate(topic.uuid, partition, start, 1_000).locations
            old = located[: 1 + pages_max]
            if not old:
                return None
            new = one_of(list(old), segment, PageFormat.SEGMENT)
            return store.maintenance.replace(topic.uuid, partition, old, [new], lease)

        self.both(work)

    def copies(self) -> Iterator[Path]:
        """Copy the files as a kill of the process would leave them."""
        for path in self.paths:
            copy = self.directory / f"{self.name('')}.killed" / path.name
            copy.parent.mkdir()
            for suffix in ("", "-wal"):
                file = path.with_name(path.name + suffix)
                if file.exists():
                    shutil.copyfile(file, copy.with_name(file.name))
            yield copy

    def look_at_killed(self) -> None:
        copies = list(self.copies())
        seen: list[object] = [None, None]
        # As a repair finds them: its own reading of SQLite's log is slow.
        for number, copy in enumerate(copies):
            with closing(sqlite3.connect(copy)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            seen[number] = salvaged_of(copy)
        assert repr(seen[0]) == repr(seen[1])
        # As a start.
        for number, copy in enumerate(copies):
            with SqliteMetadata(copy, clock=self.clock) as started:
                seen[number] = all_of(started, self.topics), tables_of(copy)
        assert repr(seen[0]) == repr(seen[1])
        for copy in copies:
            shutil.rmtree(copy.parent)

    def look_at_backups(self) -> None:
        seen: list[object] = []
        for store in self.stores:
            copy = self.directory / self.name(".backup")
            with store.copying() as copied:
                copied(copy)
            with SqliteMetadata(copy, clock=self.clock) as started:
                seen.append((all_of(started, self.topics), tables_of(copy)))
            copy.unlink()
        assert repr(seen[0]) == repr(seen[1])


def one_of(pages: list[Location], folio: str, format_: PageFormat) -> Location:
    first = pages[0]
    timestamp = first.timestamp if first.first_timestamp is None else first.first_timestamp
    return Location(
        first.start_offset,
        pages[-1].end_offset,
        pages[-1].timestamp,
        PageAddress(folio, 128 * first.start_offset, 64),
        timestamp,
        format_,
    )


def tables_of(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Return all rows of all tables, with the ids of all."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        names = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
            if name not in ("fences", "migrations") and not name.startswith("sqlite_")
        ]
        return {
            name: sorted(connection.execute(f"SELECT * FROM {name}").fetchall(), key=repr)
            for name in names
        }


def salvaged_of(path: Path) -> dict[str, object]:
    """Return the rows that a repair goes by, without checksums, which it writes anew."""
    salvaged = salvage(path)
    take_journal(salvaged)
    assert (salvaged.problems, salvaged.losses) == ([], [])
    return {
        name: sorted(
            sorted(
                (column, value)
                for column, value in row.items()
                if value is not None and column != "checksum"
            )
            for row in salvaged.rows(name)
        )
        for name in salvaged.tables
        if name not in ("journal", "partitions")  # A repair counts anew.
    }


@contextmanager
def pair(patch: pytest.MonkeyPatch) -> Generator[Pair]:
    with TemporaryDirectory() as directory, ExitStack() as opened:
        both = Pair(Path(directory), opened)
        takes = journal.takes

        def of_the_first(
            connection: Connection, batches: Batches[CommitBatch], inline: InlineFolio
        ) -> bool:
            ((_, _, file),) = connection.raw.execute("PRAGMA database_list")
            taken = file == str(both.paths[0]) and takes(connection, batches, inline)
            both.journaled += taken
            return taken

        with patch.context() as patched:
            patched.setattr(journal, "takes", of_the_first)
            patched.setattr(journal, "MANY", 0)  # However few are applied.
            yield both


MOSTLY_RIGHT = st.sampled_from([0, 0, 0, 0, 0, 0, -1, -2, 1])
PUSHES = st.builds(
    Push,
    topic=st.sampled_from([0, 0, 0, 1]),
    partition=st.sampled_from([A, A, A, B, C]),
    rows=st.sampled_from([(1,), (2,), (3,), (1, 2), (1, 1, 4)]),
    producer=st.none() | st.tuples(st.sampled_from("pq"), MOSTLY_RIGHT),
    expected=st.none() | st.none() | st.tuples(st.sampled_from([A, B]), MOSTLY_RIGHT),
    timestamp=st.none() | st.none() | st.sampled_from([-HOUR, 0, HOUR, HOUR + 1]),
    schema_version=st.integers(1, 3),
    size=st.integers(1, 30),
    flush=st.sampled_from(["none", "none", "new", "new", "again"]),
)
RUNS = st.lists(PUSHES, min_size=1, max_size=6).map(tuple)
"""Each of them by itself, where those of a list are one flush."""
ACTS = st.builds(
    Act,
    what=st.sampled_from(
        [
            *("clock", "look", "look", "look", "look at all", "kill", "backup"),
            *("reopen", "stage", "publish", "offsets", "expire", "purge", "drain", "merge"),
            *("retire", "delete"),
        ]
    ),
    number=st.integers(0, 40),
)
STEPS = st.lists(
    RUNS | RUNS | st.lists(PUSHES, min_size=2, max_size=5) | ACTS, min_size=10, max_size=40
)


@pytest.mark.hypothesis
def test_a_history_is_the_same_with_the_journal_and_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    journaled = pushed = 0

    @settings(max_examples=examples(12, 300))
    @given(steps=STEPS)
    def same(steps: list[list[Push] | tuple[Push, ...] | Act]) -> None:
        nonlocal journaled, pushed
        with pair(monkeypatch) as both:
            for step in steps:
                both.take(step)
            both.compare()
            journaled += both.journaled
            pushed += sum(len(step) for step in steps if isinstance(step, tuple))

    same()
    assert journaled > pushed / 10


def test_who_looks_beside_commits_finds_what_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MANY", 0)  # However few are applied.
    path = tmp_path / "metadata.db"
    names = map("{:06}.inline".format, itertools.count())
    acknowledged = 0
    with SqliteMetadata(path) as store:
        topic = store.admin.create_topic(TOPICS[0][1], SCHEMA, "key")

        def push() -> None:
            nonlocal acknowledged
            name = next(names)
            page = StoredPage(A, 1, PageAddress(name, 0, 1))
            batch = CommitBatch(0, topic.uuid, (page,))
            (result,) = store.registry.commit([batch], None, InlineFolio(name, b"x"))
            assert isinstance(result, Accepted)
            acknowledged = result.committed[0].end_offset + 1

        def look(registry: OffsetRegistry) -> None:
            end = acknowledged
            state = registry.partition_state(topic.uuid, A)
            assert state.next_offset >= end
            located = registry.locate(topic.uuid, A, end - 1, 1)
            assert located.locations
            assert located.log_end_offset >= state.next_offset
            ((_, found),) = [
                (each.state, each.locations)
                for each in registry.locate_many(topic.uuid, [(A, end - 1)], 1)
            ]
            assert found == located.locations
            folio = found[0].address.folio
            assert registry.read_inline([folio]) == {folio: b"x"}

        def write() -> None:
            store.registry.commit_offsets("consumer", [(topic, A, 1)])
            time.sleep(0.005)

        def back_up() -> None:
            end = acknowledged
            copy = tmp_path / next(names)
            with store.copying() as copied:
                copied(copy)
            with SqliteMetadata(copy) as copied_store:
                assert copied_store.registry.partition_state(topic.uuid, A).next_offset >= end

        push()
        works = [push, write, back_up]
        works += [lambda: look(store.registry)] * (READERS_MAX + 2)
        repeat_all(works, examples(1, 20))
    assert acknowledged > 10


def repeat_all(works: list[Callable[[], None]], seconds: float) -> None:
    """Repeat all at a time, each on a thread of its own; raise what one of them raises."""
    failed: list[BaseException] = []
    until = time.monotonic() + seconds

    def repeat(work: Callable[[], None]) -> None:
        try:
            while time.monotonic() < until and not failed:
                work()
        except BaseException as error:  # noqa: BLE001 - raised below.
            failed.append(error)

    threads = [threading.Thread(target=repeat, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
