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
from breakable_proxy import BreakableProxy
from fix_client import Connect, NewTopic
from forked_commands import FORKED

import wings_client
from wings_client import Client, Retry, Topic
from wings_client._cancellation import LOOK_SECONDS
from wings_server.testing import RunningServer

WAIT_SECONDS = 50.0

READERS = ("wings-read", "wings-consumer", "wings-share")
"""Threads that read for a main thread which waits: here always, as the tests' own time limit has a
handler for a signal."""

WAITS: dict[str, Callable[[Client, Topic], object]] = {
    "fetch": lambda client, topic: client.fetch(topic, offset=0, timeout=WAIT_SECONDS),
    "follow": lambda client, topic: next(client.follow(topic, timeout=WAIT_SECONDS)),
    "consumer": lambda client, topic: next(
        iter(client.consumer("c", topic, timeout=WAIT_SECONDS)), None
    ),
    "acquire": lambda client, topic: client.acquire_messages("g", topic, "m", timeout=WAIT_SECONDS),
}


def _interrupt_once_it_waits(
    server: RunningServer,
    readers: tuple[str, ...] = ("",),
    number: signal.Signals = signal.SIGINT,
) -> None:
    """Send Ctrl-C, or another signal, once the server holds a long poll.

    And a thread of this name reads it here.
    """
    end = time.monotonic() + WAIT_SECONDS / 4
    waits = server.server.log.fetcher.waits
    while time.monotonic() < end:
        names = [thread.name for thread in threading.enumerate()]
        waiting = waits.waiting or server.server.service.calls_running
        if waiting == 1 and any(name.startswith(readers) for name in names):
            break
        time.sleep(0.002)
    # To this thread: of a process's signals the kernel now and then gives one to another, and
    # Python hears of that only once the wait is over.
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, number)


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
    wings.create_share_group("g", topic)
    with _interrupted(server, READERS):
        WAITS[name](wings, topic)
    wings.close()
    server.wait_for_calls(0)


@pytest.fixture
def out_of_time() -> Generator[None]:
    """Have the program's own handler of a signal raise an error that pyarrow raises too."""

    def handle(*_: object) -> None:
        raise TimeoutError("the program's own")

    before = signal.signal(signal.SIGUSR2, handle)
    yield
    signal.signal(signal.SIGUSR2, before)


@pytest.mark.usefixtures("out_of_time")
@pytest.mark.parametrize("name", WAITS)
def test_what_a_handler_of_a_signal_raises_ends_a_wait(
    server: RunningServer, wings: Client, new_topic: NewTopic, name: str
) -> None:
    topic = new_topic()
    wings.create_share_group("g", topic)
    server.wait_for_calls(0)
    arguments = (server, READERS, signal.SIGUSR2)
    interrupting = threading.Thread(target=_interrupt_once_it_waits, args=arguments)
    started = time.monotonic()
    interrupting.start()
    with pytest.raises(TimeoutError, match="the program's own"):
        WAITS[name](wings, topic)
    assert time.monotonic() - started < WAIT_SECONDS / 2
    interrupting.join()
    wings.close()
    server.wait_for_calls(0)


SILENT: dict[str, Callable[[Client, Topic], object]] = {
    "action": lambda client, topic: client.topic(topic.name),
    "fetch": lambda client, topic: client.fetch(topic, offset=0, timeout=0),
    "push": lambda client, topic: client.push(topic, {"n": [1]}),
}


@pytest.mark.usefixtures("out_of_time")
@pytest.mark.parametrize("name", SILENT)
def test_what_a_handler_of_a_signal_raises_during_a_call_is_raised_after_it(
    wings: Client, proxy: BreakableProxy, new_topic: NewTopic, name: str
) -> None:
    topic = new_topic()
    with wings_client.connect(proxy.endpoint, timeout=1.5, retry=Retry(attempts=1)) as client:
        assert client.topic(topic.name).uuid == topic.uuid
        proxy.stall()
        main = threading.main_thread().ident
        assert main is not None
        timer = threading.Timer(0.5, signal.pthread_kill, (main, signal.SIGUSR2))
        timer.start()
        with pytest.raises(TimeoutError, match="the program's own"):
            SILENT[name](client, topic)
        timer.join()
        proxy.go_on()


@pytest.fixture(params=["before", "after"])
def interrupted_start(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Ctrl-C come while the first thread of each name is started."""
    names = {"wings-producer", "wings-accumulator", "wings-stage", "wings-consumer"}
    start = threading.Thread.start

    def start_interrupted(thread: threading.Thread) -> None:
        interrupts = thread.name in names and threading.current_thread() is threading.main_thread()
        if not interrupts or request.param == "after":
            start(thread)
        if interrupts:
            names.remove(thread.name)
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", start_interrupted)


@pytest.mark.usefixtures("interrupted_start")
def test_a_push_whose_thread_is_being_started_is_interrupted(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    with pytest.raises(KeyboardInterrupt):
        wings.push(topic, {"n": [1]})
    wings.push(topic, {"n": [2]})
    assert wings.fetch(topic, offset=0).table["n"].to_pylist() == [2]


@pytest.mark.usefixtures("interrupted_start")
def test_a_row_whose_thread_is_being_started_is_sent(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    with wings.producer(topic) as producer:
        with pytest.raises(KeyboardInterrupt):
            producer.append({"n": 1})
        producer.flush(WAIT_SECONDS)
    assert wings.fetch(topic, offset=0).table["n"].to_pylist() == [1]


@pytest.mark.usefixtures("interrupted_start")
def test_a_stage_whose_thread_is_being_started_is_interrupted(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    with pytest.raises(KeyboardInterrupt), wings.stage(topic, f"{topic.id}-1") as stage:
        stage.write({"n": [1]})


@pytest.mark.usefixtures("interrupted_start")
def test_a_stage_that_was_interrupted_may_be_closed(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    stage = wings.stage(topic, f"{topic.id}-1")
    with pytest.raises(KeyboardInterrupt):
        stage.write({"n": [1]})
    assert stage.close().rows == 1


@pytest.mark.usefixtures("interrupted_start")
def test_a_consumer_whose_thread_is_being_started_goes_on(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    with pytest.raises(KeyboardInterrupt):
        wings.push(topic, {"n": [1]})
    wings.push(topic, {"n": [1]})
    with wings.consumer("c", topic, timeout=WAIT_SECONDS) as consumer:
        with pytest.raises(KeyboardInterrupt):
            next(consumer)
        assert len(next(consumer).batch) == 1


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
            threads = ("wings-read", "wings-idle")
            print("thread" if any(name.startswith(threads) for name in names) else "here",
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
from wings_client._cancellation import _Watch

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
