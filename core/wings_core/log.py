"""The log: metadata, storage, ingest and fetch put together over one data directory."""

from collections.abc import Callable, Sequence
from typing import Self

from wings_core.data_directory import DataDirectory
from wings_core.fetch.fetcher import Fetcher
from wings_core.ingest.group_commit import FlushReport, GroupCommit
from wings_core.limits import Limits
from wings_core.metadata.interfaces import Admin, Metadata, OffsetRegistry, Stages
from wings_core.metadata.place import open_metadata
from wings_core.model import Aborted, Topic
from wings_core.names import TopicName
from wings_core.reclaim import Reclaimer
from wings_core.storage.interfaces import FolioStore
from wings_core.storage.segments import SegmentStore


class Log:
    """All parts of an embedded log, opened and closed together.

    Attributes:
        admin: Namespaces and topics.
        registry: The index of offsets.
        stages: What is durable and not visible yet.
        store: The pages.
        group_commit: The way in.
        fetcher: The way out.
        limits: The bounds in force.
    """

    def __init__(
        self,
        metadata: Metadata,
        store: FolioStore,
        limits: Limits,
        on_flush: Callable[[FlushReport], None] | None = None,
    ) -> None:
        self.admin: Admin = metadata.admin
        self.registry: OffsetRegistry = metadata.registry
        self.stages: Stages = metadata.stages
        self.store = store
        self.limits = limits
        self.group_commit = GroupCommit(store, self.registry, limits, on_flush)
        self.fetcher = Fetcher(store, self.registry, limits)
        self._metadata = metadata
        self._reclaimer = Reclaimer(self.registry, self.stages, store, limits.stage_seconds_max)

    @classmethod
    def open(
        cls,
        directory: DataDirectory,
        limits: Limits | None = None,
        on_flush: Callable[[FlushReport], None] | None = None,
        metadata_url: str | None = None,
    ) -> Self:
        """Open the log of a data directory that the caller has locked.

        Args:
            directory: Where it lies.
            limits: The bounds in force.
            on_flush: Called after each group commit, on the thread that ran it.
            metadata_url: Where PostgreSQL is, if metadata is there.

        Raises:
            Internal: Its metadata cannot be opened.
            Unavailable: PostgreSQL cannot be reached.
            InvalidArgument: The directory's metadata is somewhere else; see `open_metadata`.
        """
        limits = limits or Limits()
        metadata = open_metadata(directory, metadata_url)
        store = SegmentStore(directory.segments, segment_bytes_max=limits.segment_bytes_max)
        return cls(metadata, store, limits, on_flush)

    def delete_topic(self, name: TopicName) -> Topic:
        """Delete a topic; its disk space is given back in the background.

        Raises:
            TopicNotFound: There is none of this name.
        """
        topic = self.admin.delete_topic(name)
        self._reclaimer.wake()
        return topic

    def abort_stages(self, writer: str, stages: Sequence[str], batch: int | None = None) -> Aborted:
        """Delete stages; their disk space is given back in the background.

        See `Stages.abort`.

        Raises:
            InvalidArgument: A writer or batch that cannot be.
        """
        aborted = self.stages.abort(writer, stages, batch)
        if aborted.stages:
            self._reclaimer.wake()
        return aborted

    def close(self) -> None:
        """Commit what was received, then close every part; readers must have ended."""
        self.group_commit.close()
        self._reclaimer.close()
        self.store.close()
        self._metadata.close()
