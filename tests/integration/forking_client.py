"""A client with everything open, that forks: what its child may call, and how the parent goes on.

    python forking_client.py FLIGHT TOPIC {os,multiprocessing}

The child calls all that it inherited, and ends; then the parent goes on with it. Prints JSON:
`child`, by call the error's class and message, or null; `status`, the child's; and `parent`, what
the parent's calls came to.
"""

import asyncio
import faulthandler
import gc
import json
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pyarrow as pa

import wings_client
from wings_client.gather import Request

STUCK_SECONDS = 120.0
"""After so many the child shows where it hangs, and ends."""


class Opened:
    """One of everything, in its middle.

    Args:
        endpoint: Of the server.
        topic: An empty topic of an int64 column `n`.
    """

    def __init__(self, endpoint: str, topic: str) -> None:
        self.client = client = wings_client.connect(endpoint)
        self.topic = topic
        client.push(topic, {"n": [0]})
        client.push(topic, {"n": [1]})
        client.create_share_group("g", topic, {"start": "earliest"})
        self.producer = client.producer(topic, linger_ms=60_000)
        self.producer.send({"n": [2]}).result()
        self.producer.append({"n": 3})
        self.stage = client.stage(topic, "staged")
        self.stage.write({"n": [4]})
        self.follow = client.follow(topic, offset=0)
        next(self.follow)
        self.consumer = client.consumer("c", topic)
        next(self.consumer)
        self.share_consumer = client.share_consumer("g", topic)
        self.delivery = next(self.share_consumer)
        self.worker = client.worker("g", topic, lambda _: None)
        self.worker.engine.start()
        self.scan = client.scan(topic)
        self.scan.read_next_batch()
        self.parallel = client.scan(topic, parallel=2)
        self.sql = client.sql("SELECT * FROM range(1000000)")
        self.sql.read_next_batch()
        self.gather = iter(client.gather([Request(topic, offset=0)], timeout=60))
        next(self.gather)

    def calls(self) -> dict[str, Callable[[], object]]:
        """Return what a child of a process that has these might call."""
        client, topic = self.client, self.topic
        new = wings_client.connect(client.endpoint)
        return {
            "new client": new.topics,
            "topics": client.topics,
            "push": lambda: client.push(topic, {"n": [9]}),
            "fetch": lambda: client.fetch(topic, offset=0),
            "scan": lambda: client.scan(topic),
            "sql": lambda: client.sql("SELECT 1"),
            "follow": lambda: client.follow(topic),
            "consumer": lambda: client.consumer("d", topic),
            "acquire": lambda: client.acquire_messages("g", topic, "m"),
            "gather": lambda: next(iter(client.gather([Request(topic, offset=0)]))),
            "stage": lambda: client.stage(topic, "other").write({"n": [9]}),
            "producer.append": lambda: self.producer.append({"n": 9}),
            "producer.send": lambda: self.producer.send({"n": [9]}),
            "producer.flush": self.producer.flush,
            "stage.write": lambda: self.stage.write({"n": [9]}),
            "stage.close": self.stage.close,
            "follow.next": lambda: next(self.follow),
            "consumer.next": lambda: next(self.consumer),
            "consumer.commit": self.consumer.commit,
            "share_consumer.next": lambda: next(self.share_consumer),
            "share_consumer.accept": lambda: self.share_consumer.accept(self.delivery),
            "worker.run": self.worker.run,
            "worker.wait": self.worker.wait,
            "scan.read": self.scan.read_all,
            "parallel.read": self.parallel.read_all,
            "sql.read": self.sql.read_all,
            "gather.next": lambda: next(self.gather),
        }

    def endings(self) -> dict[str, Callable[[], object]]:
        """Return what ends these, as leaving a block does."""
        return {
            f"{each}.close": getattr(self, each).close
            for each in ("producer", "follow", "consumer", "share_consumer", "worker", "client")
        }

    def go_on(self) -> Mapping[str, object]:
        """Go on with all of it, and close it; returns what came."""
        self.producer.append({"n": 5})
        self.producer.close()
        staged = self.stage.close()
        self.client.publish(self.topic, 0, [staged])
        followed: list[object] = []
        while len(followed) < 4:
            followed += next(self.follow).batch["n"].to_pylist()
        consumed: list[object] = []
        while len(consumed) < 4:
            consumed += next(self.consumer).batch["n"].to_pylist()
        self.share_consumer.accept(self.delivery)
        rows = self.client.scan(self.topic).read_all()["n"].to_pylist()
        found = {
            "followed": followed,
            "consumed": consumed,
            "sql": sum(batch.num_rows for batch in self.sql),
            "scanned": self.parallel.read_all().num_rows,
            "rows": sorted(str(each) for each in rows),
        }
        self.client.close()
        return found


