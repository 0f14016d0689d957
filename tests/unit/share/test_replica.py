"""A replica: what is durable, what a restart respects, and what a failed write leaves."""

import sqlite3
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import replica_calls
from fix_calls import Calls
from fix_metadata import A, B
from fix_share import HandClock, PostgresHolds, ShareUnderTest, entry_of

from wings_core.errors import GroupNotFound, Internal, InvalidRecordState, Unavailable, WingsError
from wings_core.model import Lease
from wings_core.partitions import UNPARTITIONED, Partition
from wings_core.share.model import OffsetRange, ShareKey
from wings_core.share.replica import postgres_store
from wings_core.share.replica.postgres_store import PostgresHoldStore
from wings_core.share.replica.replica import HOLDS_TOLD_MAX, Replica
from wings_core.share.replica.requests import (
    CountedRange,
    HoldRequest,
    LeaseEntry,
    PartOutcome,
    RangeAnswer,
    ReadRequest,
    ReleaseEntry,
    TombstoneRequest,
)
from wings_core.share.replica.sqlite_store import SqliteHoldStore
from wings_core.share.replica.store import HoldStore, Mark, PartitionWrite, StoredPartition

KEY = ShareKey("group", "topic", UNPARTITIONED)
MINE, THEIRS = Lease("c", 1, "m"), Lease("c", 2, "m")
TTL_MS = 10_000
PLENTY = 1_000_000


class RestartedReplica:
    """A replica that is closed, or crashes, and is opened again."""

    store: HoldStore
    replica: Replica

    def __init__(self) -> None:
        self.clock = HandClock()
        self.open()

    def open_store(self) -> HoldStore:
        raise NotImplementedError

    def abandon_store(self) -> None:
        """Let go of the store without telling it anything, and let time pass."""
        raise NotImplementedError

    def break_disk(self) -> AbstractContextManager[object]:
        """Let commits fail during the block."""
        raise NotImplementedError

    def open(self) -> None:
        self.store = self.open_store()
        self.replica = Replica(lambda: self.store, self.clock)
        self.replica.open()

    def crash(self) -> None:
        self.abandon_store()
        self.open()

    def hold(self, first: int, last: int, lease: Lease = MINE) -> list[RangeAnswer]:
        return replica_calls.hold(
            self.replica, KEY, [OffsetRange(first, last)], lease, TTL_MS, PLENTY
        )

    def finish(self, first: int, last: int, lease: Lease = MINE) -> list[RangeAnswer]:
        return replica_calls.tombstone(self.replica, KEY, [LeaseEntry(first, last, lease)])

    def outcomes(self, parts: list[RangeAnswer]) -> list[tuple[int, int, str, int]]:
        return [(part.first, part.last, part.outcome.name, part.count) for part in parts]


class BrokenDisk(sqlite3.Connection):
    """Fails commits while a test says so."""

    broken = False

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if BrokenDisk.broken and sql == "COMMIT":
            raise sqlite3.OperationalError("disk I/O error")
        return super().execute(sql, parameters)


class SqliteReplica(RestartedReplica):
    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__()

    def open_store(self) -> HoldStore:
        return SqliteHoldStore(self.path, BrokenDisk)

    def abandon_store(self) -> None:
        self.store.close()

    @contextmanager
    def break_disk(self) -> Generator[None]:
        BrokenDisk.broken = True
        try:
            yield
        finally:
            BrokenDisk.broken = False


