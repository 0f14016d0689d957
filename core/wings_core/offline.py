"""Maintenance of a data directory that no server has open, on demand."""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from wings_core.data_directory import DataDirectory
from wings_core.deployments import OneDirectory
from wings_core.errors import InvalidArgument
from wings_core.limits import Limits
from wings_core.log import Log
from wings_core.maintain.worker_pool import MaintenanceReport
from wings_core.metadata.open import has_metadata
from wings_core.model import INLINE_SUFFIX, Topic
from wings_core.names import DEFAULT_NAMESPACE, TopicName
from wings_core.storage.object_folios import FOLIO_SUFFIX
from wings_core.storage.segment_objects import (
    HOT_SEGMENT_SUFFIX,
    LOCAL_SEGMENT_SUFFIX,
    SEGMENT_SUFFIX,
    store_suffix,
)

_NEVER_SECONDS = 1e6
"""Between two looks by itself."""


@dataclass(frozen=True, slots=True)
class OfflineLog:
    """The log of a directory, opened for maintenance alone.

    Args:
        log: Opened.
    """

    log: Log

    def topics(self, names: Sequence[str] = ()) -> list[Topic]:
        """Return the topics of these names, bare ids or full; none: all of the default namespace.

        Raises:
            InvalidName: One is no name.
            TopicNotFound: One is not there.
        """
        admin = self.log.admin
        if not names:
            return admin.list_topics(DEFAULT_NAMESPACE)
        return [admin.get_topic(TopicName.parse(name)) for name in names]

    def maintain(
        self, topic: Topic, progress: Callable[[MaintenanceReport], None] | None = None
    ) -> MaintenanceReport:
        """Do what is due in a topic; blocks until it is done.

        Args:
            topic: One of `topics`.
            progress: Called after each partition with what this pass did so far.
        """
        return self.log.maintainer.run(topic, progress)

    def reclaim(self) -> int:
        """Delete files and objects that nothing refers to; return how many were, since the start.

        Raises:
            WingsError: Metadata or storage cannot be used; what is left is done later.
        """
        self.log.reclaimer.run()
        return self.log.reclaimer.folios_deleted


@contextmanager
def open_offline(path: Path, metadata_url: str | None) -> Generator[OfflineLog]:
    """Open a directory that an embedded server was started on, for as long as the `with` lasts.

    No server can be started on it meanwhile.

    Args:
        path: The data directory; it is not made.
        metadata_url: Where PostgreSQL is, if metadata is there.

    Raises:
        Unavailable: A server has the directory open; fact `pid`, if it is known.
        InvalidArgument: It is no data directory, or has only a part of a log: that of a metadata
            service, or of its nodes.
        WingsError: As `Log.open`.
    """
    # A look, so that nothing is made where nothing was.
    with DataDirectory.open_read_only(path) as looked_at:
        if not has_metadata(looked_at):
            raise InvalidArgument(
                f"{path} has no metadata: it is of nodes, whose metadata service has it, and which "
                "maintain it while they run"
            )
    limits = Limits(maintenance_seconds=_NEVER_SECONDS)
    with (
        DataDirectory.open(path) as directory,
        closing(Log.open(OneDirectory(directory, metadata_url), limits)) as log,
    ):
        _check_whole(directory, log)
        yield OfflineLog(log)


def _check_whole(directory: DataDirectory, log: Log) -> None:
    """Make sure that all messages are where this directory says that they are."""
    suffixes = {LOCAL_SEGMENT_SUFFIX, INLINE_SUFFIX}
    if "hot" in log.storage.objects:
        suffixes |= {FOLIO_SUFFIX, HOT_SEGMENT_SUFFIX}
    if "remote" in log.storage.objects:
        suffixes.add(SEGMENT_SUFFIX)
    lacking = sorted(
        folio
        for folio in log.registry.live_folios()
        if store_suffix(folio) not in suffixes and not (directory.segments / folio).is_file()
    )
    if lacking:
        raise InvalidArgument(
            f"{directory.path} lacks {len(lacking):,} files with messages, such as {lacking[0]}: "
            "where it is of a metadata service, its nodes have them, and maintain them while they "
            "run"
        )
