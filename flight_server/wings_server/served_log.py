"""The log of a server, with what stands beside it: SQL over its topics, their tables, backups."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from wings_core.backup.backups import Backups
from wings_core.deployments import Parts
from wings_core.ingest.group_commit import FlushReport
from wings_core.limits import Limits
from wings_core.log import Log
from wings_core.share.open import all_groups
from wings_core.share.replica.copies import HoldsCopies, ReplicaCopies
from wings_core.sql import Sql
from wings_core.tables import Catalog, Tables


class ServedLog(Log):
    """A log, and the satellites that serve it further; closed together.

    Args:
        parts: As of `Log`.
        limits: As of `Log`.
        on_flush: As of `Log`.
        catalog: The catalog of tables, closed with the log; None: topics cannot be tables here.
        holds: Copies the messages that share groups have finished, for backups; None: reads them
            from the coordinator's replicas.
        scratch: The directory for copies of databases; None: that of the system's temporary files.

    Attributes:
        sql: Runs SQL over the topics.
        tables: Commits segments to the tables of topics; None: topics cannot be tables here.
        backups: The backups that are being taken at this process.
    """

    def __init__(
        self,
        parts: Parts,
        limits: Limits,
        on_flush: Callable[[FlushReport], None],
        catalog: Catalog | None,
        holds: HoldsCopies | None,
        scratch: Path | None,
    ) -> None:
        metadata = parts.metadata
        self.tables: Tables | None = None
        if catalog is not None:
            self.tables = Tables(metadata, catalog, parts.storage.remote.objects)
        super().__init__(parts, limits, on_flush, self.tables)
        groups = partial(all_groups, metadata.admin, metadata.groups)
        holds = holds or ReplicaCopies(groups, self.shares.stored)
        self.backups = Backups(metadata, holds, parts.storage.places, self.reclaimer.wake, scratch)
        self.sql = Sql(self)

    def close(self) -> None:
        """End backups and SQL, then close the log; readers must have ended."""
        self.backups.close()
        self.sql.close()
        super().close()
