import sys
import threading
from contextlib import suppress
from types import FrameType

import pytest

from wings_client._threads import Handover, HandoverClosed


def test_items_come_in_order_and_end_with_the_last_giver() -> None:
    handover: Handover[int] = Handover(items_max=8, givers=2)
    handover.put(1)
    handover.done()
    handover.put(2)
    handover.done()
    assert [handover.take(), handover.take(), handover.take()] == [1, 2, None]


def test_a_giver_waits_for_room() -> None:
    handover: Handover[int] = Handover(items_max=1, givers=1)
    handover.put(1)
    second = threading.Event()

    def give() -> None:
        handover.put(2)
        second.set()
        handover.done()

    giver = threading.Thread(target=give)
    giver.start()
    assert not second.wait(0.05)
    assert handover.take() == 1
    assert second.wait(10)
    giver.join()
    assert handover.take() == 2


def test_an_error_comes_after_the_items_before_it_and_only_the_first() -> None:
    handover: Handover[int] = Handover(items_max=8, givers=2)
    handover.put(1)
    handover.fail(ValueError("first"))
    handover.fail(ValueError("second"))
    assert handover.take() == 1
    with pytest.raises(ValueError, match="first"):
        handover.take()


def test_closing_frees_givers_and_drops_what_they_gave() -> None:
    handover: Handover[int] = Handover(items_max=1, givers=1)
    handover.put(1)
    freed = threading.Event()

    def give() -> None:
        try:
            handover.put(2)
        except HandoverClosed:
            freed.set()

    giver = threading.Thread(target=give)
    giver.start()
    handover.close()
    assert freed.wait(10)
    giver.join()
    assert handover.take() is None


def test_a_taker_whose_time_is_up_gets_nothing() -> None:
    handover: Handover[int] = Handover(items_max=1, givers=1)
    assert handover.take(timeout=0.01) is None
    handover.put(1)
    assert handover.take(timeout=0.01) == 1


def test_a_finalizer_closes_it_wherever_its_giver_or_its_taker_is() -> None:
    for calls in range(1, 20):
        handover: Handover[int] = Handover(items_max=1, givers=1)
        left = calls

        def hook(
            frame: FrameType, event: str, _: object, handover: Handover[int] = handover
        ) -> None:
            # Finalizers run after calls; before a call of C, nothing does.
            nonlocal left
            if event in {"call", "c_return"} and frame.f_code.co_filename.endswith("_threads.py"):
                left -= 1
                if left == 0:
                    handover.close()

        sys.setprofile(hook)
        try:
            with suppress(HandoverClosed):
                handover.put(1)
            handover.take()
            handover.done()
        finally:
            sys.setprofile(None)
        handover.close()
        assert handover.take() is None
        with pytest.raises(HandoverClosed):
            handover.put(2)
