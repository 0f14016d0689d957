"""The loop of a group's share streams, and what a stream writes without waiting."""

import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from wings_core.contracts.share import AcknowledgementEntry, AcknowledgeMessage
from wings_core.errors import GroupNotFound, Unavailable, WingsError
from wings_core.model import LeasedRange, ShareConfig, ShareGroup, Topic, TopicConfig
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.partitions import UNPARTITIONED
from wings_core.share.coordinator.coordinator import Coordinator
from wings_core.share.delivery.delivery import DeliveredBatch
from wings_core.share.model import Acknowledgement, AcquireRequest, Leased
from wings_core.share.shares import GroupMoved
from wings_server.flight.share_ends import UNREAD_BYTES_MAX, ShareWriter, Unread
from wings_server.flight.share_loop import GroupLoop, GroupLoops, Turn
from wings_server.group_actions import Settled

TOPIC = Topic(
    DEFAULT_NAMESPACE.topic("t"), "uuid", pa.schema([("n", pa.int64())]), None, TopicConfig(), 0
)
GROUP = ShareGroup("g", "group", TOPIC, ShareConfig())
ENTRY = AcknowledgementEntry(first=0, last=0, lease="c.1.m", type="accept")
LEASED = LeasedRange(UNPARTITIONED, 0, 0, "c.1.m", 1, 30_000)
ACQUIRED = [LEASED]
NOTHING: list[LeasedRange] = []
ROWS = 100


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
    ) -> tuple[list[list[WingsError | None]], list[Leased]]:
        assert group is GROUP
        self.acknowledged.append([member for member, _ in requests])
        self.acquired.append([request.member for request in acquires])
        self.begun.set()
        assert self.go.wait(30)
        if self.error is not None and len(self.acquired) > self.error_from:
            raise self.error
        results: list[list[WingsError | None]] = [
            [Unavailable(member) for _ in entries] for member, entries in requests
        ]
        found: list[Leased] = [self.found for _ in acquires]
        return results, found


class Stream:
    """Notes what the loop does with it."""

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

    def deliver(self, acquired: Leased) -> None:
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
def looping(shares: Coordinated) -> Generator[GroupLoop]:
    loop = GroupLoop(cast("Coordinator", shares), GROUP)
    try:
        yield loop
    finally:
        shares.go.set()
        loop.close()


@pytest.mark.parametrize("leads", [False, True], ids=["offered", "led"])
def test_what_comes_during_a_sync_shares_the_next(*, leads: bool) -> None:
    shares = Coordinated()
    shares.go.clear()
    first, *others = [Stream(str(number), 1, 2) for number in range(4)]
    with looping(shares) as loop:
        leading = threading.Thread(target=loop.lead if leads else loop.offer, args=(first,))
        leading.start()
        assert shares.begun.wait(30)
        for each in others:
            loop.lead(each)  # It is at work: so this one offers.
            loop.offer(each)  # Twice is as once.
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
    with looping(shares) as loop:
        loop.lead(accepts)
        loop.lead(waits)
    assert shares.acquired == [["accepts"], ["accepts"], ["waits"]]
    assert accepts.said == [([1], ["accepts"]), NOTHING]
    assert waits.said == [NOTHING]


def test_what_is_acknowledged_was_in_the_way_of_nothing_where_nothing_is_ready() -> None:
    shares = Coordinated()
    shares.found, shares.ready = NOTHING, False
    stream = Stream("accepts", 1)
    with looping(shares) as loop:
        loop.lead(stream)
    assert shares.acquired == [[]]
    assert stream.said == [([1], ["accepts"]), NOTHING]


def test_an_error_of_the_group_leaves_each_stream_to_a_thread() -> None:
    shares = Coordinated()
    shares.error = GroupNotFound("it was deleted")
    stream = Stream("one", 7)
    with looping(shares) as loop:
        loop.lead(stream)
    assert stream.said == [("left", [7]), shares.error]


