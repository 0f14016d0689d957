"""A crash between a dead letter and its tombstone leaves one dead letter."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from fix_share import asking

from wings_core.contracts.reads import ReadOptions
from wings_core.data_directory import DataDirectory
from wings_core.deployments import OneDirectory
from wings_core.errors import Unavailable, WingsError
from wings_core.fetch.cursors import PartitionCursor
from wings_core.fetch.fetcher import Cancel, Read
from wings_core.fetch.selection import Selection
from wings_core.ingest.pending import PushStream
from wings_core.ingest.prepare import Preparer, PushOptions
from wings_core.log import Log
from wings_core.model import LeasedRange, ShareConfig, ShareGroup
from wings_core.names import TopicName
from wings_core.partitions import UNPARTITIONED
from wings_core.share.model import Acknowledgement
from wings_core.share.replica.replica import Replica
from wings_core.share.replica.requests import RangeAnswer, TombstoneRequest
from wings_core.times import Deadline

ORDERS, DEAD = TopicName.parse("orders"), TopicName.parse("dead")
LOCK_MS = 6_000
"""What is acquired is rejected before this has passed, also where the machine stalls."""


@contextmanager
def opened(path: Path) -> Generator[Log]:
    with DataDirectory.open(path) as directory:
        log = Log.open(OneDirectory(directory))
        try:
            yield log
        finally:
            log.close()


def acquire(log: Log, group: ShareGroup) -> list[LeasedRange]:
    return log.shares.coordinator.acquire(
        asking(group, 100, member="one"), Deadline.after(20), Cancel()
    )


def reject(log: Log, group: ShareGroup, leased: LeasedRange) -> WingsError | None:
    entry = Acknowledgement.of(leased, "reject")
    (result,) = log.shares.coordinator.acknowledge(group, "one", [entry])
    return result


def letters(log: Log) -> list[int]:
    topic = log.admin.get_topic(DEAD)
    state = log.registry.partition_state(topic.uuid, UNPARTITIONED)
    selection = Selection.of(topic, ReadOptions(columns=("source_offset",)))
    read = Read.of(topic, [PartitionCursor(UNPARTITIONED, 0, state.next_offset)], selection)
    columns: list[Any] = [chunk.batch.column(0) for chunk in log.fetcher.scan(read, Cancel())]
    return [number.as_py() for column in columns for number in column]


def test_a_crash_between_dead_letter_and_tombstone_leaves_one_dead_letter(
    tmp_path: Path, monkeypatch: Any
) -> None:
    with opened(tmp_path / "data") as log:
        topic = log.admin.create_topic(ORDERS, pa.schema([pa.field("n", pa.int64())]))
        batch = pa.record_batch({"n": pa.array(range(5), pa.int64())})
        prepared = Preparer(topic, log.limits).prepare(batch, PushOptions())
        log.group_commit.submit(PushStream(), prepared, awaited=True).accepted()
        config = ShareConfig(start="earliest", dlq_topic="dead", lock_duration_ms=LOCK_MS)
        group = log.shares.create(ORDERS, "billing", config)
        (leased,) = acquire(log, group)

        def crash(replica: Replica, request: TombstoneRequest, now: float) -> list[RangeAnswer]:
            raise Unavailable("the process died")

        with monkeypatch.context() as patch:
            patch.setattr(Replica, "_tombstone", crash)
            assert isinstance(reject(log, group, leased), Unavailable)
        assert letters(log) == [0, 1, 2, 3, 4]
    with opened(tmp_path / "data") as log:
        group = log.shares.find(ORDERS, "billing")
        again: list[LeasedRange] = []
        while sum(each.messages for each in again) < 5:
            again += acquire(log, group)
        assert all(reject(log, group, each) is None for each in again)
        assert letters(log) == [0, 1, 2, 3, 4]
        (state,) = log.shares.coordinator.positions.describe(group)
        assert (state.lag, state.start_offset) == (0, 5)
