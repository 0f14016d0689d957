"""The fetcher over a real log: several partitions of one request, and waits."""

import math
import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from fix_calls import Calls

from wings_core.data_directory import DataDirectory
from wings_core.deployments import OneDirectory
from wings_core.errors import InvalidArgument, Unavailable
from wings_core.fetch.begins import TimeOffsets
from wings_core.fetch.cursors import PartitionCursor
from wings_core.fetch.fetcher import UNLIMITED, Cancel, Read
from wings_core.fetch.state import FetchState
from wings_core.ingest.pending import PushStream
from wings_core.ingest.prepare import Preparer, PushOptions
from wings_core.kafka_topics import BINARY_SCHEMA
from wings_core.limits import Limits
from wings_core.log import Log
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.model import (
    Accepted,
    CommitResult,
    KafkaConfig,
    Located,
    Rejected,
    Topic,
    TopicConfig,
)
from wings_core.names import TopicName
from wings_core.partitions import Partition
from wings_core.times import Deadline

SCHEMA = pa.schema([("n", pa.int64()), ("key", pa.int32())])


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with DataDirectory.open(tmp_path / "data") as directory:
        opened = Log.open(OneDirectory(directory))
        yield opened
        opened.close()


@pytest.fixture
def topic(log: Log) -> Topic:
    return log.admin.create_topic(TopicName.parse("t"), SCHEMA, "key")


def push(log: Log, topic: Topic, key: int, *values: int) -> None:
    arrays = [pa.array(values, pa.int64()), pa.array([key] * len(values), pa.int32())]
    rows = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
    prepared = Preparer(topic, log.limits).prepare(rows, PushOptions())
    log.group_commit.submit(PushStream(), prepared, awaited=True).accepted()


class CountedRegistry:
    """A registry that notes the calls made of it."""

    def __init__(self, log: Log) -> None:
        self.calls: list[str] = []
        self._registry = log.registry

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self._registry, name)


def test_where_partitions_begin_at_a_time_takes_two_looks_however_many_they_are(
    log: Log, topic: Topic
) -> None:
    for key in range(40):
        push(log, topic, key, 1, 2)
    registry = CountedRegistry(log)
    offsets = TimeOffsets(log.store, cast("OffsetRegistry", registry))
    positions = [(Partition(str(key)), 0 if key % 2 else 1 << 62) for key in range(41)]
    found = offsets.offsets_for_timestamps(topic, positions)
    assert found == {Partition(str(key)): 0 if key % 2 or key == 40 else 2 for key in range(41)}
    assert registry.calls == ["offsets_for_timestamps", "locate_many"]


class Readers:
    """Reads some partitions on a thread each, under one state."""

    def __init__(self, log: Log, topic: Topic, state: FetchState, *keys: int) -> None:
        self.values: dict[int, list[int]] = {key: [] for key in keys}
        self.cancels = {key: Cancel() for key in keys}
        self.errors: list[BaseException] = []

        def read(key: int) -> None:
            try:
                for batch, start, end in log.fetcher.fetch(
                    topic, Partition(str(key)), 0, state, self.cancels[key]
                ):
                    assert end - start + 1 == batch.num_rows
                    self.values[key].extend(value.as_py() for value in batch["n"])
            except BaseException as error:  # noqa: BLE001 - looked at by the test
                self.errors.append(error)

        self.threads = [threading.Thread(target=read, args=(key,)) for key in keys]
        for thread in self.threads:
            thread.start()

    def join(self) -> None:
        for thread in self.threads:
            thread.join(timeout=20)
            assert not thread.is_alive(), "a partition still waits"

    @property
    def total(self) -> int:
        return sum(len(values) for values in self.values.values())


def test_the_sum_over_partitions_reaches_the_maximum_exactly(log: Log, topic: Topic) -> None:
    for key in range(4):
        for start in range(0, 50, 10):
            push(log, topic, key, *range(start, start + 10))
    state = FetchState(Deadline.after(20), 1, 77, partitions=4)
    readers = Readers(log, topic, state, *range(4))
    readers.join()
    assert not readers.errors
    assert readers.total == state.delivered == 77
    for values in readers.values.values():
        assert values == list(range(len(values)))


