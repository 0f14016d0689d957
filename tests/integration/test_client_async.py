"""What the async client adds; the suites of the sync client run on it as well."""

import asyncio
import gc
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import pytest
from breakable_proxy import BreakableProxy
from fix_client import NewTopic
from scripted_responders import Responder, responder, script
from server_processes import until_let_go

import wings_client
from wings_client import AsyncClient, Client, Connection, Topic
from wings_client.gather import GatherReason, Request
from wings_core.errors import InvalidArgument, ResourceExhausted, TopicNotFound, Unavailable
from wings_server.testing import RunningServer

pytestmark = [
    pytest.mark.usefixtures("connect"),
    pytest.mark.parametrize("connect", ["sync"], indirect=True),
]

OPENS = {
    "consumer",
    "dead_letters",
    "follow",
    "gather",
    "producer",
    "read",
    "read_ticket",
    "scan",
    "share_consumer",
    "snapshot",
    "sql",
    "stage",
}
"""Calls whose coroutine may be entered or iterated."""

TRIES = 50
"""How often a bound on time is tried: another process may have the processor for a while."""


@pytest.fixture(scope="module")
def responders() -> Iterator[Responder]:
    with responder() as running:
        yield running


@pytest.fixture
def topic(wings: Client, new_topic: NewTopic) -> Topic:
    """A topic of three numbers."""
    created = new_topic()
    wings.push(created, {"n": [0, 1, 2]})
    return created


def run(
    server: RunningServer, test: Callable[[AsyncClient], Awaitable[None]], **options: Any
) -> None:
    """Run a test with a client, on an event loop of its own."""

    async def main() -> None:
        async with wings_client.connect_async(server.flight, **options) as client:
            await test(client)

    asyncio.run(main())


def public(of: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(of, callable) if not name.startswith("_")}


def test_every_call_of_the_client_has_an_async_form() -> None:
    wanted = public(Client)
    assert wanted <= public(AsyncClient)
    for name in wanted - {"worker"}:  # Which makes a worker, and opens nothing yet.
        found = getattr(AsyncClient, name)
        opens = name in OPENS
        assert opens or inspect.iscoroutinefunction(found), name
        if name not in {"close", "scan", "snapshot", "sql", "read_ticket"}:
            assert found.__doc__ == getattr(Client, name).__doc__


async def fetches(client: AsyncClient, topic: Topic) -> None:
    await client.fetch(topic, offset=3, timeout=60)


async def follows(client: AsyncClient, topic: Topic) -> None:
    follow = await client.follow(topic)
    async for _ in follow:
        pass


async def consumes(client: AsyncClient, topic: Topic) -> None:
    consumer = await client.consumer("reader", topic, auto_commit=False)
    async for _ in consumer:
        pass


async def gathers(client: AsyncClient, topic: Topic) -> None:
    gather = await client.gather([Request(topic.name, offset=3)], timeout=60)
    async for _ in gather:
        pass


READS: tuple[Callable[[AsyncClient, Topic], Coroutine[Any, Any, None]], ...] = (
    fetches,
    follows,
    consumes,
    gathers,
)


def test_what_opens_something_is_entered_or_iterated_without_being_awaited(
    server: RunningServer, new_topic: NewTopic
) -> None:
    topic = new_topic()
    requests = [Request(topic.name, offset=0)]

    async def use(client: AsyncClient) -> None:
        async with client.producer(topic) as producer:
            await producer.send({"n": [1, 2, 3]})
        async with client.stage(topic, "entered") as stage:
            await stage.write({"n": [4]})
        async with client.follow(topic, offset=1) as follow:
            assert (await anext(follow)).end_offset == 2
        rows = [batch.num_rows async for batch in client.scan(topic)]
        assert sum(rows) == 3
        replies = [reply.end_offset async for reply in client.gather(requests)]
        assert replies == [2]
        async for message in client.consumer("entered", topic, timeout=10):
            assert message.batch.num_rows == 3
            break
        with pytest.raises(TopicNotFound):
            async for _ in client.scan("no-such-topic"):
                pass
        with pytest.raises(TopicNotFound):
            async with client.follow("no-such-topic"):
                pass

    run(server, use)
    server.wait_for_calls(0)


def test_what_opens_something_is_a_coroutine(server: RunningServer, new_topic: NewTopic) -> None:
    topic = new_topic()

    async def use(client: AsyncClient) -> None:
        follow = await asyncio.create_task(client.follow(topic))
        await follow.close()
        follow = await asyncio.wait_for(client.follow(topic), 30)
        await follow.close()
        unused = client.follow(topic)
        unused.close()

    run(server, use)


def test_leaving_the_loop_over_what_was_opened_ends_it(
    server: RunningServer, new_topic: NewTopic
) -> None:
    topic = new_topic()

    async def use(client: AsyncClient) -> None:
        await client.push(topic, {"n": [1]})
        async for _ in client.follow(topic, offset=0):
            break
        async for _ in client.gather([Request(topic.name, offset=0, kind="follow")], timeout=60):
            break
        await asyncio.to_thread(server.wait_for_calls, 0)

    run(server, use)


