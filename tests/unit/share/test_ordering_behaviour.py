"""Groups whose partitions are worked on in order, over one replica in process and over three."""

from pathlib import Path
from typing import cast

import pytest
import replica_calls
from fix_metadata import A, B
from fix_share import HandClock, ShareUnderTest, asking, spans

from wings_core.model import Lease, LeasedRange, ShareConfig, ShareGroup
from wings_core.share.coordinator import finalize
from wings_core.share.model import OffsetRange, ShareKey
from wings_core.share.replica.replica import Replica
from wings_core.share.replica.requests import HoldRequest, PartOutcome, RangeAnswer
from wings_core.share.replica.sqlite_store import SqliteHoldStore


def of(leased: LeasedRange) -> tuple[str, int, int, int]:
    return leased.partition, leased.start_offset, leased.end_offset, leased.delivery_count


def test_a_partition_has_one_lease_at_a_time_and_others_run_on(share: ShareUnderTest) -> None:
    topic = share.metadata.create_topic("key")
    share.metadata.push(topic, 6, A)
    group = share.group(topic=topic, ordering="partition")
    (first,) = share.acquire(group, 2, member="one")
    assert of(first) == (A, 0, 1, 1)
    share.metadata.push(topic, 2, B)
    (other,) = share.acquire(group, 2, member="two")
    assert of(other) == (B, 0, 1, 1)
    assert share.acquire(group, member="three") == []
    assert share.acknowledge(group, first, "accept", member="one", last=0) is None
    assert share.acquire(group, member="three") == []
    assert share.acknowledge(group, first, "accept", member="one", first=1) is None
    assert [of(each) for each in share.acquire(group, member="three")] == [(A, 2, 5, 1)]


def test_what_is_delayed_or_failed_comes_before_what_follows_it(share: ShareUnderTest) -> None:
    topic = share.metadata.create_topic("key")
    share.metadata.push(topic, 6, A)
    share.metadata.push(topic, 1, B)
    group = share.group(topic=topic, ordering="partition", lock_duration_ms=10_000)
    first = next(each for each in share.acquire(group, 4, partition=A))
    assert share.acknowledge(group, first, "accept", last=0) is None
    assert share.acknowledge(group, first, "release", first=1, delay_ms=5_000) is None
    assert [of(each) for each in share.acquire(group)] == [(B, 0, 0, 1)]
    assert share.acquire(group, coordinator=share.open_coordinator()) == []
    share.clock.time += 6
    (again,) = share.acquire(group)
    assert of(again) == (A, 1, 3, 2)
    share.wait_for_replicas(group, 4)
    share.clock.time += 11  # Its lock and that of the other partition end.
    assert sorted(of(each) for each in share.acquire(group)) == [(A, 1, 3, 3), (B, 0, 0, 2)]


def test_a_dead_letter_lets_what_follows_it_go_on(share: ShareUnderTest) -> None:
    share.metadata.push(share.topic, 4)
    group = share.group(ordering="partition", delivery_limit=2, dlq_topic="dead")
    (first,) = share.acquire(group, 2)
    assert share.acknowledge(group, first, "reject", last=0) is None
    assert share.acknowledge(group, first, "release", first=1) is None
    (second,) = share.acquire(group, 2)
    assert spans([second]) == [(1, 1, 2)]
    assert share.acknowledge(group, second, "release") is None
    assert share.dead_letters.offsets == [0, 1]
    assert spans(share.acquire(group)) == [(2, 3, 1)]


def test_what_expired_at_the_limit_is_given_up_before_what_follows_it(
    share: ShareUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finalize, "DEAD_LETTERS_MAX", 2)
    share.metadata.push(share.topic, 6)
    group = share.group(ordering="partition", delivery_limit=1, dlq_topic="dead")
    assert spans(share.acquire(group, 3)) == [(0, 2, 1)]
    share.wait_for_replicas(group, 3)
    share.clock.time += 40
    share.acquire(group)  # It, or the coordinator's own look, archives them.
    share.wait_for_dead_letters([0, 1, 2])
    assert share.dead_letters.offsets == [0, 1, 2]


