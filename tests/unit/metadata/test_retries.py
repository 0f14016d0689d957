"""Retries whose thread does not start at first."""

import threading
from contextlib import closing
from typing import NoReturn

import pytest

from wings_core.metadata.remote.watches import Retries


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
