"""The async consumers: the engines of `Consumer`, `ShareConsumer` and `Worker`, awaited.

Handlers of a worker run on the caller's event loop.
"""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Self

from wings_client._arguments import checked
from wings_client._async._pool import WorkerPool
from wings_client._async._streams import Taker
from wings_client._consumer import Consumer
from wings_client._forks import finalize
from wings_client._model import Consumed
from wings_client._share import AckType
from wings_client._share_consumer import ShareConsumer
from wings_client._share_model import Delivery, Rows
from wings_client._transport import AsyncClosing
from wings_client._worker import Worker
from wings_client._worker_model import WorkerStats


class AsyncConsumer(AsyncIterator[Consumed]):
    """Reads under a name; made by `AsyncClient.consumer`. One task iterates.

    Iterating yields `(batch, ranges)`, of a single partition `(batch, partition, start_offset,
    end_offset)`, and waits while there is nothing new; see `Consumer` for what it guarantees. Its
    streams on the server end with `close`, with the `async with` block, when the task that waits
    for a batch is cancelled, and when the consumer is garbage-collected.

    Leaving an `async with` block without an error commits everything delivered (unless
    `auto_commit` is False); leaving it with an error, or a cancelled task, does not.

    Attributes:
        name: The name under which the server keeps its offsets.
        topics: The topics it reads.
        topic: The first of them.
        engine: The part that `Consumer` shares.
    """

    def __init__(self, pool: WorkerPool, consumer: Consumer) -> None:
        self.name = consumer.name
        self.topics = consumer.topics
        self.topic = consumer.topic
        self._pool = pool
        self._consumer = consumer  # A reference: the client holds its consumers weakly.
        engine = self.engine = consumer.engine
        self._taker = Taker(engine.reads.handover)
        self._cancel = finalize(self, engine.transport, engine.reads.cancel)

    @property
    def positions(self) -> dict[Any, int]:
        """The next offset to read, after all that was delivered; see `Consumer.positions`."""
        return self.engine.positions

    async def __anext__(self) -> Consumed:
        """Return the next batch; waits until there is one.

        Raises:
            StopAsyncIteration: Nothing came for as long as the timeout, or it was closed.
            WingsError: A read or a commit was refused; `Unavailable` where the server could not be
                reached again.
        """
        engine = self.engine
        try:
            if engine.ask():
                await self._pool.run(engine.commit_processed)
            seconds = engine.timeout
            while True:
                taken = await self._taker.take(seconds)
                if taken is None:
                    if await self._pool.run(engine.is_over):
                        raise StopAsyncIteration
                    seconds = engine.patience
                elif (accepted := engine.reads.accept(taken)) is not None:
                    return accepted
        except asyncio.CancelledError:
            self._cancel()
            raise

    async def commit(self) -> None:
        """Commit everything that was delivered, the last batch included.

        Raises:
            WingsError: The server's refusal; `Unavailable` where it could not be reached again.
        """
        await self._pool.run(self.engine.commit)

    async def rewind(self) -> None:
        """Deliver again what was delivered and not committed, such as by an aborted transaction.

        Raises:
            WingsError: The server's refusal; `Unavailable` where it could not be reached again.
        """
        await self._pool.run(self.engine.rewind)

    async def close(self) -> None:
        """Stop reading; commit what was processed, unless `auto_commit` is False.

        The last batch delivered counts as processed if another one was asked for after it.

        Raises:
            WingsError: The commit failed. The consumer is closed all the same.
        """
        self._cancel()
        await self._pool.run(self.engine.close)

    async def __aenter__(self) -> Self:
        """Return the consumer itself."""
        return self

    async def __aexit__(self, error_type: object, error: BaseException | None, *_: object) -> None:
        """Close the consumer; unless the block raised, commit all that was delivered."""
        self._cancel()
        await self._pool.run(partial(self.engine.leave, failing=error is not None))