def test_a_task_that_is_cancelled_as_its_gather_opens_ends_it(
    server: RunningServer, topic: Topic
) -> None:
    async def test(client: AsyncClient) -> None:
        task = asyncio.create_task(gathers(client, topic))
        await asyncio.sleep(0)
        # On the loop's thread: the outcome of the call is queued, and so is the cancellation.
        server.wait_for_calls(1)
        end = time.monotonic() + 30
        while any(found.name == "wings-async" for found in threading.enumerate()):
            assert time.monotonic() < end, "the call that opens the gather does not return"
            time.sleep(0.001)
        asyncio.get_running_loop().call_soon(task.cancel)
        await asyncio.to_thread(server.wait_for_calls, 0)
        with pytest.raises(asyncio.CancelledError):
            await task

    run(server, test)


@pytest.mark.parametrize("reads", READS)
def test_a_task_that_is_cancelled_ends_its_read_on_the_server(
    server: RunningServer, topic: Topic, reads: Callable[[AsyncClient, Topic], Any]
) -> None:
    async def test(client: AsyncClient) -> None:
        for _ in range(3):
            task = asyncio.create_task(reads(client, topic))
            await asyncio.to_thread(server.wait_for_calls, 1)
            task.cancel()
            # Not awaited yet: all that the task holds is still there.
            await asyncio.to_thread(server.wait_for_calls, 0)
            with pytest.raises(asyncio.CancelledError):
                await task

    run(server, test)


def test_a_server_sees_within_100_ms_that_a_task_was_cancelled(responders: Responder) -> None:
    async def main() -> float:
        async with wings_client.connect_async(responders.endpoint) as client:
            ticket = script(responders.endpoint, (0, 1), then="hang").ticket
            gather = await client.gather([Request(ticket=ticket)] * 3, timeout=60)
            replied = asyncio.Event()

            async def read() -> None:
                async for _ in gather:
                    replied.set()

            task = asyncio.create_task(read())
            await replied.wait()
            task.cancel()
            seconds = await asyncio.to_thread(responders.wait_until_idle)
            assert gather.end is not None
            assert gather.end.reason == GatherReason.STOPPED
            return seconds

    assert any(asyncio.run(main()) < 0.1 for _ in range(TRIES))


def test_leaving_a_block_or_letting_go_ends_a_stream(server: RunningServer, topic: Topic) -> None:
    async def test(client: AsyncClient) -> None:
        async with await client.follow(topic) as follow:
            assert (await anext(follow)).end_offset == 2
            await asyncio.to_thread(server.wait_for_calls, 1)
        await asyncio.to_thread(server.wait_for_calls, 0)
        assert [chunk async for chunk in follow] == []

        let_go = await client.follow(topic)
        await anext(let_go)
        del let_go
        await asyncio.to_thread(until_let_go, server)

        async with await client.gather([Request(topic.name, offset=3)], timeout=60) as gather:
            await asyncio.to_thread(server.wait_for_calls, 1)
        await asyncio.to_thread(server.wait_for_calls, 0)
        assert gather.end is not None
        assert gather.end.reason == GatherReason.STOPPED

    run(server, test)


def test_the_loop_goes_on_while_calls_wait(
    server: RunningServer, wings: Client, topic: Topic
) -> None:
    async def test(client: AsyncClient) -> None:
        follow = await client.follow(topic, offset=3)
        fetching = asyncio.create_task(client.fetch(topic, offset=3, timeout=60))
        following = asyncio.ensure_future(anext(follow))
        for _ in range(100):
            await asyncio.sleep(0.002)
        assert not fetching.done()
        assert not following.done()
        await client.push(topic, {"n": [3]})
        fetched, chunk = await fetching, await following
        assert fetched.num_rows == chunk.batch.num_rows == 1
        assert follow.next_offset == 4

    run(server, test)


def test_reads_wait_for_a_free_worker_and_threads_are_bounded(
    server: RunningServer, topic: Topic
) -> None:
    async def test(client: AsyncClient) -> None:
        before = threading.active_count()
        most = 0

        async def read() -> int:
            nonlocal most
            rows = (await client.fetch(topic, offset=0)).num_rows
            scan = await client.scan(topic, parallel=4)
            rows += (await scan.read_all()).num_rows
            most = max(most, threading.active_count() - before)
            return rows

        assert sum(await asyncio.gather(*(read() for _ in range(64)))) == 64 * 6
        assert most <= 4 + 32  # Reads, and the calls that plan the scans.

    run(server, test, reads_max=4)


def test_a_read_without_a_worker_fails_and_writes_pass(server: RunningServer, topic: Topic) -> None:
    async def test(client: AsyncClient) -> None:
        tasks = [asyncio.create_task(client.fetch(topic, offset=9, timeout=60)) for _ in range(2)]
        await asyncio.to_thread(server.wait_for_calls, 2)
        with pytest.raises(ResourceExhausted, match=r"2 reads run already.*reads_max"):
            await client.fetch(topic, offset=0)
        assert (await client.push(topic, {"n": [3]})).rows == 1
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert (await client.fetch(topic, offset=0)).num_rows == 4

    run(server, test, reads_max=2, timeout=3.0)
    with pytest.raises(InvalidArgument, match="reads_max"):
        wings_client.connect_async(server.flight, reads_max=0)


