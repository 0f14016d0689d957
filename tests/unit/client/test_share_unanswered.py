"""What a share stream has not been told of, counted by one thread while another changes it."""

import sys
import threading
from collections.abc import Iterator

import pytest

from wings_client._share_unanswered import Sent, Unanswered


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads take turns after a microsecond."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("switching")
def test_it_is_counted_while_requests_come_and_go() -> None:
    unanswered = Unanswered()
    is_over = threading.Event()
    for number in range(100):
        unanswered.requested(number, [Sent((), lambda _: None, 1)])

    def change() -> None:
        number = 100
        while not is_over.is_set():
            unanswered.requested(number, [Sent((), lambda _: None, 1)])
            unanswered.told(number - 100)
            number += 1

    changing = threading.Thread(target=change)
    changing.start()
    try:
        counts = {unanswered.messages for _ in range(2_000)}
    finally:
        is_over.set()
        changing.join()
    assert counts <= {100, 101}
