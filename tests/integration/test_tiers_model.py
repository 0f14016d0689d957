"""A log whose pages are drained, merged, moved, dropped and swept, against a plain model of it.

Real parts but for the clock: SQLite, in the process or behind the metadata service, or PostgreSQL;
metadata, segment files or an object store for new pages; a directory as the remote store. Between
any two steps of what maintenance or a drain does, something else may happen: a push, a read,
retention, a sweep, another node's work, or the end of the process.
"""

import itertools
import os
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from fix_metadata import RemoteOverSqlite
from fix_postgres import PostgresServer, empty_schema
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from wings_core.contracts.reads import ReadOptions
from wings_core.data_directory import DataDirectory
from wings_core.deployments import Parts
from wings_core.errors import Internal, OffsetOutOfRange
from wings_core.fetch.chunks import FetchedChunk
from wings_core.fetch.cursors import PartitionCursor
from wings_core.fetch.fetcher import Cancel, Read
from wings_core.fetch.selection import Selection
from wings_core.ingest.pending import PushStream
from wings_core.ingest.prepare import Preparer, PushOptions
from wings_core.limits import Limits
from wings_core.log import Log
from wings_core.maintain import Maintainer, MaintenanceReport, Tiering, drain, plan, tiering
from wings_core.maintain.drain import Drain
from wings_core.metadata.interfaces import Metadata
from wings_core.metadata.postgres import PostgresMetadata
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.model import Location, PageFormat, PartitionState, TierState, Topic, TopicConfig
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.partitions import UNPARTITIONED
from wings_core.storage.folio_stores import OFF_SECONDS_MAX
from wings_core.storage.inline_folios import InlineFolios
from wings_core.storage.open import SEGMENT_GRACE_SECONDS, open_storage

NEVER_SECONDS = 1e6

LIMITS = Limits(
    segment_bytes_max=4 * 1024,
    wire_rows_max=50,
    page_cache_bytes_max=1,
    object_flush_seconds=0,
    maintenance_seconds=86_400,
    inline_seconds=NEVER_SECONDS,
)
"""So small that few rows fill segment files and batches, and nothing stays in memory."""

LEVEL_ROWS = (2, 8, 32)
"""Of merged pages: as levels of few rows each."""
REPLACED_PAGES = 6
"""In one transaction, so that a segment takes several."""
DRAINED_PAGES = 8
"""Inline pages that are looked for at a time, and as many as half of them are replaced at once."""
INLINE_BYTES = 4 * 1024
"""Of inline folios in memory: some are read again out of metadata."""
SECOND = 1_000_000
START = 1_700_000_000 * SECOND
LEASE_SECONDS = 60
SWEPT_SECONDS = int(SEGMENT_GRACE_SECONDS + OFF_SECONDS_MAX) + 1
"""How old an object is that is swept for sure, where nothing refers to it."""
NEVER = None
WORKERS = "wings-maintainer-worker"
"""Threads of a maintainer, as which it may work."""
SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("n", pa.int64()),
        pa.field("text", pa.string()),
    ]
)
KEYS = ("a", "b")
COLUMNS: tuple[tuple[str, ...] | None, ...] = (None, ("n",), ("text", "n"), ("n", "key"))

Meanwhile = Literal[
    "nothing", "push", "read", "expire", "sweep", "another node", "lease ends", "crash",
    "crash after",
]  # fmt: skip
MEANWHILE: tuple[Meanwhile, ...] = get_args(Meanwhile)
"""What happens at one of the steps of an operation."""

Step = tuple[str, int]
"""The n-th call of a method."""


def steps_of(*methods: str) -> st.SearchStrategy[Step]:
    return st.tuples(st.sampled_from(methods), st.integers(1, 2))


CHUNKS_ALL = 1_000_000


class CrashError(BaseException):
    """The process ended here, as far as the log is concerned."""


