"""The flow of a group's share streams: turns that are taken together, on one thread."""

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pyarrow as pa
import pytest

from wings_core.contracts.share import AcknowledgementEntry
from wings_core.contracts.share_stream import AcknowledgeMessage
from wings_core.errors import GroupNotFound, Unavailable, WingsError
from wings_core.model import LeasedRange, ShareConfig, ShareGroup, Topic, TopicConfig
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.partitions import UNPARTITIONED
from wings_core.share.coordinator.coordinator import Coordinator
from wings_core.share.model import Acknowledgement, AcknowledgementResult, Acquired, AcquireRequest
from wings_core.share.shares import GroupMoved
from wings_server.flight.share_flow import ShareFlow, ShareFlows, Turn
from wings_server.flight.unread import UNREAD_BYTES_MAX, Unread
from wings_server.share_actions import Settled, runs_of

TOPIC = Topic(
    DEFAULT_NAMESPACE.topic("t"), "uuid", pa.schema([("n", pa.int64())]), None, TopicConfig(), 0
)
GROUP = ShareGroup("g", "group", TOPIC, ShareConfig())
ENTRY = AcknowledgementEntry(first=0, last=0, lease="c.1.m", type="accept")
LEASED = LeasedRange(UNPARTITIONED, 0, 0, "c.1.m", 1, 30_000)
ACQUIRED = Acquired((LEASED,))
NOTHING = Acquired(())


class Coordinated:
    """Stands for a `Coordinator`; notes the calls, which wait while they are told to."""

    def __init__(self) -> None:
        self.acknowledged: list[list[str]] = []
        self.acquired: list[list[str]] = []
        self.error: WingsError | None = None
        self.error_from = 0
        """The number of the first call that fails with it."""
        self.found = ACQUIRED
        self.ready = True
        self.begun = threading.Event()
        self.go = threading.Event()
        self.go.set()

    def has_ready(self, group: ShareGroup) -> bool:
        assert group is GROUP
        return self.ready

    def settle(
        self,
        group: ShareGroup,
        requests: Sequence[tuple[str, Sequence[Acknowledgement]]],
        acquires: Sequence[AcquireRequest],
    ) -> tuple[list[list[AcknowledgementResult]], list[Acquired | WingsError]]:
        assert group is GROUP
        self.acknowledged.append([member for member, _ in requests])
        self.acquired.append([request.member for request in acquires])
        self.begun.set()
        assert self.go.wait(30)
        if self.error is not None and len(self.acquired) > self.error_from:
            raise self.error
        results = [
            [AcknowledgementResult(entry, Unavailable(member)) for entry in entries]
            for member, entries in requests
        ]
        found: list[Acquired | WingsError] = [self.found for _ in acquires]
        return results, found


class Stream:
    """Notes what the flow does with it."""

    def __init__(self, member: str, *requests: int) -> None:
        self.member = member
        self.requests = [AcknowledgeMessage(request=each, acks=(ENTRY,)) for each in requests]
        self.said: list[object] = []
        self.fails_at: str | None = None
        """The method that fails."""
        self.done = threading.Event()

    def take_turn(self) -> Turn | None:
        self.check("take_turn")
        requests, self.requests = self.requests, []
        return Turn(self, self.member, requests)

    def answer(self, requests: Sequence[AcknowledgeMessage], settled: Sequence[Settled]) -> None:
        self.check("answer")
        of_requests = [str(error) for errors, _ in settled for error in errors]
        self.said.append(([each.request for each in requests], of_requests))

    def wanted(self, requests: Sequence[AcknowledgeMessage]) -> AcquireRequest | None:
        del requests
        return AcquireRequest(GROUP, self.member, None, 1)

    def deliver(self, acquired: Acquired | WingsError) -> None:
        self.said.append(acquired)

    def leave(self, requests: Sequence[AcknowledgeMessage]) -> None:
        self.said.append(("left", [each.request for each in requests]))

    def fail(self, error: Exception) -> None:
        self.said.append(type(error))

    def give_back(self) -> None:
        self.done.set()
        self.check("give_back")

    def check(self, method: str) -> None:
        if method == self.fails_at:
            raise ZeroDivisionError


@contextmanager
def flowing(shares: Coordinated) -> Generator[ShareFlow]:
    flow = ShareFlow(cast("Coordinator", shares), GROUP)
    try:
        yield flow
    finally:
        shares.go.set()
        flow.close()


@pytest.mark.parametrize("leads", [False, True], ids=["offered", "led"])
def test_what_comes_during_a_sync_shares_the_next(*, leads: bool) -> None:
    shares = Coordinated()
    shares.go.clear()
    first, *others = [Stream(str(number), 1, 2) for number in range(4)]
    with flowing(shares) as flow:
        leading = threading.Thread(target=flow.lead if leads else flow.offer, args=(first,))
        leading.start()
        assert shares.begun.wait(30)
        for each in others:
            flow.lead(each)  # It is at work: so this one offers.
            flow.offer(each)  # Twice is as once.
        shares.go.set()
        for each in (first, *others):
            assert each.done.wait(30)
        leading.join(30)
    assert shares.acknowledged[0] == ["0", "0"]
    assert shares.acknowledged[1] == ["1", "1", "2", "2", "3", "3"]
    assert shares.acquired == [["0"], ["1", "2", "3"]]
    for each in (first, *others):
        assert each.said[:2] == [([1, 2], [each.member] * 2), ACQUIRED]


