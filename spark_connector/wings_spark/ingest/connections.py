"""The connections of a pipeline's process: queue, client, journal and shared state."""

from time import monotonic
from typing import Self

from wings_core.queue.commit import Committer, StageDead
from wings_core.queue.coordinator import QueueCoordinator, VisibilityExtender
from wings_core.queue.interfaces import Queue
from wings_core.queue.journal import Journal
from wings_core.queue.sqlite import DirectoryQueue, SqliteQueue
from wings_core.queue.state import QueueSharedState
from wings_spark.ingest.disposal import disposal_of
from wings_spark.ingest.own_topics import History
from wings_spark.ingest.settings import SourceSettings


def open_queue(source: SourceSettings) -> Queue:
    """Open a source's queue.

    Raises:
        InvalidArgument: The queue does not exist.
        Unavailable: The queue cannot be opened.
    """
    settings = source.queue
    if settings.kind == "share":
        from wings_spark.ingest.share_queue import ShareQueue

        assert settings.topic is not None
        assert settings.group is not None
        return ShareQueue(
            source.queue_server(), settings.topic, settings.group, settings.column or "body"
        )
    if settings.kind == "s3-listing":
        from wings_spark.ingest.stores import ListingQueue

        return ListingQueue(source)
    if settings.kind == "sqs":
        from wings_core.queue.sqs import SqsQueue

        assert settings.url is not None
        return SqsQueue(settings.url, region=settings.region, endpoint=settings.endpoint)
    if settings.kind == "pubsub":
        from wings_core.queue.pubsub import PubSubQueue

        assert settings.subscription is not None
        return PubSubQueue(settings.subscription, receipts=source.receipts)
    if settings.kind == "azure":
        from wings_core.queue.azure import AzureQueue

        assert settings.url is not None
        return AzureQueue(settings.url, receipts=source.receipts)
    assert settings.path is not None
    if settings.kind == "directory":
        return DirectoryQueue(settings.path, settings.state)
    return SqliteQueue(settings.path)


class Connections:
    """The connections of a process on the driver; used in a `with` statement.

    Attributes:
        client: Client of the target's server.
        queue: Queue of the source.
        journal: Journal of the pipeline.
        shared: The source's files.
    """

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self.journal = Journal(settings.journal_directory)
        self.client = settings.target.server().connect()
        self.queue = open_queue(settings)
        self.shared = QueueSharedState(
            self.client,
            settings.name,
            self.journal.token,
            settings.limits.commit_timeout_seconds,
        )

    def coordinator(self) -> QueueCoordinator:
        """Return the pipeline's coordinator, which receives and claims."""
        return QueueCoordinator(self.queue, self.shared, self.journal, self._settings.coordinator())

    def committer(self, stage_dead: StageDead) -> Committer:
        """Return the pipeline's committer, which publishes and acknowledges."""
        history = History(self._settings, self.client, self.journal.token)
        return Committer(
            self.queue,
            self.shared,
            self.journal,
            self.client,
            self._settings.limits.max_delivery_attempts,
            stage_dead,
            history.stage,
            disposal_of(self._settings),
        )

    def close(self) -> None:
        """Close the connections."""
        self.queue.close()
        self.client.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self.close()


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
