"""The reads of a consumer: all its partitions, by a bounded number of threads, into one queue.

    scout's thread      asks which partitions exist, and which have new messages
    workers' threads    read a partition each, and put the batches into the hand-over

Up to `FOLLOWS_MAX` partitions are followed, each by a worker of its own, so a message arrives as
soon as it is committed. Of more than that, workers scan those in which the scout
found new messages: it polls ten times a second while there are any, and less often otherwise.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wings_client._consumer_offsets import patiently
from wings_client._handover import WAKE_SECONDS, Handover, HandoverClosed
from wings_client._messages import build
from wings_client._model import ConsumedBatch, PartitionState, Topic
from wings_client._stream import Chunks
from wings_client._transport import Transport
from wings_core.contracts.tickets import FollowTicket, ScanTicket
from wings_core.errors import InvalidTicket
from wings_core.partitions import Partition, partition_of_value, partition_value

FOLLOWS_MAX = 32
"""Most partitions read at once, each by a thread."""

BATCHES_WAITING_MAX = 8
"""Batches that were read and not yet taken."""

DISCOVER_SECONDS = 0.5
"""Pause between two polls for new partitions, and the longest between two for new messages."""

NEWS_SECONDS = 0.1
"""Pause between two polls for new messages in unfollowed partitions, while there are some."""

JOIN_SECONDS = 1.0
"""How long `close` waits for each thread; one that is opening a stream on a silent server ends with
that stream."""


@dataclass(slots=True)
class _Assigned:
    """A partition that is read."""

    partition: Partition
    offset: int
    """The next one to read, while no worker does."""
    active: bool = False
    """Whether a worker reads it, or will."""
    chunks: Chunks | None = None
    """What the worker reads."""


class ConsumerReads:
    """Reads partitions until it is closed.

    Args:
        transport: To the server.
        states: Returns the state of each partition of the topic.
        topic: The topic to read.
        partitions: Those to read; None: all, new ones as they come into being.
        starts: Where to begin; a partition that is not in it begins at its start.
        selection: Keys of the tickets: columns, filter, system columns.

    Attributes:
        handover: The queue of the batches that were read.
    """

    def __init__(
        self,
        transport: Transport,
        states: Callable[[], list[PartitionState]],
        topic: Topic,
        partitions: Sequence[Partition] | None,
        starts: Mapping[Partition, int],
        selection: Mapping[str, Any],
    ) -> None:
        self.handover: Handover[ConsumedBatch] = Handover(BATCHES_WAITING_MAX, givers=1)
        self._transport = transport
        self._states = states
        self._topic = topic
        self._discovers = partitions is None
        self._starts = starts
        self._selection = selection
        # Guards what is below; held while nothing blocks. A signal handler or a finalizer may call
        # `cancel` on a thread that holds it.
        self._lock = threading.RLock()
        self._closed = False
        self._changed = threading.Condition(self._lock)
        self._end = threading.Condition(self._lock)
        """Ends the scout's pauses."""
        self._assigned: dict[Partition, _Assigned] = {}
        self._ready: deque[_Assigned] = deque()
        self._workers: list[threading.Thread] = []
        self._scout: threading.Thread | None = None
        for partition in partitions or ():
            self._assigned[partition] = _Assigned(partition, starts.get(partition, 0))
        self._crowded = len(self._assigned) > FOLLOWS_MAX

    def start(self) -> None:
        """Start the threads; called once."""
        if self._discovers or self._crowded:
            self._scout = threading.Thread(
                target=self._look, name="wings-consumer-scout", daemon=True
            )
            self._scout.start()
        else:
            with self._lock:
                workers = self._made_ready({})
            for worker in workers:
                worker.start()

    def close(self) -> None:
        """Stop reading; waits for the threads, at most `JOIN_SECONDS` each."""
        self.cancel()
        with self._lock:
            threads = list(self._workers)
        if self._scout is not None:
            threads.append(self._scout)
        for thread in threads:
            if thread.is_alive():  # One that is about to start will find it closed.
                thread.join(JOIN_SECONDS)

    def cancel(self) -> None:
        """Stop reading; does not block."""
        with self._lock:
            self._closed = True
            reading = [each.chunks for each in self._assigned.values() if each.chunks is not None]
            self._changed.notify_all()
            self._end.notify_all()
        self.handover.close()
        for chunks in reading:
            chunks.cancel()

    # The scout's thread.

    def _look(self) -> None:
        pause = NEWS_SECONDS
        try:
            while not self._closed:
                news = self._learn(patiently(self._transport, self._states))
                eager = news and self._crowded
                pause = NEWS_SECONDS if eager else min(DISCOVER_SECONDS, pause * 2)
                with self._lock:
                    if not self._closed:
                        self._end.wait(pause)
        except BaseException as error:  # noqa: BLE001 - raised where the consumer is iterated.
            self.handover.fail(error)

    def _learn(self, states: Sequence[PartitionState]) -> bool:
        """Record new partitions and log ends; return whether there were any."""
        found = {partition_of_value(state.partition): state for state in states}
        with self._lock:
            for partition, state in found.items():
                if self._discovers and partition not in self._assigned:
                    offset = self._starts.get(partition, state.log_start_offset)
                    self._assigned[partition] = _Assigned(partition, offset)
            if not self._crowded and len(self._assigned) > FOLLOWS_MAX:
                self._crowded = True
                for each in self._assigned.values():
                    if each.chunks is not None:
                        each.chunks.cancel()
            before = len(self._ready)
            workers = self._made_ready(
                {partition: state.next_offset for partition, state in found.items()}
            )
            news = len(self._ready) > before
        for worker in workers:
            worker.start()
        return news

    def _made_ready(self, ends: Mapping[Partition, int]) -> list[threading.Thread]:
        """Assign workers to the partitions that wait to be read; called with the lock held.

        Returns:
            The new threads, to be started without the lock: starting waits for the thread to run.
        """
        new: list[threading.Thread] = []
        for each in self._assigned.values():
            behind = ends.get(each.partition, 0) > each.offset
            if not each.active and (behind or not self._crowded):
                each.active = True
                self._ready.append(each)
        workers = min(FOLLOWS_MAX, len(self._assigned))
        while self._ready and len(self._workers) < workers and not self._closed:
            worker = threading.Thread(
                target=self._work, name=f"wings-consumer-{len(self._workers)}", daemon=True
            )
            self._workers.append(worker)
            new.append(worker)
        self._changed.notify_all()
        return new

    # The workers' threads.

    def _work(self) -> None:
        try:
            while (assigned := self._next_ready()) is not None:
                self._read(assigned)
        except HandoverClosed:
            return
        except BaseException as error:  # noqa: BLE001 - raised where the consumer is iterated.
            self.handover.fail(error)

    def _next_ready(self) -> _Assigned | None:
        with self._lock:
            while not self._ready and not self._closed:
                self._changed.wait(WAKE_SECONDS)
            return None if self._closed else self._ready.popleft()

    def _read(self, assigned: _Assigned) -> None:
        value = partition_value(assigned.partition)
        chunks = self._chunks(assigned)
        for chunk in chunks:
            self.handover.put(
                ConsumedBatch(chunk.batch, value, chunk.start_offset, chunk.end_offset)
            )
        with self._lock:
            assigned.offset = chunks.next_offset
            assigned.chunks = None
            assigned.active = False

    def _chunks(self, assigned: _Assigned) -> Chunks:
        """Return a follow of the partition, or a scan of what is committed now."""
        crowded = self._crowded
        ticket = build(
            ScanTicket if crowded else FollowTicket,
            InvalidTicket,
            "consumer",
            topic=self._topic.name,
            partition=partition_value(assigned.partition),
            offset=assigned.offset,
            **self._selection,
        )
        chunks = Chunks(
            self._transport,
            ticket,
            reconnect_seconds=self._transport.retry.reconnect_seconds,
        )
        with self._lock:
            assigned.chunks = chunks
            if self._closed or self._crowded != crowded:
                chunks.cancel()
        return chunks
