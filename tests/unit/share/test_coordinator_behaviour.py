"""What every coordinator does, over one replica in process and over three."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest
import replica_calls
from fix_calls import Calls
from fix_metadata import A, B
from fix_share import ShareUnderTest, asking, entry_of, open_share, spans
from tables import each

from wings_core.errors import (
    GroupNotFound,
    Internal,
    InvalidArgument,
    InvalidRecordState,
    Unavailable,
    WingsError,
)
from wings_core.fetch.fetcher import Cancel
from wings_core.model import Lease, LeasedRange, PartitionState, ShareConfig, ShareGroup, member_tag
from wings_core.partitions import UNPARTITIONED
from wings_core.share.coordinator import finalize
from wings_core.share.coordinator import lease as lease_module
from wings_core.share.coordinator.coordinator import COUNTED_MAX
from wings_core.share.coordinator.partitions import ReadyPartitions
from wings_core.share.model import Acknowledgement, AcknowledgeType, ShareKey
from wings_core.share.progress import GroupCounts
from wings_core.share.replica.requests import (
    Answer,
    HoldRequest,
    ReadRequest,
    ReleaseEntry,
    Request,
)
from wings_core.times import Deadline, format_timestamp

LONG = 60.0


def lag(share: ShareUnderTest, group: ShareGroup) -> tuple[int, int, int]:
    (state,) = share.coordinator.positions.describe(group)
    return state.start_offset, state.in_flight, state.lag


def reconfigured(group: ShareGroup, **config: object) -> ShareGroup:
    changed = ShareConfig.model_validate({**group.config.model_dump(), **config})
    return ShareGroup(group.name, group.uuid, group.topic, changed)


def test_two_members_get_each_message_once_between_them(share: ShareUnderTest) -> None:
    share.metadata.push(share.topic, 10)
    group = share.group()
    assert spans(share.acquire(group, 6, member="one")) == [(0, 5, 1)]
    assert spans(share.acquire(group, 6, member="two")) == [(6, 9, 1)]
    assert spans(share.acquire(group, 6, member="one")) == []


def test_two_groups_each_get_all(share: ShareUnderTest) -> None:
    share.metadata.push(share.topic, 10)
    for group in (share.group(), share.group()):
        (leased,) = share.acquire(group)
        assert share.acknowledge(group, leased, "accept") is None
        assert lag(share, group) == (10, 0, 0)


def test_what_is_accepted_is_never_delivered_again(share: ShareUnderTest) -> None:
    share.metadata.push(share.topic, 10)
    group = share.group()
    (leased,) = share.acquire(group)
    assert share.acknowledge(group, leased, "accept", first=2, last=3) is None
    assert lag(share, group) == (0, 8, 8)
    share.clock.time += 40
    assert spans(share.acquire(group)) == [(0, 1, 2), (4, 9, 2)]
    for number in range(share.replica_count):
        share.restart_replica(number)
    share.clock.time += 40
    assert spans(share.acquire(group, coordinator=share.open_coordinator()))[0][:2] == (0, 1)


def test_a_release_makes_just_that_range_available(share: ShareUnderTest) -> None:
    share.metadata.push(share.topic, 10)
    group = share.group()
    (leased,) = share.acquire(group)
    assert share.acknowledge(group, leased, "release", first=4, last=6) is None
    assert spans(share.acquire(group)) == [(4, 6, 2)]
    assert share.acknowledge(group, leased, "accept", last=3) is None
    assert share.acknowledge(group, leased, "accept", first=7) is None


def test_a_release_with_a_delay_is_not_delivered_before(share: ShareUnderTest) -> None:
    share.metadata.push(share.topic, 2)
    group = share.group()
    (leased,) = share.acquire(group)
    assert share.acknowledge(group, leased, "release", delay_ms=5_000) is None
    share.clock.time += 4.9
    assert share.acquire(group) == []
    assert share.acquire(group, coordinator=share.open_coordinator()) == []
    share.clock.time += 2
    assert spans(share.acquire(group)) == [(0, 1, 2)]


def test_a_member_that_vanishes_gives_up_its_messages_after_the_lock(
    share: ShareUnderTest,
) -> None:
    share.metadata.push(share.topic, 2)
    group = share.group(lock_duration_ms=10_000)
    (leased,) = share.acquire(group, member="gone")
    share.clock.time += 9.5
    assert share.acquire(group) == []
    share.clock.time += 1
    assert spans(share.acquire(group)) == [(0, 1, 2)]
    error = share.acknowledge(group, leased, "accept", member="gone")
    assert isinstance(error, InvalidRecordState)


def test_a_renewal_restarts_the_lease(share: ShareUnderTest) -> None:
    share.metadata.push(share.topic, 2)
    group = share.group(lock_duration_ms=10_000)
    (leased,) = share.acquire(group)
    for _ in range(3):
        share.clock.time += 8
        assert share.acknowledge(group, leased, "renew") is None
        assert share.acquire(group) == []
    assert share.acknowledge(group, leased, "accept") is None


@each("what", ["accept", "release", "reject", "renew"])
@pytest.mark.parametrize("wrong", ["member", "lease", "expired", "range", "acknowledged"])
def test_what_is_not_held_with_the_lease_is_refused_and_nothing_changes(
    share: ShareUnderTest, what: AcknowledgeType, wrong: str
) -> None:
    share.metadata.push(share.topic, 4)
    group = share.group(dlq_topic="dead")
    (leased,) = share.acquire(group, 2)
    share.wait_for_replicas(group, 2)
    member = "me"
    facts: dict[str, Any] = {}
    if wrong == "member":
        member = "another"
    elif wrong == "lease":
        facts = {"lease": share.acquire(group, 2)[0].lease}
        share.wait_for_replicas(group, 4)
    elif wrong == "range":
        facts = {"last": 2}
    elif wrong == "expired":
        share.clock.time += 31
    else:
        assert share.acknowledge(group, leased, "accept") is None
        share.wait_for_replicas(group, 0)
    before = share.coordinator.positions.describe(group)
    entry = entry_of(leased, what, **facts)
    (result,) = share.coordinator.acknowledge(group, member, [entry])
    assert isinstance(result, InvalidRecordState)
    assert share.coordinator.positions.describe(group) == before
    assert share.dead_letters.written == []


def test_one_bad_entry_rolls_back_its_partition(share: ShareUnderTest) -> None:
    topic = share.metadata.create_topic("key")
    share.metadata.push(topic, 4, A)
    share.metadata.push(topic, 4, B)
    group = share.group(topic=topic)
    of_a, of_b = sorted(share.acquire(group), key=lambda leased: leased.partition)
    results = share.coordinator.acknowledge(
        group,
        "me",
        [
            entry_of(of_a, "accept", last=0),
            entry_of(of_b, "accept"),
            entry_of(of_a, "release", first=3, last=4),
        ],
    )
    codes = [None if result is None else result.code for result in results]
    assert codes == ["INVALID_RECORD_STATE", None, "INVALID_RECORD_STATE"]
    states = {state.partition: state for state in share.coordinator.positions.describe(group)}
    assert (states[A].start_offset, states[A].in_flight, states[A].lag) == (0, 4, 4)
    assert (states[B].start_offset, states[B].in_flight, states[B].lag) == (4, 0, 0)


def test_entries_that_overlap_are_refused(share: ShareUnderTest) -> None:
    share.metadata.push(share.topic, 4)
    group = share.group()
    (leased,) = share.acquire(group)
    entries = [entry_of(leased, "accept", last=2), entry_of(leased, "release", first=2)]
    results = share.coordinator.acknowledge(group, "me", entries)
    assert all(isinstance(result, InvalidRecordState) for result in results)
    assert share.acknowledge(group, leased, "accept") is None


def test_entries_of_all_types_acknowledge_one_partition_together(share: ShareUnderTest) -> None:
    share.metadata.push(share.topic, 8)
    group = share.group(dlq_topic="dead")
    (leased,) = share.acquire(group)
    entries = [
        entry_of(leased, "renew", first=6),
        entry_of(leased, "reject", first=4, last=5, reason="bad"),
        entry_of(leased, "accept", last=1),
        entry_of(leased, "release", first=2, last=3),
    ]
    results = share.coordinator.acknowledge(group, "me", entries)
    assert results == [None] * 4
    assert share.dead_letters.offsets == [4, 5]
    assert [letter.reason for letter in share.dead_letters.written] == ["bad"]
    share.clock.time += 29
    assert spans(share.acquire(group)) == [(2, 3, 2)]
    assert share.acknowledge(group, leased, "accept", first=6) is None


def test_any_coordinator_acknowledges_what_another_has_handed_out(share: ShareUnderTest) -> None:
    share.metadata.push(share.topic, 8)
    group = share.group(dlq_topic="dead")
    (leased,) = share.acquire(group)
    other = share.open_coordinator()
    assert isinstance(
        share.acknowledge(group, leased, "accept", member="another", coordinator=other),
        InvalidRecordState,
    )
    assert share.acknowledge(group, leased, "renew", coordinator=other) is None
    assert share.acknowledge(group, leased, "accept", coordinator=other, last=1) is None
    assert share.acknowledge(group, leased, "reject", coordinator=other, first=2, last=3) is None
    assert share.acknowledge(group, leased, "release", coordinator=other, first=4, last=5) is None
    assert share.dead_letters.offsets == [2, 3]
    assert [letter.delivery_count for letter in share.dead_letters.written] == [1]
    assert spans(share.acquire(group, coordinator=other)) == [(4, 5, 2)]
    assert share.acquire(group) == []
    share.clock.time += 31
    error = share.acknowledge(group, leased, "accept", coordinator=other, first=6)
    assert isinstance(error, InvalidRecordState)


def test_a_message_is_given_up_when_it_is_released_at_the_limit(share: ShareUnderTest) -> None:
    share.metadata.push(share.topic, 1)
    group = share.group(delivery_limit=3, dlq_topic="dead")
    for number in (1, 2, 3):
        (leased,) = share.acquire(group)
        assert leased.delivery_count == number
        assert share.acknowledge(group, leased, "release") is None
    assert share.acquire(group) == []
    assert share.dead_letters.offsets == [0]
    (letter,) = share.dead_letters.written
    assert (letter.delivery_count, letter.cause) == (3, "delivery_limit")
    assert lag(share, group) == (1, 0, 0)


def test_a_message_is_given_up_when_its_lock_expires_at_the_limit(share: ShareUnderTest) -> None:
    share.metadata.push(share.topic, 2)
    group = share.group(delivery_limit=2, dlq_topic="dead")
    for _ in range(2):
        assert len(share.acquire(group)) == 1
        share.clock.time += 31
    assert share.acquire(group) == []  # It, or the coordinator's own look, archives them.
    share.wait_for_dead_letters([0, 1])
    assert {letter.delivery_count for letter in share.dead_letters.written} == {2}


def test_what_expired_at_the_limit_is_given_up_also_when_nobody_asks(
    share: ShareUnderTest,
) -> None:
    share.metadata.push(share.topic, 3)
    group = share.group(delivery_limit=1, dlq_topic="dead")
    coordinator = share.open_coordinator()
    (leased,) = share.acquire(group, 1, coordinator=coordinator)
    assert share.acknowledge(group, leased, "accept", coordinator=coordinator) is None
    assert len(share.acquire(group, coordinator=coordinator)) == 1
    share.clock.time += 31
    share.wait_for_dead_letters([1, 2])


def test_messages_never_delivered_do_not_wait_for_dead_letters(share: ShareUnderTest) -> None:
    written = threading.Event()

    def wait() -> None:
        assert written.wait(LONG)

    share.dead_letters.slow = wait
    share.metadata.push(share.topic, 2)
    group = share.group(delivery_limit=1, dlq_topic="dead")
    assert len(share.acquire(group)) == 1
    share.clock.time += 31
    share.metadata.push(share.topic, 2)
    assert spans(share.acquire(group)) == [(2, 3, 1)]
    assert share.dead_letters.written == []
    written.set()
    share.wait_for_dead_letters([0, 1])


@pytest.mark.usefixtures("unmaintained")
def test_more_dead_letters_than_are_written_in_a_lock_are_written_once(
    share: ShareUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pass_time() -> None:
        share.clock.time += 20

    monkeypatch.setattr(finalize, "DEAD_LETTERS_MAX", 2)
    share.dead_letters.slow = pass_time
    share.metadata.push(share.topic, 5)
    group = share.group(delivery_limit=1, dlq_topic="dead")
    (leased,) = share.acquire(group)
    share.clock.time += 31
    assert share.acquire(group) == []
    share.wait_for_dead_letters([0, 1, 2, 3, 4])
    while lag(share, group) != (5, 0, 0):
        time.sleep(0.002)  # Their tombstones come after them; the test's time-out ends it.
    share.metadata.push(share.topic, 5)
    (leased,) = share.acquire(group)
    assert share.acknowledge(group, leased, "reject") is None
    assert lag(share, group) == (10, 0, 0)
    written = share.dead_letters.written
    assert [(letter.first, letter.last) for letter in written] == [
        *[(0, 1), (2, 3), (4, 4)],
        *[(5, 6), (7, 8), (9, 9)],
    ]


def test_a_dead_letter_that_cannot_be_written_leaves_the_message_held(
    share: ShareUnderTest,
) -> None:
    share.metadata.push(share.topic, 1)
    group = share.group(dlq_topic="dead")
    (leased,) = share.acquire(group)
    share.dead_letters.fail = True
    error = share.acknowledge(group, leased, "reject")
    assert error is not None
    assert lag(share, group) == (0, 1, 1)
    share.dead_letters.fail = False
    assert share.acknowledge(group, leased, "reject") is None
    assert share.dead_letters.offsets == [0]


def test_a_group_without_a_dead_letter_topic_drops_what_it_gives_up(
    share: ShareUnderTest,
) -> None:
    share.metadata.push(share.topic, 1)
    group = share.group()
    (leased,) = share.acquire(group)
    assert share.acknowledge(group, leased, "reject") is None
    assert share.dead_letters.written == []
    assert lag(share, group) == (1, 0, 0)


@pytest.mark.parametrize(("before", "after", "deliveries"), [(5, 3, 3), (3, 5, 5)])
def test_a_limit_that_is_changed_holds_at_once(
    share: ShareUnderTest, before: int, after: int, deliveries: int
) -> None:
    share.metadata.push(share.topic, 1)
    group = share.group(delivery_limit=before, dlq_topic="dead")
    for _ in range(2):
        share.acknowledge(group, share.acquire(group)[0], "release")
    group = reconfigured(group, delivery_limit=after)
    counts: list[int] = []
    while found := share.acquire(group):
        counts.append(found[0].delivery_count)
        assert share.acknowledge(group, found[0], "release") is None
    assert counts == list(range(3, deliveries + 1))
    assert share.dead_letters.offsets == [0]


def test_a_poison_message_does_not_take_its_neighbours_with_it(share: ShareUnderTest) -> None:
    share.metadata.push(share.topic, 64)
    group = share.group(dlq_topic="dead")
    poison, handled = 37, set[int]()
    while found := share.acquire(group):
        for leased in found:
            offsets = set(range(leased.start_offset, leased.end_offset + 1))
            if poison in offsets:
                assert share.acknowledge(group, leased, "release") is None
            else:
                assert share.acknowledge(group, leased, "accept") is None
                handled |= offsets
    assert handled == set(range(64)) - {poison}
    assert share.dead_letters.offsets == [poison]


def test_what_other_coordinators_delivered_is_throttled_too(share: ShareUnderTest) -> None:
    share.metadata.push(share.topic, 8)
    group = share.group()
    for _ in range(3):
        (leased,) = share.acquire(group)
        assert share.acknowledge(group, leased, "release") is None
    other = share.open_coordinator()
    assert spans(share.acquire(group, coordinator=other)) == [(0, 3, 4)]
    assert spans(share.acquire(group, coordinator=other)) == [(4, 5, 4)]


def test_no_more_than_the_window_is_in_flight(share: ShareUnderTest) -> None:
    share.metadata.push(share.topic, 100)
    group = share.group(in_flight_max=10)
    (leased,) = share.acquire(group)
    assert leased.messages == 10
    assert share.acquire(group) == []
    assert share.acquire(group, coordinator=share.open_coordinator()) == []
    assert share.acknowledge(group, leased, "accept", first=3, last=5) is None
    assert spans(share.acquire(group)) == [(10, 12, 1)]


def test_whole_batches_are_acquired_where_that_is_the_mode(share: ShareUnderTest) -> None:
    for rows in (80, 80, 80):
        share.metadata.push(share.topic, rows)
    group = share.group(acquire_mode="batch_optimized", in_flight_max=300)
    assert spans(share.acquire(group, 100)) == [(0, 159, 1)]
    assert spans(share.acquire(group, 10, rows_max=50)) == [(160, 209, 1)]
    exact = share.group()
    assert spans(share.acquire(exact, 100)) == [(0, 99, 1)]


def test_a_group_starts_where_it_was_told_to(share: ShareUnderTest) -> None:
    topic = share.metadata.create_topic("key")
    share.metadata.push(topic, 3, A)
    share.metadata.clock.time += 1_000_000
    noon = format_timestamp(share.metadata.clock.time)
    share.metadata.push(topic, 2, A)
    latest = share.group(topic=topic, start="latest")
    earliest = share.group(topic=topic, start="earliest")
    timed = share.group(topic=topic, start={"timestamp": noon})
    share.metadata.push(topic, 1, A)
    share.metadata.push(topic, 2, B)

    def got(group: ShareGroup) -> dict[str, tuple[int, int]]:
        acquired = share.acquire(group)
        return {leased.partition: (leased.start_offset, leased.end_offset) for leased in acquired}

    assert got(latest) == {A: (5, 5), B: (0, 1)}
    assert got(earliest) == {A: (0, 5), B: (0, 1)}
    assert got(timed) == {A: (3, 5), B: (0, 1)}


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        pytest.param(Unavailable("the metadata cannot be reached"), Unavailable, id="error"),
        pytest.param(KeyError("a bug"), Internal, id="fault"),
    ],
)
def test_a_batch_whose_end_cannot_be_looked_up_leaves_its_messages_available(
    share: ShareUnderTest,
    monkeypatch: pytest.MonkeyPatch,
    cause: Exception,
    expected: type[WingsError],
) -> None:
    share.metadata.push(share.topic, 8)
    group = share.group(acquire_mode="batch_optimized")

    def fail(*_: object) -> NoReturn:
        raise cause

    with monkeypatch.context() as patch:
        patch.setattr(share.metadata.registry, "locate", fail)
        with pytest.raises(expected):
            share.acquire(group, 2)
    share.clock.time += 1
    assert spans(share.acquire(group, 2)) == [(0, 7, 1)]


def test_what_was_handed_out_reaches_its_member_where_another_partition_cannot_be_read(
    share: ShareUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = share.metadata.create_topic("key")
    share.metadata.push(topic, 3, A)
    share.metadata.push(topic, 3, B)
    group = share.group(topic=topic)
    assert spans(share.acquire(group, 1, partition=A)) == [(0, 0, 1)]

    def unread(perform: Callable[[Any], Any], requests: Sequence[object]) -> Any:
        if any(isinstance(request, ReadRequest) for request in requests):
            return [Unavailable("the disk is gone") for _ in requests]
        return perform(requests)

    for replica in share.replicas:
        monkeypatch.setattr(replica, "perform", partial(unread, replica.perform))
    found: list[LeasedRange] = []
    deadline = Deadline.after(LONG)
    while not found:  # A is the first of them in one of two turns.
        assert not deadline.passed
        with suppress(Unavailable):
            found += share.acquire(group)
    assert [(leased.partition, leased.delivery_count) for leased in found] == [(A, 1)]


def test_nothing_is_kept_of_partitions_that_were_never_written(share: ShareUnderTest) -> None:
    topic = share.metadata.create_topic("key")
    group = share.group(topic=topic)
    assert share.acquire(group, partition=A) == []
    entry = Acknowledgement(A, 0, 0, f"another.1.{member_tag('me')}", "accept")
    (result,) = share.coordinator.acknowledge(group, "me", [entry])
    assert isinstance(result, InvalidRecordState)
    assert [replica_calls.read(replica, group.uuid, ()) for replica in share.replicas] == (
        [[]] * share.replica_count
    )
    share.metadata.push(topic, 2, A)
    assert spans(share.acquire(group, partition=A)) == [(0, 1, 1)]


def test_one_partition_can_be_asked_for(share: ShareUnderTest) -> None:
    topic = share.metadata.create_topic("key")
    share.metadata.push(topic, 3, A)
    share.metadata.push(topic, 3, B)
    group = share.group(topic=topic)
    assert [leased.partition for leased in share.acquire(group, partition=B)] == [B]
    assert share.acquire(group, partition=B) == []


def test_a_wait_ends_with_a_commit_a_release_and_an_expiry(share: ShareUnderTest) -> None:
    group = share.group()

    def wait() -> list[tuple[int, int, int]]:
        deadline = Deadline.after(LONG)
        return spans(share.coordinator.acquire(asking(group, 10), deadline, Cancel()))

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(wait)
        share.metadata.push(share.topic, 2)
        assert waiting.result(LONG) == [(0, 1, 1)]
        share.clock.time += 100
        (leased,) = share.acquire(group)
        waiting = threads.submit(wait)
        assert share.acknowledge(group, leased, "release") is None
        assert waiting.result(LONG)[0][:2] == (0, 1)


def test_a_wait_for_any_partition_hears_of_one_that_is_born(share: ShareUnderTest) -> None:
    topic = share.metadata.create_topic("key")
    group = share.group(topic=topic)
    with ThreadPoolExecutor(1) as threads:
        deadline = Deadline.after(LONG)
        waiting = threads.submit(share.coordinator.acquire, asking(group, 10), deadline, Cancel())
        share.metadata.push(topic, 2, A)
        assert spans(waiting.result(LONG)) == [(0, 1, 1)]


def test_a_deadline_and_a_cancellation_end_a_wait(share: ShareUnderTest) -> None:
    group = share.group()
    found = share.coordinator.acquire(asking(group, 1), Deadline.after(0.05), Cancel())
    assert found == []
    cancel = Cancel()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(
            share.coordinator.acquire,
            asking(group, 1),
            Deadline.after(LONG),
            cancel,
        )
        cancel.cancel(Unavailable("stopping"))
        with pytest.raises(Unavailable, match="stopping"):
            waiting.result(LONG)


def test_a_deleted_group_ends_its_waits_and_is_forgotten(share: ShareUnderTest) -> None:
    group = share.group()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(
            share.coordinator.acquire,
            asking(group, 1),
            Deadline.after(LONG),
            Cancel(),
        )
        share.coordinator.delete(group)
        with pytest.raises(GroupNotFound):
            waiting.result(LONG)
    for replica in share.replicas:
        assert replica_calls.read(replica, group.uuid, ()) == []


def test_whether_something_is_ready_is_told_without_a_look(
    share: ShareUnderTest, calls: Calls
) -> None:
    share.metadata.push(share.topic, 1)
    group, coordinator = share.group(), share.open_coordinator()
    assert coordinator.has_ready(group)  # Nothing was told yet.
    assert len(share.acquire(group, coordinator=coordinator)) == 1
    assert share.acquire(group, coordinator=coordinator) == []
    assert not coordinator.has_ready(group)
    share.metadata.push(share.topic, 1)
    assert coordinator.has_ready(group)
    made = calls.heard(ReadyPartitions, "__init__")
    coordinator.delete(group)
    assert coordinator.has_ready(group)
    assert made == [], "nothing of a deleted group is begun anew"


def test_a_closed_coordinator_ends_its_waits(share: ShareUnderTest) -> None:
    group = share.group()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(
            share.coordinator.acquire,
            asking(group, 1),
            Deadline.after(LONG),
            Cancel(),
        )
        share.coordinator.close()
        with pytest.raises(Unavailable):
            waiting.result(LONG)


def test_a_lease_that_never_was_one_and_a_range_that_is_none_are_told_apart(
    share: ShareUnderTest,
) -> None:
    share.metadata.push(share.topic, 2)
    group = share.group()
    (leased,) = share.acquire(group)
    for lease in ("", "nonsense", "a.1.b"):
        refused = share.acknowledge(group, leased, "accept", lease=lease)
        assert isinstance(refused, InvalidRecordState)
    wrong: list[dict[str, Any]] = [{"first": 3, "last": 1}, {"first": -1}]
    for facts in wrong:
        assert isinstance(share.acknowledge(group, leased, "accept", **facts), InvalidArgument)


def test_nothing_is_held_after_a_crash_until_forgotten_holds_have_expired(
    share: ShareUnderTest,
) -> None:
    share.metadata.push(share.topic, 4)
    group = share.group(lock_duration_ms=10_000)
    (leased,) = share.acquire(group, 2)
    share.wait_for_replicas(group, 2)  # None comes late, to a replica that was restarted.
    share.clock.time += 2
    for number in range(share.replica_count):
        share.restart_replica(number)
    share.coordinator = share.open_coordinator()
    assert share.acquire(group) == []
    assert isinstance(share.acknowledge(group, leased, "accept"), InvalidRecordState)
    share.clock.time += 7.9  # The lock has 0.1 seconds to go.
    assert share.acquire(group) == []
    share.clock.time += 4
    assert spans(share.acquire(group)) == [(0, 3, 1)]


def test_a_tombstone_that_fails_after_its_dead_letter_leaves_one_dead_letter(
    share: ShareUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    share.metadata.push(share.topic, 1)
    group = share.group(dlq_topic="dead")
    (leased,) = share.acquire(group)
    with monkeypatch.context() as patched:
        for replica in share.replicas:
            patched.setattr(replica, "_tombstone", _refuse)
        assert isinstance(share.acknowledge(group, leased, "reject"), Unavailable)
    assert share.dead_letters.offsets == [0]
    assert share.acknowledge(group, leased, "reject") is None
    assert len(share.dead_letters.written) == 2
    assert len(share.dead_letters.letters) == 1
    assert lag(share, group) == (1, 0, 0)


def _refuse(*_: object) -> NoReturn:
    raise Unavailable("out of reach")


def test_entries_of_several_types_are_all_refused_where_one_lease_is_lost(
    share: ShareUnderTest,
) -> None:
    share.metadata.push(share.topic, 9)
    group = share.group(dlq_topic="dead")
    (lost,) = share.acquire(group, 3)
    share.wait_for_replicas(group, 3)
    for replica in share.replicas:  # The coordinator does not know.
        key = ShareKey(group.uuid, group.topic.uuid, lost.partition)
        replica_calls.release(replica, key, [ReleaseEntry(0, 2, Lease.parse(lost.lease), 1)])
    (leased,) = share.acquire(group, 6)
    assert (leased.start_offset, leased.end_offset) == (3, 8)
    share.wait_for_replicas(group, 6)
    before = lag(share, group)
    for kind in ("accept", "release", "reject", "renew"):
        entries = [
            entry_of(leased, "accept", last=4),
            entry_of(lost, kind),
            entry_of(leased, "release", first=5, last=6),
            entry_of(leased, "reject", first=7),
        ]
        results = share.coordinator.acknowledge(group, "me", entries)
        assert all(isinstance(result, InvalidRecordState) for result in results)
        assert lag(share, group) == before
    share.clock.time += 29  # Nor was any part of it given back or finished.
    assert share.acknowledge(group, leased, "accept") is None


def test_what_was_accepted_is_not_told_to_have_failed_where_a_release_does(
    share: ShareUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    share.metadata.push(share.topic, 4)
    group = share.group()
    (leased,) = share.acquire(group)
    share.wait_for_replicas(group, 4)
    entries = [entry_of(leased, "accept", last=1), entry_of(leased, "release", first=2)]
    with monkeypatch.context() as failing:

        def fail(*_: object) -> NoReturn:
            raise Unavailable("the replica is stopped")

        for replica in share.replicas:
            failing.setattr(replica, "_release", fail)
        results = share.coordinator.acknowledge(group, "me", entries)
    assert [type(result) for result in results] == [type(None), Unavailable]
    (state,) = share.coordinator.positions.describe(group)
    assert (state.start_offset, state.lag) == (2, 2)
    share.clock.time += 31
    assert spans(share.acquire(group))[0][:2] == (2, 3)


def test_nothing_is_released_where_it_is_unknown_whether_the_others_were_finished(
    share: ShareUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    share.metadata.push(share.topic, 4)
    group = share.group()
    (leased,) = share.acquire(group)
    share.wait_for_replicas(group, 4)
    entries = [entry_of(leased, "accept", last=1), entry_of(leased, "release", first=2)]
    with monkeypatch.context() as failing:

        def fail(*_: object) -> NoReturn:
            raise Unavailable("the replica is stopped")

        for replica in share.replicas:
            failing.setattr(replica, "_tombstone", fail)
        results = share.coordinator.acknowledge(group, "me", entries)
    assert [type(result) for result in results] == [Unavailable, Unavailable]
    assert "stay held" in str(results[1])
    assert share.acquire(group) == []
    assert share.acknowledge(group, leased, "accept") is None


def test_an_acquire_that_comes_after_the_deletion_begins_nothing_anew(
    share: ShareUnderTest,
) -> None:
    share.metadata.push(share.topic, 4)
    group = share.group()
    unaware = share.open_coordinator()
    share.acquire(group, 1, coordinator=unaware)
    share.coordinator.delete(group)
    # Replicas that were not waited for hear of it a moment later.
    deadline = Deadline.after(LONG)
    while any(replica_calls.read(replica, group.uuid, ()) for replica in share.replicas):
        assert not deadline.passed
    for coordinator in (share.coordinator, unaware):
        with pytest.raises(GroupNotFound):
            share.acquire(group, coordinator=coordinator)
    for replica in share.replicas:
        assert replica_calls.read(replica, group.uuid, ()) == []


def test_a_group_that_is_altered_here_is_so_for_whoever_waits(share: ShareUnderTest) -> None:
    share.metadata.push(share.topic, 4)
    group = share.group(in_flight_max=1)
    assert len(share.acquire(group)) == 1
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(
            share.coordinator.acquire,
            asking(group, 9),
            Deadline.after(LONG),
            Cancel(),
        )
        while not waiting.done():  # Told before it waits, the change would be of no wait.
            share.coordinator.altered(reconfigured(group, in_flight_max=4))
        assert spans(waiting.result(LONG)) == [(1, 3, 1)]


def test_a_group_that_is_altered_during_a_look_is_looked_at_with_what_it_is_then(
    share: ShareUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    share.metadata.push(share.topic, 2)
    group = share.group(in_flight_max=1)
    assert len(share.acquire(group)) == 1
    registry, request = share.metadata.registry, asking(group, 1, member="two")
    listed = registry.partition_states

    def altering(topic_uuid: str) -> list[PartitionState]:
        share.coordinator.altered(reconfigured(group, in_flight_max=2))
        return listed(topic_uuid)

    called = threading.Event()
    with (
        share.coordinator.following(group, called.set),
        share.coordinator.watch(request, called.set),
    ):
        share.coordinator.altered(group)  # Partitions are listed again then.
        called.clear()
        with monkeypatch.context() as patch:
            patch.setattr(registry, "partition_states", altering)
            assert share.coordinator.acquire_now(request) == []
        assert called.is_set()
        assert spans(share.coordinator.acquire_now(request)) == [(1, 1, 1)]


def test_what_is_given_up_goes_where_another_node_has_told_the_group(
    share: ShareUnderTest,
) -> None:
    share.metadata.push(share.topic, 2)
    group = share.group(delivery_limit=1)
    altered = reconfigured(group, dlq_topic="dead")
    coordinator = share.open_coordinator(lambda _: altered)
    assert len(share.acquire(group, coordinator=coordinator)) == 1
    share.clock.time += 31
    deadline = Deadline.after(LONG)
    pause = threading.Event()
    while lag(share, group) != (2, 0, 0):
        assert not deadline.passed
        pause.wait(0.05)
    assert share.dead_letters.offsets == [0, 1]


def test_what_is_accepted_through_another_coordinator_makes_room_here(
    share: ShareUnderTest,
) -> None:
    share.metadata.push(share.topic, 4)
    group = share.group(in_flight_max=2)
    other = share.open_coordinator()
    (leased,) = share.acquire(group)
    assert share.acknowledge(group, leased, "accept", coordinator=other) is None
    if share.replica_count > 1:  # One replica in this process has no other coordinators.
        assert share.acquire(group) == [], "the replicas are not asked for each acquire"
        share.clock.time += 1.1
        assert spans(share.acquire(group)) == [(2, 3, 1)]


@pytest.mark.parametrize("has_accepted", [False, True], ids=["held", "accepted"])
def test_who_asked_for_what_another_node_has_had_is_called_to_ask_for_the_rest(
    remote_share: ShareUnderTest, *, has_accepted: bool
) -> None:
    share, other = remote_share, remote_share.open_coordinator()
    group = share.group()
    request = asking(group, 1, member="two")
    share.metadata.push(share.topic, 1)
    (first,) = other.acquire_now(request)
    assert share.acknowledge(group, first, "accept", member="two", coordinator=other) is None
    share.metadata.push(share.topic, 2)
    (leased,) = share.acquire(group, 1)
    if has_accepted:
        assert share.acknowledge(group, leased, "accept") is None
    called, deadline = threading.Event(), Deadline.after(LONG)
    with other.watch(request, called.set):
        while not (found := spans(other.acquire_now(request))):
            while not called.wait(0.01):
                assert not deadline.passed, "message 2 is available, and is not asked for"
                share.clock.time += 0.01
            called.clear()
    assert found == [(2, 2, 1)]


def test_what_others_hold_is_asked_for_less_and_less_often_however_often_a_member_looks(
    tmp_path: Path,
) -> None:
    with open_share(tmp_path, 3) as share:
        group, other = share.group(in_flight_max=1), share.open_coordinator()
        share.metadata.push(share.topic, 1_000)
        (leased,) = share.acquire(group)
        request = asking(group, 1, member="two")
        asked = list[int]()
        perform = share.replicas[0].perform

        def counting(requests: Sequence[Request]) -> Sequence[Answer]:
            asked.append(sum(isinstance(each, HoldRequest) for each in requests))
            return perform(requests)

        share.replicas[0].perform = counting
        for _ in range(100):
            share.clock.time += 0.05
            assert other.acquire_now(request) == []
        assert 5 < sum(asked) < 20, "it is asked for about once a second"
        assert share.acknowledge(group, leased, "accept") is None
        share.clock.time += 2
        # What it asks for first may be finished.
        assert len(other.acquire_now(request) or other.acquire_now(request)) == 1


def test_what_comes_after_all_that_others_hold_is_acquired_at_once(tmp_path: Path) -> None:
    with open_share(tmp_path, 3) as share:
        group, other = share.group(), share.open_coordinator()
        share.metadata.push(share.topic, 1_000)
        assert len(share.acquire(group, 200)) == 1
        request = asking(group, 1, member="two")
        for offset in range(200, 210):
            assert spans(other.acquire_now(request)) == [(offset, offset, 1)]


def test_what_comes_after_all_that_another_node_was_told_to_delay_is_acquired_at_once(
    remote_share: ShareUnderTest,
) -> None:
    share, group, other = remote_share, remote_share.group(), remote_share.open_coordinator()
    share.metadata.push(share.topic, 100)
    (leased,) = share.acquire(group, 20)
    for offset, delay_ms in zip(range(20), (60_000, 70_000) * 10, strict=True):
        one = replace(leased, start_offset=offset, end_offset=offset)
        assert share.acknowledge(group, one, "release", delay_ms=delay_ms) is None
    request = asking(group, 1, member="two")
    for offset in range(20, 25):
        assert spans(other.acquire_now(request)) == [(offset, offset, 1)]
        share.clock.time += 1.6
    share.clock.time += 60
    assert spans(other.acquire_now(request)) == [(0, 0, 2)], "its delay has ended"


@pytest.mark.usefixtures("unmaintained")
def test_who_loses_all_that_it_asks_for_to_another_node_is_called_for_the_rest(
    tmp_path: Path,
) -> None:
    with open_share(tmp_path, 3) as share:
        group, other = share.group(), share.open_coordinator()
        share.metadata.push(share.topic, 1_000)
        request = asking(group, 1, member="two")
        perform = share.replicas[0].perform

        def overtaken(requests: Sequence[Request]) -> Sequence[Answer]:
            if any(isinstance(each, HoldRequest) and each.member == "two" for each in requests):
                share.clock.time += 1.6  # By then what the other holds would be asked for again.
                assert share.acquire(group, 10)
            return perform(requests)

        called = threading.Event()
        with other.watch(request, called.set):
            share.replicas[0].perform = overtaken
            assert other.acquire_now(request) == []
            share.replicas[0].perform = perform
            for _ in range(20):
                share.clock.time += 0.1
                other.clock_moved()
                if called.wait(0.05):
                    break
            assert called.is_set(), "messages are available, and nobody asks for them"
        assert len(other.acquire_now(request)) == 1


def test_new_messages_are_acquired_at_once_while_others_hold_all_older_ones(
    tmp_path: Path,
) -> None:
    with open_share(tmp_path, 3) as share:
        group, other = share.group(), share.open_coordinator()
        share.metadata.push(share.topic, 200)
        assert len(share.acquire(group, 200)) == 1
        request = asking(group, 1, member="two")
        for _ in range(50):
            assert other.acquire_now(request) == []
            share.clock.time += 0.1
        for offset in range(200, 205):
            share.metadata.push(share.topic, 1)
            assert spans(other.acquire_now(request)) == [(offset, offset, 1)]
            share.clock.time += 2


def test_a_look_ends_though_what_it_has_looked_at_is_to_be_asked_for_again_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "PEEK_PARTITIONS", 1)
    with open_share(tmp_path, 3) as share:
        topic, other = share.metadata.create_topic("key"), share.open_coordinator()
        group = share.group(topic=topic, in_flight_max=1)
        for partition in (A, B):
            share.metadata.push(topic, 100, partition)
            assert len(share.acquire(group, partition=partition)) == 1
        asked = list[int]()
        perform = share.replicas[0].perform

        def slow(requests: Sequence[Request]) -> Sequence[Answer]:
            if isinstance(requests[0], HoldRequest):
                share.clock.time += 2
                asked.append(len(requests))
                assert len(asked) <= 2, "each partition is asked for once"
            return perform(requests)

        share.replicas[0].perform = slow
        assert other.acquire_now(asking(group, 1, member="two")) == []
        assert len(asked) == 2


def test_who_finds_the_window_full_of_what_is_asked_for_just_now_does_not_look_again_soon(
    tmp_path: Path,
) -> None:
    with open_share(tmp_path, 3) as share:
        share.metadata.push(share.topic, 2)
        group, coordinator = share.group(in_flight_max=1), share.open_coordinator()
        assert spans(share.acquire(group, coordinator=coordinator)) == [(0, 0, 1)]
        share.clock.time += 40  # Past the lock, and the next time the replicas would be asked.
        called, looked = threading.Event(), list[int]()
        request = asking(group, 1, member="two")
        perform = share.replicas[0].perform

        def looking(requests: Sequence[Request]) -> Sequence[Answer]:
            if isinstance(requests[0], HoldRequest) and not looked:
                looked.append(len(coordinator.acquire_now(request)))
                share.clock.time += 1
                called.clear()
                called.wait(0.1)  # In which who was to look again would be called.
                looked.append(called.is_set())
            return perform(requests)

        share.replicas[0].perform = looking
        with coordinator.watch(request, called.set):
            assert len(share.acquire(group, coordinator=coordinator)) == 1
        assert looked == [0, False]


def test_groups_that_take_turns_get_messages_of_all_partitions(share: ShareUnderTest) -> None:
    topic = share.metadata.create_topic("key")
    for partition in (A, B):
        share.metadata.push(topic, 100, partition)
    groups = [share.group(topic=topic) for _ in range(2)]
    taken = [
        {leased.partition for leased in share.acquire(group, 1)}
        for _ in range(30)
        for group in groups
    ]
    assert set.union(*taken[::2]) == set.union(*taken[1::2]) == {A, B}


def test_what_is_given_back_is_delivered_as_if_it_never_was(share: ShareUnderTest) -> None:
    share.metadata.push(share.topic, 4)
    group = share.group(delivery_limit=1)
    (leased,) = share.acquire(group, 4)
    share.coordinator.release_undelivered(group, [leased])
    assert share.coordinator.positions.describe(group)[0].in_flight == 0
    (again,) = share.acquire(group, 4)
    assert (again.start_offset, again.end_offset, again.delivery_count) == (0, 3, 1)
    share.coordinator.release_undelivered(group, [leased])
    assert share.acquire(group, 4) == [], "the lease of before gives nothing back"
    assert share.acknowledge(group, again, "accept") is None


def test_what_is_held_is_known_by_member_at_every_coordinator(share: ShareUnderTest) -> None:
    share.metadata.push(share.topic, 10)
    group = share.group(lock_duration_ms=10_000)
    (one,) = share.acquire(group, 4, member="one")
    (two,) = share.acquire(group, 3, member="two")
    share.wait_for_replicas(group, 7)
    assert share.acknowledge(group, one, "accept", last=0, member="one") is None
    share.wait_for_replicas(group, 6)
    share.clock.time += 2
    assert share.acknowledge(group, two, "renew", member="two") is None
    for coordinator in (share.coordinator, share.open_coordinator()):
        held = coordinator.held(group)[UNPARTITIONED]
        assert [(each.first, each.last, each.member, each.count) for each in held] == [
            (1, 3, "one", 1),
            (4, 6, "two", 1),
        ]
        assert [each.held_ms for each in held] == [2_000, 2_000]
        assert held[0].left_ms == 8_000
    share.clock.time += 9
    held = share.coordinator.held(group)[UNPARTITIONED]
    assert [each.member for each in held] == ["two"]


def test_messages_are_counted_once_whatever_is_asked_again(
    share: ShareUnderTest,
) -> None:
    share.metadata.push(share.topic, 10)
    groups = [share.group() for _ in range(2)]
    for group in groups:
        (leased,) = share.acquire(group, 4)
        assert share.acknowledge(group, leased, "accept", member="another") is not None
        assert share.acknowledge(group, leased, "release", first=3) is None
        assert share.acknowledge(group, leased, "accept", last=2) is None
        assert share.acknowledge(group, leased, "accept", last=2) is not None
        share.acquire(group, 1)
    topic = str(share.topic.name)
    counts = GroupCounts(delivered=5, redelivered=1, accepted=3)
    assert share.coordinator.counts == {(topic, group.name): counts for group in groups}


def test_where_too_many_groups_are_counted_the_one_counted_longest_begins_again(
    tmp_path: Path,
) -> None:
    with open_share(tmp_path, 1) as share:
        share.metadata.push(share.topic, 2)
        first, second, *others = [share.group() for _ in range(COUNTED_MAX + 1)]
        for group in (first, second, *others, first):
            assert len(share.acquire(group, 1)) == 1
        topic, counts = str(share.topic.name), share.coordinator.counts
    once = GroupCounts(delivered=1)
    assert counts == {(topic, group.name): once for group in (*others, first)}
