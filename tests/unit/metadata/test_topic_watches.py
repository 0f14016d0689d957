"""Watches of topics whose threads do not start."""

import threading
from contextlib import closing
from typing import Any, NoReturn, cast

import pytest

from wings_core.errors import ResourceExhausted
from wings_core.metadata.remote.watches import Retries, TopicWatches


class Silent:
    """A service at which nothing is committed."""

    def __init__(self) -> None:
        self.watched = threading.Event()

    def WatchTopic(self, _: object) -> Any:  # noqa: N802 - gRPC's name.
        self.watched.set()
        return SilentStream()


class SilentStream:
    """A stream of no messages."""

    def __init__(self) -> None:
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        self._cancelled.set()

    def __iter__(self) -> "SilentStream":
        return self

    def __next__(self) -> object:
        assert self._cancelled.wait(30)
        raise StopIteration


def test_a_watch_whose_thread_does_not_start_leaves_none_to_later_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = Silent()
    watches = TopicWatches(cast("Any", service))
    start = threading.Thread.start
    tries = 0

    def join_and_fail(thread: threading.Thread) -> None:
        """Fail for the first watcher, while another one comes."""
        nonlocal tries
        tries += 1
        if tries > 1:
            start(thread)
            return
        other = threading.Thread(target=watch)
        start(other)
        if not watches._lock.locked():  # pyright: ignore[reportPrivateUsage]
            assert joined.wait(30)
        others.append(other)
        raise RuntimeError("can't start new thread")

    joined, leaving = threading.Event(), threading.Event()
    others: list[threading.Thread] = []

    def watch() -> None:
        with watches.watch("topic", lambda _: None):
            joined.set()
            assert leaving.wait(30)

    monkeypatch.setattr(threading.Thread, "start", join_and_fail)
    with pytest.raises(ResourceExhausted, match="can't start"), watches.watch("topic", print):
        pass
    assert joined.wait(30)
    assert service.watched.wait(30), "the other one is told of commits"
    leaving.set()
    others[0].join(30)


# Retries whose thread does not start at first. ####################################################


def test_a_thread_that_does_not_start_is_started_by_the_next_retry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    called = threading.Event()
    with closing(Retries()) as retries:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", fail)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                retries.after(0, lambda: None)
        retries.after(0, called.set)
        assert called.wait(30)
