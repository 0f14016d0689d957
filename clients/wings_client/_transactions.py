"""Transactions: rows of any topics and a consumer's offsets, visible at once or never.

    push ─▶ a stage for each topic ─┐
    commit(consumer) ─▶ its offsets ─┴─▶ one stage-publish, under the writer's epoch

A writer's epoch fences its earlier lives, as Kafka's `transactional.id` does: a process that was
taken for dead and goes on publishes nothing more.
"""

import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol, Self
from uuid import uuid4

from wings_client._admin import TopicRef, name_of
from wings_client._arguments import (
    TimeValue,
    build,
    checked,
    checked_with,
    that_is,
    wire_partition,
    wire_time,
)
from wings_client._batches import Data
from wings_client._consumer import ConsumerEngine
from wings_client._consumer_offsets import ConsumerOffsets, Uncommitted, patiently
from wings_client._model import PartitionValue, Published, parsed
from wings_client._rows import snapshot
from wings_client._stage import Stage, StageCalls
from wings_client._transport import Transport
from wings_core.contracts.actions import (
    PublishedOffset,
    PublishedOffsets,
    StagePublish,
    TransactionBegin,
)
from wings_core.errors import InvalidArgument, PublishFenced, Unavailable, WingsError

TRANSACTION_SECONDS = 60.0
"""How long a transaction may be open, by default."""

ABORTED_MAX = 1_000
"""Aborted transactions in a row whose times are kept."""

ROWS_WAITING = 10_000
"""Rows of a producer that are made a batch."""

_BATCHES_OF_AN_EPOCH = 1 << 32
"""A writer's batches count on from this times the epoch: above all of its earlier epochs."""


class TransactionConsumer(Protocol):
    """A consumer whose offsets a transaction commits: `Consumer` or `AsyncConsumer`.

    Attributes:
        engine: The part that sync and async share.
    """

    engine: ConsumerEngine