class StaleStore(SqliteHoldStore):
    """Is read again when a test says so, for as long as it likes; is not certain of its lease then.

    Attributes:
        reading: It is being read again.
        go_on: Lets that end.
        is_overdue: Whether the lease was not renewed.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.stale = False
        self.reading, self.go_on = threading.Event(), threading.Event()
        self.is_overdue = False

    @property
    def is_stale(self) -> bool:
        return self.stale

    def check(self) -> None:
        if self.is_overdue:
            raise Unavailable("the lease was not renewed")

    def load(self) -> list[StoredPartition]:
        if self.stale:
            self.reading.set()
            assert self.go_on.wait(30)
            self.stale = False
        return super().load()


class PostgresReplica(RestartedReplica):
    def __init__(self, holds: PostgresHolds) -> None:
        self.holds = holds
        super().__init__()

    def open_store(self) -> HoldStore:
        return self.holds.open()

    def abandon_store(self) -> None:
        cast("PostgresHoldStore", self.store).abandon()
        self.holds.end_lease()

    def break_disk(self) -> AbstractContextManager[object]:
        return self.holds.commits_failing()


@pytest.fixture(params=["sqlite", "postgres"])
def restarted(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Generator[RestartedReplica]:
    """A replica over each of the stores."""
    monkeypatch.setattr(postgres_store, "CHUNK_ROWS", 2)  # So that loads are of several.
    if request.param == "sqlite":
        opened: RestartedReplica = SqliteReplica(tmp_path / "holds.sqlite")
    else:
        opened = PostgresReplica(request.getfixturevalue("postgres_holds"))
    yield opened
    opened.replica.close()


def test_a_range_is_answered_in_parts(restarted: RestartedReplica) -> None:
    restarted.hold(2, 3)
    restarted.finish(2, 3)
    restarted.hold(6, 7, THEIRS)
    restarted.clock.time += 1
    parts = restarted.hold(0, 9)
    assert restarted.outcomes(parts) == [
        (0, 1, "OK", 0),
        (2, 3, "TOMB", 0),
        (4, 5, "OK", 0),
        (6, 7, "NOK", 0),
        (8, 9, "OK", 0),
    ]
    assert 9_000 <= parts[3].retry_ms <= 9_001


def test_tombstones_and_counts_outlive_a_crash_and_holds_do_not(
    restarted: RestartedReplica,
) -> None:
    restarted.hold(0, 9)
    restarted.finish(0, 3)
    restarted.finish(6, 6)
    replica_calls.release(restarted.replica, KEY, [ReleaseEntry(8, 9, MINE, 4)])
    restarted.crash()
    (state,) = replica_calls.read(restarted.replica, "group", ())
    assert (state.start_offset, state.finished) == (4, (OffsetRange(6, 6),))
    assert state.counts == (CountedRange(8, 9, 4),)
    assert state.in_flight == 0


@pytest.mark.parametrize("boot", ["the same boot", "another boot"])
def test_after_a_crash_nothing_is_held_until_forgotten_holds_have_expired(
    restarted: RestartedReplica, boot: str
) -> None:
    restarted.hold(0, 0)
    if boot == "another boot":
        restarted.clock.boot_id, restarted.clock.time = "boot-2", 5.0
    restarted_at = restarted.clock.time
    restarted.crash()
    restarted.clock.time = restarted_at + TTL_MS / 1_000 - 0.01
    (part,) = restarted.hold(5, 5, THEIRS)
    assert part.outcome is PartOutcome.NOK
    restarted.crash()  # Again: the time that is left counts, not all of it anew.
    restarted.clock.time += part.retry_ms / 1_000
    assert restarted.outcomes(restarted.hold(5, 5, THEIRS)) == [(5, 5, "OK", 0)]


def test_a_replica_that_was_closed_without_holds_grants_at_once(
    restarted: RestartedReplica,
) -> None:
    restarted.hold(0, 3)
    restarted.finish(0, 3)
    restarted.replica.close()
    restarted.open()
    assert restarted.outcomes(restarted.hold(4, 5)) == [(4, 5, "OK", 0)]


def test_a_replica_that_was_closed_with_holds_respects_and_counts_them(
    restarted: RestartedReplica,
) -> None:
    restarted.hold(0, 3)
    restarted.clock.time += 4
    restarted.replica.close()
    restarted.open()
    restarted.clock.time += 5.9
    assert restarted.outcomes(restarted.hold(0, 3, THEIRS))[0][2] == "NOK"
    restarted.clock.time += 0.2
    assert restarted.outcomes(restarted.hold(0, 3, THEIRS)) == [(0, 3, "OK", 1)]


def test_another_group_is_not_kept_waiting_by_a_restart(restarted: RestartedReplica) -> None:
    restarted.hold(0, 0)
    restarted.crash()
    other = ShareKey("other", "topic", UNPARTITIONED)
    (part,) = replica_calls.hold(
        restarted.replica, other, [OffsetRange(0, 0)], MINE, TTL_MS, PLENTY
    )
    assert part.outcome is PartOutcome.OK


def test_a_hold_that_expires_is_counted(restarted: RestartedReplica) -> None:
    restarted.hold(0, 3)
    restarted.clock.time += 11
    assert restarted.outcomes(restarted.hold(0, 5, THEIRS)) == [(0, 3, "OK", 1), (4, 5, "OK", 0)]
    assert restarted.outcomes(restarted.finish(0, 3)) == [(0, 3, "NOK", 1)]


def test_a_tombstone_is_written_for_all_or_for_nothing(restarted: RestartedReplica) -> None:
    restarted.hold(0, 1)
    restarted.hold(2, 3, THEIRS)
    entries = [LeaseEntry(0, 1, MINE), LeaseEntry(2, 3, MINE)]
    parts = replica_calls.tombstone(restarted.replica, KEY, entries)
    assert [part.outcome for part in parts] == [PartOutcome.NOK, PartOutcome.NOK]
    (state,) = replica_calls.read(restarted.replica, "group", ())
    assert (state.start_offset, state.finished, state.in_flight) == (0, (), 4)


def test_a_write_that_fails_changes_nothing(restarted: RestartedReplica) -> None:
    restarted.hold(0, 5)
    before = replica_calls.read(restarted.replica, "group", ())
    with restarted.break_disk():
        with pytest.raises((Internal, Unavailable)):
            restarted.finish(0, 3)
        with pytest.raises((Internal, Unavailable)):
            replica_calls.release(restarted.replica, KEY, [ReleaseEntry(4, 5, MINE, 2)])
    assert replica_calls.read(restarted.replica, "group", ()) == before
    assert restarted.outcomes(restarted.hold(0, 5, THEIRS))[0][2] == "NOK"
    assert restarted.outcomes(restarted.finish(0, 5)) == [(0, 5, "OK", 0)]


def test_a_hold_whose_end_could_not_be_written_is_over_at_the_next_call(
    restarted: RestartedReplica,
) -> None:
    restarted.hold(0, 1)
    restarted.clock.time += TTL_MS / 1_000
    with restarted.break_disk(), pytest.raises((Internal, Unavailable)):
        restarted.hold(0, 1, THEIRS)
    assert restarted.outcomes(restarted.hold(0, 1, THEIRS)) == [(0, 1, "OK", 1)]


def test_a_closed_replica_refuses(restarted: RestartedReplica) -> None:
    restarted.replica.close()
    with pytest.raises(Unavailable):
        restarted.hold(0, 0)


def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "holds.sqlite") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(Internal, match="format 99"):
        SqliteHoldStore(tmp_path / "holds.sqlite")


def test_a_group_that_is_forgotten_takes_no_expiry_of_another_with_it(
    restarted: RestartedReplica,
) -> None:
    restarted.hold(0, 1)
    restarted.clock.time += TTL_MS / 1_000
    replica_calls.forget(restarted.replica, "another")
    restarted.crash()
    (state,) = replica_calls.read(restarted.replica, "group", ())
    assert state.counts == (CountedRange(0, 1, 1),)


def test_nothing_of_a_group_that_was_forgotten_begins_anew(restarted: RestartedReplica) -> None:
    restarted.hold(0, 1)
    restarted.clock.time += TTL_MS / 1_000  # As it is forgotten, the end of the hold is told of.
    replica_calls.forget(restarted.replica, "group")
    late = [
        lambda: restarted.hold(0, 1),
        lambda: restarted.finish(0, 1),
        lambda: replica_calls.renew(restarted.replica, KEY, [LeaseEntry(0, 1, MINE)], TTL_MS),
        lambda: replica_calls.release(restarted.replica, KEY, [ReleaseEntry(0, 1, MINE, 1)]),
    ]
    for call in late:
        with pytest.raises(GroupNotFound):
            call()
    assert replica_calls.read(restarted.replica, "group", ()) == []
    restarted.crash()
    assert replica_calls.read(restarted.replica, "group", ()) == []


def test_of_a_group_just_the_partitions_asked_for_are_read(restarted: RestartedReplica) -> None:
    for group in ("group", "other"):
        for value in ('"a"', '"b"', '"c"'):
            key = ShareKey(group, "topic", Partition(value))
            replica_calls.tombstone(
                restarted.replica, key, (), [OffsetRange(0, 4 if group == "group" else 6)]
            )
    states = replica_calls.read(
        restarted.replica, "group", [Partition('"c"'), Partition('"d"'), Partition('"a"')]
    )
    assert [(state.partition, state.start_offset) for state in states] == [
        ('"c"', 5),
        ('"d"', 0),
        ('"a"', 5),
    ]
    assert sorted(
        state.partition for state in replica_calls.read(restarted.replica, "other", ())
    ) == [
        '"a"',
        '"b"',
        '"c"',
    ]


@pytest.fixture
def stale_store(tmp_path: Path) -> StaleStore:
    return StaleStore(tmp_path / "holds.sqlite")


def test_a_read_of_holds_tells_what_is_delayed_as_few_ranges(restarted: RestartedReplica) -> None:
    restarted.hold(0, 9)
    delays = (500, 60_000, 70_000, 1_000, 3_000)
    entries = [
        ReleaseEntry(offset, offset, MINE, 1, delay_ms) for offset, delay_ms in enumerate(delays)
    ]
    replica_calls.release(restarted.replica, KEY, entries)
    restarted.finish(6, 6)
    restarted.clock.time += 0.75
    (state,) = replica_calls.ask(
        restarted.replica, ReadRequest(KEY.group_uuid, (UNPARTITIONED,), with_holds=True)
    )
    assert [(each.first, each.last, each.left_ms) for each in state.delays] == [
        (1, 2, 2_000),
        (3, 3, 250),
        (4, 4, 2_000),
    ]
    assert [(each.first, each.last) for each in state.holds] == [(5, 5), (7, 9)]
    assert state.in_flight == 4


def test_a_read_of_holds_tells_of_a_bounded_number_of_ranges_of_all_partitions(
    restarted: RestartedReplica,
) -> None:
    many = HOLDS_TOLD_MAX // 2 + 1
    for value in ('"a"', '"b"'):
        key = ShareKey("group", "topic", Partition(value))
        ranges = [OffsetRange(offset, offset) for offset in range(0, 4 * many, 2)]
        replica_calls.hold(restarted.replica, key, ranges, MINE, TTL_MS, 2 * many)
        entries = [ReleaseEntry(each.first, each.last, MINE, 1, 60_000) for each in ranges[:many]]
        replica_calls.release(restarted.replica, key, entries)
    states = replica_calls.ask(restarted.replica, ReadRequest("group", (), with_holds=True))
    assert sum(len(state.holds) for state in states) == HOLDS_TOLD_MAX
    assert sum(len(state.delays) for state in states) == HOLDS_TOLD_MAX


def test_calls_are_refused_while_a_replica_reads_its_store_again(
    stale_store: StaleStore,
) -> None:
    with (
        closing(Replica(lambda: stale_store, HandClock(), lock_wait_seconds=0.01)) as under_test,
        ThreadPoolExecutor(1) as other,
    ):
        stale_store.stale = True
        first = other.submit(replica_calls.read, under_test, "group", [UNPARTITIONED])
        assert stale_store.reading.wait(30)
        try:
            with pytest.raises(Unavailable, match="reads"):
                replica_calls.read(under_test, "group", [UNPARTITIONED])
        finally:
            stale_store.go_on.set()
        assert first.result(30) == replica_calls.read(under_test, "group", [UNPARTITIONED])


def test_a_replica_whose_lease_ended_while_it_read_its_store_again_grants_nothing(
    stale_store: StaleStore,
) -> None:
    with closing(Replica(lambda: stale_store, HandClock())) as under_test:

        def hold() -> list[RangeAnswer]:
            return replica_calls.hold(under_test, KEY, [OffsetRange(0, 0)], MINE, TTL_MS, PLENTY)

        stale_store.stale = True
        with ThreadPoolExecutor(1) as other:
            held = other.submit(hold)
            assert stale_store.reading.wait(30)
            stale_store.is_overdue = True
            stale_store.go_on.set()
            with pytest.raises(Unavailable, match="not renewed"):
                held.result(30)
        stale_store.is_overdue = False
        (part,) = hold()
        assert part.outcome is PartOutcome.OK


# Requests of many threads and partitions share a write of their replica. ##########################

WORKERS = 16


class SlowStore(SqliteHoldStore):
    """Counts its writes, which wait while they are told to."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.writes = 0
        self.fails = False
        self.begun = threading.Event()
        self.go = threading.Event()
        self.go.set()

    def write(self, writes: Sequence[PartitionWrite], marks: dict[str, Mark | None]) -> None:
        self.writes += 1
        self.begun.set()
        assert self.go.wait(30)
        if self.fails:
            raise Internal("the disk failed")
        super().write(writes, marks)


