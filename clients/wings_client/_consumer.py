"""The named consumer: reads all partitions of a topic from its last committed offsets."""

import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, Self

from wings_client._consumer_offsets import ConsumerOffsets
from wings_client._consumer_reads import ConsumerReads
from wings_client._forks import finalize
from wings_client._group import GroupReads
from wings_client._model import Consumed
from wings_client._transport import Transport
from wings_core.errors import FencedMember, InvalidArgument, WingsError

LAG_SECONDS = 1.0
"""How long messages that are known to be there are waited for before the server is asked again."""


class ConsumerEngine:
    """The part of a consumer that sync and async share; see `Client.consumer`.

    Attributes:
        name: The name under which the server keeps its offsets.
        topics: The topics it reads.
        offsets: Delivered, processed and committed.
        reads: The threads that read.
        auto_commit: Whether, or each how many seconds, it commits by itself.
        timeout: Seconds without a message after which it ends; None: never.
        transport: To the server.
    """

    def __init__(
        self,
        transport: Transport,
        offsets: ConsumerOffsets,
        reads: ConsumerReads | GroupReads,
        auto_commit: bool | float,
        timeout: float | None,
    ) -> None:
        self.name = offsets.name
        self.topics = offsets.topics
        self.timeout = timeout
        self.transport = transport
        self.offsets = offsets
        self.reads = reads
        self.auto_commit = auto_commit
        self._lock = threading.RLock()  # A signal handler may close it.
        self._started = False
        self._closed = False
        self._is_aborted = False
        """Whether a transaction was aborted since a batch was asked for."""

    @property
    def positions(self) -> dict[Any, int]:
        """See `Consumer.positions`."""
        self.transport.check_process()
        delivered = self.offsets.delivered
        if self.offsets.by_topic:
            return dict(delivered)
        return {partition: offset for (_, partition), offset in delivered.items()}

    def ask(self) -> bool:
        """Begin to ask for a batch, which marks the last one as processed.

        Returns:
            Whether to commit first.

        Raises:
            InvalidArgument: The transaction of what was delivered was aborted.
        """
        self.transport.check_process()
        if self._is_aborted and self.offsets.unfinished:
            raise InvalidArgument(
                f"consumer {self.name!r}: the transaction of the last batches was aborted: "
                "publish them in another one, or rewind the consumer to read them again"
            )
        self._is_aborted = False
        with self._lock:
            if not self._started and not self._closed:
                self.reads.start()
            self._started = True
        self.offsets.processed()
        self.reads.asked()
        if isinstance(self.auto_commit, bool):
            return self.auto_commit
        return self.offsets.seconds_since_commit >= self.auto_commit

    def is_over(self) -> bool:
        """Return whether no batch means that none is there: closed, or read to the end.

        Blocks: asks the server, which may have been slow, or away.

        Raises:
            WingsError: The server's refusal; `Unavailable` where it could not be reached again.
        """
        over = self.reads.handover.ended or not self.reads.lags()
        if over and self.reads.handover.idle:  # Something may have come while it was asked.
            self.reads.answered()
            return True
        return False

    @property
    def patience(self) -> float:
        """How long to wait for a batch that the server said is there, in seconds."""
        return max(self.timeout or 0.0, LAG_SECONDS)

    def aborted(self) -> None:
        """Refuse to deliver more, until what was delivered is committed or rewound."""
        self._is_aborted = True

    def rewind(self) -> None:
        """Deliver again what was delivered and not committed; blocks."""
        self.transport.check_process()
        self.reads.rewind()
        self._is_aborted = False

    def commit_processed(self) -> None:
        """Commit what was processed; a member of a group that was fenced joins anew instead."""
        try:
            self.offsets.commit()
        except FencedMember:
            if not self.reads.fenced():
                raise
        self.offsets.lost = False  # It is delivered again.

    def commit(self) -> None:
        """Commit everything that was delivered.

        Raises:
            FencedMember: Not all of it could be; the member joins anew.
        """
        self.transport.check_process()
        self.offsets.processed()
        with self.rejoining():
            self.offsets.commit()
            self.offsets.check_lost()

    @contextmanager
    def rejoining(self) -> Generator[None]:
        """Have a member of a group that is fenced read again all that it has not committed."""
        try:
            yield
        except FencedMember:
            self.reads.fenced()
            self.offsets.lost = False
            raise

    def close(self) -> None:
        """Stop reading; commit what was processed, unless `auto_commit` is False."""
        if self.transport.is_inherited:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.reads.close()
        try:
            if self.auto_commit is not False:
                self.offsets.commit()
        finally:
            self.reads.leave()

    def leave(self, *, failing: bool) -> None:
        """Close at the end of a block; unless it failed, all that was delivered is processed.

        Raises:
            WingsError: The commit failed, and the block did not.
        """
        if self.transport.is_inherited:
            return
        if not failing:
            self.offsets.processed()
        try:
            self.close()
        except WingsError:
            if not failing:  # The block's error is the more specific one.
                raise


