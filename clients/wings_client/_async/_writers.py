"""The async writers: the sends of a `Producer`, a `Stage` and of `Transactions`, awaited."""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal, Self, TypeVar, overload

from wings_client._admin import TopicRef
from wings_client._arguments import TimeValue, checked
from wings_client._async._consumers import AsyncConsumer
from wings_client._async._pool import WorkerPool
from wings_client._batches import Data
from wings_client._cancellation import current_cancellation
from wings_client._model import Appended, Committed, PartitionValue, Published, Staged, Topic
from wings_client._producer import CHECK_TIMEOUT, Producer
from wings_client._stage import Stage
from wings_client._transactions import (
    ROWS_WAITING,
    TRANSACTION_SECONDS,
    Transaction,
    TransactionProducer,
    Transactions,
)
from wings_client._transport import AsyncClosing
from wings_core.errors import ResourceExhausted, WingsError

T = TypeVar("T")


class AsyncProducer(AsyncClosing):
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

    async def __aexit__(self, error_type: object, error: BaseException | None, *_: object) -> None:
        """Flush and close; an error raised in the block takes precedence over one of these.

        Where the block's task was cancelled, batches without a response fail instead.
        """
        if isinstance(error, asyncio.CancelledError):
            self._producer.cancel()
        else:
            await super().__aexit__(error_type, error)


def _look_at(sent: "asyncio.Future[Any]") -> None:
    """Retrieve a send's exception, so that asyncio does not log a future never awaited."""
    if not sent.cancelled():
        sent.exception()


class AsyncStage:
    """A stage, written over one stream; made by `AsyncClient.stage`.

    Safe from many tasks; their writes go in one after another. See `Stage` for what it guarantees.
    A task that is cancelled in a call fails the stage: it is written again under another id.

    Attributes:
        id: The stage's id.
        topic: The topic its rows will be published to.
    """

    def __init__(self, pool: WorkerPool, stage: Stage) -> None:
        self.id: str = stage.id
        self.topic: Topic = stage.topic
        self._pool = pool
        self._stage = stage
        # One call at a time, so that no more than one thread waits for room.
        self._calling = asyncio.Lock()

    @property
    def rows(self) -> int:
        """How many rows are durable in the stage so far."""
        return self._stage.rows

    async def write(self, data: Data) -> None:
        """Add data, at once or as soon as there is room for it; see `Stage.write`."""
        await self._run(partial(self._stage.write, data))

    async def close(self) -> Staged:
        """Wait until everything is durable, and end the stage; see `Stage.close`."""
        return await self._run(self._stage.close)

    async def __aenter__(self) -> Self:
        """Return the stage itself."""
        return self

    async def __aexit__(self, error_type: object, error: BaseException | None, *_: object) -> None:
        """Close the stage; where the block raised, delete it, in at most 4 s.

        Where the task was cancelled, the stream only ends; the server deletes the stage later.
        """
        if isinstance(error, asyncio.CancelledError):
            self._stage.cancel()
        elif error is not None:
            await self._delete(error)
        else:
            try:
                await self.close()
            except WingsError as refused:
                await self._delete(refused)
                raise

    async def _delete(self, error: BaseException) -> None:
        await self._pool.run(partial(self._stage.__exit__, type(error), error, None))

    async def _run(self, call: Callable[[], T]) -> T:
        async with self._calling:
            return await self._pool.run(partial(_cancellable, self._stage, call))


class AsyncTransactions:
    """The transactions of one writer; made by `AsyncClient.transactions`. One is open at a time.

    Attributes:
        writer: The name under which the server fences and counts.
        epoch: The epoch that this object began, from 1 on; a later one of the writer fences it.
    """

    def __init__(self, pool: WorkerPool, transactions: Transactions) -> None:
        self.writer: str = transactions.writer
        self.epoch: int = transactions.epoch
        self._pool = pool
        self._transactions = transactions

    def begin(self, *, timeout: float = TRANSACTION_SECONDS) -> "AsyncTransaction":
        """Begin a transaction, an async context manager; see `Transactions.begin`.

        Args:
            timeout: Seconds after which it is aborted, if it was not published by then.

        Raises:
            InvalidArgument: Another one of this object is open.
        """
        return AsyncTransaction(self._pool, self._transactions.begin(timeout=timeout))


