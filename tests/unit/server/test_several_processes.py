"""The processes of one server: a paused one holds up no other, and one that ended comes back."""

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

import pytest
from fix_threads import Threads

from wings_server.processes import parent, siblings
from wings_server.processes.child import Orders
from wings_server.processes.siblings import Siblings
from wings_server.settings import Settings

OWN = b"# HELP n A number.\nn 1\n"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets how long an answer is waited for; at first long, as the machine may be busy."""

    def set_seconds(seconds: float) -> None:
        monkeypatch.setattr(siblings, "ANSWER_SECONDS_MAX", seconds)

    set_seconds(30.0)
    return set_seconds


def test_a_paused_process_is_waited_for_no_longer_than_for_an_answer(
    tmp_path: Path, patience: Callable[[float], None]
) -> None:
    """However often it is asked: the kernel takes a few connections for it, and then no more."""
    patience(0.05)
    found: Future[list[bytes]] = Future()
    with Listener(str(tmp_path / "1"), "AF_UNIX"), closing(Siblings(tmp_path, 0, 2)) as own:

        def ask() -> None:
            found.set_result([own.metrics(OWN) for _ in range(5)])

        threading.Thread(target=ask, daemon=True).start()
        assert found.result(30) == [b'# HELP n A number.\nn{process="0"} 1\n'] * 5


def test_processes_answer_each_other(tmp_path: Path) -> None:
    with closing(Siblings(tmp_path, 0, 2)) as own, closing(Siblings(tmp_path, 1, 2)) as other:
        other.start(lambda: True, lambda: b"n %s\n" % (b"1" * 300_000))  # More than a socket keeps.
        assert len(own.metrics(OWN)) > 300_000


def test_a_process_without_threads_for_an_answer_gives_later_ones(
    tmp_path: Path, threads: Threads
) -> None:
    with closing(Siblings(tmp_path, 0, 2)) as own, closing(Siblings(tmp_path, 1, 2)) as other:
        other.start(lambda: True, lambda: OWN)
        threads.refuse("")
        assert own.metrics(OWN).count(b"process=") == 1
        threads.refuse()
        assert own.metrics(OWN).count(b"process=") == 2


def test_a_process_is_started_again_though_that_failed_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For want of memory, say, or of open files."""
    popen, starts, again = subprocess.Popen, 0, threading.Event()

    def start(_: Any, **options: Any) -> "subprocess.Popen[bytes]":
        nonlocal starts
        starts += 1
        if starts == 2:
            raise BlockingIOError("no more processes")
        if starts == 3:
            again.set()
        ends_at_once = [sys.executable, "-c", "pass"]
        return popen(ends_at_once, stdin=options["stdin"], stdout=options["stdout"])

    monkeypatch.setattr(subprocess, "Popen", start)
    orders = Orders(Settings(data_dir=tmp_path), 0, tmp_path, 0, 1)
    process = parent.ServedProcess(parent.Spare(orders.http, orders.count), orders)
    process.begin()
    process.watch()
    try:
        assert again.wait(60)
    finally:
        process.tell_to_stop()
        process.wait(60)
