"""Copies of what a replica keeps durably, as it is at one moment: files of an embedded one."""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from wings_core.errors import Unavailable
from wings_core.metadata.sqlite import copies
from wings_core.metadata.sqlite.copies import new_copy
from wings_core.metadata.sqlite.integrity import is_empty
from wings_core.model import ShareGroup
from wings_core.share.replica.sqlite_store import SqliteHoldStore
from wings_core.share.replica.store import PartitionWrite, StoredPartition

if TYPE_CHECKING:
    from wings_core.metadata.postgres.connections import PostgresConnections

Copy = Callable[[Path], None]
"""Writes a state that was fixed into a new file; blocks while it writes."""

_WHAT = "the store of holds"


class HoldsCopies(Protocol):
    """Copies of the durable state of a replica that is in use."""

    def locked(self) -> AbstractContextManager[None]:
        """Keep the replica from writing, for the time of a few statements."""
        ...

    def copying(self) -> AbstractContextManager[Copy | None]:
        """Fix the state at one moment.

        Returns:
            A context that yields what writes it into a file; None where nothing was ever kept.
        """
        ...


class FileCopies:
    """Copies of an SQLite file.

    Args:
        path: The file, which need not be there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def locked(self) -> AbstractContextManager[None]:
        """See `HoldsCopies.locked`."""
        return nullcontext() if is_empty(self._path) else copies.locked(self._path, _WHAT)

    def copying(self) -> AbstractContextManager[Copy | None]:
        """See `HoldsCopies.copying`."""
        return nullcontext() if is_empty(self._path) else copies.copying(self._path, _WHAT)


class PostgresCopies:
    """Copies of a schema of PostgreSQL, whichever process serves it.

    Args:
        connections: To it; closed by the caller.
    """

    def __init__(self, connections: "PostgresConnections") -> None:
        self._connections = connections

    @contextmanager
    def locked(self) -> Generator[None]:
        """See `HoldsCopies.locked`; each write locks the row of the lease."""
        from wings_core.share.replica.postgres_lease import keeping_owner

        with keeping_owner(self._connections):
            yield

    @contextmanager
    def copying(self) -> Generator[Copy | None]:
        """See `HoldsCopies.copying`."""
        from wings_core.metadata.postgres.export import reading
        from wings_core.metadata.postgres.schema import check_tables, has_schema
        from wings_core.share.replica.postgres_lease import told_of_holds
        from wings_core.share.replica.postgres_store import VERSIONS, read_partitions

        schema = self._connections.schema
        with told_of_holds(), reading(self._connections) as connection:
            if not has_schema(connection, schema):
                yield None
                return
            check_tables(connection, schema, VERSIONS)

            def write(into: Path) -> None:
                stored = read_partitions(lambda: nullcontext(connection))
                write_holds(into, list(stored.values()))

            yield write


class ReplicaCopies:
    """Copies of the state that a majority of replicas in other processes knows.

    It is read before the moment of the metadata, and no writer is kept waiting: what is
    acknowledged in between is not finished in the copy, and is delivered again.

    Args:
        groups: Returns all groups.
        read: Returns what is kept of one.
    """

    def __init__(
        self,
        groups: Callable[[], Sequence[ShareGroup]],
        read: Callable[[ShareGroup], Sequence[StoredPartition]],
    ) -> None:
        self._groups = groups
        self._read = read

    @contextmanager
    def locked(self) -> Generator[None]:
        """Make sure that no group came while the block ran, of which no state was fixed.

        Raises:
            Unavailable: One did.
        """
        before = {group.uuid for group in self._groups()}
        yield
        if not before >= {group.uuid for group in self._groups()}:
            raise Unavailable("a share group was created or moved at this moment: try again")

    @contextmanager
    def copying(self) -> Generator[Copy | None]:
        """See `HoldsCopies.copying`; blocks for the replicas."""
        read: list[StoredPartition] = []
        for group in self._groups():
            read += self._read(group)
        yield (lambda into: write_holds(into, read)) if read else None


def write_holds(into: Path, partitions: Sequence[StoredPartition]) -> None:
    """Write partitions into a new file of holds."""
    with new_copy(into), closing(SqliteHoldStore(into)) as store:
        store.write([PartitionWrite.of(each) for each in partitions], {})