def lease(number: int) -> Lease:
    return Lease("c", number, "m")


def held(store: SlowStore) -> Replica:
    """Return a replica with a message held for each worker."""
    replica = Replica(lambda: store)
    requests = [
        HoldRequest(KEY, (OffsetRange(number, number),), lease(number), 60_000, 1_000)
        for number in range(WORKERS)
    ]
    answers = replica.perform(requests)
    assert [part.outcome for answer in answers for part in answer] == [PartOutcome.OK] * WORKERS  # pyright: ignore[reportGeneralTypeIssues, reportAttributeAccessIssue, reportUnknownVariableType]
    return replica


def finish(replica: Replica, number: int) -> PartOutcome:
    (part,) = replica_calls.tombstone(replica, KEY, [LeaseEntry(number, number, lease(number))])
    return part.outcome


def test_what_comes_during_a_write_shares_the_next(tmp_path: Path) -> None:
    store = SlowStore(tmp_path / "holds.sqlite")
    replica = held(store)
    store.writes = 0
    store.go.clear()
    store.begun.clear()
    with ThreadPoolExecutor(WORKERS) as threads:
        first = threads.submit(finish, replica, 0)
        assert store.begun.wait(30)
        others = [threads.submit(finish, replica, number) for number in range(1, WORKERS)]
        while len(replica._waiting) < WORKERS - 1:  # pyright: ignore[reportPrivateUsage]
            threading.Event().wait(0.001)
        store.go.set()
        assert {each.result(30) for each in (first, *others)} == {PartOutcome.OK}
    assert store.writes == 2
    (state,) = replica_calls.read(replica, "group", [UNPARTITIONED])
    assert state.start_offset == WORKERS
    replica.close()


