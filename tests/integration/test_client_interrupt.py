"""Ctrl-C: waits of the main thread end at once, on the server too."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable

import pytest
from fix_client import Connect, NewTopic

import wings_client
from wings_client import Client, Topic
from wings_server.testing import RunningServer

WAIT_SECONDS = 50.0

WAITS: dict[str, Callable[[Client, Topic], object]] = {
    "fetch": lambda client, topic: client.fetch(topic, offset=0, timeout=WAIT_SECONDS),
    "follow": lambda client, topic: next(client.follow(topic, timeout=WAIT_SECONDS)),
    "consumer": lambda client, topic: next(
        iter(client.consumer("c", topic, timeout=WAIT_SECONDS)), None
    ),
}


@pytest.fixture
def connect() -> Connect:
    """The sync face alone: Ctrl-C reaches a coroutine as its loop's cancellation, tried below."""
    return wings_client.connect


@pytest.mark.parametrize("name", WAITS)
def test_ctrl_c_ends_a_wait(
    server: RunningServer, wings: Client, new_topic: NewTopic, name: str
) -> None:
    topic = new_topic()

    def interrupt() -> None:
        server.wait_for_calls(1)
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        WAITS[name](wings, topic)
    assert time.monotonic() - started < WAIT_SECONDS / 2
    interrupting.join()
    wings.close()
    server.wait_for_calls(0)


def test_the_client_goes_on_after_ctrl_c(
    server: RunningServer, wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()

    def interrupt() -> None:
        server.wait_for_calls(1)
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        wings.fetch(topic, offset=0, timeout=WAIT_SECONDS)
    interrupting.join()
    server.wait_for_calls(0)
    wings.push(topic, {"n": [1]})
    assert wings.fetch(topic, offset=0, timeout=WAIT_SECONDS).num_rows == 1


def test_ctrl_c_ends_a_coroutine_that_waits(server: RunningServer, new_topic: NewTopic) -> None:
    topic = new_topic()

    async def wait() -> None:
        async with wings_client.connect_async(server.flight) as client:
            await client.fetch(topic, offset=0, timeout=WAIT_SECONDS)

    def interrupt() -> None:
        server.wait_for_calls(1)
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(wait())
    assert time.monotonic() - started < WAIT_SECONDS / 2
    interrupting.join()
    server.wait_for_calls(0)
