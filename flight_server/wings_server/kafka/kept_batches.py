"""Record batches for consumers at the end of a log, as producers sent them or as they were encoded.

Encoding what was just produced anew from the log's rows would be most of the work, once for each
consumer. The log stays the truth: where a batch begins at the offset that a consumer asks for, and
the log still has that offset, its bytes are sent on.
"""

import threading
from collections import OrderedDict
from typing import NamedTuple

from wings_core.limits import MIB
from wings_core.partitions import Partition
from wings_server.kafka.record_types import ZSTD, compression_of, placed_at

KEPT_BYTES_MAX = 32 * MIB
"""Most bytes of all batches; the oldest are dropped."""

BEHIND_MAX = 65_536
"""Most records between what is encoded and the end of its log, for a batch that is kept."""

_ENTRY_BYTES = 512
"""About the memory of a batch beside its bytes."""

_Place = tuple[str, Partition, int]


class KeptBatch(NamedTuple):
    """A batch at its place in the log.

    Attributes:
        data: The batch, with its offset.
        rows: Number of its records.
    """

    data: bytes
    rows: int

    @property
    def is_zstd(self) -> bool:
        """Whether its records are compressed by Zstandard, which not all clients know."""
        return compression_of(self.data) == ZSTD


class KeptBatches:
    """The batches that were written last; all methods from any thread.

    Args:
        bytes_max: Most bytes of all of them.
    """

    def __init__(self, bytes_max: int) -> None:
        self._lock = threading.Lock()
        self._bytes_max = bytes_max
        self._bytes = 0
        self._batches: OrderedDict[_Place, KeptBatch] = OrderedDict()

    def keep(
        self, topic_uuid: str, partition: Partition, offset: int, data: bytes | bytearray, rows: int
    ) -> None:
        """Keep a batch that was committed.

        Args:
            topic_uuid: Identity of its topic, whose values are bytes.
            partition: Its partition.
            offset: Offset of its first record.
            data: The batch, at any offset; it is copied.
            rows: Number of its records.
        """
        place, batch = (topic_uuid, partition, offset), KeptBatch(placed_at(offset, data), rows)
        with self._lock:
            if place in self._batches:
                return
            self._batches[place] = batch
            self._bytes += _ENTRY_BYTES + len(data)
            while self._bytes > self._bytes_max:
                _, dropped = self._batches.popitem(last=False)
                self._bytes -= _ENTRY_BYTES + len(dropped.data)

    def at(self, topic_uuid: str, partition: Partition, offset: int) -> KeptBatch | None:
        """Return the batch that begins at an offset; None where none is kept."""
        return self._batches.get((topic_uuid, partition, offset))