class Consumer(Iterator[Consumed]):
    """A named consumer; made by `Client.consumer`.

    Iterating yields `(batch, ranges)`: rows of many partitions, in order of offset within each, and
    which are whose; where the consumer reads a single partition, `(batch, partition, start_offset,
    end_offset)`; where it was given a list of topics, `(batch, ranges, topic)`. All have `ranges`,
    and `parts()`, which yields the rows of each partition by themselves. It blocks while there is
    nothing new. Each message is delivered at least once: what was not
    committed before a crash is redelivered. One thread iterates; `commit` and `close` may be called
    from any.

    Leaving a `with` block without an error commits everything delivered (unless `auto_commit` is
    False); leaving it with an error does not. A consumer that is garbage-collected without being
    closed stops reading, and commits nothing more.

    Attributes:
        name: The name under which the server keeps its offsets.
        topics: The topics it reads.
        topic: The first of them.
        engine: The part that `AsyncConsumer` shares.
    """

    def __init__(self, engine: ConsumerEngine) -> None:
        self.name = engine.name
        self.topics = engine.topics
        self.topic = engine.topics[0]
        self.engine = engine
        # The threads hold the reads and never this object, so its finalizer can end them.
        finalize(self, engine.transport, engine.reads.cancel)

    @property
    def positions(self) -> dict[Any, int]:
        """The next offset to read, after all that was delivered.

        By partition value; of a list of topics, by full name of the topic and partition value.
        """
        return self.engine.positions

    def __repr__(self) -> str:
        """Return its name and its topics."""
        names = ", ".join(repr(topic.name) for topic in self.topics)
        return f"Consumer({self.name!r}, {names})"

    def __next__(self) -> Consumed:
        """Return the next batch; blocks until there is one.

        Raises:
            StopIteration: Nothing came for as long as the timeout, or the consumer was closed.
            InvalidArgument: The transaction of what was delivered was aborted: publish that in
                another one, or `rewind`.
            WingsError: A read or a commit was refused; `Unavailable` where the server could not be
                reached again.
        """
        engine = self.engine
        if engine.ask():
            engine.commit_processed()
        seconds = engine.timeout
        while True:
            taken = engine.reads.handover.take(seconds)
            if taken is None:
                if engine.is_over():
                    raise StopIteration
                seconds = engine.patience
            elif (accepted := engine.reads.accept(taken)) is not None:
                return accepted

    def commit(self) -> None:
        """Commit everything that was delivered, the last batch included.

        Raises:
            FencedMember: The session of this member of a group ended meanwhile: what was delivered
                and not committed comes again, here or to another member.
            WingsError: The server's refusal; `Unavailable` where it could not be reached again.
        """
        self.engine.commit()

    def rewind(self) -> None:
        """Deliver again what was delivered and not committed, such as by an aborted transaction.

        Raises:
            WingsError: The server's refusal; `Unavailable` where it could not be reached again.
        """
        self.engine.rewind()

    def close(self) -> None:
        """Stop reading; commit what was processed, unless `auto_commit` is False.

        The last batch delivered counts as processed if another one was asked for after it.

        Raises:
            WingsError: The commit failed. The consumer is closed all the same.
        """
        self.engine.close()

    def __enter__(self) -> Self:
        """Return the consumer itself."""
        return self

    def __exit__(self, error_type: object, error: BaseException | None, *_: object) -> None:
        """Close the consumer; unless the block raised, commit all that was delivered."""
        self.engine.leave(failing=error is not None)
