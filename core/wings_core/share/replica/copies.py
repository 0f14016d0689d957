"""Copies of what a replica keeps durably, as it is at one moment, or as far as it is sound.

The first are files of an embedded replica, also of one in PostgreSQL or in other processes. By the
second a damaged file is rebuilt. A message whose tombstone is lost is delivered again, and one
whose count is lost is delivered as often as one that was never: at least once still holds. What is
not certain is left out, as a tombstone that was never written would lose a message.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from wings_core.errors import AlreadyExists, Unavailable
from wings_core.metadata.sqlite.files import (
    FAULTS,
    copying,
    is_empty,
    locked,
    new_copy,
    open_to_check,
)
from wings_core.model import ShareGroup
from wings_core.share.replica.sqlite_store import (
    MIGRATIONS,
    SqliteHoldStore,
    problems_of,
    read_marks,
    read_partitions,
    read_version,
)
from wings_core.share.replica.store import Mark, PartitionWrite, StoredPartition
from wings_core.storage.files import sync_directory

if TYPE_CHECKING:
    from wings_core.metadata.postgres.connections import PostgresConnections

Copy = Callable[[Path], None]
"""Writes a state that was fixed into a new file; blocks while it writes."""

_WHAT = "the store of holds"

LOCK_SECONDS_UNKNOWN = 30.0
"""Lock assumed of a group whose mark is lost and whose configuration is not at hand."""

_FILES = ("", "-wal", "-shm")


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


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The holds that a rebuild kept, and those it lost."""

    partitions: int
    """Partitions of groups whose state was kept."""
    ranges: int
    """Ranges kept: finished messages above their partition's start, and counted deliveries."""
    problems: tuple[str, ...]
    """Faults of the file that was replaced."""
    groups_lost: tuple[ShareGroup, ...]
    """Groups of which nothing was left: all of their messages still kept are delivered again."""
    kept_as: Path | None
    """The file that was replaced; None: there was none."""


class FileCopies:
    """Copies of an SQLite file.

    Args:
        path: The file, which need not be there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def locked(self) -> AbstractContextManager[None]:
        """See `HoldsCopies.locked`."""
        return nullcontext() if is_empty(self._path) else locked(self._path, _WHAT)

    def copying(self) -> AbstractContextManager[Copy | None]:
        """See `HoldsCopies.copying`."""
        return nullcontext() if is_empty(self._path) else copying(self._path, _WHAT)


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
                _write_holds(into, list(stored.values()))

            yield write


@dataclass(frozen=True, slots=True, eq=False)
class ReplicaCopies:
    """Copies of the state that a majority of replicas in other processes knows.

    It is read before the moment of the metadata, and no writer is kept waiting: what is
    acknowledged in between is not finished in the copy, and is delivered again.

    Args:
        groups: Returns all groups.
        read: Returns what is kept of one.
    """

    _groups: Callable[[], Sequence[ShareGroup]]
    _read: Callable[[ShareGroup], Sequence[StoredPartition]]

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
        yield (lambda into: _write_holds(into, read)) if read else None


def _write_holds(into: Path, partitions: Sequence[StoredPartition]) -> None:
    """Write partitions into a new file of holds."""
    with new_copy(into), closing(SqliteHoldStore(into)) as store:
        store.write([PartitionWrite.of(each) for each in partitions], {})


def rebuild_holds(path: Path, groups: Sequence[ShareGroup]) -> Rebuilt:
    """Replace a file of holds by one with all that can be read of it and is sound.

    Until the locks have passed that members may hold, nothing of a group is delivered. Partitions
    of a group whose state is lost begin at the start of their log.

    Args:
        path: The file, in a directory that the caller has locked; need not exist.
        groups: All groups, where their names and configurations are at hand.

    Raises:
        AlreadyExists: The file is sound; nothing was changed.
        WingsError: The new file cannot be written.
    """
    problems = list(problems_of(path)) if path.exists() else ["it is missing"]
    if not problems and not is_empty(path):
        raise AlreadyExists(f"{path} is sound: there is nothing to rebuild")
    new = path.with_name(f"{path.name}.rebuilt")
    for suffix in _FILES:
        new.with_name(new.name + suffix).unlink(missing_ok=True)
    partitions = copy_holds(path, new, groups)
    kept_as = _replace(path, new)
    alive = {stored.key.group_uuid for stored in partitions}
    return Rebuilt(
        partitions=len(partitions),
        ranges=sum(len(stored.finished) + len(stored.counts) for stored in partitions),
        problems=tuple(problems),
        groups_lost=tuple(group for group in groups if group.uuid not in alive),
        kept_as=kept_as,
    )


def copy_holds(path: Path, new: Path, groups: Sequence[ShareGroup]) -> list[StoredPartition]:
    """Copy what is sound of a file of holds to a new file; see `rebuild_holds`.

    Args:
        path: The file, which is not written to; need not exist.
        new: Not there yet.
        groups: All groups.

    Returns:
        The partitions of groups whose state was copied.

    Raises:
        WingsError: The new file cannot be written.
    """
    partitions, marks = _read_holds(path)
    known = {group.uuid: group for group in groups}
    seconds = {uuid: group.config.lock_duration_ms / 1_000 for uuid, group in known.items()}
    for stored in partitions:
        uuid = stored.key.group_uuid
        seconds.setdefault(uuid, LOCK_SECONDS_UNKNOWN)
    for uuid, mark in marks.items():
        seconds[uuid] = max(seconds.get(uuid, 0.0), mark.ttl_seconds)
    with closing(SqliteHoldStore(new)) as store:
        store.load()
        store.write(
            [PartitionWrite.of(stored) for stored in partitions],
            # Of no boot that there is: the next start counts the time from then on.
            {uuid: Mark("rebuilt", 0.0, ttl) for uuid, ttl in seconds.items()},
        )
    return partitions


def _read_holds(path: Path) -> tuple[list[StoredPartition], dict[str, Mark]]:
    """Return what is sound; nothing of a file that has no checksums yet."""
    if not path.exists():
        return [], {}
    try:
        with closing(open_to_check(path)) as connection:
            if read_version(connection) != len(MIGRATIONS):
                return [], {}
            return (
                list(read_partitions(connection, _left_out).values()),
                read_marks(connection, _left_out),
            )
    except FAULTS:
        return [], {}


def _left_out(problem: str) -> None:
    """Do nothing: `problems_of` has told of it."""
    del problem


def _replace(path: Path, new: Path) -> Path | None:
    """Put a file into the place of another, durably; return where that is now."""
    kept_as = None
    if path.exists():
        number = 1
        while path.with_name(f"{path.name}.damaged-{number}").exists():
            number += 1
        kept_as = path.with_name(f"{path.name}.damaged-{number}")
        for suffix in reversed(_FILES):  # The log first: it is never beside another database.
            found = path.with_name(path.name + suffix)
            if found.exists():
                found.rename(kept_as.with_name(kept_as.name + suffix))
    new.rename(path)
    sync_directory(path.parent)
    return kept_as