class AsyncOpened:
    """As `Opened`, of the async client; its loop ended before the fork."""

    def __init__(self, endpoint: str, topic: str) -> None:
        self.client = wings_client.connect_async(endpoint)
        self.topic = topic
        asyncio.run(self._open())

    async def _open(self) -> None:
        await self.client.push(self.topic, {"n": [6]})
        self.producer = await self.client.producer(self.topic)
        self.follow = await self.client.follow(self.topic)
        await anext(self.follow)
        self.consumer = await self.client.consumer("a", self.topic)
        await anext(self.consumer)

    def calls(self) -> dict[str, Callable[[], object]]:
        """Return what a child might call, each in a loop of its own."""

        def run(call: Callable[[], Coroutine[Any, Any, object]]) -> Callable[[], object]:
            return lambda: asyncio.run(call())

        client, topic = self.client, self.topic

        async def awaited(awaitable: Any) -> object:
            return await awaitable

        return {
            "async.push": run(lambda: client.push(topic, {"n": [9]})),
            "async.fetch": run(lambda: client.fetch(topic, offset=0)),
            "async.scan": run(lambda: awaited(client.scan(topic))),
            "async.producer.append": run(lambda: self.producer.append({"n": 9})),
            "async.producer.send": run(lambda: self.producer.send({"n": [9]})),
            "async.follow.next": run(self.follow.__anext__),
            "async.consumer.next": run(self.consumer.__anext__),
        }


def said(call: Callable[[], object]) -> str | None:
    """Return the class and message of what a call raises."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - told.
        return f"{type(error).__name__}: {error}"
    return None


def in_child(opened: Opened, others: AsyncOpened, writer: Any) -> None:
    """Make every call, and tell what it raised."""
    faulthandler.dump_traceback_later(STUCK_SECONDS, exit=True)
    calls = opened.calls() | others.calls() | opened.endings()
    writer.write(json.dumps({name: said(call) for name, call in calls.items()}))
    writer.close()
    del calls
    opened.__dict__.clear()
    others.__dict__.clear()
    gc.collect()


def forked_by_os(opened: Opened, others: AsyncOpened) -> tuple[str, int]:
    """Fork, and have the child end by `sys.exit`; returns what it wrote and its status."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        in_child(opened, others, os.fdopen(writing, "w"))
        sys.exit(7)
    os.close(writing)
    with os.fdopen(reading) as reader:
        text = reader.read()
    return text, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def forked_by_multiprocessing(opened: Opened, others: AsyncOpened) -> tuple[str, int]:
    """As `forked_by_os`, by a `Process`."""
    reading, writing = os.pipe()

    def work() -> None:
        in_child(opened, others, os.fdopen(writing, "w"))
        sys.exit(7)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    os.close(writing)
    with os.fdopen(reading) as reader:
        text = reader.read()
    process.join()
    assert process.exitcode is not None
    return text, process.exitcode


def main(endpoint: str, topic: str, way: str) -> None:
    """See the module."""
    warnings.simplefilter("ignore", DeprecationWarning)  # That a process with threads forks.
    wings_client.connect(endpoint).create_topic(topic, pa.schema({"n": pa.int64()}))
    opened, others = Opened(endpoint, topic), AsyncOpened(endpoint, topic)
    fork = forked_by_os if way == "os" else forked_by_multiprocessing
    text, status = fork(opened, others)
    faulthandler.dump_traceback_later(STUCK_SECONDS, exit=True)
    found = {"child": json.loads(text or "{}"), "status": status, "parent": opened.go_on()}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
