"""What a share stream holds, and how much more its client may be given."""

from wings_core.contracts.share import (
    AcknowledgementEntry,
    AcknowledgeMessage,
    AliveMessage,
    CreditMessage,
)
from wings_core.model import LeasedRange
from wings_core.partitions import UNPARTITIONED
from wings_core.share.delivery import stream_holds
from wings_core.share.delivery.stream_holds import StreamHolds
from wings_core.share.model import Acknowledgement, AcknowledgeType

LOCK_MS = 10_000
ALIVE = AliveMessage(alive=True)


def holding(messages: int, credit: int) -> StreamHolds:
    """Return what a stream holds that was delivered messages at the time 0."""
    holds = StreamHolds(credit, LOCK_MS, 0.0)
    holds.hear(ALIVE, 0.0)
    for offset in range(messages):
        holds.add(LeasedRange(UNPARTITIONED, offset, offset, "c.1.m", 1, LOCK_MS), 0.0, 0.0)
    return holds


def said(offset: int, kind: AcknowledgeType) -> Acknowledgement:
    return Acknowledgement(UNPARTITIONED, offset, offset, "c.1.m", kind)


def test_nothing_may_be_delivered_before_the_client_has_spoken() -> None:
    holds = StreamHolds(7, LOCK_MS, 0.0)
    assert holds.room(1.0) == 0
    holds.hear(ALIVE, 1.0)
    assert holds.room(1.0) == 7
    holds.hear(CreditMessage(credit=3), 1.0)
    assert holds.room(1.0) == 3


def test_what_is_released_is_for_others_until_the_client_asks_for_more() -> None:
    holds = holding(3, credit=10)
    entry = AcknowledgementEntry(first=1, last=1, lease="c.1.m", type="release")
    holds.hear(AcknowledgeMessage(request=1, acks=(entry,)), 1.0)
    holds.acknowledged(said(1, "release"), 1.0, 1.0)
    holds.hear(ALIVE, 2.0)
    assert holds.room(2.0) <= 0
    holds.hear(CreditMessage(credit=10), 2.0)
    assert holds.room(2.0) == 8


def test_a_stream_that_drains_has_no_room_whatever_its_client_asks_for() -> None:
    holds = holding(1, credit=10)
    holds.drain()
    holds.hear(CreditMessage(credit=10), 1.0)
    assert holds.room(1.0) == 0


def test_what_is_acknowledged_makes_room() -> None:
    holds = holding(3, credit=3)
    assert [holds.room(1.0), holds.room(1.0, acknowledging=2)] == [0, 2]
    holds.acknowledged(said(1, "accept"), 1.0, 1.0)
    holds.acknowledged(said(2, "release"), 1.0, 1.0)
    assert holds.room(1.0) == 2
    assert [(each.first, each.type) for each in holds.releases(1.0)] == [(0, "release")]


def test_a_client_that_has_said_nothing_for_a_lock_is_given_nothing() -> None:
    holds = holding(0, credit=5)
    assert holds.room(9.9) == 5
    assert holds.room(10.0) == 0
    holds.hear(ALIVE, 12.0)
    assert holds.room(12.0) == 5


def test_the_lock_that_counts_is_the_one_that_was_told_last() -> None:
    holds = holding(0, credit=5)
    holds.add(LeasedRange(UNPARTITIONED, 0, 0, "c.1.m", 1, 2_000), 1.0, 1.0)
    assert holds.room(1.9) == 4
    assert holds.room(2.0) == 0


def test_what_has_expired_keeps_its_credit_until_the_client_speaks() -> None:
    holds = holding(2, credit=5)
    holds.hear(ALIVE, 9.0)
    assert holds.room(9.5) == 3
    assert holds.room(10.0) == 0, "not even the rest: it may be standing still"
    assert holds.messages == 2
    assert holds.releases(10.0) == [], "others may have them"
    holds.hear(ALIVE, 11.0)
    assert holds.room(11.0) == 5


def test_what_is_renewed_expires_a_lock_later() -> None:
    holds = holding(2, credit=5)
    holds.hear(ALIVE, 6.0)
    holds.acknowledged(said(0, "renew"), 6.0, 6.0)
    assert holds.room(9.5) == 3
    assert holds.room(12.0) == 0, "the other has expired"
    holds.hear(ALIVE, 12.0)
    assert holds.room(12.0) == 4
    holds.acknowledged(said(0, "accept"), 12.0, 12.0)
    assert holds.room(15.9) == 5, "the lock of what is done tells nothing"
    assert holds.room(16.1) == 5


def test_a_lock_is_relied_on_for_no_longer_than_by_the_coordinator() -> None:
    holds = holding(1, credit=5)
    holds.hear(ALIVE, 9.0)
    # A coordinator takes a margin off; what ends there is handed out, and not to this stream.
    assert holds.room(9.9) == 0
    holds.hear(ALIVE, 9.95)
    assert holds.room(9.96) == 0, "it may be held still"
    holds.hear(ALIVE, 10.0)
    assert holds.room(10.0) == 5


def test_a_stream_that_always_holds_something_forgets_the_locks_of_what_is_done() -> None:
    holds = StreamHolds(1, 43_200_000, 0.0)
    for offset in range(5 * stream_holds.STALE_MAX):
        leased = LeasedRange(UNPARTITIONED, offset, offset, f"c.{offset}.m", 1, 43_200_000)
        holds.add(leased, 0.0, 0.0)
        if offset:
            done = Acknowledgement(
                UNPARTITIONED, offset - 1, offset - 1, f"c.{offset - 1}.m", "accept"
            )
            holds.acknowledged(done, 0.0, 0.0)
    assert holds.messages == 1
    assert len(holds._expiries) <= stream_holds.STALE_MAX + 2  # pyright: ignore[reportPrivateUsage]
    holds.hear(ALIVE, 43_200.0)
    assert holds.room(43_200.0) == 1
    assert holds.messages == 0
