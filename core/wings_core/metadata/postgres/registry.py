"""The log's index in PostgreSQL."""

from collections.abc import Sequence

from wings_core.metadata.folios import check_inline
from wings_core.metadata.postgres import dialect
from wings_core.metadata.postgres.commit_call import judged_call
from wings_core.metadata.postgres.connections import Connection
from wings_core.metadata.postgres.database import PostgresDatabase
from wings_core.metadata.store.registry import DatabaseRegistry
from wings_core.metadata.waiters import Waiters
from wings_core.model import CommitBatch, CommitResult, FlushId, InlineFolio


class PostgresRegistry(DatabaseRegistry[Connection]):
    """A `DatabaseRegistry` whose commits are one statement where they can be.

    Args:
        database: Where it is.
        waiters: Woken by commits, of all processes that the database tells of.
    """

    def __init__(self, database: PostgresDatabase, waiters: Waiters) -> None:
        super().__init__(database, dialect, waiters)
        self._postgres = database

    def commit(
        self,
        batches: Sequence[CommitBatch],
        flush_id: FlushId | None = None,
        inline: InlineFolio | None = None,
    ) -> list[CommitResult]:
        """Assign offsets to the batches of a flush; see `OffsetRegistry.commit`."""
        if inline is not None:
            check_inline(inline)
        call = None if flush_id is not None else judged_call(batches, self._postgres.now(), inline)
        if call is not None:
            committed = self._postgres.call(call.function, call.arguments, call.committed)
            if committed is not None:
                return committed.results
        return super().commit(batches, flush_id, inline)