def test_another_coordinator_neither_overtakes_nor_stalls(remote_share: ShareUnderTest) -> None:
    share = remote_share
    share.metadata.push(share.topic, 8)
    group = share.group(ordering="partition")
    other = share.open_coordinator()
    (first,) = share.acquire(group, 2)
    share.wait_for_replicas(group, 2)
    assert share.acquire(group, coordinator=other) == []
    assert share.acknowledge(group, first, "release", first=0, last=0) is None
    share.clock.time += 2
    assert share.acquire(group, coordinator=other) == []  # The rest is held still.
    assert share.acknowledge(group, first, "accept", first=1, coordinator=other) is None
    share.clock.time += 2
    (second,) = share.acquire(group, coordinator=other)
    assert spans([second]) == [(0, 0, 2)]
    assert share.acknowledge(group, second, "accept", coordinator=other) is None
    # The first one hears of it when it reads: not as late as its own lease would end.
    share.clock.time += 2
    assert spans(share.acquire(group, 3)) == [(2, 4, 1)]


def test_a_replica_that_missed_an_acceptance_does_not_hold_up_the_next(tmp_path: Path) -> None:
    clock, key = HandClock(), ShareKey("group", "topic", A)
    mine, theirs = Lease("c", 1, "m"), Lease("c", 2, "m")
    replica = Replica(lambda: SqliteHoldStore(tmp_path / "holds.sqlite"), clock)

    def hold(first: int, last: int, next_offset: int | None) -> PartOutcome:
        ranges = (OffsetRange(first, last),)
        request = HoldRequest(key, ranges, theirs, 10_000, 100, next_offset=next_offset)
        (answer,) = replica.perform([request])
        (part,) = cast("list[RangeAnswer]", answer)
        return part.outcome

    replica_calls.hold(replica, key, [OffsetRange(0, 4)], mine, 10_000, 100)
    assert hold(5, 9, 0) is PartOutcome.NOK
    assert hold(5, 9, 3) is PartOutcome.NOK
    assert hold(5, 9, 5) is PartOutcome.OK
    assert hold(0, 4, 5) is PartOutcome.TOMB
    replica.close()
    replica = Replica(lambda: SqliteHoldStore(tmp_path / "holds.sqlite"), clock)
    assert hold(0, 4, None) is PartOutcome.TOMB
    replica.close()


def test_ordering_can_be_changed_while_messages_are_held(share: ShareUnderTest) -> None:
    share.metadata.push(share.topic, 6)
    group = share.group()
    (one,), (two,) = share.acquire(group, 2), share.acquire(group, 2)
    changed = ShareConfig.model_validate({**group.config.model_dump(), "ordering": "partition"})
    ordered = ShareGroup(group.name, group.uuid, group.topic, changed)
    assert share.acquire(ordered) == []
    assert share.acknowledge(ordered, two, "accept") is None
    assert share.acquire(ordered) == []
    assert share.acknowledge(ordered, one, "release") is None
    assert spans(share.acquire(ordered)) == [(0, 1, 2)]
    share.coordinator.altered(group)
    assert spans(share.acquire(group)) == [(4, 5, 1)]


def test_a_release_that_does_not_count_leaves_the_count(share: ShareUnderTest) -> None:
    share.metadata.push(share.topic, 4)
    group = share.group(ordering="partition", delivery_limit=1)
    (leased,) = share.acquire(group)
    assert share.acknowledge(group, leased, "accept", last=0) is None
    assert share.acknowledge(group, leased, "release", first=1, counts=False, delay_ms=500) is None
    assert share.acquire(group) == []
    share.clock.time += 1
    (again,) = share.acquire(group, coordinator=share.open_coordinator())
    assert spans([again]) == [(1, 3, 1)]


def test_no_more_of_a_partition_is_leased_than_a_delivery_takes(share: ShareUnderTest) -> None:
    topic = share.metadata.create_topic("key")
    share.metadata.push(topic, 5, A)
    share.metadata.push(topic, 5, B)
    group = share.group(topic=topic, ordering="partition", acquire_mode="batch_optimized")
    request = asking(group, 10, range_max=2)
    found = share.coordinator.acquire_now(request)
    assert sorted(of(each) for each in found) == [(A, 0, 1, 1), (B, 0, 1, 1)]