def test_enough_in_one_partition_ends_the_waits_of_the_others(log: Log, topic: Topic) -> None:
    state = FetchState(Deadline.after(60), 3, 10, partitions=3)
    readers = Readers(log, topic, state, 0, 1, 2)
    push(log, topic, 1, 5)
    push(log, topic, 1, 6, 7)
    readers.join()
    assert not readers.errors
    assert readers.values == {0: [], 1: [5, 6, 7], 2: []}


def test_the_minimum_is_collected_by_the_whole_request(log: Log, topic: Topic) -> None:
    state = FetchState(Deadline.after(60), 4, 10, partitions=2)
    readers = Readers(log, topic, state, 0, 1)
    for value in (1, 2):
        push(log, topic, 0, value)
        push(log, topic, 1, value)
    readers.join()
    assert readers.total == 4


def test_a_cancelled_wait_ends_with_its_error(log: Log, topic: Topic) -> None:
    state = FetchState(Deadline.after(60), 1, 10)
    readers = Readers(log, topic, state, 0)
    readers.cancels[0].cancel(Unavailable("the server is stopping"))
    readers.join()
    assert [type(error) for error in readers.errors] == [Unavailable]


def test_commits_between_look_and_wait_are_not_missed(log: Log, topic: Topic) -> None:
    for round_number in range(50):
        key = 100 + round_number
        state = FetchState(Deadline.after(30), 1, 10)
        readers = Readers(log, topic, state, key)
        push(log, topic, key, round_number)  # At any moment of the reader's first steps.
        readers.join()
        assert readers.values[key] == [round_number]


def test_what_one_look_found_to_be_all_is_not_looked_for_again(
    log: Log, topic: Topic, calls: Calls
) -> None:
    push(log, topic, 0, 1, 2)
    looks = calls.heard(log.registry, "locate")
    readers = Readers(log, topic, FetchState(Deadline.after(20), 1, 10), 0)
    readers.join()
    assert (readers.values, [look[2] for look in looks]) == ({0: [1, 2]}, [0])


def test_after_a_look_from_before_the_request_what_came_since_is_delivered_too(
    log: Log, topic: Topic, calls: Calls
) -> None:
    """A fetch during another's look, over a network, gets that look's answer."""
    push(log, topic, 0, 1)
    located = log.registry.locate(topic.uuid, Partition("0"), 0, 10)
    shared = replace(located, asked_at=time.monotonic())
    push(log, topic, 0, 2)

    def locate(found: Located, _: str, __: Partition, offset: int, *___: object) -> Located:
        return shared if offset == 0 else found

    calls.change(log.registry, "locate", locate)
    readers = Readers(log, topic, FetchState(Deadline.after(0), 1, 10), 0)
    readers.join()
    assert readers.values == {0: [1, 2]}


def test_a_scan_that_metadata_leaves_before_its_end_fails_and_passes_for_no_whole(
    log: Log, topic: Topic, calls: Calls
) -> None:
    """A node that cannot ask gets what it remembers: a log that ended earlier."""
    push(log, topic, 0, 1)
    remembered = log.registry.locate(topic.uuid, Partition("0"), 1, 10)
    push(log, topic, 0, 2, 3)

    def locate(found: Located, _: str, __: Partition, offset: int, *___: object) -> Located:
        return replace(remembered, asked_at=-math.inf) if offset == 1 else found

    calls.change(log.registry, "locate", locate)
    read = Read.of(topic, [PartitionCursor(Partition("0"), 1, 3)])
    with pytest.raises(Unavailable, match="cannot be asked where"):
        list(log.fetcher.scan(read, Cancel()))