def test_a_group_that_is_moved_before_what_is_tried_again_is_no_fault() -> None:
    shares = Coordinated()
    shares.found, shares.error, shares.error_from = NOTHING, GroupMoved("it was moved"), 1
    stream = Stream("one", 7)
    with looping(shares) as loop:
        loop.lead(stream)
    assert stream.said == [([7], ["one"]), shares.error]


def test_a_fault_ends_the_streams_of_its_round_and_no_other() -> None:
    shares = Coordinated()
    faulty, sound = Stream("faulty", 1), Stream("sound", 1)
    faulty.fails_at = "answer"
    with looping(shares) as loop:
        loop.lead(faulty)
        loop.lead(sound)
    assert faulty.said == [ZeroDivisionError]
    assert faulty.done.is_set()
    assert sound.said == [([1], ["sound"]), ACQUIRED]


@pytest.mark.parametrize("method", ["take_turn", "give_back"])
def test_a_fault_of_a_turn_ends_its_stream_alone(method: str) -> None:
    shares = Coordinated()
    shares.go.clear()
    first, faulty, sound = Stream("first", 1), Stream("faulty", 1), Stream("sound", 1)
    faulty.fails_at = method
    with looping(shares) as loop:
        loop.offer(first)
        assert shares.begun.wait(30)
        loop.offer(faulty)
        loop.offer(sound)
        shares.go.set()
        assert sound.done.wait(30)
    assert faulty.said[-1] is ZeroDivisionError
    assert sound.said == [([1], ["sound"]), ACQUIRED]


def test_streams_of_a_group_share_a_loop_that_ends_with_the_last_of_them() -> None:
    loops, shares = GroupLoops(), cast("Coordinator", Coordinated())
    with loops.joined(shares, GROUP) as loop:
        with loops.joined(shares, GROUP) as another:
            assert another is loop
        with loops.joined(shares, GROUP) as another:
            assert another is loop
    with loops.joined(shares, GROUP) as another:
        assert another is not loop


def test_a_turn_may_be_for_a_later_time() -> None:
    later, now = Stream("later", 1), Stream("now", 1)
    with looping(Coordinated()) as loop:
        at = time.monotonic() + 0.05
        loop.offer(later, at)
        loop.offer(now)
        assert later.done.wait(30)
        assert time.monotonic() >= at
        assert now.done.is_set()


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


@pytest.mark.parametrize(("large_bytes", "written"), [(10 * UNREAD_BYTES_MAX, 0), (10, 31)])
def test_no_more_is_written_than_a_client_may_leave_unread(large_bytes: int, written: int) -> None:
    texts = ["a" * large_bytes] * 2 + ["a"] * (ROWS - 2)
    batch = pa.record_batch({"text": texts, "__offset": pa.array(range(ROWS), pa.int64())})
    writer, writes = writer_of(batch.schema)
    leased = LeasedRange(UNPARTITIONED, 0, ROWS - 1, "lease", 1, 30_000)
    writer.deliver(DeliveredBatch(leased, batch))
    assert (len(writes), len(writer.outbox)) == (written, ROWS - written)


@pytest.mark.parametrize(("messages", "written"), [(1, 2), (1_000, 0)])
def test_long_answers_are_not_written_where_that_might_wait(messages: int, written: int) -> None:
    writer, writes = writer_of(pa.schema([]))
    request = AcknowledgeMessage(request=1, acks=(ENTRY,) * messages)
    for _ in range(2):
        writer.answer(request, [None] * messages)
    assert len(writes) == written


def writer_of(schema: pa.Schema) -> tuple[ShareWriter, list[pa.RecordBatch]]:
    """Return the writer of a stream that delivers one message at a time, and what it writes."""
    writes: list[pa.RecordBatch] = []

    def write(rows: pa.RecordBatch, _: object) -> None:
        writes.append(rows)

    def nothing(*_: object) -> tuple[()]:
        return ()

    anything: Any = SimpleNamespace
    opened = anything(group=GROUP, command=anything(max_messages=1), schema=schema)
    log, metrics = anything(pushed_in=nothing), anything(delivered=nothing)
    return ShareWriter(log, opened, anything(write_with_metadata=write), metrics, None), writes
