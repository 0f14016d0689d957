"""Order and times of groups with tombstones in PostgreSQL, where another process takes over."""

from collections.abc import Generator
from pathlib import Path

import pyarrow as pa
import pytest
from fix_metadata import open_sqlite
from fix_share import PostgresHolds, ShareUnderTest, asking, spans

from wings_core.model import ShareGroup, Topic
from wings_core.partitions import Partition
from wings_core.share.replica.replica import Replica

LOCK_MS = 10_000
RESTART_SECONDS = 25.0
"""A lock, and what a restart adds to it."""


@pytest.fixture
def share(tmp_path: Path, postgres_holds: PostgresHolds) -> Generator[ShareUnderTest]:
    class OverPostgres(ShareUnderTest):
        def open_replica(self, number: int) -> Replica:
            store = self.stores[number] = postgres_holds.open()
            return Replica(lambda: store, self.clock)

    with open_sqlite(tmp_path) as metadata:
        under_test = OverPostgres(metadata, tmp_path, 1)
        try:
            yield under_test
        finally:
            under_test.close()


def fail_over(share: ShareUnderTest, holds: PostgresHolds) -> None:
    """Let another process take over while the one before does not know it yet."""
    holds.end_lease()
    share.replicas.append(share.open_replica(0))
    share.links[0].replica = share.replicas[-1]


def test_order_is_kept_by_the_process_that_takes_over(
    share: ShareUnderTest, postgres_holds: PostgresHolds
) -> None:
    share.metadata.push(share.topic, 6)
    group = share.group(ordering="partition", lock_duration_ms=LOCK_MS)
    (first,) = share.acquire(group, 2)
    assert share.acknowledge(group, first, "accept", last=0) is None
    fail_over(share, postgres_holds)
    other = share.open_coordinator()
    assert share.acquire(group, coordinator=other) == [], "1 may be held still"
    assert share.acknowledge(group, first, "accept", first=1) is not None
    share.clock.time += RESTART_SECONDS
    (second,) = share.acquire(group, 2, coordinator=other)
    assert spans([second])[0][:2] == (1, 2)
    assert share.acknowledge(group, second, "accept", last=1, coordinator=other) is None
    error = share.acknowledge(group, second, "release", coordinator=other, first=2, delay_ms=5_000)
    assert error is None
    assert share.acquire(group, coordinator=other) == [], "what is delayed holds back the rest"
    fail_over(share, postgres_holds)
    last = share.open_coordinator()
    share.clock.time += RESTART_SECONDS
    (third,) = share.acquire(group, 9, coordinator=last)
    # Its delivery was counted durably as it was released, so that it comes with none that has less.
    assert spans([third]) == [(2, 2, second.delivery_count + 1)]
    assert share.acknowledge(group, third, "accept", coordinator=last) is None
    assert spans(share.acquire(group, 9, coordinator=last)) == [(3, 5, 1)]


def test_times_are_kept_by_the_process_that_takes_over(
    share: ShareUnderTest, postgres_holds: PostgresHolds
) -> None:
    share.metadata.push(share.topic, 4)
    group = share.group(deliver_at_column="at", lock_duration_ms=LOCK_MS)
    start = share.clock.wall_us()
    due = [90, None, 60, 0]

    def times(
        topic: Topic, partition: Partition, column: str, first: int, last: int
    ) -> pa.Int64Array:
        del topic, partition, column
        found = [None if each is None else start + each * 1_000_000 for each in due]
        return pa.array(found[first : last + 1], pa.int64())

    share.times = times

    def acquired(group: ShareGroup) -> list[tuple[int, int]]:
        request = asking(group, 100)
        found = coordinator.acquire_now(request)
        for leased in found:
            assert share.acknowledge(group, leased, "accept", coordinator=coordinator) is None
        return [(leased.start_offset, leased.end_offset) for leased in found]

    coordinator = share.coordinator
    assert acquired(group) == [(1, 1), (3, 3)]
    fail_over(share, postgres_holds)
    coordinator = share.open_coordinator()
    share.clock.time += RESTART_SECONDS
    assert acquired(group) == []
    share.clock.time += 60 - RESTART_SECONDS
    assert acquired(group) == [(2, 2)]
    fail_over(share, postgres_holds)
    coordinator = share.open_coordinator()
    share.clock.time += RESTART_SECONDS
    assert acquired(group) == []
    share.clock.time += 30 - RESTART_SECONDS
    assert acquired(group) == [(0, 0)]
    (state,) = coordinator.positions.describe(group)
    assert (state.start_offset, state.lag) == (4, 0)
