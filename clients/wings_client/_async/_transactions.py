"""Async transactions: those of `Transactions`, awaited."""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Self, TypeVar

from wings_client._admin import TopicRef
from wings_client._async._consumer import AsyncConsumer
from wings_client._async._pool import WorkerPool
from wings_client._batches import Data
from wings_client._cancellation import current_cancellation
from wings_client._messages import TimeValue
from wings_client._model import PartitionValue, Published
from wings_client._transactions import (
    ROWS_WAITING,
    TRANSACTION_SECONDS,
    Transaction,
    TransactionProducer,
    Transactions,
)

T = TypeVar("T")


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


def _cancellable(transaction: Transaction, call: Callable[[], T]) -> T:
    """Make a call; if its task is cancelled, the transaction ends, which ends the call."""
    cancellation = current_cancellation()
    if cancellation is not None:
        cancellation.add(transaction.cancel)
    return call()
