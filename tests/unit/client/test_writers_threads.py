"""A thread that writes for others and fails leaves none of them waiting."""

import threading
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any, NoReturn, cast

import pyarrow as pa
import pytest
from fix_threads import Threads

from wings_client import Topic
from wings_client._producer import Producer
from wings_client._retry import Retry
from wings_client._stage import Stage
from wings_client._threads import start_thread
from wings_client._transport import Transport
from wings_core.errors import Internal, WingsError

ROWS = pa.table({"n": [1, 2]})


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    """Return a topic, to which no stream can be opened for want of threads."""

    def fail(*_: object) -> NoReturn:
        raise RuntimeError("can't start new thread")

    for module in ("_producer", "_stage"):
        monkeypatch.setattr(f"wings_client.{module}.PutStream", fail)
    name = "tenants/default/namespaces/default/topics/t"
    return Topic(name, "uuid", cast("Any", ROWS.schema), None, {}, datetime.now(UTC))


@pytest.fixture
def transport() -> Transport:
    return Transport("grpc://127.0.0.1:1", 5.0, Retry())


def test_a_producer_whose_thread_fails_fails(topic: Topic, transport: Transport) -> None:
    producer = Producer(transport, topic)
    with pytest.raises(Internal, match="can't start new thread"):
        producer.send(ROWS).result(30)
    with pytest.raises(Internal, match="can't start new thread"):
        producer.close(30)


def test_a_producer_whose_thread_does_not_start_tries_again(
    topic: Topic, transport: Transport, threads: Threads
) -> None:
    threads.refuse("wings-producer", times=1)
    producer = Producer(transport, topic)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        producer.send(ROWS)
    with pytest.raises(Internal, match="can't start new thread"):
        producer.send(ROWS).result(30)  # By its thread, which cannot open a stream.


def test_a_stage_whose_thread_does_not_start_fails(
    topic: Topic, transport: Transport, threads: Threads
) -> None:
    threads.refuse("wings-stage", times=1)
    stage = Stage(transport, topic, "s", partition=None, timestamp=None)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        stage.write(ROWS)
    ended: Future[WingsError | None] = Future()

    def close() -> None:
        try:
            stage.close()
            ended.set_result(None)
        except WingsError as error:
            ended.set_result(error)

    threading.Thread(target=close, daemon=True).start()
    assert isinstance(ended.result(30), Internal)


def test_a_stage_whose_thread_fails_fails(topic: Topic, transport: Transport) -> None:
    ended: Future[str] = Future()

    def write() -> None:
        stage = Stage(transport, topic, "s", partition=None, timestamp=None)
        try:
            stage.write(ROWS)
            stage.close()
        except Internal as error:
            ended.set_result(error.message)

    threading.Thread(target=write, daemon=True).start()
    assert "can't start new thread" in ended.result(30)


# Threads that are used again. #####################################################################


def run_one() -> int | None:
    """Run a call, and return the number of its thread."""
    seen: list[int | None] = []
    done = threading.Event()

    def call() -> None:
        seen.append(threading.get_native_id())
        done.set()

    start_thread(call, "test-call")
    assert done.wait(20)
    return seen[0]


def test_a_thread_is_used_again() -> None:
    seen = [run_one() for _ in range(50)]
    assert len(set(seen)) < 50


def test_calls_that_wait_have_a_thread_each() -> None:
    together = threading.Barrier(11)

    def meet() -> None:
        together.wait(20)

    for _ in range(10):
        start_thread(meet, "test-wait")
    together.wait(20)


def test_a_call_that_raises_is_told_of_and_keeps_no_other_from_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[BaseException | None] = []
    is_told = threading.Event()

    def hear(args: threading.ExceptHookArgs) -> None:
        told.append(args.exc_value)
        is_told.set()

    monkeypatch.setattr(threading, "excepthook", hear)
    error = KeyError("the call's own")

    def fail() -> None:
        raise error

    start_thread(fail, "test-fail")
    assert is_told.wait(20)
    for _ in range(20):
        run_one()
    assert told == [error]