class AsyncShareConsumer(AsyncClosing, AsyncIterator[Delivery]):
    """A member of a share group; made by `AsyncClient.share_consumer`. One task iterates.

    See `ShareConsumer` for what it guarantees; every call takes what its namesake there takes, and
    is awaited. A task that is cancelled while it waits for a delivery leaves it to the next.

    Attributes:
        group: The share group's name.
        topic: The topic of the group.
        member: This member's name.
    """

    def __init__(self, reads: WorkerPool, calls: WorkerPool, consumer: ShareConsumer) -> None:
        self.group = consumer.group
        self.topic = consumer.topic
        self.member = consumer.member
        self._reads = reads
        self._calls = calls
        self._consumer = consumer  # A reference: the client holds its consumers weakly.
        self._engine = consumer.engine

    @property
    def uses_stream(self) -> bool:
        """Whether deliveries come over a share stream; see `ShareConsumer.uses_stream`."""
        return self._engine.uses_stream

    async def __anext__(self) -> Delivery:
        """Return the next delivery; waits until there is one.

        Raises:
            StopAsyncIteration: Nothing came for as long as the timeout, or it was closed.
            WingsError: See `ShareConsumer.__next__`.
        """
        self._engine.raise_refused()
        # Taken on the event loop: taken on a thread, it would be lost with a cancelled task.
        while (delivery := self._engine.take_held()) is None:
            if not await self._reads.run(self._engine.fill):
                raise StopAsyncIteration
            self._engine.raise_refused()
        return delivery

    async def accept(self, delivery: Delivery, rows: Rows = None, *, wait: bool = True) -> None:
        """Acknowledge messages as processed; see `ShareConsumer.accept`."""
        await self._acknowledge(delivery, "accept", rows, wait=wait)

    async def release(
        self,
        delivery: Delivery,
        rows: Rows = None,
        *,
        delay: float | None = None,
        reason: str | None = None,
        wait: bool = True,
    ) -> None:
        """Release messages for redelivery; see `ShareConsumer.release`."""
        await self._acknowledge(delivery, "release", rows, delay=delay, reason=reason, wait=wait)

    async def reject(
        self,
        delivery: Delivery,
        rows: Rows = None,
        *,
        reason: str | None = None,
        wait: bool = True,
    ) -> None:
        """Reject messages, which become dead letters; see `ShareConsumer.reject`."""
        await self._acknowledge(delivery, "reject", rows, reason=reason, wait=wait)

    async def renew(self, delivery: Delivery, rows: Rows = None) -> None:
        """Renew the lock on messages; see `ShareConsumer.renew`."""
        await self._acknowledge(delivery, "renew", rows)

    async def flush(self) -> None:
        """Wait until all that was acknowledged is durable; see `ShareConsumer.flush`."""
        with self._engine.telling():
            await self._calls.run(self._engine.flush)

    async def close(self) -> None:
        """End iteration, flush, and release what is still held; see `ShareConsumer.close`."""
        with self._engine.telling():
            await self._calls.run(self._engine.close)

    async def _acknowledge(
        self,
        delivery: Delivery,
        kind: AckType,
        rows: Rows,
        delay: float | None = None,
        reason: str | None = None,
        *,
        wait: bool = True,
    ) -> None:
        acknowledge = partial(
            self._engine.acknowledge, delivery, kind, rows, delay=delay, reason=reason, wait=wait
        )
        await self._calls.run(acknowledge)


class AsyncWorker:
    """Calls a handler for the messages of a share group; made by `AsyncClient.worker`.

    Coroutine functions run on the event loop, plain functions on threads. See `Worker` for what it
    guarantees; `stop` and `abort` return at once, and the other calls are awaited.

    Attributes:
        group: The share group's name.
        topic: The topic of the group.
        member: This member's name.
    """

    def __init__(self, worker: Worker) -> None:
        self.group = worker.group
        self.topic = worker.topic
        self.member = worker.member
        self._engine = worker.engine
        self._worker = worker  # A reference: the client holds its workers weakly.

    @property
    def stats(self) -> WorkerStats:
        """Counts of what it has done so far, in messages."""
        return self._engine.stats

    async def run(self) -> WorkerStats:
        """Work until the end; returns what was done. See `Worker.run`.

        A task that is cancelled in it aborts the worker, whose coroutines are cancelled. For an end
        in order by a signal: `loop.add_signal_handler(signal.SIGTERM, worker.stop)`.

        Raises:
            WingsError: The server's refusal; `Unavailable` where it could not be reached again.
        """
        self._engine.start(asyncio.get_running_loop())
        try:
            await self.wait()
        except asyncio.CancelledError:
            self._engine.abort()
            await self._engine.ended()
            raise
        return self.stats

    def stop(self) -> None:
        """Take no more messages, and end once the running handlers have returned."""
        self._engine.stop()

    def abort(self) -> None:
        """End at once: all that is held is released; coroutines are cancelled."""
        self._engine.abort()

    @checked
    async def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end, at most `timeout` seconds; returns False on time-out.

        Raises:
            WingsError: Why it ended.
        """
        if not await self._wait(timeout):
            return False
        if self._engine.error is not None:
            raise self._engine.error
        return True

    async def _wait(self, timeout: float | None = None) -> bool:
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def tell() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(done.set)

        self._engine.when_done(tell)
        try:
            async with asyncio.timeout(timeout):
                await done.wait()
        except TimeoutError:
            return False
        await self._engine.ended()
        return True

    async def close(self) -> None:
        """Stop, and wait until the running handlers have returned; `wait` says why it ended."""
        if self._engine.is_inherited:
            return
        self._engine.stop()
        await self._wait()

    async def __aenter__(self) -> Self:
        """Begin to work in the background; returns the worker itself."""
        self._engine.start(asyncio.get_running_loop())
        return self

    async def __aexit__(self, error_type: object, error: BaseException | None, *_: object) -> None:
        """Close the worker; an error raised in the block takes precedence over one of its own."""
        if self._engine.is_inherited:
            return
        self._engine.stop()
        try:
            await self.wait()
        except Exception:
            if error is None:
                raise
