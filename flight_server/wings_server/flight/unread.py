"""Unread: how much a client may not have read yet of what was written to it."""

from collections.abc import Iterable

from wings_core.contracts.share import AcknowledgementEntry

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
        self._deliveries: dict[tuple[str, int], int] = {}
        """What was written with each, by lease and first offset."""

    def wrote(self, batch_bytes: int, delivered: tuple[str, int] | None = None) -> bool:
        """Count a message; returns whether it may be written without waiting for the client.

        Args:
            batch_bytes: Of its batch.
            delivered: Of a delivery, its lease and first offset.
        """
        self._written += batch_bytes + FRAME_BYTES
        if delivered is not None:
            if len(self._deliveries) >= DELIVERIES_MAX:
                self._deliveries.clear()
            self._deliveries[delivered] = self._written
        return self._written - self._read <= UNREAD_BYTES_MAX

    def acknowledged(self, entries: Iterable[AcknowledgementEntry]) -> None:
        """Note that the client has read the deliveries that begin where entries do."""
        deliveries, read = self._deliveries, self._read
        for entry in entries:
            written = deliveries.pop((entry.lease, entry.first), 0)
            if written > read:
                read = written
        self._read = read
