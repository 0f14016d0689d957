"""The connections of a pipeline's process: queue, client, journal and shared state."""

from typing import Self

from wings_core.queue.commit import Committer, StageDead
from wings_core.queue.coordinator import QueueCoordinator
from wings_core.queue.directory import DirectoryQueue
from wings_core.queue.interfaces import Queue
from wings_core.queue.journal import Journal
from wings_core.queue.shared_state import QueueSharedState
from wings_core.queue.sqlite import SqliteQueue
from wings_spark.ingest.disposal import disposal_of
from wings_spark.ingest.history import History
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
        from wings_spark.ingest.listing_queue import ListingQueue

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
