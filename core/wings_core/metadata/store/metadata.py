"""A store of metadata over a database."""

from abc import ABC, abstractmethod
from typing import Self

from wings_core.metadata.store.consumer_groups import DatabaseConsumerGroups
from wings_core.metadata.store.database import Commits, Database, Looks
from wings_core.metadata.store.groups import DatabaseGroups
from wings_core.metadata.store.maintenance import DatabaseMaintenance
from wings_core.metadata.store.nodes import DatabaseNodes, DatabaseTokens
from wings_core.metadata.store.registry import DatabaseRegistry
from wings_core.metadata.store.shards import DatabaseShards
from wings_core.metadata.store.stages import DatabaseStages
from wings_core.metadata.store.tables import DatabaseTables
from wings_core.metadata.store.topics import DatabaseAdmin, TopicCache
from wings_core.metadata.store.transactions import DatabaseTransactions
from wings_core.metadata.waiting import Waiters


class DatabaseMetadata(ABC):
    """A `Metadata` over one database, but for what is its own; may be used in a `with` statement.

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
        self.admin = DatabaseAdmin(database, topics)
        self.registry = DatabaseRegistry(database, looks, commits, waiters)
        self.stages = DatabaseStages(database)
        self.transactions = DatabaseTransactions(database)
        self.maintenance = DatabaseMaintenance(database)
        self.groups = DatabaseGroups(database)
        self.consumer_groups = DatabaseConsumerGroups(database)
        self.shards = DatabaseShards(database)
        self.nodes = DatabaseNodes(database)
        self.tokens = DatabaseTokens(database)
        self.tables = DatabaseTables(database)

    @abstractmethod
    def close(self) -> None:
        """Close the store; see `Metadata.close`."""

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()