class Steps:
    """Counts the calls that change what is stored, and lets something happen at one of them."""

    def __init__(self) -> None:
        self._main = threading.get_ident()
        self._at: Step = ("", 0)
        self._before: Callable[[], None] | None = None
        self._after: Callable[[], None] | None = None
        self.dead = False

    def plan(
        self,
        step: Step,
        before: Callable[[], None] | None = None,
        after: Callable[[], None] | None = None,
    ) -> None:
        """Let something happen at the n-th call of a method from now, once."""
        self._at, self._before, self._after = step, before, after

    def forget(self) -> None:
        """Let nothing happen any more."""
        self._before = self._after = None

    def watch(self, target: Any, *methods: str) -> None:
        for method in methods:
            setattr(target, method, self._watched(method, getattr(target, method)))

    def _watched(self, method: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            thread = threading.current_thread()
            if thread.ident != self._main and not thread.name.startswith(WORKERS):
                return real(*arguments, **options)  # By itself, from time to time.
            if self.dead:
                raise CrashError
            before, after = self._before, self._after
            if self._at[0] == method:
                self._at = (method, self._at[1] - 1)
            if self._at != (method, 0):
                return real(*arguments, **options)
            self.forget()
            if before is not None:
                before()
            result = real(*arguments, **options)
            if after is not None:
                after()
            return result

        return call


@dataclass
class PartitionModel:
    """One entry for each offset that was ever given."""

    numbers: list[int] = field(default_factory=list[int])
    """What is in the column `n`; it says what is in the others."""
    timestamps: list[int] = field(default_factory=list[int])
    log_start: int = 0


@dataclass
class OpenScan:
    """A scan that has begun, and goes on after all that comes."""

    key: str
    columns: tuple[str, ...] | None
    chunks: Iterator[FetchedChunk]
    offset: int
    end_offset: int


def text_of(number: int) -> str | None:
    return None if number % 5 == 0 else f"text {number} " * (number % 4)


def batch_of(key: str, numbers: Sequence[int]) -> pa.RecordBatch:
    columns: list[pa.Array[Any]] = [
        pa.array([key] * len(numbers), pa.string()),
        pa.array(numbers, pa.int64()),
        pa.array([text_of(number) for number in numbers], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


OpenMetadata = Callable[[Callable[[], int]], Metadata]
"""Opens the same metadata each time; told the time by what it is given."""

LentMetadata = Callable[[Path], AbstractContextManager[OpenMetadata]]
"""Lends metadata of one's own, which may be kept in a directory."""


@contextmanager
def lend_sqlite(directory: Path) -> Generator[OpenMetadata]:
    yield lambda clock: SqliteMetadata(directory / "metadata.db", clock=clock)


@contextmanager
def lend_remote(directory: Path) -> Generator[OpenMetadata]:
    yield lambda clock: RemoteOverSqlite(directory / "metadata.db", clock)


def lend_postgres(server: PostgresServer) -> LentMetadata:
    @contextmanager
    def lend(_: Path) -> Generator[OpenMetadata]:
        with empty_schema(server, START) as schema:
            yield lambda clock: PostgresMetadata(server.url, schema=schema, clock=clock)

    return lend


class TiersMachine(RuleBasedStateMachine):
    """Does to a log and to a model the same."""

    def __init__(self, directory: Path, lend_metadata: LentMetadata, *, hot_objects: bool) -> None:
        super().__init__()
        self.lent = ExitStack()
        self.store_id = str(uuid4())
        self.open_metadata = self.lent.enter_context(lend_metadata(directory))
        self.directory = directory
        self.hot = directory / "hot" if hot_objects else None
        self.remote = directory / "remote"
        self.now = START
        self.numbers = itertools.count()
        self.models = {key: PartitionModel() for key in KEYS}
        self.scans: list[OpenScan] = []
        self.maintaining: set[int] = set()
        """Nodes that are in the midst of it."""
        self.draining: set[int] = set()
        """The same of a drain."""
        self.dropping = False
        """Whether retention may be moving the log's start right now."""
        self.stack = ExitStack()
        self.open()
        self.uuids = {
            key: self.log.admin.create_topic(DEFAULT_NAMESPACE.topic(key), SCHEMA).uuid
            for key in KEYS
        }

    # The process.

    def open(self) -> None:
        """Start the process: two nodes' maintenance over one log."""
        self.steps = Steps()
        with ExitStack() as stack:
            directory = stack.enter_context(DataDirectory.open(self.directory / "data"))
            metadata = self.open_metadata(lambda: self.now)
            storage = open_storage(
                directory,
                LIMITS,
                hot_url=None if self.hot is None else str(self.hot),
                remote_url=str(self.remote),
                inline=InlineFolios(metadata.registry.read_inline, INLINE_BYTES),
                store_id=lambda: self.store_id,
            )
            self.log = Log(Parts(metadata, storage), LIMITS)
            stack.callback(self.log.close)
            self.drains = [self._drain_of(metadata) for _ in range(2)]
            for each in self.drains:
                stack.callback(self._close_drain, each)
            self.nodes = [self._maintainer(metadata) for _ in range(2)]
            for node in self.nodes:
                stack.callback(node.close)
            self.stack = stack.pop_all()
        self.log.reclaimer.run()
        self.steps.watch(self.log.registry, "commit", "retire")
        self.steps.watch(
            self.log.maintenance,
            *("expire", "replace", "replace_all", "acquire_lease", "release_lease"),
        )
        self.steps.watch(self.log.store, "write", "delete")
        self.steps.watch(storage.remote.objects, "put")

    def _drain_of(self, metadata: Metadata) -> Drain:
        inline = self.log.storage.inline
        assert inline is not None
        return Drain(metadata, inline, self.log.store, 0, 0, NEVER_SECONDS)

    def _close_drain(self, each: Drain) -> None:
        with suppress(CrashError):  # It keeps its lease between drains: a crash does not end it.
            each.close()

    def _maintainer(self, metadata: Metadata) -> Maintainer:
        log = self.log
        moves = Tiering(
            log.registry,
            log.maintenance,
            log.store,
            log.storage.remote,
            NEVER,
            clock=lambda: self.now,
        )
        seconds = LIMITS.maintenance_seconds
        return Maintainer(metadata, seconds, lambda: None, moves, clock=lambda: self.now)

    def close(self) -> None:
        for scan in self.scans:
            scan.chunks.close()  # pyright: ignore[reportAttributeAccessIssue] - a generator has it
        self.scans.clear()
        self.stack.close()

    def teardown(self) -> None:
        self.close()
        self.lent.close()

    @initialize()
    def begin(self) -> None:
        for key in KEYS:
            self._push(key, [3, 40], inline=True)
            self._push(key, [70, 1, 170], inline=key == KEYS[0])

    @rule()
    def restart(self) -> None:
        self.close()
        self.open()

    @rule(seconds=st.sampled_from([1, 30, LEASE_SECONDS + 1, SWEPT_SECONDS]))
    def time_passes(self, seconds: int) -> None:
        """Also for the objects, whose age is told by the file system."""
        self.now += seconds * SECOND
        for root in (self.hot, self.remote):
            for path in root.rglob("*") if root is not None else ():
                if path.is_file():
                    modified = path.stat().st_mtime - seconds
                    os.utime(path, (modified, modified))

    def crash(self) -> None:
        self.steps.dead = True
        raise CrashError

    def recover(self) -> None:
        """Start again, as the next process does, and see what the last one came to."""
        self.close()
        self.now += (LEASE_SECONDS + 1) * SECOND  # Or nothing more would be maintained for long.
        self.open()

    # Pushes.

    @rule(
        key=st.sampled_from(KEYS),
        sizes=st.lists(st.sampled_from([1, 2, 5, 17, 70, 300]), min_size=1, max_size=4),
        apart=st.integers(0, 3),
        inline=st.booleans(),
    )
    def push(self, key: str, sizes: list[int], apart: int, inline: bool) -> None:
        self.now += apart * SECOND
        self._push(key, sizes, inline=inline)

    @rule(
        key=st.sampled_from(KEYS),
        after=st.booleans(),
        method=st.sampled_from(["write", "commit", "commit inline"]),
    )
    def push_and_crash(self, key: str, after: bool, method: str) -> None:
        """What was not acknowledged is there as a whole, or not at all."""
        model = self.models[key]
        before = len(model.numbers)
        step = (method.split()[0], 1)
        self.steps.plan(step, **{"after" if after else "before": self.crash})
        with pytest.raises(Internal, match="CrashError"):  # A flush outlives any fault.
            self._push(key, [23], inline=method == "commit inline")
        self.recover()
        found = self._read(key, before, None)
        assert found.num_rows in (0, 23)
        # Numbers are not given again, so what is not there never comes.
        model.numbers += cast("list[int]", found["n"].to_pylist())
        times = found["__timestamp"].cast(pa.int64())
        model.timestamps += cast("list[int]", times.to_pylist())

    def _push(self, key: str, sizes: Sequence[int], *, inline: bool = False) -> None:
        model = self.models[key]
        assert self.log.drain is not None
        self.log.drain.flush_bytes_max = drain.FLUSH_BYTES_MAX if inline else 0
        preparer, stream = Preparer(self._topic(key), LIMITS), PushStream()
        for size in sizes:
            numbers = list(itertools.islice(self.numbers, size))
            prepared = preparer.prepare(batch_of(key, numbers), PushOptions())
            pending = self.log.group_commit.submit(stream, prepared, awaited=True)
            (got,) = pending.accepted().committed
            first = len(model.numbers)
            assert (got.start_offset, got.end_offset) == (first, first + size - 1)
            assert not model.timestamps or got.timestamp >= model.timestamps[-1]
            model.numbers += numbers
            model.timestamps += [got.timestamp] * size

    # Reads.

    @rule(
        key=st.sampled_from(KEYS),
        columns=st.sampled_from(COLUMNS),
        places=st.tuples(st.floats(-0.1, 1), st.floats(0, 1)),
    )
    def read(self, key: str, columns: tuple[str, ...] | None, places: tuple[float, float]) -> None:
        model = self.models[key]
        offset = max(0, int(places[0] * len(model.numbers)))
        end_offset = min(len(model.numbers), offset + int(places[1] * len(model.numbers)))
        if offset < model.log_start and offset < end_offset:
            with pytest.raises(OffsetOutOfRange) as caught:
                self._read(key, offset, end_offset, columns)
            assert caught.value.facts["log_start_offset"] == model.log_start
            return
        self._check(key, columns, offset, self._read(key, offset, end_offset, columns))

    @rule(key=st.sampled_from(KEYS), place=st.floats(0, 1), later=st.integers(-1, 1))
    def find_a_time(self, key: str, place: float, later: int) -> None:
        model = self.models[key]
        if model.log_start == len(model.numbers):
            return
        at = model.log_start + int(place * (len(model.numbers) - 1 - model.log_start))
        time = model.timestamps[at] + later
        late = (
            offset
            for offset in range(model.log_start, len(model.numbers))
            if model.timestamps[offset] >= time
        )
        found = self.log.fetcher.offset_for_timestamp(self._topic(key), UNPARTITIONED, time)
        assert found == next(late, len(model.numbers))

    @rule(key=st.sampled_from(KEYS), columns=st.sampled_from(COLUMNS))
    def begin_a_long_scan(self, key: str, columns: tuple[str, ...] | None) -> None:
        model = self.models[key]
        if len(self.scans) == 3 or model.log_start == len(model.numbers):
            return
        start, end = model.log_start, len(model.numbers)
        scan = OpenScan(key, columns, self._scan(key, start, end, columns), start, end)
        self.scans.append(scan)
        self._go_on(scan, 1)

    @rule(chunks=st.sampled_from([1, 5, CHUNKS_ALL]), number=st.integers(0, 2))
    def go_on_with_a_long_scan(self, chunks: int, number: int) -> None:
        if number < len(self.scans):
            self._go_on(self.scans[number], chunks)

    def _go_on(self, scan: OpenScan, chunks_max: int) -> None:
        """Read some chunks: they are whole, or the log's start has passed them."""
        passed: OffsetOutOfRange | None = None
        try:
            for chunk in itertools.islice(scan.chunks, chunks_max):
                ((_, start, end, rows),) = chunk.ranges
                assert start == scan.offset
                table = pa.Table.from_batches([chunk.batch])
                self._check(scan.key, scan.columns, scan.offset, table)
                scan.offset = end + 1
                assert chunk.batch.num_rows == rows == scan.offset - start
        except OffsetOutOfRange as error:
            passed = error
        if passed is not None:
            model = self.models[scan.key]
            assert scan.offset < model.log_start == passed.facts["log_start_offset"]
            self.scans.remove(scan)
        elif scan.offset == scan.end_offset:
            self.scans.remove(scan)
        else:
            assert chunks_max < CHUNKS_ALL, "the scan ended before its end"

    def _scan(
        self, key: str, offset: int, end_offset: int, columns: Sequence[str] | None
    ) -> Iterator[FetchedChunk]:
        topic = self._topic(key)
        cursor = PartitionCursor(UNPARTITIONED, offset, end_offset)
        read = Read.of(topic, [cursor], _selection(topic, columns))
        return self.log.fetcher.scan(read, Cancel())

    def _read(
        self,
        key: str,
        offset: int,
        end_offset: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Read rows with their offsets and timestamps, to the log's end where no other is given."""
        if end_offset is None:
            end_offset = self._state(key).next_offset
        batches = [chunk.batch for chunk in self._scan(key, offset, end_offset, columns)]
        schema = _selection(self._topic(key), columns).schema
        return pa.Table.from_batches(batches, schema)

    def _check(self, key: str, columns: Sequence[str] | None, offset: int, found: pa.Table) -> None:
        """Make sure that rows from an offset on are those that the model has there."""
        model = self.models[key]
        end_offset = offset + found.num_rows
        numbers = model.numbers[offset:end_offset]
        expected = batch_of(key, numbers).select(list(columns or SCHEMA.names))
        assert (
            found.drop(["__offset", "__timestamp"])
            .combine_chunks()
            .equals(pa.Table.from_batches([expected]))
        )
        assert found["__offset"].to_pylist() == list(range(offset, end_offset))
        times = pc.cast(found["__timestamp"], pa.int64()).to_pylist()
        assert times == model.timestamps[offset:end_offset]

    # The drain.

    @rule(
        node=st.integers(0, 1),
        key=st.sampled_from(KEYS),
        step=steps_of("write", "replace_all", "acquire_lease", "release_lease"),
        meanwhile=st.sampled_from(MEANWHILE),
        scanned=st.booleans(),
    )
    def move_what_is_inline(
        self, node: int, key: str, step: Step, meanwhile: Meanwhile, scanned: bool
    ) -> None:
        """Move what is inline; maybe under a scan, which goes on after it has moved."""
        if scanned:
            self._push(key, [2, 30], inline=True)
            self.begin_a_long_scan(key, None)
        moved: list[bool] = []
        self._do(lambda: moved.append(self._move(node)), key, step, meanwhile)
        # Another node keeps its lease for a while after it has moved all.
        if meanwhile in {"nothing", "read", "sweep"} and all(moved):
            assert self.log.maintenance.inline_backlog(1).bytes == 0

    def _move(self, node: int) -> bool:
        if node in self.draining:
            return False
        self.draining.add(node)
        try:
            return self.drains[node].run()
        finally:
            self.draining.remove(node)

    # Maintenance.

    @rule(
        node=st.integers(0, 1),
        key=st.sampled_from(KEYS),
        after_ms=st.sampled_from([0, 0, 1_000]),
        segment_bytes=st.sampled_from([1, 3_000, 1 << 26]),
        segment_format=st.sampled_from(["arrow", "parquet"]),
        step=steps_of("put", "replace", "acquire_lease", "release_lease"),
        meanwhile=st.sampled_from(MEANWHILE),
        scanned=st.booleans(),
        swept=st.booleans(),
    )
    def compact(
        self,
        node: int,
        key: str,
        after_ms: int,
        segment_bytes: int,
        segment_format: str,
        step: Step,
        meanwhile: Meanwhile,
        scanned: bool,
        swept: bool,
    ) -> None:
        """Merge what is due; maybe under a scan, which goes on after all is gone that it knew."""
        if scanned:
            self.begin_a_long_scan(key, None)
        self._configure(
            key,
            tier_after_ms=after_ms,
            segment_bytes=segment_bytes,
            segment_format=segment_format,
        )
        self._do(lambda: self._maintain(node, key), key, step, meanwhile)
        if swept:
            self.what_nothing_refers_to_goes_after_its_grace()
            for scan in list(self.scans):
                self._go_on(scan, CHUNKS_ALL)

    @rule(key=st.sampled_from(KEYS), segment_bytes=st.sampled_from([1, 3_000]))
    def compact_while_pages_go(self, key: str, segment_bytes: int) -> None:
        """What retention took is not put back by a merge that read it before."""
        self._push(key, [5, 60])
        self._configure(key, tier_after_ms=0, segment_bytes=segment_bytes)
        self._do(lambda: self._maintain(0, key), key, ("replace", 1), "expire")

    @rule(
        node=st.integers(0, 1),
        key=st.sampled_from(KEYS),
        age_ms=st.sampled_from([None, 1, 2_000, 40_000]),
        kept=st.sampled_from([None, 1, 2_000, 10_000]),
        step=steps_of("expire", "acquire_lease", "release_lease"),
        meanwhile=st.sampled_from(MEANWHILE),
    )
    def drop_what_is_old(
        self,
        node: int,
        key: str,
        age_ms: int | None,
        kept: int | None,
        step: Step,
        meanwhile: Meanwhile,
    ) -> None:
        self._configure(key, retention_ms=age_ms, retention_bytes=kept)
        start = self._kept_from(key, age_ms, kept)
        reports: list[MaintenanceReport] = []
        self.dropping = True
        self._do(lambda: reports.append(self._maintain(node, key)), key, step, meanwhile)
        self.dropping = False
        self._see_log_starts()
        if meanwhile in {"nothing", "read", "sweep"} and not reports[0].partitions_busy:
            assert self.models[key].log_start == start

    @rule(key=st.sampled_from(KEYS), place=st.floats(0, 1))
    def delete_before_an_offset(self, key: str, place: float) -> None:
        """Delete messages to an offset, also within a page, but Parquet files as a whole."""
        model = self.models[key]
        offset = model.log_start + int(place * (len(model.numbers) - model.log_start))
        pages = self._locations(key)
        kept = [page for page in pages if page.end_offset >= offset]
        found = self.nodes[0].delete_before(self._topic(key), UNPARTITIONED, offset)
        if kept and kept[0].format is PageFormat.PARQUET:
            folio = kept[0].address.folio
            offset = next(page.start_offset for page in pages if page.address.folio == folio)
        assert found == offset
        model.log_start = found

    def _kept_from(self, key: str, age_ms: int | None, kept: int | None) -> int:
        """Return where the log starts after retention: whole pages go, the oldest first."""
        pages = self._locations(key)
        size = sum(page.bytes for page in pages)
        for page in pages:
            too_old = age_ms is not None and page.timestamp < self.now - 1_000 * age_ms
            too_many = kept is not None and size - page.bytes >= kept
            if not too_old and not too_many:
                return page.start_offset
            size -= page.bytes
        return len(self.models[key].numbers)

    @rule(
        step=steps_of("retire", "delete"),
        meanwhile=st.sampled_from([each for each in MEANWHILE if each != "sweep"]),
    )
    def sweep(self, step: Step, meanwhile: Meanwhile) -> None:
        """None within another: a process does one at a time.

        Meanwhile a node may drop what is too old by what was configured before.
        """
        self.dropping = True
        self._do(self.log.reclaimer.run, "a", step, meanwhile)
        self.dropping = False
        self._see_log_starts()

    @rule()
    def what_nothing_refers_to_goes_after_its_grace(self) -> None:
        self.time_passes(SWEPT_SECONDS)
        self.log.reclaimer.run()
        live = {name for name in self.log.registry.live_folios() if "/" in name}
        stored = {each.name for each in self.log.storage.remote.objects.list("segments")}
        assert stored == {name for name in live if name.startswith("segments/")}
        if self.hot is not None:
            # But for the one written last, which may not be committed yet.
            folios = {each.name for each in self.log.storage.objects["hot"].list("folios")}
            assert live <= stored | folios
            assert len(folios - live) <= 1

    def _do(
        self, operation: Callable[[], object], key: str, step: Step, meanwhile: Meanwhile
    ) -> None:
        """Do something, and something else at one of its steps."""
        actions: dict[Meanwhile, Callable[[], None]] = {
            "push": lambda: self._push(key, [2, 30], inline=True),
            "read": self._look,
            "expire": self._expire,
            "sweep": lambda: self.log.reclaimer.run(),
            "another node": lambda: self._another_node(key),
            "lease ends": lambda: self._end_lease(key),
            "crash": self.crash,
            "crash after": self.crash,
        }
        if meanwhile != "nothing":
            when = "after" if meanwhile == "crash after" else "before"
            self.steps.plan(step, **{when: actions[meanwhile]})
        was_dropping = self.dropping
        # A node that maintains drops what is too old by what was configured before.
        self.dropping = was_dropping or meanwhile in {"another node", "lease ends"}
        with suppress(CrashError):
            operation()
        self.steps.forget()
        if self.steps.dead:
            self.recover()
        if self.dropping:
            self._see_log_starts()
        self.dropping = was_dropping

    def _end_lease(self, key: str) -> None:
        """Let another node take over, as where a node hangs for a while."""
        self.now += (LEASE_SECONDS + 1) * SECOND
        self._another_node(key)

    def _another_node(self, key: str) -> None:
        self._move(1)
        self._maintain(1, key)

    def _look(self) -> None:
        if self.dropping:
            self._see_log_starts()
        self.the_log_is_what_the_model_says()
        for scan in list(self.scans):
            self._go_on(scan, 1)

    def _see_log_starts(self) -> None:
        """Take over where the logs start: never before where they did."""
        for key, model in self.models.items():
            state = self._state(key)
            assert state.log_start_offset >= model.log_start
            model.log_start = state.log_start_offset

    def _expire(self) -> None:
        """Drop the oldest page and a row after it, as a node does that has lost its lease."""
        for key, model in self.models.items():
            for bytes_kept, before in ((1, 0), (None, 1)):
                expired = self.log.maintenance.expire(
                    self.uuids[key],
                    UNPARTITIONED,
                    age_us=None,
                    bytes_kept=bytes_kept,
                    before_offset=before and min(model.log_start + before, len(model.numbers)),
                    pages_max=1,
                )
                model.log_start = max(model.log_start, expired.log_start_offset)

    def _maintain(self, node: int, key: str) -> MaintenanceReport:
        """Do what is due; no pass of a node is within another of its own."""
        if node in self.maintaining:
            return MaintenanceReport()
        self.maintaining.add(node)
        try:
            report = self.nodes[node].run(self._topic(key))
        finally:
            self.maintaining.remove(node)
        assert report.failures == 0
        return report

    def _configure(self, key: str, **config: Any) -> None:
        defaults = dict.fromkeys(TopicConfig.model_fields)
        change = TopicConfig.model_validate({**defaults, **config})
        self.log.admin.alter_topic(DEFAULT_NAMESPACE.topic(key), change)

    def _topic(self, key: str) -> Topic:
        return self.log.admin.get_topic(DEFAULT_NAMESPACE.topic(key))

    def _state(self, key: str) -> PartitionState:
        return self.log.registry.partition_state(self.uuids[key], UNPARTITIONED)

    def _locations(self, key: str) -> list[Location]:
        model = self.models[key]
        count = len(model.numbers) - model.log_start
        if not count:
            return []
        return list(
            self.log.registry.locate(
                self.uuids[key], UNPARTITIONED, model.log_start, count
            ).locations
        )

    # What holds at any time.

    @invariant()
    def the_log_is_what_the_model_says(self) -> None:
        for key, model in self.models.items():
            state = self._state(key)
            assert (state.log_start_offset, state.next_offset) == (
                model.log_start,
                len(model.numbers),
            )
            found = self._read(key, model.log_start)
            assert found.num_rows == len(model.numbers) - model.log_start
            self._check(key, None, model.log_start, found)
            assert state.bytes == sum(page.bytes for page in self._locations(key))

    @invariant()
    def tiers_are_counted_right(self) -> None:
        for key in KEYS:
            counted: list[TierState] = []
            for remote in (False, True):
                pages = [page for page in self._locations(key) if page.format.is_merged == remote]
                rows = sum(page.rows for page in pages)
                size = sum(page.bytes for page in pages)
                state = TierState(UNPARTITIONED, remote, len(pages), rows, size)
                counted += [state] if pages else []
            assert self.log.maintenance.tier_states(self.uuids[key]) == counted


EXAMPLES_FOR_LONG = 500


def assert_does_as_model(
    directory: Path, lend_metadata: LentMetadata, *, hot_objects: bool, examples: int, steps: int
) -> None:
    numbers = itertools.count()

    def machine() -> TiersMachine:
        own = directory / str(next(numbers))
        own.mkdir()
        return TiersMachine(own, lend_metadata, hot_objects=hot_objects)

    run_state_machine_as_test(
        machine,  # pyright: ignore[reportArgumentType] - a function does
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    """A few rows make several pages, levels and transactions; a scan hands on each chunk."""
    for module, name, value in (
        (plan, "MERGED_ROWS", LEVEL_ROWS[-1] * 2),
        (plan, "LEVEL_ROWS", LEVEL_ROWS),
        (tiering, "REPLACED_PAGES", REPLACED_PAGES),
        (drain, "ROUND_PAGES", DRAINED_PAGES),
        (drain, "SWAPPED_PAGES", DRAINED_PAGES // 2),
        (drain, "IDLE_SECONDS", NEVER_SECONDS),  # It drains when a rule says so,
        (drain, "LEASE_IDLE_SECONDS", NEVER_SECONDS),  # however slow the machine is.
    ):
        monkeypatch.setattr(module, name, value)


@pytest.mark.timeout(600)  # A failure takes minutes to be made small.
@pytest.mark.parametrize("hot_objects", [False, True], ids=["segment files", "objects"])
def test_tiers_do_as_a_plain_model_of_the_log(tmp_path: Path, hot_objects: bool) -> None:
    assert_does_as_model(tmp_path, lend_sqlite, hot_objects=hot_objects, examples=3, steps=25)


@pytest.mark.soak
@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize("kept_in", ["sqlite", "remote", "postgres"])
@pytest.mark.parametrize("hot_objects", [False, True], ids=["segment files", "objects"])
def test_tiers_do_as_a_plain_model_of_the_log_for_long(
    request: pytest.FixtureRequest, tmp_path: Path, kept_in: str, hot_objects: bool
) -> None:
    if kept_in == "postgres":
        lend_metadata = lend_postgres(request.getfixturevalue("postgres"))
    else:
        lend_metadata = lend_remote if kept_in == "remote" else lend_sqlite
    assert_does_as_model(
        tmp_path, lend_metadata, hot_objects=hot_objects, examples=EXAMPLES_FOR_LONG, steps=60
    )


def _selection(topic: Topic, columns: Sequence[str] | None) -> Selection:
    wanted = None if columns is None else tuple(columns)
    return Selection.of(topic, ReadOptions(columns=wanted, system_columns=True))