def test_a_write_that_fails_fails_all_that_share_it_and_changes_nothing(tmp_path: Path) -> None:
    store = SlowStore(tmp_path / "holds.sqlite")
    replica = held(store)
    store.fails = True
    requests = [
        TombstoneRequest(KEY, (LeaseEntry(number, number, lease(number)),)) for number in range(3)
    ]
    assert [type(answer) for answer in replica.perform(requests)] == [Internal] * 3
    store.fails = False
    (state,) = replica_calls.read(replica, "group", [UNPARTITIONED])
    assert (state.start_offset, state.in_flight) == (0, WORKERS)
    assert finish(replica, 0) is PartOutcome.OK
    replica.close()


def test_what_a_write_has_made_durable_or_not_is_not_written_again(tmp_path: Path) -> None:
    store = SlowStore(tmp_path / "holds.sqlite")
    replica = held(store)
    replica_calls.read(replica, "group")
    assert store.writes == 1
    store.fails = True
    with pytest.raises(Internal):
        replica_calls.hold(
            replica, ShareKey("other", "topic", A), [OffsetRange(0, 0)], MINE, TTL_MS, PLENTY
        )
    store.fails, store.writes = False, 0
    replica_calls.read(replica, "group")
    assert store.writes == 0
    replica.close()


def test_a_group_that_was_forgotten_fails_alone(tmp_path: Path) -> None:
    store = SlowStore(tmp_path / "holds.sqlite")
    replica = held(store)
    replica_calls.forget(replica, "gone")
    gone = ShareKey("gone", "topic", UNPARTITIONED)
    refused, done = replica.perform(
        [
            HoldRequest(gone, (OffsetRange(0, 0),), lease(0), 60_000, 10),
            TombstoneRequest(KEY, (LeaseEntry(0, 0, lease(0)),)),
        ]
    )
    assert isinstance(refused, GroupNotFound)
    assert not isinstance(done, WingsError)
    replica.close()


def test_acknowledgements_of_many_partitions_and_requests_share_a_write(
    share: ShareUnderTest, calls: Calls
) -> None:
    if share.replica_count > 1:
        pytest.skip("requests to other processes go at one time, and may share writes there")
    topic = share.metadata.create_topic("key")
    for partition in (A, B):
        share.metadata.push(topic, 4, partition)
    group = share.group(topic=topic)
    leased = [each for partition in (A, B) for each in share.acquire(group, 4, partition=partition)]
    writes = calls.heard(share.stores[0], "write")
    of_a, of_b = leased
    results, _ = share.coordinator.settle(
        group,
        [
            ("me", [entry_of(of_a, "accept", last=1), entry_of(of_b, "accept")]),
            (
                "me",
                [
                    entry_of(of_a, "accept", first=2, lease="x.1.y"),
                    entry_of(of_a, "accept", first=2),
                ],
            ),
            ("me", [entry_of(of_a, "accept", first=2)]),
        ],
        (),
    )
    errors = [[type(result) for result in of_request] for of_request in results]
    assert errors == [[type(None)] * 2, [InvalidRecordState] * 2, [type(None)]]
    assert len(writes) == 1
