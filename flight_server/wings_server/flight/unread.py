"""Unread: how much a client may not have read yet of what was written to it."""

from wings_core.partitions import Partition
from wings_core.share.model import LeasedRange

UNREAD_BYTES_MAX = 32 * 1024
"""So much a client need not have read for a write not to wait: gRPC lets 64 KiB through."""

FRAME_BYTES = 1_024
"""What a message takes beside the buffers of its batch, about."""

DELIVERIES_MAX = 10_000
"""Deliveries that are remembered; with more, none is."""


class Unread:
    """Of one stream; used by one thread at a time.

    A client that acknowledges a delivery has read all that was written up to it.
    """

    def __init__(self) -> None:
        self._written = 0
        self._read = 0
        self._deliveries: dict[tuple[Partition, int], int] = {}
        """What was written with each, by partition and first offset."""

    def has_room(self, batch_bytes: int) -> bool:
        """Tell whether a message may be written without waiting for the client."""
        return self._written - self._read + batch_bytes + FRAME_BYTES <= UNREAD_BYTES_MAX

    def wrote(self, batch_bytes: int, delivered: LeasedRange | None = None) -> None:
        """Count a message, and remember which delivery it was."""
        self._written += batch_bytes + FRAME_BYTES
        if delivered is not None:
            if len(self._deliveries) >= DELIVERIES_MAX:
                self._deliveries.clear()
            self._deliveries[delivered.partition, delivered.start_offset] = self._written

    def acknowledged(self, partition: Partition, first: int) -> None:
        """Note that the client has read a delivery, if one began there."""
        self._read = max(self._read, self._deliveries.pop((partition, first), 0))
