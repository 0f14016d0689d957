"""Consumer: all partitions of a topic under a name, going on where it committed last."""

import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from wings_client._consumer_offsets import ConsumerOffsets, OffsetCalls, Start
from wings_client._consumer_reads import ConsumerReads
from wings_client._messages import wire_partition
from wings_client._model import ConsumedBatch, PartitionState, PartitionValue, Topic
from wings_client._transport import Transport
from wings_core.errors import WingsError
from wings_core.partitions import (
    UNPARTITIONED,
    JsonScalar,
    Partition,
    partition_of_value,
    partition_value,
)


class ConsumerCalls(OffsetCalls, Protocol):
    """What a consumer asks of the client."""

    def partitions(self, topic: Topic) -> list[PartitionState]:
        """Return where each partition stands."""
        ...


class Consumer(Iterator[ConsumedBatch]):
    """Reads under a name; made by `Client.consumer`.

    Iterating yields `(batch, partition, start_offset, end_offset)`, in order of offset within each
    partition, and blocks while there is nothing new. Each message is handed on at least once: what
    was not committed before a crash comes again. One thread iterates; `commit` and `close` may be
    called from any.

    Leaving a `with` block without an error commits everything handed on (unless `auto_commit` is
    False), as the block has done its work by then; leaving it with an error does not.

    Attributes:
        name: Under which the server keeps its offsets.
        topic: What it reads.
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
        self._auto_commit = auto_commit
        self._timeout = timeout
        self._offsets = ConsumerOffsets(transport, calls, name, topic)
        self._reads = ConsumerReads(
            transport,
            lambda: calls.partitions(topic),
            topic,
            _fixed(topic, partitions),
            self._offsets.first(start),
            selection,
        )
        self._lock = threading.Lock()
        self._started = False
        self._closed = False

    @property
    def positions(self) -> dict[JsonScalar, int]:
        """Where the consumer reads on, by partition value, after what it handed on so far."""
        handed = self._offsets.handed
        return {partition_value(partition): offset for partition, offset in handed.items()}

    def __next__(self) -> ConsumedBatch:
        """Return the next batch; blocks until there is one.

        Raises:
            StopIteration: Nothing came for as long as the timeout, or the consumer was closed.
            WingsError: A read or a commit was refused; `Unavailable` where the server could not be
                reached again.
        """
        self._start()
        self._offsets.processed()
        if self._commit_is_due():
            self._offsets.commit()
        taken = self._reads.handover.take(self._timeout)
        if taken is None:
            raise StopIteration
        self._offsets.hand_on(taken)
        return taken

    def commit(self) -> None:
        """Commit everything that was handed on, the last batch included.

        Raises:
            WingsError: The server's refusal; `Unavailable` where it could not be reached again.
        """
        self._offsets.processed()
        self._offsets.commit()

    def close(self) -> None:
        """Stop reading; commit what was processed, unless `auto_commit` is False.

        The batch handed on last counts as processed if another one was asked for after it.

        Raises:
            WingsError: The commit failed. The consumer is closed all the same.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._reads.close()
        if self._auto_commit is not False:
            self._offsets.commit()

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
        if error is None:
            self._offsets.processed()
            self.close()
            return
        try:
            self.close()
        except WingsError:
            return  # The error that leaves the block tells more.

    def _start(self) -> None:
        with self._lock:
            if not self._started and not self._closed:
                self._reads.start()
            self._started = True

    def _commit_is_due(self) -> bool:
        if isinstance(self._auto_commit, bool):
            return self._auto_commit
        return self._offsets.seconds_since_commit >= self._auto_commit


def _fixed(topic: Topic, partitions: Sequence[PartitionValue] | None) -> list[Partition] | None:
    """Return the partitions to read where they are known beforehand."""
    if partitions is not None:
        return [partition_of_value(wire_partition(value)) for value in partitions]
    return [UNPARTITIONED] if topic.partition_key is None else None
