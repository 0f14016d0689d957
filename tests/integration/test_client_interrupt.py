"""Ctrl-C: waits of the main thread end at once, on the server too."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator

import pyarrow as pa
import pytest
from fix_client import Connect, NewTopic
from forked_commands import FORKED

import wings_client
from wings_client import Client, Topic
from wings_client._interrupt import LOOK_SECONDS
from wings_server.testing import RunningServer

WAIT_SECONDS = 50.0

READERS = ("wings-read", "wings-consumer")
"""Threads that read for a main thread which waits: here always, as the tests' own time limit has a
handler for a signal."""

WAITS: dict[str, Callable[[Client, Topic], object]] = {
    "fetch": lambda client, topic: client.fetch(topic, offset=0, timeout=WAIT_SECONDS),
    "follow": lambda client, topic: next(client.follow(topic, timeout=WAIT_SECONDS)),
    "consumer": lambda client, topic: next(
        iter(client.consumer("c", topic, timeout=WAIT_SECONDS)), None
    ),
}


def _interrupt_once_it_waits(server: RunningServer, readers: tuple[str, ...] = ("",)) -> None:
    """Send Ctrl-C when the server holds a long poll, and a thread of this name reads it here."""
    end = time.monotonic() + WAIT_SECONDS / 4
    waits = server.server.log.fetcher.waits
    while time.monotonic() < end:
        names = [thread.name for thread in threading.enumerate()]
        if waits.waiting == 1 and any(name.startswith(readers) for name in names):
            break
        time.sleep(0.002)
    # To this thread: of a process's signals the kernel now and then gives one to another, and
    # Python hears of that only once the wait is over.
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


@contextlib.contextmanager
def _interrupted(server: RunningServer, readers: tuple[str, ...] = ("",)) -> Generator[None]:
    """Have Ctrl-C end the wait of the block, which must be the server's only call."""
    server.wait_for_calls(0)
    interrupting = threading.Thread(target=_interrupt_once_it_waits, args=(server, readers))
    started = time.monotonic()
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        yield
    assert time.monotonic() - started < WAIT_SECONDS / 2
    interrupting.join()


@pytest.fixture
def connect() -> Connect:
    """The sync face alone: Ctrl-C reaches a coroutine as its loop's cancellation, tried below."""
    return wings_client.connect


@pytest.mark.parametrize("name", WAITS)
def test_ctrl_c_ends_a_wait(
    server: RunningServer, wings: Client, new_topic: NewTopic, name: str
) -> None:
    topic = new_topic()
    with _interrupted(server, READERS):
        WAITS[name](wings, topic)
    wings.close()
    server.wait_for_calls(0)


def test_the_client_goes_on_after_ctrl_c(
    server: RunningServer, wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    with _interrupted(server, READERS):
        wings.fetch(topic, offset=0, timeout=WAIT_SECONDS)
    server.wait_for_calls(0)
    wings.push(topic, {"n": [1]})
    assert wings.fetch(topic, offset=0, timeout=WAIT_SECONDS).num_rows == 1


def test_ctrl_c_ends_a_coroutine_that_waits(server: RunningServer, new_topic: NewTopic) -> None:
    topic = new_topic()

    async def tick() -> None:
        """Wake the loop: a signal just before it waits is heard of once that wait is over."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)

    async def wait() -> None:
        async with wings_client.connect_async(server.flight) as client:
            ticking = asyncio.create_task(tick())
            await client.fetch(topic, offset=0, timeout=WAIT_SECONDS)
            ticking.cancel()

    with _interrupted(server):
        asyncio.run(wait())
    server.wait_for_calls(0)


FOLLOW = """
import os, signal, socket, sys, threading
import pyarrow as pa
import wings_client

how = sys.argv[2]
if how == "handler":
    # Not by print: it may come while the print before it has not returned.
    signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"handled\\n"))
if how == "descriptor":
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    signal.set_wakeup_fd(theirs.fileno())
with wings_client.connect(sys.argv[1]) as client:
    topic = client.create_topic(how, pa.schema([("n", pa.int64())]), if_not_exists=True)
    try:
        for batch in client.follow(topic, offset="earliest", timeout=50):
            names = [thread.name for thread in threading.enumerate()]
            print("thread" if any(name.startswith("wings-read") for name in names) else "here",
                  batch.batch.num_rows, flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    client.push(topic, {"n": [1]})
    print(client.fetch(topic, offset=0, timeout=50).num_rows, flush=True)
if how == "descriptor":
    assert signal.set_wakeup_fd(-1) == theirs.fileno(), "the program's own descriptor stays"
    assert ours.recv(1)[0] == signal.SIGINT
"""


@pytest.mark.parametrize(
    ("how", "where"), [("plain", "here"), ("handler", "thread"), ("descriptor", "thread")]
)
def test_ctrl_c_ends_a_follow_of_a_process(server: RunningServer, how: str, where: str) -> None:
    with (
        wings_client.connect(server.flight) as client,
        subprocess.Popen(
            [sys.executable, "-c", FORKED + FOLLOW, server.flight, how],
            stdout=subprocess.PIPE,
            text=True,
        ) as child,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(child.kill)
        assert child.stdout is not None
        client.create_topic(how, pa.schema([("n", pa.int64())]), if_not_exists=True)
        client.push(how, {"n": [1, 2]})
        assert child.stdout.readline() == f"{where} 2\n"
        server.wait_for_waiting(1)
        if how == "handler":
            child.send_signal(signal.SIGUSR1)
            assert child.stdout.readline() == "handled\n"
        client.push(how, {"n": [3]})
        assert child.stdout.readline() == f"{where} 1\n"
        server.wait_for_waiting(1)
        child.send_signal(signal.SIGINT)
        assert child.stdout.read() == "interrupted\n4\n"
        assert child.wait(WAIT_SECONDS) == 0
    server.wait_for_calls(0)


FORK = """
import os, signal, threading
from wings_client._interrupt import _Watch

class Reader:
    def cancel(self):
        pass

    def read_chunk(self):
        thread = threading.Thread(target=self.fork)
        thread.start()
        thread.join()

    def fork(self):
        child = os.fork()
        if child == 0:
            os._exit(signal.set_wakeup_fd(-1) != -1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

watch, reader = _Watch.of_process(), Reader()
assert watch.begin(reader)
watch.run(reader)
"""


def test_signals_of_a_child_that_is_forked_during_a_read_end_no_read_of_its_parent() -> None:
    forked = subprocess.run(
        [sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60
    )
    assert forked.stdout == "0\n", forked.stderr