class Transactions:
    """The transactions of one writer; made by `Client.transactions`. One is open at a time.

    Attributes:
        writer: The name under which the server fences and counts.
        epoch: The epoch that this object began, from 1 on; a later one of the writer fences it.
    """

    def __init__(self, transport: Transport, stages: StageCalls, writer: str) -> None:
        body = build(TransactionBegin, "transactions", writer=writer)
        self.writer = writer
        self.epoch: int = transport.act("transaction-begin", body, repeatable=True)["epoch"]
        self._begun_at = time.monotonic()
        self._transport = transport
        self._stages = stages
        self._batch = self.epoch * _BATCHES_OF_AN_EPOCH
        self._has_published = False
        self._open: Transaction | None = None
        self._consumer: ConsumerEngine | None = None
        """The consumer whose offsets were committed last."""
        self._aborted: list[float] = []
        """When transactions were aborted since the last one that took a consumer."""
        self._is_unknown = False
        """Whether the outcome of the last publish is unknown, also while it is under way."""

    @checked
    def begin(self, *, timeout: float = TRANSACTION_SECONDS) -> "Transaction":
        """Begin a transaction, a context manager: leaving its block publishes it.

        Leaving the block by an error aborts it.

        Args:
            timeout: Seconds after which it is aborted, if it was not published by then.

        Raises:
            InvalidArgument: Another one of this object is open.
            Unavailable: It is not known whether the last one was published.
        """
        self._transport.check_process()
        if self._is_unknown:
            raise Unavailable(
                f"it is not known whether the last transaction of {self.writer!r} was published: "
                "open its transactions again, and then its consumer"
            )
        if not timeout > 0:
            raise InvalidArgument("begin: timeout: must be positive")
        if self._open is not None and self._open.is_open:
            if not self._open.is_overdue:
                raise InvalidArgument(
                    f"writer {self.writer!r} has a transaction open: end that first"
                )
            self._open.abort()
        self._open = Transaction(self, timeout)
        return self._open

    def open_stage(self, topic: TopicRef, stage_id: str, **options: Any) -> Stage:
        """Open a stage of a transaction."""
        return self._stages.stage(topic, stage_id, **options)

    def take(self, consumer: ConsumerEngine) -> None:
        """Take a consumer for that of the task.

        It has to have read its offsets since the epoch began: before that, a publish of an earlier
        epoch may have moved them. A member of a group is fenced by its own epoch.

        Raises:
            InvalidArgument: It has not, or what it delivered before a transaction was aborted would
                be committed by another.
        """
        offsets, self._consumer = consumer.offsets, consumer
        if any(map(offsets.is_astride, self._aborted)):
            raise InvalidArgument(
                "a transaction before was aborted, and this one would commit what the consumer "
                "delivered to it as well: abort, and rewind the consumer"
            )
        self._aborted.clear()
        if offsets.fence() is None and offsets.read_at < self._begun_at:
            raise InvalidArgument(
                "the consumer was opened before the transactions of the writer: what an earlier "
                "life of it published since then would be read again; open the transactions first"
            )

    def aborted(self) -> None:
        """Have the consumer deliver no more before what it delivered is dealt with."""
        self._aborted.append(time.monotonic())
        if len(self._aborted) > ABORTED_MAX:
            del self._aborted[1]
        if self._consumer is not None:
            self._consumer.aborted()

    def publish(self, stages: Iterable[str], offsets: PublishedOffsets | None) -> Published:
        """Publish stages and offsets as the next batch.

        Raises:
            PublishFenced: A later epoch of the writer has begun.
        """
        batch, self._batch = self._batch, self._batch + 1
        body = build(
            StagePublish,
            "transaction",
            writer=self.writer,
            batch=batch,
            stages=tuple(stages),
            epoch=self.epoch,
            offsets=offsets,
        )
        try:
            published = parsed(Published, self._act(body))
        except PublishFenced as error:
            last = error.facts.get("last_batch")
            if self._has_published or last is None:
                raise
            # Batches that the writer published without epochs were numbered higher.
            self._batch = last + 2
            body = body.model_copy(update={"batch": last + 1})
            published = parsed(Published, self._act(body))
        self._has_published = True
        return published

    def _act(self, body: StagePublish) -> Any:
        self._is_unknown = True  # A task that is cancelled does not stop the call.
        try:
            answer = patiently(
                self._transport, lambda: self._transport.act("stage-publish", body, repeatable=True)
            )
        except WingsError as error:
            self._is_unknown = isinstance(error, Unavailable)
            raise
        self._is_unknown = False
        return answer

    def __repr__(self) -> str:
        """Return the writer and its epoch."""
        return f"Transactions({self.writer!r}, epoch={self.epoch})"


