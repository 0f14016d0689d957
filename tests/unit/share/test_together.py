"""What several members ask a coordinator for at one time, as their share streams do."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from fix_calls import Calls
from fix_metadata import A, B
from fix_share import ShareUnderTest, asking, entry_of, open_share

from wings_core.errors import InvalidRecordState, Unavailable, WingsError
from wings_core.model import Lease, LeasedRange, ShareGroup
from wings_core.partitions import Partition
from wings_core.share.coordinator.lease import Acquires
from wings_core.share.model import Acknowledgement, ShareKey
from wings_core.share.quorum.quorum import TRIES_MAX, Runner
from wings_core.share.replica.requests import Broadcast, HoldRequest, ReleaseEntry, ReleaseRequest

MEMBERS = ("one", "two", "three")


def acquired(share: ShareUnderTest, group: ShareGroup, messages: int) -> list[list[LeasedRange]]:
    """Acquire for all members at once, up to so many messages each."""
    requests = [asking(group, messages, member=member) for member in MEMBERS]
    found: list[list[LeasedRange]] = []
    for each in share.coordinator.settle(group, (), requests)[1]:
        assert not isinstance(each, WingsError), each
        found.append(each)
    return found


def offsets(found: list[list[LeasedRange]]) -> list[int]:
    return sorted(
        offset
        for ranges in found
        for leased in ranges
        for offset in range(leased.start_offset, leased.end_offset + 1)
    )


def test_members_that_acquire_at_once_get_each_message_once(share: ShareUnderTest) -> None:
    share.metadata.push(share.topic, 10)
    group = share.group()
    assert offsets(acquired(share, group, 3)) == list(range(9))
    assert offsets(acquired(share, group, 3)) == [9]
    assert offsets(acquired(share, group, 3)) == []


def test_members_that_acquire_at_once_get_messages_of_several_partitions(
    share: ShareUnderTest,
) -> None:
    topic = share.metadata.create_topic("key")
    for partition in (A, B):
        share.metadata.push(topic, 4, partition)
    group = share.group(topic=topic)
    found = acquired(share, group, 3) + acquired(share, group, 3)
    assert offsets(found) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_where_one_partition_is_not_known_nothing_of_another_is_kept_from_the_next(
    share: ShareUnderTest, calls: Calls
) -> None:
    topic = share.metadata.create_topic("key")
    for partition in (A, B):
        share.metadata.push(topic, 4, partition)
    group = share.group(topic=topic)
    for partition in (A, B):  # From here on the coordinator knows both.
        (leased,) = share.acquire(group, 1, partition=partition)
        assert share.acknowledge(group, leased, "accept") is None

    def lose_b(_: object, __: object, ___: object, partition: Partition, **____: object) -> None:
        if partition == B:
            raise Unavailable("metadata is gone")

    calls.before(Acquires, "_log", lose_b)
    requests = [asking(group, 3, member="one", partition=each) for each in (A, B)]
    with pytest.raises(Unavailable):
        share.coordinator.settle(group, (), requests)
    calls.stop()
    assert offsets([share.acquire(group, 9, partition=each) for each in (A, B)]) == sorted(
        [1, 2, 3] * 2
    )


def test_of_a_partition_in_order_one_member_of_those_that_acquire_at_once_gets_some(
    share: ShareUnderTest,
) -> None:
    share.metadata.push(share.topic, 10)
    group = share.group(ordering="partition")
    assert offsets(acquired(share, group, 3)) == [0, 1, 2]


def test_members_are_left_to_wait_while_what_comes_first_in_order_is_under_way(
    share: ShareUnderTest,
) -> None:
    share.metadata.push(share.topic, 10)
    group = share.group(ordering="partition")
    woken: list[None] = []
    waiting = asking(group, 3, member="waiting")
    with share.coordinator.watch(waiting, partial(woken.append, None)):
        assert offsets(acquired(share, group, 3)) == [0, 1, 2]
        assert offsets(acquired(share, group, 3)) == []
        assert not woken  # It would look in vain, and wake the next, without end.


def test_each_of_those_that_accept_at_once_is_answered_by_itself(share: ShareUnderTest) -> None:
    share.metadata.push(share.topic, 9)
    group = share.group()
    (one,), (two,), (three,) = acquired(share, group, 3)
    requests = [
        ("one", [entry_of(one, "accept")]),
        ("three", [entry_of(two, "accept")]),  # Another's.
        ("three", [entry_of(three, "accept"), entry_of(three, "accept")]),  # Twice.
        ("two", [entry_of(two, "accept", last=two.start_offset)]),
    ]
    results, _ = share.coordinator.settle(group, requests, ())
    errors = [[type(error) for error in found] for found in results]
    refused = InvalidRecordState
    assert errors == [[type(None)], [refused], [refused, refused], [type(None)]]
    (state,) = share.coordinator.positions.describe(group)
    assert (state.lag, state.in_flight) == (9 - 4, 5)


@pytest.mark.parametrize("silent", [True, False])
def test_a_lease_that_is_lost_at_a_majority_fails_its_own_member_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    with open_share(tmp_path, 3) as share:
        share.metadata.push(share.topic, 9)
        group = share.group()
        (one,), (two,), (three,) = acquired(share, group, 3)
        key = ShareKey(group.uuid, group.topic.uuid, two.partition)
        lost = ReleaseEntry(two.start_offset, two.end_offset, Lease.parse(two.lease), 1)
        for replica in share.replicas[:2]:
            replica.perform([ReleaseRequest(key, (lost,))])
        unanswered = Mock()
        if silent:
            monkeypatch.setattr(share.links[2], "begin_all", unanswered)
        requests = [
            (member, [entry_of(leased, "accept")])
            for member, leased in zip(MEMBERS, (one, two, three), strict=True)
        ]
        results, _ = share.coordinator.settle(group, requests, ())
        assert [type(error) for (error,) in results] == [
            type(None),
            Unavailable,
            type(None),
        ]
        # It was waited for when all was tried, and is not again for each that has lost a lease.
        assert unanswered.call_count == (TRIES_MAX + len(MEMBERS) if silent else 0)


def test_messages_that_are_accepted_one_by_one_in_a_request_are_told_of_one_by_one(
    share: ShareUnderTest,
) -> None:
    share.metadata.push(share.topic, 9)
    group = share.group()
    (one,), (two,), (three,) = acquired(share, group, 3)

    def singly(leased: LeasedRange, *offsets: int) -> list[Acknowledgement]:
        return [entry_of(leased, "accept", first=offset, last=offset) for offset in offsets]

    def errors(member: str, asked: list[Acknowledgement]) -> list[type[WingsError] | None]:
        found = share.coordinator.acknowledge(group, member, asked)
        return [error and type(error) for error in found]

    assert errors("one", singly(one, 0, 1)) == [None] * 2
    again = share.coordinator.acknowledge(group, "one", singly(one, 1, 2))
    for error in again:  # All or none, and why: 1 is not held any more, 2 is.
        assert isinstance(error, InvalidRecordState)
        assert (error.facts["first"], error.facts["last"]) == (1, 1)
    assert errors("two", singly(two, 3, 4, 4, 5)) == [InvalidRecordState] * 4
    assert errors("two", [*singly(two, 5, 4), *singly(two, 3)]) == [None] * 3
    mixed = [*singly(three, 6, 7), entry_of(three, "release", first=8)]
    assert errors("three", mixed) == [None] * 3
    left = [share.acquire(group, messages_max=9), share.acquire(group, messages_max=9)]
    assert offsets(left) == [8]


def test_a_group_that_was_deleted_is_refused(share: ShareUnderTest) -> None:
    share.metadata.push(share.topic, 2)
    group = share.group()
    share.coordinator.delete(group)
    with pytest.raises(WingsError, match="deleted"):
        acquired(share, group, 1)
    with pytest.raises(WingsError, match="deleted"):
        share.coordinator.settle(group, [("one", [])], ())


def test_messages_of_many_partitions_are_held_by_one_request_to_each_replica(
    share: ShareUnderTest, calls: Calls
) -> None:
    topic = share.metadata.create_topic("key")
    partitions = [Partition(f'"{number}"') for number in range(12)]
    for partition in partitions:
        share.metadata.push(topic, 2, partition)
    group = share.group(topic=topic)
    asked: list[int] = []

    def count(_: Runner, broadcasts: Mapping[int, Broadcast]) -> None:
        holds = [
            request
            for broadcast in broadcasts.values()
            for requests in broadcast.requests.values()
            for request in requests
            if isinstance(request, HoldRequest)
        ]
        if holds:
            asked.append(len({request.key for request in holds}))

    calls.before(Runner, "_broadcast_all", count)
    ranges = share.coordinator.acquire_now(asking(group, 23, member="m"))
    assert asked == [12]
    assert sum(leased.messages for leased in ranges) == 23
    assert {leased.partition for leased in ranges} == set(partitions)
    rest = share.coordinator.acquire_now(asking(group, 23, member="m"))
    assert sum(leased.messages for leased in rest) == 1


def test_what_failed_before_comes_by_itself_though_other_partitions_have_messages(
    share: ShareUnderTest,
) -> None:
    topic = share.metadata.create_topic("key")
    for partition in (A, B):
        share.metadata.push(topic, 4, partition)
    group = share.group(topic=topic, delivery_limit=3)
    for _ in range(2):
        (failed,) = share.coordinator.acquire_now(asking(group, 4, member="m", partition=A))
        released = entry_of(failed, "release")
        assert share.coordinator.acknowledge(group, "m", [released]) == [None]
    counts: set[tuple[int, ...]] = set()
    for _ in range(100):  # By chance, whose turn it is.
        share.metadata.push(topic, 4, B)  # There is always something else.
        ranges = share.coordinator.acquire_now(asking(group, 4, member="m"))
        counts.add(tuple(sorted({leased.delivery_count for leased in ranges})))
        if (3,) in counts:
            break
    assert (3,) in counts, "what failed never has its turn"
    assert counts <= {(1,), (3,)}, "something comes with what failed"
