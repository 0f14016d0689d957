"""A link to whichever node serves the only replica."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn
from unittest.mock import Mock

import pytest
from fix_calls import Calls

from wings_core.errors import Unavailable
from wings_core.security.peers import PeerAccess
from wings_core.share.remote import shared
from wings_core.share.remote.link import HoldSession, RemoteLink
from wings_core.share.remote.shared import SharedLink
from wings_core.share.replica.replica import Replica
from wings_core.share.replica.requests import Answer, ForgetRequest

SECONDS = 30.0


def refuse() -> NoReturn:
    raise Unavailable("another process has it")


def test_a_request_whose_next_owner_no_thread_can_ask_is_answered(
    calls: Calls,
) -> None:
    link = SharedLink(Replica(refuse), "127.0.0.1:9", lambda: "127.0.0.1:1", PeerAccess())
    answers: list[Answer] = []
    calls.fail(threading.Thread, "start", RuntimeError("can't start new thread"))
    link.begin_all([ForgetRequest("group")], SECONDS, lambda _, answer: answers.append(answer))
    assert [type(each) for each in answers] == [Unavailable]
    link.close()


def test_a_session_whose_thread_does_not_start_has_ended(calls: Calls) -> None:
    call = Mock()
    calls.fail(threading.Thread, "start", RuntimeError("can't start new thread"))
    session = HoldSession(Mock(return_value=call), Mock())
    assert session.has_ended
    assert isinstance(session.error, Unavailable)
    call.cancel.assert_called_once_with()


def test_a_link_that_is_slow_to_close_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch, calls: Calls
) -> None:
    closing, closes = threading.Event(), threading.Event()

    def wait(_: RemoteLink) -> None:
        closing.set()
        assert closes.wait(2 * SECONDS)

    monkeypatch.setattr(shared, "LINKS_MAX", 1)
    calls.before(RemoteLink, "close", wait)
    link = SharedLink(Replica(refuse), "127.0.0.1:9", lambda: None, PeerAccess())
    remote: Callable[[str], RemoteLink] = link._remote  # pyright: ignore[reportPrivateUsage]
    remote("127.0.0.1:1")
    with ThreadPoolExecutor(2) as threads:
        try:
            second = threads.submit(remote, "127.0.0.1:2")
            assert closing.wait(SECONDS)
            again = threads.submit(remote, "127.0.0.1:2").result(SECONDS)
        finally:
            closes.set()
        assert second.result(SECONDS) is again
    link.close()