@checked_with(consumer=that_is("a Consumer", lambda value: hasattr(value, "engine")))
class Transaction:
    """Rows and offsets that become visible at once; made by `Transactions.begin`.

    For one thread at a time. After an error of any call it can only be aborted.

    Attributes:
        is_open: Whether the transaction was neither published nor aborted.
        published: Offsets that its publish assigned; None before.
    """

    def __init__(self, transactions: Transactions, timeout: float) -> None:
        self.is_open = True
        self.published: Published | None = None
        self._transactions = transactions
        self._deadline = time.monotonic() + timeout
        self._timeout = timeout
        self._id = f"transaction-{uuid4().hex}"
        self._stages: list[Stage] = []
        """All of them, in the order of their rows."""
        self._current: dict[str, tuple[tuple[Any, Any], Stage]] = {}
        """Options and stage of the next rows, by topic."""
        self._producers: list[TransactionProducer] = []
        self._consumer: ConsumerEngine | None = None
        self._taken: Uncommitted | None = None
        self._has_failed = False

    def push(
        self,
        topic: TopicRef,
        data: Data,
        *,
        partition: PartitionValue = None,
        timestamp: TimeValue | None = None,
    ) -> None:
        """Add rows, at once or as soon as there is room for them; they are sent meanwhile.

        Args:
            topic: The topic, any one of the server's.
            data: Data, as for `Client.push`.
            partition: Partition of all rows; None: by the key column, row by row.
            timestamp: The timestamp of all rows; None: the time of the publish.

        Raises:
            SchemaMismatch: The data does not fit the topic.
            Unavailable: The transaction's time is over, or the server could not be reached.
            InvalidArgument: The transaction was ended.
        """
        with self._working():
            self._stage(topic, partition, timestamp).write(data)

    def producer(
        self,
        topic: TopicRef,
        *,
        partition: PartitionValue = None,
        timestamp: TimeValue | None = None,
    ) -> "TransactionProducer":
        """Return a producer of single rows in this transaction, which makes batches of them.

        Args:
            topic: The topic, any one of the server's.
            partition: Partition, as for `push`.
            timestamp: Timestamp, as for `push`.
        """
        self.check_open()
        producer = TransactionProducer(self, topic, partition, timestamp)
        self._producers.append(producer)
        return producer

    def commit(self, consumer: TransactionConsumer) -> None:
        """Commit all that a consumer has delivered so far, together with the rows.

        Args:
            consumer: Opened with `auto_commit=False`, after the transactions were.

        Raises:
            InvalidArgument: The consumer commits by itself, was opened too early, or is another
                than the one before.
            FencedMember: The session of this member of a group ended since something was delivered
                that is not committed: abort, and go on; it is delivered again.
        """
        self.check_open()
        engine = consumer.engine
        if engine.auto_commit is not False:
            raise InvalidArgument("the consumer commits by itself: open it with auto_commit=False")
        if self._consumer not in (None, engine):
            raise InvalidArgument("a transaction commits the offsets of one consumer")
        self._transactions.take(engine)
        self._consumer = engine
        with self._working(), engine.rejoining():
            self._taken = engine.offsets.uncommitted()

    def end(self) -> Published:
        """Publish: make all rows visible and commit the offsets, in one durable step.

        Raises:
            PublishFenced: A later epoch of the writer has begun; nothing is published.
            FencedMember: The consumer's group has given a partition of it to another member;
                nothing is published.
            Unavailable: The time is over, and nothing is published; or the server could not be
                reached again, and it is not known whether it published.
            WingsError: A batch was refused; nothing is published.
        """
        with self._working():
            for producer in self._producers:
                producer.flush()
            staged = [stage.close().stage for stage in self._stages]
        self.check_open()
        self.is_open = False
        published = Published((), replayed=False)
        taken, consumer = self._taken, self._consumer
        try:
            if consumer is not None and taken is not None and taken.offsets:
                with consumer.rejoining():
                    offsets = _offsets_of(consumer.offsets, taken)
                    published = self._transactions.publish(staged, offsets)
                consumer.offsets.committed(taken.offsets)
            elif staged:
                published = self._transactions.publish(staged, None)
        except BaseException:
            self._abort()  # A publish that has taken effect has left nothing to delete.
            raise
        self.published = published
        return published

    def abort(self) -> None:
        """Delete what was pushed; offsets stay as they are. Again, it does nothing."""
        if not self.is_open:
            return
        self.is_open = False
        self._abort()

    def cancel(self) -> None:
        """End the streams at once; the server deletes what was pushed later. Does not block."""
        if self.is_open:
            self._transactions.aborted()
        self.is_open = False
        for stage in self._stages:
            stage.cancel()

    def __enter__(self) -> Self:
        """Return the transaction itself."""
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Publish, unless it was ended; abort where the block or the publish raises."""
        if error is not None:
            self.abort()
        elif self.is_open:
            try:
                self.end()
            except BaseException:
                self.abort()
                raise

    def __repr__(self) -> str:
        """Return the writer and whether it is open."""
        return f"Transaction({self._transactions.writer!r}, is_open={self.is_open})"

    def _abort(self) -> None:
        self._transactions.aborted()
        error = InvalidArgument("the transaction was aborted")
        for stage in self._stages:
            stage.__exit__(type(error), error, None)

    @property
    def is_overdue(self) -> bool:
        """Whether the transaction was open for longer than its time."""
        return time.monotonic() >= self._deadline

    def check_open(self) -> None:
        """Check that rows can be added.

        Raises:
            InvalidArgument: It was ended, or a call has failed.
            Unavailable: Its time is over.
        """
        if not self.is_open:
            raise InvalidArgument("the transaction was ended: begin another one")
        if self._has_failed:
            raise InvalidArgument("a call of the transaction has failed: it can only be aborted")
        if self.is_overdue:
            raise Unavailable(
                f"the transaction was open for longer than {self._timeout} s and is aborted"
            )

    @contextmanager
    def _working(self) -> Generator[None]:
        """Do a part of the transaction, after whose failure it can only be aborted."""
        self.check_open()
        try:
            yield
        except BaseException:
            self._has_failed = True
            raise

    def _stage(
        self, topic: TopicRef, partition: PartitionValue, timestamp: TimeValue | None
    ) -> Stage:
        """Return the stage of a topic's next rows.

        Rows of a topic with other options get another one, after those before.
        """
        name = name_of(topic)
        options = (
            wire_partition(partition),
            None if timestamp is None else wire_time(timestamp),
        )
        found = self._current.get(name)
        if found is None or found[0] != options:
            stage = self._transactions.open_stage(
                topic,
                f"{self._id}-{len(self._stages)}",
                partition=partition,
                timestamp=timestamp,
                seconds_max=max(0.001, self._deadline - time.monotonic()),
            )
            self._stages.append(stage)
            found = self._current[name] = (options, stage)
        return found[1]


class TransactionProducer:
    """A producer of rows in a transaction; made by `Transaction.producer`.

    Attributes:
        topic: The topic it writes to.
    """

    def __init__(
        self,
        transaction: Transaction,
        topic: TopicRef,
        partition: PartitionValue,
        timestamp: TimeValue | None,
    ) -> None:
        self.topic = topic
        self._transaction = transaction
        self._options: dict[str, Any] = {"partition": partition, "timestamp": timestamp}
        self._rows: list[object] = []

    @property
    def rows_waiting(self) -> int:
        """How many rows were added and wait in this process."""
        return len(self._rows)

    def append(self, row: object) -> None:
        """Add one row; every 10,000 rows are sent as a batch, the rest with the transaction.

        Args:
            row: A mapping by column name (copied; an absent key is null), a dataclass, a pydantic
                model, or a sequence with a value for each column.

        Raises:
            SchemaMismatch: A row of the batch does not fit the topic.
            WingsError: As `Transaction.push`.
        """
        self._transaction.check_open()
        self._rows.append(snapshot(row))
        if len(self._rows) >= ROWS_WAITING:
            self.flush()

    def extend(self, rows: Iterable[object]) -> None:
        """Add rows one after another; see `append`."""
        for row in rows:
            self.append(row)

    def flush(self) -> None:
        """Send the rows that were added and wait in this process."""
        if self._rows:
            rows, self._rows = self._rows, []
            self._transaction.push(self.topic, rows, **self._options)


def _offsets_of(consumer: ConsumerOffsets, taken: Uncommitted) -> PublishedOffsets:
    """Return the offsets to publish.

    Raises:
        FencedMember: The member has joined anew since they were taken.
        InvalidArgument: There are more than one publish carries.
    """
    fence = consumer.fence_of(taken)
    return build(
        PublishedOffsets,
        "transaction",
        consumer=consumer.name,
        member=None if fence is None else fence.member,
        member_epoch=None if fence is None else fence.epoch,
        offsets=tuple(
            PublishedOffset(topic=topic, partition=value, offset=offset)
            for (topic, value), offset in taken.offsets.items()
        ),
    )


@checked
class TransactionCalls(StageCalls):
    """The calls of `Client` that open transactions."""

    def transactions(self, writer: str) -> Transactions:
        """Begin the transactions of a writer, and fence those of its earlier lives.

        With them a stream processor reads, works, writes and commits once, whatever crashes:

            transactions = client.transactions("enrich")
            with client.consumer("enrich", "orders", auto_commit=False) as consumer:
                for batch in consumer:
                    with transactions.begin() as transaction:
                        transaction.push("enriched", work(batch))
                        transaction.commit(consumer)

        Readers never see rows of a transaction that is open or aborted. Rows may be of several
        topics. What was published is not repeated where an answer is lost.

        Args:
            writer: The name of the task, the same after a restart, such as a query's: a process
                that begins its transactions fences every other one that did so before.

        Raises:
            InvalidArgument: The name is empty or too long.
        """
        return Transactions(self._transport, self, writer)
