"""State of the process that returns a query's offsets: it receives, claims and extends messages."""

from time import monotonic

from wings_core.queue.coordinator import QueueCoordinator
from wings_core.queue.visibility_extender import VisibilityExtender
from wings_spark.ingest.connections import Connections
from wings_spark.ingest.settings import SourceSettings


class Claiming:
    """Queue coordination in the process that returns a query's offsets; never pickled.

    Args:
        settings: Settings of the source.
    """

    def __init__(self, settings: SourceSettings) -> None:
        self._connections = Connections(settings)
        self.journal = self._connections.journal
        self.coordinator: QueueCoordinator = self._connections.coordinator()
        self.extender = VisibilityExtender(self.coordinator)
        self.last_claim = 0
        self.pending: int | None = None
        self.failed_since: float | None = None

    def failed_for(self) -> float:
        """Record a failed claim; returns the seconds since the first of these failures."""
        if self.failed_since is None:
            self.failed_since = monotonic()
        return monotonic() - self.failed_since

    def claim(self, last: int) -> int:
        """Make the claim after `last`; returns its number, or `last` if no file is ready."""
        claim = self.coordinator.claim(last + 1)
        self.pending = self._connections.queue.pending()
        self.coordinator.prune()
        return last if claim is None else claim.number

    def close(self) -> None:
        """Stop the visibility extender, and close the connections."""
        self.extender.close()
        self._connections.close()
