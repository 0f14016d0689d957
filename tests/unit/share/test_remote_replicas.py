"""Three replicas in processes of their own, as far as a coordinator can tell."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from queue import SimpleQueue
from typing import cast

import pytest
import replica_calls
from fix_calls import Calls
from fix_metadata import A, B
from fix_share import ShareUnderTest, spans

from wings_core.contracts.messages import MEMBER_CHARACTERS_MAX
from wings_core.errors import GroupNotFound, InvalidArgument, Unavailable, WingsError
from wings_core.model import Lease
from wings_core.partitions import UNPARTITIONED, Partition
from wings_core.share.model import OffsetRange, ShareKey
from wings_core.share.remote.link import RemoteLink, parse_targets
from wings_core.share.replica.requests import (
    Answer,
    HoldRequest,
    LeaseEntry,
    PartOutcome,
    RangeAnswer,
    ReadRequest,
    ReleaseEntry,
    ReleaseRequest,
    RenewRequest,
    ReplicaState,
    Request,
    TombstoneRequest,
)


def test_with_one_of_three_replicas_down_work_goes_on(remote_share: ShareUnderTest) -> None:
    share = remote_share
    share.metadata.push(share.topic, 10)
    group = share.group()
    (leased,) = share.acquire(group, 4)
    share.stop_serving(1)
    assert share.acknowledge(group, leased, "accept") is None
    (leased,) = share.acquire(group, 4)
    assert (leased.start_offset, leased.end_offset) == (4, 7)
    assert share.acknowledge(group, leased, "accept") is None
    (state,) = share.coordinator.positions.describe(group)
    assert (state.start_offset, state.lag) == (8, 2)


def test_with_two_of_three_replicas_down_nothing_is_delivered(
    remote_share: ShareUnderTest,
) -> None:
    share = remote_share
    share.metadata.push(share.topic, 10)
    group = share.group()
    (leased,) = share.acquire(group, 4)
    for number in (0, 1):
        share.stop_serving(number)
    with pytest.raises(Unavailable):
        share.acquire(group)
    assert isinstance(share.acknowledge(group, leased, "accept"), Unavailable)
    with pytest.raises(Unavailable):
        share.coordinator.positions.describe(group)
    # The acknowledgement was refused, but the one replica that is up has the tombstone.
    while replica_calls.read(share.replicas[2], group.uuid, [UNPARTITIONED])[0].start_offset < 4:
        time.sleep(0.002)  # It may be slower than the others are in failing.
    share.serve(0)  # With it, these two are the only majority: both are heard.
    share.clock.time += 31
    found: list[tuple[int, int, int]] = []
    while not found:  # The connections come back by themselves; the test's time-out ends it.
        share.clock.time += 1
        with suppress(Unavailable):
            found = spans(share.acquire(group))
    assert found == [(4, 9, 1)]


def test_a_tombstone_of_a_minority_is_repaired_before_anything_is_delivered(
    remote_share: ShareUnderTest,
) -> None:
    share = remote_share
    share.metadata.push(share.topic, 4)
    group = share.group()
    key = ShareKey(group.uuid, group.topic.uuid, UNPARTITIONED)
    replica_calls.tombstone(share.replicas[2], key, (), [OffsetRange(1, 2)])
    share.stop_serving(0)  # Those that are left are a majority, and both are heard.
    assert spans(share.acquire(group)) == [(0, 0, 1), (3, 3, 1)]
    found = [
        replica_calls.read(replica, group.uuid, [UNPARTITIONED])[0].finished
        for replica in share.replicas[1:]
    ]
    assert found == [(OffsetRange(1, 2),)] * 2


def test_three_coordinators_at_once_on_few_messages_deliver_each_once(
    remote_share: ShareUnderTest,
) -> None:
    share = remote_share
    share.metadata.push(share.topic, 60)
    group = share.group()
    coordinators = [share.open_coordinator() for _ in range(3)]

    def work(number: int) -> list[int]:
        coordinator, done = coordinators[number], list[int]()
        member = f"member-{number}"
        while sum(state.lag for state in coordinator.positions.describe(group)):
            share.clock.time += 0.01  # Far from any lock's end.
            for leased in share.acquire(group, 3, member=member, coordinator=coordinator):
                error = share.acknowledge(
                    group, leased, "accept", member=member, coordinator=coordinator
                )
                assert error is None
                done.extend(range(leased.start_offset, leased.end_offset + 1))
        return done

    with ThreadPoolExecutor(3) as threads:
        done = [offset for found in threads.map(work, range(3)) for offset in found]
    assert sorted(done) == list(range(60))


def test_a_replica_refuses_what_would_corrupt_its_ranges(remote_share: ShareUnderTest) -> None:
    service = remote_share.services[0]
    assert service is not None
    key, lease = ShareKey("g", "t", UNPARTITIONED), Lease("c", 1, "m")
    hold = HoldRequest(key, (OffsetRange(0, 5),), lease, 1_000, 10)
    renewal = RenewRequest(key, (LeaseEntry(0, 5, lease),), 1_000)
    wrong: list[Request] = [
        replace(hold, member="m" * (MEMBER_CHARACTERS_MAX + 1)),
        replace(hold, key=replace(key, partition=Partition("{"))),
        ReadRequest("g", (UNPARTITIONED, Partition("{"))),
        *(replace(each, ttl_ms=ttl_ms) for each in (hold, renewal) for ttl_ms in (0, 1 << 30)),
    ]
    for ranges in ([(3, 1)], [(0, 5), (5, 6)]):
        held = tuple(LeaseEntry(*each, lease) for each in ranges)
        free = tuple(OffsetRange(*each) for each in ranges)
        wrong += [
            replace(hold, ranges=free),
            replace(renewal, entries=held),
            ReleaseRequest(key, tuple(ReleaseEntry(*each, lease, 0) for each in ranges)),
            TombstoneRequest(key, held),
            TombstoneRequest(key, (), free),
        ]
    with closing(RemoteLink(str(service.address))) as link:
        for asked in wrong:
            assert isinstance(asked_together(link, [asked])[0], InvalidArgument), asked
        for asked in (hold, renewal):
            assert outcomes(asked_together(link, [asked])[0]) == [PartOutcome.OK]


def asked_together(link: RemoteLink, requests: list[Request]) -> list[Answer]:
    """Make requests in one message; returns the answers, in order."""
    answers: SimpleQueue[tuple[int, Answer]] = SimpleQueue()
    link.begin_all(requests, 20, lambda number, answer: answers.put((number, answer)))
    found = dict(answers.get(timeout=20) for _ in requests)
    return [found[number] for number in range(len(requests))]


def outcomes(answer: Answer) -> list[PartOutcome]:
    assert not isinstance(answer, WingsError), answer
    return [part.outcome for part in answer if isinstance(part, RangeAnswer)]


def test_requests_of_several_partitions_are_carried_out_together(
    remote_share: ShareUnderTest, calls: Calls
) -> None:
    service = remote_share.services[0]
    assert service is not None
    writes = calls.heard(remote_share.stores[0], "write")
    lease = Lease("c", 1, "m")
    keys = [ShareKey("g", "t", partition) for partition in (UNPARTITIONED, A, B)]
    holds: list[Request] = [
        HoldRequest(key, (OffsetRange(0, 4),), lease, 60_000, 10) for key in keys
    ]
    tombs: list[Request] = [
        TombstoneRequest(key, (LeaseEntry(0, 4, lease),), ()) for key in (*keys[:2], keys[0])
    ]
    with closing(RemoteLink(str(service.address))) as link:
        held = asked_together(link, holds)
        assert [outcomes(answer) for answer in held] == [[PartOutcome.OK]] * 3
        before = len(writes)
        done = asked_together(link, [*tombs, ReadRequest("g", (B,))])
    assert [outcomes(answer) for answer in done[:2]] == [[PartOutcome.OK]] * 2
    assert outcomes(done[2]) == [PartOutcome.TOMB]
    assert len(writes) == before + 1
    (state,) = cast("Sequence[ReplicaState]", done[3])
    assert (state.start_offset, state.in_flight) == (0, 5)


def test_a_refusal_is_the_answer_of_its_request_alone(remote_share: ShareUnderTest) -> None:
    service = remote_share.services[0]
    assert service is not None
    replica_calls.forget(remote_share.replicas[0], "gone")
    lease = Lease("c", 1, "m")
    asked: list[Request] = [
        HoldRequest(ShareKey(group, "t", UNPARTITIONED), (OffsetRange(0, 4),), lease, 60_000, 10)
        for group in ("gone", "there")
    ]
    with closing(RemoteLink(str(service.address))) as link:
        gone, there = asked_together(link, asked)
    assert isinstance(gone, GroupNotFound)
    assert outcomes(there) == [PartOutcome.OK]


@pytest.mark.parametrize("text", ["", " , ", "a:1,a:1", "host", "host:", ":1", "host:port"])
def test_addresses_of_replicas_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="replicas of holds"):
        parse_targets(text)


def test_addresses_of_replicas_are_separated_by_commas() -> None:
    assert parse_targets("a:1, b:2,[::1]:3") == ["a:1", "b:2", "[::1]:3"]