def test_followers_that_share_reads_miss_nothing_whoever_pushes(log: Log, topic: Topic) -> None:
    """Commits that come between another follower's look and the own are not lost."""
    pushes, pushers, followers = 40, 3, 6

    def follow(_: int) -> list[Any]:
        read = Read.of(topic, [PartitionCursor(Partition("7"), 0)])
        state = FetchState(Deadline.after(60), UNLIMITED, UNLIMITED)
        found: list[Any] = []
        for chunk in log.fetcher.read(read, state, Cancel()):
            rows = chunk.batch.num_rows
            expected = (Partition("7"), len(found), len(found) + rows - 1, rows)
            assert list(chunk.ranges) == [expected]
            found += chunk.batch.column("n").to_pylist()
            if len(found) == pushes * pushers:
                break
        return found

    with ThreadPoolExecutor(pushers + followers) as threads:
        following = [threads.submit(follow, number) for number in range(followers)]
        pushed = [
            threads.submit(lambda: [push(log, topic, 7, value) for value in range(pushes)])
            for _ in range(pushers)
        ]
        for each in pushed:
            each.result()
        first, *others = [each.result() for each in following]
    assert sorted(first) == sorted([*range(pushes)] * pushers)
    assert all(other == first for other in others)


# The first message at or after a time by a column of its own, against a look at all rows. #########

NAME = TopicName.parse("t")
ZERO = Partition("0")
CONFIG = TopicConfig(kafka=KafkaConfig(partitions=1), tier_after_ms=0, segment_bytes=1)


def push_at(log: Log, topic: Topic, times: Sequence[int | None]) -> CommitResult:
    """Push a row for each time, in milliseconds; what the producer says of the batch is earlier."""
    rows = [{"partition": 0, "timestamp": time} for time in times]
    batch = pa.RecordBatch.from_pylist(rows, schema=BINARY_SCHEMA)
    prepared = Preparer(topic, log.limits).prepare(batch, PushOptions(timestamp=0))
    (result,) = log.group_commit.submit(PushStream(), prepared, awaited=True).outcomes()
    return result


def first_at(times: Sequence[int | None], time: int) -> tuple[int, int] | None:
    late = ((at, each) for at, each in enumerate(times) if each is not None and each >= time)
    return next(((at, each * 1_000) for at, each in late), None)


@pytest.mark.parametrize("seed", range(6))
def test_the_first_message_at_a_time_is_found_whatever_the_order(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    nulls = rng.choice([0.0, 0.3, 1.0])
    with (
        closing(DataDirectory.open(tmp_path)) as directory,
        closing(Log.open(OneDirectory(directory), Limits(maintenance_seconds=100_000))) as log,
    ):
        topic = log.admin.create_topic(NAME, BINARY_SCHEMA, "partition", CONFIG)
        assert log.fetcher.offset_at_time(topic, ZERO, 0) is None
        times: list[int | None] = []
        for number in range(12):
            some = [rng.randrange(1_000) for _ in range(rng.randrange(1, 6))]
            batch = [None if rng.random() < nulls * (number % 3 == 2) else each for each in some]
            assert isinstance(push_at(log, topic, batch), Accepted)
            times += batch
            if number == 6:
                log.maintainer.run()
                state = log.metadata.maintenance.topic_state(topic.uuid)
                assert state.sums.merged_pages > 0
        for time in range(0, 1_001, 7):
            for early in (0, 1, 999):
                found = log.fetcher.offset_at_time(topic, ZERO, time * 1_000 - early)
                assert found == first_at(times, time)


def test_a_time_far_ahead_is_refused(tmp_path: Path) -> None:
    with (
        closing(DataDirectory.open(tmp_path)) as directory,
        closing(Log.open(OneDirectory(directory), Limits())) as log,
    ):
        topic = log.admin.create_topic(NAME, BINARY_SCHEMA, "partition", CONFIG)
        for time in (1 << 42, (1 << 63) - 1):
            refused = push_at(log, topic, [0, time])
            assert isinstance(refused, Rejected)
            assert isinstance(refused.error, InvalidArgument)
        assert isinstance(push_at(log, topic, [-(1 << 62)]), Accepted)
