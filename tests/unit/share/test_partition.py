"""Selections of a partition: throttled, and of as many ranges as it may keep."""

import pytest

from wings_core.model import Lease
from wings_core.share.state import partition as module
from wings_core.share.state.partition import MessageStates, deliverable


def test_a_partition_with_as_many_ranges_as_it_may_keep_waits_for_a_delay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RANGES_MAX", 4)
    lease = Lease("c", 1, "m")
    subject = MessageStates(0)
    subject.select(8, 8, 100, 5)
    subject.grant(0, 7, lease, 50.0, 1)
    for offset in (1, 3, 5):
        subject.release(offset, offset, lease, until=20.0)
    subject.advance(10.0, 0)
    assert subject.select(100, 8, 100, 5) == []
    assert not subject.has_available(100, 5), "else a member that waits looks again and again"
    assert subject.next_event(10.0) == 10.0
    subject.finish(0, 7)
    assert subject.has_available(100, 5)


def test_what_others_hold_is_left_until_then_also_where_it_was_never_looked_at() -> None:
    subject = MessageStates(0)
    (pick,) = subject.select(60, 5, 100, 5)
    subject.unpick(*pick[:2], 0, until=1.0)
    subject.put_off(0, 9, 2.0)
    subject.put_off(20, 29, 2.0)
    picks = subject.select(60, 30, 100, 5)
    assert [each[:2] for each in picks] == [(10, 19), (30, 49)]
    subject.advance(1.5, 0)
    assert [each[:2] for each in subject.select(60, 30, 100, 5)] == [(50, 59)]
    subject.advance(2.0, 0)
    assert [each[:2] for each in subject.select(60, 30, 100, 5)] == [(0, 9), (20, 29)]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (1, [500]),
        (2, [500, 500]),
        (3, [500, 500, 1]),
        (4, [500, 500, 250, 1]),
        (5, [500, 500, 500, 250, 1]),
        (10, [500, 500, 500, 500, 500, 250, 125, 62, 31, 1]),
    ],
)
def test_the_more_often_a_range_was_delivered_the_smaller_the_pieces(
    limit: int, expected: list[int]
) -> None:
    assert [deliverable(count, 500, limit) for count in range(limit)] == expected


def test_at_least_one_message_is_delivered() -> None:
    assert [deliverable(count, 3, 100) for count in (49, 50, 51, 52, 90)] == [3, 1, 1, 1, 1]
