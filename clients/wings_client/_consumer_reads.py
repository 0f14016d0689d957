"""The reads of a consumer: one stream over all its partitions, by a thread, into a queue."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from wings_client._handover import Handover, HandoverClosed
from wings_client._many import ManyChunks, wire_partitions
from wings_client._messages import build
from wings_client._model import ConsumedBatch, RangesBatch, Topic
from wings_client._stream import Chunks, OnDataLoss, Resumed
from wings_client._threads import Work
from wings_client._transport import Transport
from wings_core.contracts.reads import ALL, ENTRIES_MAX
from wings_core.contracts.tickets import FollowTicket, ScanTicket
from wings_core.errors import InvalidTicket
from wings_core.partitions import JsonScalar

BATCHES_WAITING_MAX = 8
"""Batches that were read and not yet taken."""

JOIN_SECONDS = 1.0
"""How long `close` waits for each thread; one that is opening a stream on a silent server ends with
that stream."""

Consumed = ConsumedBatch | RangesBatch
"""What a consumer delivers: of one partition where it reads one, else of many."""


class ConsumerReads:
    """Reads partitions until it is closed.

    Args:
        transport: To the server.
        topic: The topic to read.
        partitions: Those to read: of one, items are `ConsumedBatch`, of more `RangesBatch`. None:
            all, new ones as they come into being.
        starts: Where to begin; a partition that is not in it begins at its start.
        selection: Keys of the tickets: columns, filter, system columns.
        on_data_loss: What becomes of a read whose place retention has passed.

    Attributes:
        handover: The queue of the batches that were read.
    """

    def __init__(
        self,
        transport: Transport,
        topic: Topic,
        partitions: Sequence[JsonScalar] | None,
        starts: Mapping[JsonScalar, int],
        selection: Mapping[str, Any],
        on_data_loss: OnDataLoss,
    ) -> None:
        self.handover: Handover[Consumed] = Handover(BATCHES_WAITING_MAX, givers=1)
        self._transport = transport
        self._topic = topic
        self._selection = selection
        self._reads: list[Chunks | ManyChunks] = []
        self._values: dict[Chunks, JsonScalar] = {}
        self._handed_over: Counter[Chunks | ManyChunks] = Counter()
        """Chunks of each that were put into the queue."""
        self._probe: Resumed[Any] | None = None
        """The scan of `lags`, while it runs."""
        self._closed = False
        if partitions is None:
            self._add_many(partitions=ALL, positions=tuple(starts.items()))
        elif len(partitions) == 1:
            self._add_one(partitions[0], starts.get(partitions[0]))
        else:
            for first in range(0, len(partitions), ENTRIES_MAX):
                some = partitions[first : first + ENTRIES_MAX]
                self._add_many(partitions=wire_partitions(some, starts))
        for read in self._reads:
            read.on_data_loss = on_data_loss
        self._threads = [Work(partial(self._read, read), "wings-consumer") for read in self._reads]

    def start(self) -> None:
        """Start the threads, unless they are."""
        for thread in self._threads:
            thread.start()

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
        # What was read may be on its way to the queue still, and its place has moved already.
        return any(
            self._lags(read) or read.chunks_yielded != self._handed_over[read]
            for read in self._reads
        )

    def _lags(self, read: Chunks | ManyChunks) -> bool:
        keys: dict[str, Any] = {
            "columns": self._topic.schema.names[:1],
            "filter": self._selection.get("filter"),
        }
        seconds = self._transport.retry.reconnect_seconds
        if isinstance(read, Chunks):
            keys |= {"partition": self._values[read], "offset": read.next_offset}
            probe: Resumed[Any] = Chunks(
                self._transport,
                self._ticket(ScanTicket, keys),
                reconnect_seconds=seconds,
                clamps=read.clamps,
            )
        else:
            keys |= read.where()
            probe = ManyChunks(
                self._transport, self._ticket(ScanTicket, keys), reconnect_seconds=seconds
            )
            probe.exact = read.exact
        probe.on_data_loss = read.on_data_loss
        self._probe = probe
        if self._closed:
            probe.cancel()
        try:
            return any(True for _ in probe)
        finally:
            probe.cancel()
            self._probe = None

    def _add_one(self, partition: JsonScalar, offset: int | None) -> None:
        keys = {**self._selection, "partition": partition, "offset": offset or 0}
        ticket = self._ticket(FollowTicket, keys)
        seconds = self._transport.retry.reconnect_seconds
        # A stream of one partition begins at a number; retention may have passed 0.
        clamps = offset is None
        read = Chunks(self._transport, ticket, reconnect_seconds=seconds, clamps=clamps)
        self._values[read] = partition
        self._reads.append(read)

    def _add_many(self, **where: Any) -> None:
        ticket = self._ticket(FollowTicket, {**self._selection, **where})
        seconds = self._transport.retry.reconnect_seconds
        self._reads.append(ManyChunks(self._transport, ticket, reconnect_seconds=seconds))

    def _ticket(
        self, kind: type[FollowTicket] | type[ScanTicket], keys: Mapping[str, Any]
    ) -> FollowTicket | ScanTicket:
        return build(kind, InvalidTicket, "consumer", topic=self._topic.name, **keys)

    def _read(self, read: Chunks | ManyChunks) -> None:
        try:
            if isinstance(read, Chunks):
                value = self._values[read]
                for batch, start_offset, end_offset in read:
                    self.handover.put(ConsumedBatch(batch, value, start_offset, end_offset))
                    self._handed_over[read] += 1
            else:
                for chunk in read:
                    self.handover.put(chunk)
                    self._handed_over[read] += 1
        except HandoverClosed:
            return
        except BaseException as error:  # noqa: BLE001 - raised where the consumer is iterated.
            self.handover.fail(error)
