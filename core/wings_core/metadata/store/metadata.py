"""A store of metadata over a database."""

from typing import Self

from wings_core.metadata.interfaces import Metadata
from wings_core.metadata.store.database import Commits, Database, Looks
from wings_core.metadata.store.groups import DatabaseGroups
from wings_core.metadata.store.maintenance import DatabaseMaintenance
from wings_core.metadata.store.nodes import DatabaseNodes
from wings_core.metadata.store.registry import DatabaseRegistry
from wings_core.metadata.store.shards import DatabaseShards
from wings_core.metadata.store.stages import DatabaseStages
from wings_core.metadata.store.tables import DatabaseTables
from wings_core.metadata.store.tokens import DatabaseTokens
from wings_core.metadata.store.topics import DatabaseAdmin, TopicCache
from wings_core.metadata.waiters import Waiters


class DatabaseMetadata(Metadata):
    """The interfaces of metadata over one database; may be used in a `with` statement.

    Args:
        database: Runs the transactions.
        looks: Its looks into the log's index.
        commits: Commits its flushes.
        waiters: Woken by what the database notifies of.
        topics: Topics looked up lately; of 0 where another process may change them.
    """

    def __init__(
        self,
        database: Database,
        looks: Looks,
        commits: Commits,
        waiters: Waiters,
        topics: TopicCache,
    ) -> None:
        self._admin = DatabaseAdmin(database, topics)
        self._registry = DatabaseRegistry(database, looks, commits, waiters)
        self._stages = DatabaseStages(database)
        self._maintenance = DatabaseMaintenance(database)
        self._groups = DatabaseGroups(database)
        self._shards = DatabaseShards(database)
        self._nodes = DatabaseNodes(database)
        self._tokens = DatabaseTokens(database)
        self._tables = DatabaseTables(database)

    @property
    def admin(self) -> DatabaseAdmin:
        """Namespaces and topics."""
        return self._admin

    @property
    def registry(self) -> DatabaseRegistry:
        """The log's index."""
        return self._registry

    @property
    def stages(self) -> DatabaseStages:
        """Batches that were staged and not published yet."""
        return self._stages

    @property
    def maintenance(self) -> DatabaseMaintenance:
        """Retention, merged pages and leases."""
        return self._maintenance

    @property
    def groups(self) -> DatabaseGroups:
        """Share groups."""
        return self._groups

    @property
    def shards(self) -> DatabaseShards:
        """Progress of what is read into the log once."""
        return self._shards

    @property
    def nodes(self) -> DatabaseNodes:
        """The registered Flight nodes."""
        return self._nodes

    @property
    def tokens(self) -> DatabaseTokens:
        """The tokens that principals present."""
        return self._tokens

    @property
    def tables(self) -> DatabaseTables:
        """The files of topics that are tables."""
        return self._tables

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()
