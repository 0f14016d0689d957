"""Ctrl-C: waits of the main thread end at once, on the server too."""

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest
from fix_client import Connect, NewTopic

import wings_client
from wings_client import Client, Topic
from wings_server.testing import RunningServer

WAIT_SECONDS = 50.0

READERS = ("wings-read", "wings-consumer")
"""Threads that read for a main thread which waits."""

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


@contextmanager
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

    async def wait() -> None:
        async with wings_client.connect_async(server.flight) as client:
            await client.fetch(topic, offset=0, timeout=WAIT_SECONDS)

    with _interrupted(server):
        asyncio.run(wait())
    server.wait_for_calls(0)