class AsyncTransaction:
    """Rows and offsets that become visible at once; made by `AsyncTransactions.begin`.

    Safe from many tasks; their calls go in one after another. A task that is cancelled in a call
    ends the transaction, and its rows never become visible; one that is cancelled in `end` leaves
    unknown whether they do. See `Transaction`.
    """

    def __init__(self, pool: WorkerPool, transaction: Transaction) -> None:
        self._pool = pool
        self._transaction = transaction
        self._calling = asyncio.Lock()

    @property
    def is_open(self) -> bool:
        """Whether the transaction was neither published nor aborted."""
        return self._transaction.is_open

    @property
    def published(self) -> Published | None:
        """Offsets that its publish assigned; None before."""
        return self._transaction.published

    async def push(
        self,
        topic: TopicRef,
        data: Data,
        *,
        partition: PartitionValue = None,
        timestamp: TimeValue | None = None,
    ) -> None:
        """Add rows, at once or as soon as there is room for them; see `Transaction.push`.

        Args:
            topic: The topic, any one of the server's.
            data: Data, as for `Client.push`.
            partition: Partition of all rows; None: by the key column, row by row.
            timestamp: The timestamp of all rows; None: the time of the publish.

        Raises:
            WingsError: As `Transaction.push`.
        """
        push = partial(
            self._transaction.push, topic, data, partition=partition, timestamp=timestamp
        )
        await self.run(push)

    def producer(
        self,
        topic: TopicRef,
        *,
        partition: PartitionValue = None,
        timestamp: TimeValue | None = None,
    ) -> "AsyncTransactionProducer":
        """Return a producer of single rows in this transaction; see `Transaction.producer`.

        Args:
            topic: The topic, any one of the server's.
            partition: Partition, as for `push`.
            timestamp: Timestamp, as for `push`.
        """
        made = self._transaction.producer(topic, partition=partition, timestamp=timestamp)
        return AsyncTransactionProducer(self, made)

    async def commit(self, consumer: AsyncConsumer) -> None:
        """Commit all that a consumer has delivered so far, together with the rows.

        Args:
            consumer: Opened with `auto_commit=False`, after the transactions were.

        Raises:
            InvalidArgument: As `Transaction.commit`.
        """
        await self.run(partial(self._transaction.commit, consumer))

    async def end(self) -> Published:
        """Publish; see `Transaction.end`.

        Raises:
            WingsError: As `Transaction.end`.
        """
        return await self.run(self._transaction.end)

    async def abort(self) -> None:
        """Delete what was pushed; offsets stay as they are. Again, it does nothing."""
        await self.run(self._transaction.abort)

    async def run(self, call: Callable[[], T]) -> T:
        """Make a call of the transaction, on a thread, after those before it."""
        async with self._calling:
            return await self._pool.run(partial(_cancellable, self._transaction, call))

    async def __aenter__(self) -> Self:
        """Return the transaction itself."""
        return self

    async def __aexit__(self, error_type: Any, error: BaseException | None, traceback: Any) -> None:
        """Publish, unless it was ended; abort where the block or the publish raises.

        Where the task was cancelled, the streams only end; the server deletes the rows later.
        """
        if isinstance(error, asyncio.CancelledError):
            self._transaction.cancel()
            return
        await self.run(partial(self._transaction.__exit__, error_type, error, traceback))


class AsyncTransactionProducer:
    """A producer of rows in a transaction; made by `AsyncTransaction.producer`.

    Attributes:
        topic: The topic it writes to.
    """

    def __init__(self, transaction: AsyncTransaction, producer: TransactionProducer) -> None:
        self.topic = producer.topic
        self._transaction = transaction
        self._producer = producer

    async def append(self, row: object) -> None:
        """Add one row; see `TransactionProducer.append`.

        Raises:
            WingsError: As `TransactionProducer.append`.
        """
        if self._producer.rows_waiting + 1 < ROWS_WAITING:
            self._producer.append(row)  # Takes no time, and is not in the way of other calls.
        else:
            await self._transaction.run(partial(self._producer.append, row))

    async def extend(self, rows: Iterable[object]) -> None:
        """Add rows one after another; see `append`."""
        for row in rows:
            await self.append(row)

    async def flush(self) -> None:
        """Send the rows that were added and wait in this process."""
        await self._transaction.run(self._producer.flush)


def _cancellable(written: Stage | Transaction, call: Callable[[], T]) -> T:
    """Make a call; if its task is cancelled, what it writes to ends, which ends the call."""
    cancellation = current_cancellation()
    if cancellation is not None:
        cancellation.add(written.cancel)
    return call()
