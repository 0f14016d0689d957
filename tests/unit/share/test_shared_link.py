"""A link to whichever node serves the only replica."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

import pytest

from wings_core.errors import Unavailable
from wings_core.security.peers import PeerAccess
from wings_core.share.remote import shared
from wings_core.share.remote.link import RemoteLink
from wings_core.share.remote.shared import SharedLink
from wings_core.share.replica.standby import StandbyReplica

SECONDS = 30.0


def refuse() -> NoReturn:
    raise Unavailable("another process has it")


def test_a_link_that_is_slow_to_close_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    closing, closes = threading.Event(), threading.Event()
    close = RemoteLink.close

    def close_slowly(link: RemoteLink) -> None:
        closing.set()
        assert closes.wait(2 * SECONDS)
        close(link)

    monkeypatch.setattr(shared, "LINKS_MAX", 1)
    monkeypatch.setattr(RemoteLink, "close", close_slowly)
    link = SharedLink(StandbyReplica(refuse), "127.0.0.1:9", lambda: None, PeerAccess())
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
