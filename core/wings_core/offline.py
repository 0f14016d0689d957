"""Offline maintenance of a data directory that no server has open."""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from wings_core.data_directory import DataDirectory
from wings_core.deployments import OneDirectory
from wings_core.errors import InvalidArgument
from wings_core.limits import Limits
from wings_core.log import Log
from wings_core.maintain.workers import MaintenanceReport
from wings_core.metadata.open import has_metadata
from wings_core.model import INLINE_SUFFIX, Topic
from wings_core.names import DEFAULT_NAMESPACE, TopicName
from wings_core.storage.folio_stores import (
    FOLIO_SUFFIX,
    HOT_SEGMENT_SUFFIX,
    LOCAL_SEGMENT_SUFFIX,
    SEGMENT_SUFFIX,
    store_suffix,
)

_NEVER_SECONDS = 1e6
"""Interval of unprompted maintenance: none."""


@dataclass(frozen=True, slots=True)
class OfflineLog:
    """The log of a directory, opened for maintenance only.

    Args:
        log: The open log.
    """

    log: Log

    def topics(self, names: Sequence[str] = ()) -> list[Topic]:
        """Return topics by bare id or full name; without names, all of the default namespace.

        Raises:
            InvalidName: A name is malformed.
            TopicNotFound: A topic does not exist.
        """
        admin = self.log.admin
        if not names:
            return admin.list_topics(DEFAULT_NAMESPACE)
        return [admin.get_topic(TopicName.parse(name)) for name in names]

    def maintain(
        self, topic: Topic, progress: Callable[[MaintenanceReport], None] | None = None
    ) -> MaintenanceReport:
        """Do all due maintenance of a topic; blocks until done.

        Args:
            topic: One of `topics`.
            progress: Called after each partition with the totals of this pass so far.
        """
        return self.log.maintainer.run(topic, progress)

    def reclaim(self) -> int:
        """Delete unreferenced files and objects; returns the number deleted since the start.

        Raises:
            WingsError: Metadata or storage fails; the rest is deleted later.
        """
        self.log.reclaimer.run()
        return self.log.reclaimer.folios_deleted


@contextmanager
def open_offline(path: Path, metadata_url: str | None) -> Generator[OfflineLog]:
    """Open the directory of a stopped embedded server during the block.

    No server can open it meanwhile.

    Args:
        path: The data directory, which must exist.
        metadata_url: URL of PostgreSQL, if it stores the metadata.

    Raises:
        Unavailable: A server has the directory open; fact `pid`, if known.
        InvalidArgument: The path is not a data directory, or has only the part of a metadata
            service, or of its nodes.
        WingsError: The errors of `Log.open`.
    """
    # Read-only first, so that nothing is created if there is no directory.
    with DataDirectory.open_read_only(path) as looked_at:
        if not has_metadata(looked_at):
            raise InvalidArgument(
                f"{path} has no metadata: it belongs to nodes of a metadata service, which "
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
    """Check that all files with messages exist."""
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
            "if it belongs to a metadata service, its nodes have them, and maintain them while "
            "they run"
        )