def test_a_wait_for_a_worker_can_be_cancelled(server: RunningServer, topic: Topic) -> None:
    async def test(client: AsyncClient) -> None:
        first = asyncio.create_task(client.fetch(topic, offset=9, timeout=60))
        await asyncio.to_thread(server.wait_for_calls, 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.fetch(topic, offset=0)
        first.cancel()
        assert (await client.fetch(topic, offset=0)).num_rows == 3

    run(server, test, reads_max=1)


def test_a_cancelled_push_sends_nothing_more(server: RunningServer, topic: Topic) -> None:
    reached = threading.Event()
    go_on = threading.Event()

    def rows() -> Iterator[dict[str, list[int]]]:
        yield from ({"n": [number]} for number in range(3, 6))
        reached.set()
        go_on.wait(20)
        yield from ({"n": [number]} for number in range(6, 9))

    def batches() -> Iterator[Any]:
        import pyarrow as pa

        return (pa.record_batch(each) for each in rows())

    async def test(client: AsyncClient) -> None:
        task = asyncio.create_task(client.push(topic, batches()))
        await asyncio.to_thread(reached.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        await client.push(topic, {"n": [100]})
        found: Any = (await client.fetch(topic, offset=0)).table["n"].to_pylist()
        assert found[-1] == 100
        assert set(found) <= {*range(6), 100}

    run(server, test)


def test_a_cancelled_send_waits_for_room_no_longer(
    proxy: BreakableProxy, wings: Client, topic: Topic
) -> None:
    async def main() -> None:
        async with wings_client.connect_async(proxy.endpoint) as client:
            producer = await client.producer(topic, window_batches=1)
            assert (await (await producer.send({"n": [3]}))).next_sequence == 1
            proxy.stop_listening()
            await producer.send({"n": [4]})
            task = asyncio.create_task(producer.send({"n": [5]}))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(Unavailable, match="1 batches are not answered"):
                await producer.close(timeout=0.05)

    asyncio.run(main())
    assert wings.fetch(topic, offset=3, timeout=0).table["n"].to_pylist() == [3]


def test_a_block_that_is_cancelled_gives_up_what_has_no_answer(
    proxy: BreakableProxy, wings: Client, topic: Topic
) -> None:
    sent: list[asyncio.Future[Any]] = []

    async def write(client: AsyncClient) -> None:
        async with await client.producer(topic) as producer:
            await (await producer.send({"n": [3]}))
            proxy.stop_listening()
            sent.append(await producer.send({"n": [4]}))
            await asyncio.Event().wait()

    async def main() -> None:
        async with wings_client.connect_async(proxy.endpoint) as client:
            task = asyncio.create_task(write(client))
            while not sent:
                await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(Unavailable) as failed:
                await sent[0]
            assert failed.value.connection == Connection.CLOSED

    asyncio.run(main())


def test_a_call_that_raises_stop_iteration_ends(server: RunningServer) -> None:
    nothing: Iterator[int] = iter(())

    async def test(client: AsyncClient) -> None:
        async with asyncio.timeout(20):
            with pytest.raises(RuntimeError, match="StopIteration"):
                await client.run(lambda: next(nothing))

    run(server, test)


def test_a_worker_whose_thread_cannot_be_started_is_free_again(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(call: Callable[[], None], name: str) -> None:
        raise RuntimeError("can't start new thread")

    async def test(client: AsyncClient) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("wings_client._async._pool.start_thread", start)
            with pytest.raises(RuntimeError, match="thread"):
                await client.fetch("any", offset=0)
        with pytest.raises(TopicNotFound):
            await client.fetch("any", offset=0)

    run(server, test, reads_max=1, timeout=5.0)


def test_closing_the_client_ends_what_waits(server: RunningServer, topic: Topic) -> None:
    async def main() -> None:
        client = wings_client.connect_async(server.flight)
        follow = await client.follow(topic, offset=3)
        waiting = asyncio.ensure_future(anext(follow, None))
        fetching = asyncio.create_task(client.fetch(topic, offset=3, timeout=60))
        await asyncio.to_thread(server.wait_for_calls, 2)
        await client.close()
        assert await waiting is None
        with pytest.raises(Unavailable, match="closed"):
            await fetching
        with pytest.raises(Unavailable, match="closed"):
            await client.topics()

    asyncio.run(main())


def test_an_error_of_a_send_that_nobody_awaits_is_raised_at_the_end(
    server: RunningServer, topic: Topic
) -> None:
    async def test(client: AsyncClient) -> None:
        with pytest.raises(wings_client.WingsError) as refused:
            async with await client.producer(topic) as producer:
                await producer.send({"n": [3]}, expected_offset=77)
        assert refused.value.code == "OFFSET_MISMATCH"
        gc.collect()

    run(server, test)
