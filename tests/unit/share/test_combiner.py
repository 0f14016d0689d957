"""Requests of many threads and partitions share a write of their replica."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import replica_calls
from fix_calls import Calls
from fix_metadata import A, B
from fix_share import ShareUnderTest, entry_of

from wings_core.errors import GroupNotFound, Internal, InvalidRecordState, WingsError
from wings_core.model import Lease
from wings_core.partitions import UNPARTITIONED
from wings_core.share.model import OffsetRange, ShareKey
from wings_core.share.replica.replica import Replica
from wings_core.share.replica.requests import HoldRequest, LeaseEntry, PartOutcome, TombstoneRequest
from wings_core.share.replica.sqlite_store import SqliteHoldStore
from wings_core.share.replica.store import Mark, PartitionWrite

WORKERS = 16
KEY = ShareKey("group", "topic", UNPARTITIONED)


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
