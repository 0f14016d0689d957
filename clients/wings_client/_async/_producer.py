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

        Args:
            row: Row, as for `Producer.append`.
            ack: Whether to return a future of the row's offset.
            timeout: Seconds to wait for room at most; None: for as long as the server goes on
                answering.

        Returns:
            With `ack`, a future, resolved once the row is durable or refused. It need not be
            awaited: `flush` and the end of the block raise the error too.

        Raises:
            WingsError: As `Producer.append`.
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
        """Append rows one after another; see `append`.

        Args:
            rows: Each as for `append`.
            timeout: Seconds to wait for room at most, for each of them.

        Raises:
            WingsError: As `append`; the rows before the one that was next were added.
        """
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
        """Send data and return at once, or as soon as the window has room for it.

        A task that is cancelled meanwhile sends nothing more; batches that the window has taken
        are sent.

        Args:
            data: Data, as for `Client.push`.
            timestamp: Timestamp of its rows; None: the time of commit.
            expected_offset: Commit only if this is the partition's next offset; of data that is
                cut into several batches, the first one's.
            timeout: Seconds to wait for room at most; None: for as long as the server goes on
                answering.

        Returns:
            Ranges that were committed, once it is durable, or the error it was refused with. It
            need not
            be awaited: `flush` and the end of the block raise the error too.

        Raises:
            SchemaMismatch: The data does not fit the topic; batches before the one that does not
                were sent.
            ResourceExhausted: No room in time; fact `batches_sent` is how many were sent.
            WingsError: What an earlier batch was refused with.
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
        """Wait until all that was sent before is durable.

        Args:
            timeout: Seconds; None: for as long as the server goes on answering (and within the
                bounds of `Retry` where it does not).

        Raises:
            Unavailable: Not in time; what is without an answer stays so.
            WingsError: What a batch was refused with.
        """
        await self._pool.run(partial(self._producer.flush, timeout))

    @checked
    async def close(self, timeout: float | None = None) -> None:
        """Flush and close; idempotent. Cancelling the task abandons both.

        Args:
            timeout: Seconds, as for `flush`.

        Raises:
            WingsError: As `flush`. The producer is closed all the same; what has no answer by then
                fails.
        """
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
