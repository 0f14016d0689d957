"""Unread: an upper bound on the bytes written to a client that it has not read yet."""

from collections.abc import Iterable

from wings_core.contracts.share import AcknowledgementEntry

UNREAD_BYTES_MAX = 32 * 1024
"""Most unread bytes with which a write does not wait: gRPC buffers 64 KiB."""

FRAME_BYTES = 1_024
"""Approximate bytes of a message in addition to its batch's buffers."""

DELIVERIES_MAX = 10_000
"""Most deliveries to remember; with more, none is remembered."""


class Unread:
    """Unread bytes of one stream; used by one thread at a time.

    A client that acknowledges a delivery has read everything written up to it.
    """

    def __init__(self) -> None:
        self._written = 0
        self._read = 0
        self._deliveries: dict[tuple[str, int], int] = {}
        """Bytes written up to each delivery, by lease and first offset."""

    def wrote(self, batch_bytes: int, delivered: tuple[str, int] | None = None) -> bool:
        """Count a message; returns whether it may be written without waiting for the client.

        Args:
            batch_bytes: Bytes of the message's batch.
            delivered: Lease and first offset, if the message is a delivery.
        """
        self._written += batch_bytes + FRAME_BYTES
        if delivered is not None:
            if len(self._deliveries) >= DELIVERIES_MAX:
                self._deliveries.clear()
            self._deliveries[delivered] = self._written
        return self._written - self._read <= UNREAD_BYTES_MAX

    def acknowledged(self, entries: Iterable[AcknowledgementEntry]) -> None:
        """Record that the client has read the deliveries that begin where the entries do."""
        deliveries, read = self._deliveries, self._read
        for entry in entries:
            written = deliveries.pop((entry.lease, entry.first), 0)
            if written > read:
                read = written
        self._read = read
