"""Messages that are not delivered before their times, over one replica and over three."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import pyarrow as pa
import pytest
from fix_share import ShareUnderTest, asking, spans

from wings_core.errors import InvalidArgument, Unavailable
from wings_core.model import ShareGroup, Topic, TopicConfig
from wings_core.names import TopicName
from wings_core.partitions import UNPARTITIONED, Partition
from wings_core.share.delivery.record_fetcher import LogTimes, check_column, microseconds
from wings_core.share.state import partition
from wings_core.share.state.partition import MessageState, MessageStates


class Times:
    """The times of a share's messages by offset, in seconds after the clock's beginning."""

    def __init__(self, share: ShareUnderTest, *seconds: float | None) -> None:
        start = share.clock.wall_us()
        self.times = [None if s is None else start + int(s * 1_000_000) for s in seconds]
        self.reads = 0
        self.error: Unavailable | None = None
        share.times = self

    def __call__(
        self, topic: Topic, partition: Partition, column: str, first: int, last: int
    ) -> pa.Int64Array:
        assert column == "at"
        if self.error is not None:
            raise self.error
        self.reads += 1
        return pa.array(self.times[first : last + 1], pa.int64())


def acquire(share: ShareUnderTest, group: ShareGroup, **changes: Any) -> list[tuple[int, int, int]]:
    coordinator = changes.pop("coordinator", share.coordinator)
    request = asking(group, 100)
    return spans(coordinator.acquire_now(replace(request, **changes)))


def test_a_message_is_delivered_from_its_time_on(share: ShareUnderTest) -> None:
    share.metadata.push(share.topic, 6)
    group, times = share.group(deliver_at_column="at"), Times(share, 9, None, 4, 4, 0, 9)
    assert acquire(share, group) == [(1, 1, 1), (4, 4, 1)]
    assert acquire(share, group) == []
    (state,) = share.coordinator.positions.describe(group)
    assert (state.in_flight, state.lag) == (2, 6)
    share.clock.time += 3.9
    assert acquire(share, group) == []
    share.clock.time += 0.2
    reads = times.reads
    assert acquire(share, group) == [(2, 3, 1)]
    share.clock.time += 5
    assert acquire(share, group) == [(0, 0, 1), (5, 5, 1)]
    assert times.reads == reads  # What was looked at is not read again.


def test_another_coordinator_keeps_to_the_times_too(share: ShareUnderTest) -> None:
    share.metadata.push(share.topic, 4)
    group = share.group(deliver_at_column="at")
    Times(share, 60, 0, 60, 0)
    (first, *_) = share.coordinator.acquire_now(asking(group, 1))
    assert share.acknowledge(group, first, "release") is None
    other = share.open_coordinator()
    assert acquire(share, group, coordinator=other) == [(1, 1, 2)]
    assert acquire(share, group, coordinator=other) == [(3, 3, 1)]
    share.clock.time += 61
    (head, *_) = acquire(share, group, coordinator=other)
    assert head[:2] == (0, 0)


def test_in_order_a_message_whose_time_has_not_come_holds_back_what_follows(
    share: ShareUnderTest,
) -> None:
    share.metadata.push(share.topic, 4)
    group = share.group(deliver_at_column="at", ordering="partition")
    Times(share, 0, 5, None, 0)
    (first,) = share.coordinator.acquire_now(asking(group, 100))
    assert spans([first]) == [(0, 0, 1)]
    assert share.acknowledge(group, first, "accept") is None
    assert acquire(share, group) == []
    share.clock.time += 6
    assert acquire(share, group) == [(1, 3, 1)]


def test_times_that_cannot_be_read_deliver_nothing_and_are_read_again(
    share: ShareUnderTest,
) -> None:
    share.metadata.push(share.topic, 2)
    group, times = share.group(deliver_at_column="at"), Times(share, 0, 0)
    times.error = Unavailable("the store is away")
    with pytest.raises(Unavailable):
        acquire(share, group)
    # Beside others, no times are read.
    assert share.coordinator.settle(group, (), [asking(group, 9)])[1] == [[]]
    times.error = None
    assert acquire(share, group) == [(0, 1, 1)]


@pytest.fixture
def ten_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition lets ten messages wait for their time."""
    monkeypatch.setattr(partition, "SCHEDULED_MAX", 10)


@pytest.mark.usefixtures("ten_wait")
def test_messages_that_retention_removed_while_they_waited_make_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partition, "CHECKED_MAX", 10)
    subject = MessageStates(0)
    subject.deliver_by("at")
    subject.check(0, pa.array([50, 99] * 5, pa.int64()), 1)
    assert subject.unchecked(100) is None
    subject.advance(1.0, 9, 1)
    assert subject.unchecked(100) == (10, 19)
    assert subject.schedule.messages == 1
    assert subject.schedule.next_us == 99


@pytest.mark.usefixtures("ten_wait")
def test_more_than_so_many_that_wait_let_nothing_behind_them_be_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partition, "CHECKED_MAX", 5)
    subject = MessageStates(0)
    subject.deliver_by("at")
    for number in (0, 1):
        assert subject.unchecked(100) == (5 * number, 5 * number + 4)
        subject.check(5 * number, pa.array([50] * 5, pa.int64()), 1)
    assert subject.unchecked(100) is None
    assert not subject.has_available(100, 5)
    subject.finish(0, 9)
    subject.advance(1.0, 0, 50)
    assert subject.messages(MessageState.SCHEDULED) == 0
    assert subject.unchecked(100) == (10, 14)


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_of_every_unit_are_microseconds(unit: Any, zone: Any) -> None:
    kind = pa.timestamp(unit, zone)
    moment = datetime(2026, 11, 20, 12, tzinfo=UTC)
    values = pa.array([int(moment.timestamp()), None, -1], pa.int64())
    seconds = values.cast(pa.timestamp("s")).cast(kind)
    assert microseconds(seconds).to_pylist() == [
        int(moment.timestamp()) * 1_000_000,
        None,
        -1_000_000,
    ]


def test_a_time_is_never_rounded_down_and_never_wraps() -> None:
    fine = pa.array([1, 1_000, 1_001, -1], pa.int64()).cast(pa.timestamp("ns"))
    assert microseconds(fine).to_pylist() == [1, 1, 2, 0]
    far = pa.array([1 << 62], pa.int64()).cast(pa.timestamp("s"))
    assert microseconds(far)[0].as_py() > 1 << 62


def topic_of(**columns: pa.DataType) -> Topic:
    return Topic(TopicName.parse("t"), "u", pa.schema(columns), None, TopicConfig(), 0)


def test_a_column_without_times_is_refused() -> None:
    topic = topic_of(at=pa.timestamp("us", "UTC"), n=pa.int64())
    check_column(topic, "at")
    with pytest.raises(InvalidArgument, match="has no column 'when'"):
        check_column(topic, "when")
    with pytest.raises(InvalidArgument, match="'n' is int64, and no timestamp"):
        check_column(topic, "n")


def test_of_a_topic_that_has_lost_its_column_all_is_due() -> None:
    times = LogTimes(cast("Any", None), cast("Any", None))
    found = times(topic_of(n=pa.int64()), UNPARTITIONED, "at", 3, 5)
    assert found.to_pylist() == [None] * 3
