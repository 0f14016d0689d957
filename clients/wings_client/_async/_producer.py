"""The async producer: the sends of a `Producer`, awaited."""

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any, Literal, Self, overload

from wings_client._arguments import checked
from wings_client._async._pool import WorkerPool
from wings_client._batches import Data
from wings_client._messages import TimeValue
from wings_client._model import Appended, Committed, Topic
from wings_client._producer import CHECK_TIMEOUT, Producer
from wings_core.errors import ResourceExhausted, WingsError


class AsyncProducer:
    """A producer over one open stream; made by `AsyncClient.producer`.

    Safe from many tasks; their sends go out one after another. See `Producer` for what it
    guarantees.

    Attributes:
        topic: The topic it writes to.
        producer_id: The name under which the server counts its sequences.
    """

    def __init__(self, pool: WorkerPool, producer: Producer) -> None:
        self.topic: Topic = producer.topic
        self.producer_id: str = producer.producer_id
        self._pool = pool
        self._producer = producer
        # One send at a time, so that no more than one thread waits for room.
        self._sending = asyncio.Lock()
        self._appending = asyncio.Lock()  # For the same reason.

    @property
    def next_sequence(self) -> int:
        """The sequence of the next batch to be sent."""
        return self._producer.next_sequence

    @property
    def rows_committed(self) -> int:
        """How many rows were committed since the producer was opened."""
        return self._producer.rows_committed

    @property
    def batches_committed(self) -> int:
        """How many batches were committed since the producer was opened."""
        return self._producer.batches_committed

    @overload
    async def append(
        self, row: object, *, ack: Literal[False] = False, timeout: float | None = None
    ) -> None: ...

    @overload
    async def append(
        self, row: object, *, ack: Literal[True], timeout: float | None = None
    ) -> "asyncio.Future[Appended]": ...

    async def append(
        self, row: object, *, ack: bool = False, timeout: float | None = None
    ) -> "asyncio.Future[Appended] | None":
        """Add one row to the next batch; see `Producer.append`.

        Waits only while there is no room for it. A task that is cancelled then may have added it.
        """
        if timeout is not None:
            CHECK_TIMEOUT(timeout)
        try:
            appended = self._producer.append(row, ack=ack, timeout=0.0)
        except ResourceExhausted:
            append = partial(self._producer.append, row, ack=ack, timeout=timeout)
            async with self._appending:
                appended = await self._pool.run(append)
        if appended is None:
            return None
        future = asyncio.wrap_future(appended)
        future.add_done_callback(_look_at)
        return future

    @checked
    async def extend(self, rows: Iterable[object], *, timeout: float | None = None) -> None:
        """Append rows one after another; see `Producer.extend`."""
        for row in rows:
            await self.append(row, timeout=timeout)

    @checked
    async def send(
        self,
        data: Data,
        *,
        timestamp: TimeValue | None = None,
        expected_offset: int | None = None,
        timeout: float | None = None,
    ) -> "asyncio.Future[Committed]":
        """Send data and return at once, or as soon as the window has room; see `Producer.send`.

        A task that is cancelled meanwhile sends nothing more; batches that the window has taken
        are sent.
        """
        send = partial(
            self._producer.send,
            data,
            timestamp=timestamp,
            expected_offset=expected_offset,
            timeout=timeout,
        )
        async with self._sending:
            sent = asyncio.wrap_future(await self._pool.run(send))
        sent.add_done_callback(_look_at)
        return sent

    @checked
    async def flush(self, timeout: float | None = None) -> None:
        """Wait until all that was sent before is durable; see `Producer.flush`."""
        await self._pool.run(partial(self._producer.flush, timeout))

    @checked
    async def close(self, timeout: float | None = None) -> None:
        """Flush and close; see `Producer.close`. Cancelling the task abandons both."""
        await self._pool.run(partial(self._producer.close, timeout))

    async def __aenter__(self) -> Self:
        """Return the producer itself."""
        return self

    async def __aexit__(self, error_type: object, error: BaseException | None, *_: object) -> None:
        """Flush and close; an error raised in the block takes precedence over one of these.

        Where the block's task was cancelled, batches without a response fail instead.
        """
        if isinstance(error, asyncio.CancelledError):
            self._producer.cancel()
            return
        try:
            await self.close()
        except WingsError:
            if error is None:
                raise


def _look_at(sent: "asyncio.Future[Any]") -> None:
    """Retrieve a send's exception, so that asyncio does not log a future never awaited."""
    if not sent.cancelled():
        sent.exception()
