"""Consumer: all partitions of a topic under a name, going on where it committed last."""

import threading
import weakref
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from wings_client._consumer_offsets import ConsumerCalls, ConsumerOffsets, Start
from wings_client._consumer_reads import ConsumerReads
from wings_client._messages import wire_partition
from wings_client._model import ConsumedBatch, PartitionValue, Topic
from wings_client._transport import Transport
from wings_core.errors import WingsError
from wings_core.partitions import (
    UNPARTITIONED,
    JsonScalar,
    Partition,
    partition_of_value,
    partition_value,
)


class ConsumerEngine:
    """What a consumer does, however it waits; see `Client.consumer` for the arguments.

    Attributes:
        name: Under which the server keeps its offsets.
        topic: What it reads.
        offsets: Where it stands.
        reads: What it reads with.
        timeout: Seconds without a message after which it ends; None: never.
    """

    def __init__(
        self,
        transport: Transport,
        calls: ConsumerCalls,
        name: str,
        topic: Topic,
        *,
        partitions: Sequence[PartitionValue] | None,
        start: Start,
        auto_commit: bool | float,
        timeout: float | None,
        **selection: Any,
    ) -> None:
        self.name = name
        self.topic = topic
        self.timeout = timeout
        self.offsets = ConsumerOffsets(transport, calls, name, topic)
        fixed = _fixed(topic, partitions)
        self.reads = ConsumerReads(
            transport,
            lambda: calls.partitions(topic),
            topic,
            fixed,
            self.offsets.first(start, fixed),
            selection,
        )
        self._auto_commit = auto_commit
        self._lock = threading.RLock()  # A signal handler may close it.
        self._started = False
        self._closed = False

    @property
    def positions(self) -> dict[JsonScalar, int]:
        """Where the consumer reads on, by partition value, after what it handed on so far."""
        handed = self.offsets.handed
        return {partition_value(partition): offset for partition, offset in handed.items()}

    def ask(self) -> bool:
        """Begin to ask for a batch, which says that the last one is processed.

        Returns:
            Whether to commit first.
        """
        with self._lock:
            if not self._started and not self._closed:
                self.reads.start()
            self._started = True
        self.offsets.processed()
        if isinstance(self._auto_commit, bool):
            return self._auto_commit
        return self.offsets.seconds_since_commit >= self._auto_commit

    def commit(self) -> None:
        """Commit everything that was handed on."""
        self.offsets.processed()
        self.offsets.commit()

    def close(self) -> None:
        """Stop reading; commit what was processed, unless `auto_commit` is False."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.reads.close()
        if self._auto_commit is not False:
            self.offsets.commit()

    def leave(self, *, failing: bool) -> None:
        """Close it at the end of a block; what was handed on is processed, unless it failed.

        Raises:
            WingsError: The commit failed, and the block did not.
        """
        if not failing:
            self.offsets.processed()
        try:
            self.close()
        except WingsError:
            if not failing:  # The error that leaves the block tells more.
                raise


class Consumer(Iterator[ConsumedBatch]):
    """Reads under a name; made by `Client.consumer`.

    Iterating yields `(batch, partition, start_offset, end_offset)`, in order of offset within each
    partition, and blocks while there is nothing new. Each message is handed on at least once: what
    was not committed before a crash comes again. One thread iterates; `commit` and `close` may be
    called from any.

    Leaving a `with` block without an error commits everything handed on (unless `auto_commit` is
    False), as the block has done its work by then; leaving it with an error does not. One that is
    let go of without either stops to read, and commits nothing more.

    Attributes:
        name: Under which the server keeps its offsets.
        topic: What it reads.
        engine: What it does, for faces that wait otherwise.
    """

    def __init__(self, engine: ConsumerEngine) -> None:
        self.name = engine.name
        self.topic = engine.topic
        self.engine = engine
        # The engine's threads hold its reads, and never this: letting go of it ends them.
        weakref.finalize(self, engine.reads.cancel)

    @property
    def positions(self) -> dict[JsonScalar, int]:
        """Where the consumer reads on, by partition value, after what it handed on so far."""
        return self.engine.positions

    def __next__(self) -> ConsumedBatch:
        """Return the next batch; blocks until there is one.

        Raises:
            StopIteration: Nothing came for as long as the timeout, or the consumer was closed.
            WingsError: A read or a commit was refused; `Unavailable` where the server could not be
                reached again.
        """
        engine = self.engine
        if engine.ask():
            engine.offsets.commit()
        taken = engine.reads.handover.take(engine.timeout)
        if taken is None:
            raise StopIteration
        engine.offsets.hand_on(taken)
        return taken

    def commit(self) -> None:
        """Commit everything that was handed on, the last batch included.

        Raises:
            WingsError: The server's refusal; `Unavailable` where it could not be reached again.
        """
        self.engine.commit()

    def close(self) -> None:
        """Stop reading; commit what was processed, unless `auto_commit` is False.

        The batch handed on last counts as processed if another one was asked for after it.

        Raises:
            WingsError: The commit failed. The consumer is closed all the same.
        """
        self.engine.close()

    def __enter__(self) -> Self:
        """Return the consumer itself."""
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it; commit what was handed on, where no error leaves the block."""
        self.engine.leave(failing=error is not None)


def _fixed(topic: Topic, partitions: Sequence[PartitionValue] | None) -> list[Partition] | None:
    """Return the partitions to read where they are known beforehand."""
    if partitions is not None:
        return [partition_of_value(wire_partition(value)) for value in partitions]
    return [UNPARTITIONED] if topic.partition_key is None else None
