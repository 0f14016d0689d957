"""The reads of a consumer: one stream over all its partitions, by a thread, into a queue."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from wings_client._arguments import build
from wings_client._chunks import Chunks, OnDataLoss
from wings_client._consumer_offsets import ConsumerOffsets, patiently
from wings_client._model import Consumed, Topic
from wings_client._read_options import wire_partitions
from wings_client._threads import Handover, HandoverClosed, Work
from wings_client._transport import Transport
from wings_core.contracts.reads import ALL, ENTRIES_MAX, ReadOptions
from wings_core.contracts.tickets import FollowTicket, ScanTicket
from wings_core.errors import InvalidTicket
from wings_core.partitions import JsonScalar

BATCHES_WAITING_MAX = 8
"""Batches that were read and not yet taken."""

JOIN_SECONDS = 1.0
"""How long `close` waits for each thread; one that is opening a stream on a silent server ends with
that stream."""


class ReadBatch(NamedTuple):
    """A batch, and the stream that it came by."""

    stream: Chunks
    batch: Consumed


class ConsumerReads:
    """Reads partitions until it is closed.

    Args:
        transport: To the server.
        topic: The topic to read.
        partitions: Partitions to read: of one, items are `ConsumedBatch`, of more `RangesBatch`.
            None: all, new ones as they come into being.
        starts: Where to begin; a partition that is not in it begins at its start.
        options: The columns and rows to read.
        on_data_loss: Outcome of a read whose place retention has passed.
        offsets: Offsets of the consumer that the reads are of; None: of none.

    Attributes:
        handover: The queue of the batches that were read.
    """

    def __init__(
        self,
        transport: Transport,
        topic: Topic,
        partitions: Sequence[JsonScalar] | None,
        starts: Mapping[JsonScalar, int],
        options: ReadOptions,
        on_data_loss: OnDataLoss,
        offsets: ConsumerOffsets | None = None,
    ) -> None:
        self.handover: Handover[Any] = Handover(BATCHES_WAITING_MAX, givers=1)
        self._offsets = offsets
        self._transport = transport
        self._topic = topic
        self._partitions = partitions
        self._options = options
        self._on_data_loss: OnDataLoss = on_data_loss
        self._is_of_one = partitions is not None and len(partitions) == 1
        self._probe: Chunks | None = None
        """The scan of `lags`, while it runs."""
        self._closed = False
        self._open(starts)

    def start(self) -> None:
        """Start the threads, unless they are."""
        for thread in self._threads:
            thread.start()

    def rewind(self) -> None:
        """Read on from the committed offsets; blocks.

        Raises:
            WingsError: The server's refusal; `Unavailable` where it could not be reached again.
        """
        assert self._offsets is not None
        first = partial(self._offsets.first, self._topic, "earliest")
        starts = patiently(self._transport, first)
        self._offsets.rewind()
        before = self._reads
        self._open(starts)
        for read in before if not self._closed else (*before, *self._reads):
            read.cancel()
        self.start()

    def close(self) -> None:
        """Stop reading; waits for the threads, at most `JOIN_SECONDS` each."""
        self.cancel()
        for thread in self._threads:
            thread.join(JOIN_SECONDS)  # One that is about to start will find it closed.

    def cancel(self) -> None:
        """Stop reading; does not block."""
        if self._transport.is_inherited:
            return
        self._closed = True
        self.handover.close()
        probe = self._probe
        for read in self._reads if probe is None else (*self._reads, probe):
            read.cancel()

    def lags(self) -> bool:
        """Return whether messages are committed that were not read yet; asks the server.

        A queue that stays empty does not tell: the server may be slow, or away. False once closed.

        Raises:
            WingsError: The server's refusal; `Unavailable` where it could not be reached again.
        """
        return any(self._lags(read) or is_on_its_way(read) for read in self._reads)

    def _lags(self, read: Chunks) -> bool:
        probe = self._probe = probe_of(self._transport, self._topic, self._options.selection, read)
        if self._closed:
            probe.cancel()
        try:
            return any(True for _ in probe)
        finally:
            probe.cancel()
            self._probe = None

    def asked(self) -> None:
        """Note that the program asks for a batch."""

    def answered(self) -> None:
        """Note that the program was told that there is no batch."""

    def accept(self, taken: Any) -> Consumed | None:
        """Return a batch that was taken from the queue as delivered; None: it comes again."""
        stream, batch = cast("ReadBatch", taken)
        if stream not in self._reads:
            return None
        if self._offsets is not None:
            self._offsets.deliver(self._topic, batch)
        return batch

    def fenced(self) -> bool:
        """Return False: this consumer is no member of a group."""
        return False

    def leave(self) -> None:
        """Do nothing: this consumer is no member of a group."""

    def _open(self, starts: Mapping[JsonScalar, int]) -> None:
        partitions = self._partitions
        if partitions is None:
            self._reads = [self._chunks(partitions=ALL, positions=tuple(starts.items()))]
        elif len(partitions) == 1:
            # A stream of one partition begins at a number; retention may have passed 0.
            read = self._chunks(partition=partitions[0], offset=starts.get(partitions[0], 0))
            if partitions[0] not in starts:
                read.exact = ()
            self._reads = [read]
        else:
            some = (
                partitions[first : first + ENTRIES_MAX]
                for first in range(0, len(partitions), ENTRIES_MAX)
            )
            self._reads = [self._chunks(partitions=wire_partitions(part, starts)) for part in some]
        self._threads = [Work(partial(self._read, read), "wings-consumer") for read in self._reads]

    def _chunks(self, **where: Any) -> Chunks:
        keys = {**self._options.selection, **where}
        ticket = build(
            FollowTicket, "consumer", error=InvalidTicket, topic=self._topic.name, **keys
        )
        seconds = self._transport.retry.reconnect_seconds
        chunks = Chunks(self._transport, ticket, reconnect_seconds=seconds)
        chunks.on_data_loss = self._on_data_loss
        return chunks

    def _read(self, read: Chunks) -> None:
        batches = (next(chunk.parts()) for chunk in read) if self._is_of_one else read
        hand_over(self.handover, read, batches, lambda: read in self._reads)


def hand_over(
    handover: Handover[Any],
    stream: Chunks,
    batches: Iterable[Consumed],
    is_read: Callable[[], bool],
) -> None:
    """Put the batches of a stream into a queue, to its end; blocks.

    Args:
        handover: The queue.
        stream: The stream, by which its batches are known.
        batches: Its batches.
        is_read: Returns whether no other stream has taken its place.
    """
    try:
        for batch in batches:
            if not is_read():
                return
            handover.put(ReadBatch(stream, batch))
            stream.chunks_handed_over += 1
    except HandoverClosed:
        return
    except BaseException as error:  # noqa: BLE001 - raised where the consumer is iterated.
        if is_read():
            handover.fail(error)


def is_on_its_way(read: Chunks) -> bool:
    """Return whether something was read, so that the read's place has moved, and is not queued."""
    return read.chunks_yielded != read.chunks_handed_over


def probe_of(
    transport: Transport, topic: Topic, selection: Mapping[str, Any], read: Chunks
) -> Chunks:
    """Return a scan of what is committed and was not yet read, with one column.

    Args:
        transport: To the server.
        topic: The topic.
        selection: Keys of the read's ticket: its filter counts.
        read: The read.
    """
    ticket = build(
        ScanTicket,
        "consumer",
        error=InvalidTicket,
        topic=topic.name,
        columns=topic.schema.names[:1],
        filter=selection.get("filter"),
        **read.where(),
    )
    probe = Chunks(transport, ticket, reconnect_seconds=transport.retry.reconnect_seconds)
    probe.exact = read.exact
    probe.on_data_loss = read.on_data_loss
    return probe
