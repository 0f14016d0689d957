"""The log of a server, with its satellites: SQL, tables and backups."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from wings_core.backup.backups import Backups
from wings_core.deployments import Parts
from wings_core.ingest.group_commit import FlushReport
from wings_core.limits import Limits
from wings_core.log import Log
from wings_core.model import PublishResult
from wings_core.share.open import all_groups
from wings_core.share.replica.copies import HoldsCopies, ReplicaCopies
from wings_core.sql import Sql
from wings_core.tables import Catalog, Tables
from wings_server.group_node import GroupNode
from wings_server.history import History
from wings_server.log_standing import Standings
from wings_server.tls import Tls


class ServedLog(Log):
    """A log with its satellites, closed together.

    Args:
        parts: See `Log`.
        limits: See `Log`.
        on_flush: See `Log`.
        catalog: The catalog of tables, closed with the log; None without tables.
        holds: Copies the state of share groups for backups; None to read it from the coordinator's
            replicas.
        scratch: Directory for copies of databases; None for the system's temporary directory.

    Attributes:
        sql: Runs SQL over the topics.
        tables: Commits segments to the tables of topics, or None.
        backups: Backups in progress at this process.
        consumer_groups: Runs consumer groups, once this process is served; None before.
        on_publish: Called with the result of each `stage-publish`; counts it once served.
        tls: The certificate of the listeners that serve it; None without TLS.
        standings: Reads the state of topics, consumers and groups for overviews.
        history: Samples of the last hour, once started.
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
        self.consumer_groups: GroupNode | None = None
        self.on_publish: Callable[[PublishResult], None] = lambda published: None
        self.tls: Tls | None = None
        self.tables: Tables | None = None
        if catalog is not None:
            self.tables = Tables(metadata, catalog, parts.storage.remote.objects)
        super().__init__(parts, limits, on_flush, self.tables)
        groups = partial(all_groups, metadata.admin, metadata.groups)
        holds = holds or ReplicaCopies(groups, self.shares.coordinator.positions.stored)
        self.backups = Backups(metadata, holds, parts.storage.places, self.reclaimer.wake, scratch)
        self.sql = Sql(self)
        self.standings = Standings(self)
        self.history = History(self, self.standings)

    def close(self) -> None:
        """End backups and SQL, then close the log; readers must have ended."""
        self.backups.close()
        self.sql.close()
        super().close()
