"""Gathers that are ended by a signal handler or a finalizer, on a thread that is amid their code.

Python runs these between any two calls; a profiler's hook is run there as well, one by one.
"""

import random
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType

import pytest
from scripted_responders import Responder, near_script

from wings_client import Client
from wings_client.gather import Gather, GatherReason, Request

CODE = ("_gather.py", "_sources.py")
"""What is interrupted."""

FIRST_CALLS = 150
"""Later ones are much the same."""

after_calls = pytest.mark.parametrize(
    "calls",
    [
        random.Random(7).sample(range(1, FIRST_CALLS), FIRST_CALLS // 3),
        pytest.param(range(1, FIRST_CALLS), marks=pytest.mark.soak),
    ],
)
"""After each of these a gather is ended once; at no fixed distance, as each reply takes as many."""


class Interruption:
    """Ends a gather after so many calls of its code."""

    def __init__(self, calls: int) -> None:
        self.gather: Gather | None = None
        """Calls count once it is there."""
        self._left = calls

    def hook(self, frame: FrameType, event: str, _: object) -> None:
        # Before a call of C, nothing runs.
        if event not in {"call", "c_return"} or not frame.f_code.co_filename.endswith(CODE):
            return
        if self.gather is not None:
            self._left -= 1
            if self._left == 0:
                self.gather.cancel()


def check_end(gather: Gather, handed: dict[int, int]) -> None:
    """Check that the end tells of just the rows that were handed on, by source."""
    assert gather.end is not None
    assert gather.end.reason in {GatherReason.CANCELLED, GatherReason.COMPLETE}
    found = {index: each.rows for index, each in enumerate(gather.end.sources) if each.rows}
    assert found == handed
    assert gather.end.rows == sum(handed.values())
    assert [each.next_offset for each in gather.end.sources] == [
        handed.get(index, 0) for index in range(len(gather.end.sources))
    ]


def requests() -> list[Request]:
    return [near_script(*[(0, 1)] * 4, system_columns=number == 1) for number in range(2)]


def handed_on(gather: Gather, sent: list[Request]) -> dict[int, int]:
    rows: dict[int, int] = {}
    for reply in gather:
        index = sent.index(reply.request)
        rows[index] = rows.get(index, 0) + reply.batch.num_rows
    return rows


@after_calls
def test_a_signal_handler_ends_a_gather_wherever_its_reader_is(
    server: Responder, client: Client, calls: Sequence[int]
) -> None:
    sent = requests()
    for number in calls:
        interruption = Interruption(number)
        gather = interruption.gather = client.gather(sent, timeout=60)
        sys.setprofile(interruption.hook)
        try:
            handed = handed_on(gather, sent)
        finally:
            sys.setprofile(None)
        check_end(gather, handed)
    server.wait_until_idle()


@after_calls
def test_a_finalizer_ends_a_gather_wherever_its_threads_are(
    server: Responder, client: Client, monkeypatch: pytest.MonkeyPatch, calls: Sequence[int]
) -> None:
    interruption = Interruption(1)

    def start(call: Callable[[], None], name: str) -> None:
        def run(hook: Callable[[FrameType, str, object], None] = interruption.hook) -> None:
            sys.setprofile(hook)
            call()

        threading.Thread(target=run, name=name, daemon=True).start()

    monkeypatch.setattr("wings_client.gather._sources.start_thread", start)
    sent = requests()
    for number in calls:
        interruption = Interruption(number)
        gather = interruption.gather = client.gather(sent, timeout=60)
        check_end(gather, handed_on(gather, sent))
    server.wait_until_idle()