def test_what_is_acknowledged_may_have_been_in_the_way_of_what_is_acquired() -> None:
    shares = Coordinated()
    shares.found = NOTHING
    accepts, waits = Stream("accepts", 1), Stream("waits")
    with flowing(shares) as flow:
        flow.lead(accepts)
        flow.lead(waits)
    assert shares.acquired == [["accepts"], ["accepts"], ["waits"]]
    assert accepts.said == [([1], ["accepts"]), NOTHING]
    assert waits.said == [NOTHING]


def test_what_is_acknowledged_was_in_the_way_of_nothing_where_nothing_is_ready() -> None:
    shares = Coordinated()
    shares.found, shares.ready = NOTHING, False
    stream = Stream("accepts", 1)
    with flowing(shares) as flow:
        flow.lead(stream)
    assert shares.acquired == [[]]
    assert stream.said == [([1], ["accepts"]), NOTHING]


def test_an_error_of_the_group_leaves_each_stream_to_its_worker() -> None:
    shares = Coordinated()
    shares.error = GroupNotFound("it was deleted")
    stream = Stream("one", 7)
    with flowing(shares) as flow:
        flow.lead(stream)
    assert stream.said == [("left", [7]), shares.error]


def test_a_group_that_is_moved_before_what_is_tried_again_is_no_fault() -> None:
    shares = Coordinated()
    shares.found, shares.error, shares.error_from = NOTHING, GroupMoved("it was moved"), 1
    stream = Stream("one", 7)
    with flowing(shares) as flow:
        flow.lead(stream)
    assert stream.said == [([7], ["one"]), shares.error]


def test_a_fault_ends_the_streams_of_its_round_and_no_other() -> None:
    shares = Coordinated()
    faulty, sound = Stream("faulty", 1), Stream("sound", 1)
    faulty.fails_at = "answer"
    with flowing(shares) as flow:
        flow.lead(faulty)
        flow.lead(sound)
    assert faulty.said == [ZeroDivisionError]
    assert faulty.done.is_set()
    assert sound.said == [([1], ["sound"]), ACQUIRED]


@pytest.mark.parametrize("method", ["take_turn", "give_back"])
def test_a_fault_of_a_turn_ends_its_stream_alone(method: str) -> None:
    shares = Coordinated()
    shares.go.clear()
    first, faulty, sound = Stream("first", 1), Stream("faulty", 1), Stream("sound", 1)
    faulty.fails_at = method
    with flowing(shares) as flow:
        flow.offer(first)
        assert shares.begun.wait(30)
        flow.offer(faulty)
        flow.offer(sound)
        shares.go.set()
        assert sound.done.wait(30)
    assert faulty.said[-1] is ZeroDivisionError
    assert sound.said == [([1], ["sound"]), ACQUIRED]


def test_streams_of_a_group_share_a_flow_that_ends_with_the_last_of_them() -> None:
    flows, shares = ShareFlows(), cast("Coordinator", Coordinated())
    flow = flows.join(shares, GROUP)
    assert flows.join(shares, GROUP) is flow
    flows.leave(GROUP)
    assert flows.join(shares, GROUP) is flow
    for _ in range(2):
        flows.leave(GROUP)
    assert flows.join(shares, GROUP) is not flow
    flows.leave(GROUP)


def test_a_client_may_have_so_much_unread_until_it_acknowledges_something() -> None:
    def ack(first: int) -> AcknowledgementEntry:
        return ENTRY.model_copy(update={"first": first, "last": first})

    unread = Unread()
    number = 0
    while unread.wrote(5_000, (ENTRY.lease, number)):
        number += 1
    assert 1 < number <= UNREAD_BYTES_MAX // 5_000
    unread.acknowledged([ack(999)])  # It was never delivered.
    assert not unread.wrote(0)
    unread.acknowledged([ack(1), ack(0)])
    assert unread.wrote(1_000)
    assert not unread.wrote(5_000, (ENTRY.lease, number + 1))
    unread.acknowledged([ack(number + 1)])  # It has read all before it, too.
    unread.acknowledged([ack(2)])
    assert unread.wrote(UNREAD_BYTES_MAX - 1_024)


def test_acceptances_of_neighbours_by_one_lease_are_one() -> None:
    def entry(
        first: int, last: int, lease: str = "a", kind: Any = "accept", partition: Any = None
    ) -> AcknowledgementEntry:
        return AcknowledgementEntry(
            first=first, last=last, lease=lease, type=kind, partition=partition
        )

    entries = [
        *(entry(0, 0), entry(1, 1), entry(2, 5)),
        *(entry(7, 7), entry(8, 8, "b"), entry(9, 9, "b", "release")),
        *(entry(10, 10, "b", "release"), entry(11, 11, "b"), entry(12, 13, "b")),
        *(entry(13, 13, "b"), entry(14, 14, "b", partition="p")),
        *(entry(15, 15, "b", partition=1), entry(16, 16, "b", partition=True)),
    ]
    runs = [(0, 3), (3, 4), (4, 5), (5, 6), (6, 7), (7, 9), (9, 10), (10, 11), (11, 12), (12, 13)]
    assert runs_of(entries) == runs
    assert runs_of(entries[:1]) == [(0, 1)]
    assert runs_of([]) == []
