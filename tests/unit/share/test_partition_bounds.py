"""A partition that keeps as many ranges as it may."""

import pytest

from wings_core.model import Lease
from wings_core.share.state import partition as module
from wings_core.share.state.partition import MessageStates


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
