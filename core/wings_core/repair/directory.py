"""Repair of a data directory into a new one, with rebuilt metadata."""

import errno
import fcntl
import os
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from wings_core.check import CheckReport, Problem, check_directory
from wings_core.data_directory import DataDirectory
from wings_core.errors import AlreadyExists, InvalidArgument, StorageCorrupt, Unavailable
from wings_core.metadata.maintenance import PageCounts
from wings_core.metadata.open import has_metadata
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.model import INLINE_SUFFIX, LOST_FOLIO, STORE_MESSAGES
from wings_core.repair.catalog import KeptTopics, Rest, as_int, read_catalog, read_rest
from wings_core.repair.log import Evidence, LogRepair, Repaired, read_folios, read_inline
from wings_core.repair.pages import Noted, PageSource
from wings_core.repair.salvage import Row, Salvaged, Shape, read_shapes, salvage
from wings_core.share.open import all_groups
from wings_core.share.replica.copies import copy_holds
from wings_core.share.replica.sqlite_store import problems_of as hold_problems
from wings_core.storage.files import sync_directory


@dataclass(frozen=True, slots=True)
class RepairReport:
    """The parts of a log that a repair kept, and those that are lost."""

    path: Path
    """The new directory."""
    topics: int
    partitions: int
    pages: int
    rows: int
    """Rows of readable pages."""
    found: tuple[str, ...]
    """Faults of the old directory's files; not losses by themselves."""
    rebuilt: tuple[str, ...]
    """Damaged parts that were rebuilt."""
    lost: tuple[Problem, ...]
    """Parts that are lost for good."""

    @property
    def ok(self) -> bool:
        """Whether nothing is lost."""
        return not self.lost


UNFINISHED = ".unfinished"
"""Suffix of the new directory's name until it is complete."""

_NOT_LINKED = {errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}

Progress = Callable[[str, int], None]
"""Called with the name of a step, and the number of pages or files done."""


def repair_directory(
    path: Path, into: Path, *, copy: bool = False, progress: Progress | None = None
) -> RepairReport:
    """Rebuild a damaged data directory as a new one, as far as possible; the old one is only read.

    Sound rows of metadata keep their ids. Offsets whose messages cannot be located stay, and
    reading them raises `StorageCorrupt`. The new directory gets its name when it is complete, so a
    crash leaves no partial one under that name.

    Blocks while the whole log is read. Keeps the rows of metadata in memory.

    Args:
        path: The directory of a stopped server, which holds its pages and metadata.
        into: The new directory, which must not exist.
        copy: Copy files with pages even if they could be hard-linked.
        progress: Called repeatedly.

    Raises:
        InvalidArgument: There is no such directory, its pages or metadata are elsewhere, it has
            another version, or `into` is within it.
        AlreadyExists: `into` exists.
        Unavailable: A server has the directory open, or a file cannot be read or written.
        StorageCorrupt: No record of the topics is left.
    """
    into = into.absolute()
    report = progress or _unseen
    if into.resolve().is_relative_to(path.resolve()):
        raise InvalidArgument(f"{into} is within {path}, which is only read: choose another path")
    with _readable(path) as directory, _new(into) as new:
        with ExitStack() as opened:
            report("reading metadata", 0)
            salvaged = salvage(directory.metadata)
            names, ids = read_inline(salvaged)
            source = PageSource(directory, names)
            opened.callback(source.close)
            built = _build(directory, DataDirectory(new), salvaged, source, names, ids)
            lost, rebuilt, folios = built
            _bring_files(source, DataDirectory(new), folios, copy, report)
        DataDirectory.complete(new)  # Until then no server opens it.
        checked = check_directory(new, progress=lambda pages: report("checking pages", pages))
        return RepairReport(
            path=into,
            topics=checked.topics,
            partitions=checked.partitions,
            pages=checked.pages,
            rows=checked.rows,
            found=tuple(salvaged.problems),
            rebuilt=tuple(rebuilt),
            lost=(*lost, *_damaged(checked)),
        )


def _build(
    directory: DataDirectory,
    new: DataDirectory,
    salvaged: Salvaged,
    source: PageSource,
    inline: dict[str, bytes],
    inline_ids: dict[int, str],
) -> tuple[list[Problem], list[str], Iterable[str]]:
    """Create the new directory's databases; returns losses, rebuilt parts, and files needed."""
    noted = Noted(directory.notes, read_shapes())
    catalog = read_catalog(salvaged, noted.topics())
    if not catalog.topics and not salvaged.is_complete("topics"):
        raise StorageCorrupt(
            f"no record of the topics is left in {directory.metadata.name} and "
            f"{directory.notes.name}"
        )
    folios = {**read_folios(salvaged, source), **inline_ids}
    evidence = Evidence(salvaged, catalog)
    pages = noted.pages({topic_id: topic.uuid for topic_id, topic in catalog.topics.items()})
    log = LogRepair(salvaged, catalog, source, folios, evidence, pages, noted.partition_ids)
    log.run()
    rest = read_rest(salvaged, catalog, folios)
    identity = _identity(directory, salvaged)
    used = write_metadata(
        new.metadata,
        read_shapes(),
        catalog,
        log.partitions,
        folios,
        inline,
        rest,
        identity,
    )
    lost = [*catalog.lost, *log.lost, *rest.lost]
    if identity is None:
        lost.append(Problem("the identity of the metadata is lost"))
    lost += [Problem(problem) for problem in salvaged.losses]
    lost += _repair_holds(directory, new)
    return lost, [*catalog.rebuilt, *log.rebuilt, *_tables(catalog)], used.values()


def _tables(catalog: KeptTopics) -> Iterator[str]:
    """Yield a notice for each topic with an Iceberg table: the catalog is not read."""
    for topic in catalog.topics.values():
        if topic.config.table is not None:
            yield (
                f"{topic.name}: maintenance rebuilds its Iceberg table from all rows that are "
                "kept; its earlier snapshots remain in the old directory only"
            )


def _identity(directory: DataDirectory, salvaged: Salvaged) -> str | None:
    rows = salvaged.rows("identity")
    if len(rows) == 1:
        return str(rows[0]["id"])
    return directory.bound_to


def _repair_holds(directory: DataDirectory, new: DataDirectory) -> Iterator[Problem]:
    """Copy the sound rows of share groups; yields the losses."""
    with closing(SqliteMetadata(new.metadata, read_only=True)) as metadata:
        groups = all_groups(metadata.admin, metadata.groups)
    if not groups and not directory.holds.exists():
        return
    name = directory.holds.name
    # A copy, as SQLite would write files beside a database with a write-ahead log.
    old = new.path / "old" / name
    old.parent.mkdir(mode=0o700)
    for suffix in ("", "-wal"):
        found = directory.holds.with_name(name + suffix)
        if found.exists():
            shutil.copyfile(found, old.with_name(found.name))
    problems = list(hold_problems(old)) if old.exists() else ["it is missing"]
    kept = copy_holds(old, new.holds, groups)
    shutil.rmtree(old.parent)
    for problem in problems:
        message = f"messages of share groups may be delivered again: {problem}"
        yield Problem(message, folio=name)
    alive = {stored.key.group_uuid for stored in kept}
    for group in groups if problems else ():
        if group.uuid not in alive:
            message = f"the progress of share group {group.name} is lost: it starts over"
            yield Problem(message, topic=str(group.topic.name))


def _damaged(checked: CheckReport) -> Iterator[Problem]:
    """Yield the problems found in the new directory, except offsets already reported as lost."""
    hidden = checked.problems_total - len(checked.problems)
    yield from (problem for problem in checked.problems if problem.folio != LOST_FOLIO)
    if hidden:
        yield Problem(f"and {hidden} further problems, which `wings check` finds")


def _bring_files(
    source: PageSource, new: DataDirectory, folios: Iterable[str], copy: bool, report: Progress
) -> None:
    """Link or copy the files with pages into the new directory, durably."""
    target = PageSource(new, {})
    directories: set[Path] = set()
    try:
        for number, folio in enumerate(sorted(folios)):
            old, place = source.path_of(folio), target.path_of(folio)
            if old is None or place is None or not old.is_file():
                continue  # The check reports missing files.
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            directories |= {place.parent, *place.parent.parents} - {*new.path.parents}
            _bring(old, place, copy)
            report("files", number + 1)
    finally:
        target.close()
    for each in directories:
        sync_directory(each)


def _bring(old: Path, place: Path, copy: bool) -> None:
    if not copy:
        try:
            os.link(old, place)
        except OSError as error:
            if error.errno not in _NOT_LINKED:
                raise
        else:
            return
    shutil.copyfile(old, place)
    place.chmod(0o600)
    with place.open("rb") as file:
        os.fsync(file.fileno())


def _unseen(what: str, count: int) -> None:
    """Ignore progress."""
    del what, count


@contextmanager
def _readable(path: Path) -> Generator[DataDirectory]:
    """Open a repairable directory and lock servers out of it; nothing is written."""
    with DataDirectory.open_read_only(path) as directory, ExitStack() as locks:
        if not directory.metadata.exists() and has_metadata(directory):
            raise InvalidArgument(f"{path} has its metadata in PostgreSQL, which repairs itself")
        for role in STORE_MESSAGES:
            url = directory.object_store(role, None)
            if url is not None:
                raise InvalidArgument(
                    f"{path} has messages at {url}: such a directory cannot be repaired"
                )
        for name in ("METADATA.LOCK", "LOCK"):
            _hold(directory.path / name, locks)
        yield directory


def _hold(path: Path, locks: ExitStack) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return  # Never served, or not writable by this process.
    locks.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        raise Unavailable(f"{path.parent} is in use by a server: stop it first") from error


@contextmanager
def _new(into: Path) -> Generator[Path]:
    """Create a directory under a temporary name; renamed at the end, deleted on an error."""
    unfinished = into.with_name(into.name + UNFINISHED)
    for each in (into, unfinished):
        if each.exists():
            raise AlreadyExists(f"{each} is there already: name a new directory, or delete it")
    try:
        unfinished.mkdir(mode=0o700)
        try:
            yield unfinished
            unfinished.rename(into)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        sync_directory(into.parent)
    except (OSError, sqlite3.Error) as error:
        raise Unavailable(f"the repair failed: {error}") from error


def write_metadata(
    path: Path,
    shapes: dict[str, Shape],
    catalog: KeptTopics,
    partitions: Sequence[Repaired],
    folios: dict[int, str],
    inline: dict[str, bytes],
    rest: Rest,
    identity: str | None,
) -> dict[int, str]:
    """Create a metadata file; returns the names of files with pages, by id.

    Args:
        path: The file, which must not exist.
        shapes: The tables.
        catalog: Namespaces and topics.
        partitions: Partitions with their pages.
        folios: Names of files by id.
        inline: Bytes of inline folios, by name.
        rest: Rows of the remaining tables.
        identity: Id of the metadata; None generates a new one.
    """
    SqliteMetadata(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("BEGIN IMMEDIATE")
        writer = _Writer(connection, shapes, dict(folios))
        writer.replace("namespaces", catalog.namespaces.values())
        if identity is not None:
            writer.replace("identity", [{"id": identity}])
        writer.insert("topics", catalog.rows.values())
        for partition in partitions:
            writer.partition(partition)
        for stage, pages in rest.stages:
            writer.insert("stages", [stage])
            writer.insert("staged_pages", pages)
            writer.pages.update(as_int(page["folio_id"]) for page in pages)
        for table, rows in rest.rows.items():
            writer.insert(table, rows)
        if rest.had_tokens:
            connection.execute(
                "INSERT INTO token_changes (id, changes) VALUES (0, 1) "
                "ON CONFLICT (id) DO UPDATE SET changes = changes + 1"
            )
        used = writer.write_folios(inline)
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return used


class _Writer:
    def __init__(
        self, connection: sqlite3.Connection, shapes: dict[str, Shape], folios: dict[int, str]
    ) -> None:
        self._connection = connection
        self._shapes = shapes
        self._folios = folios
        self._ids = {name: folio_id for folio_id, name in folios.items()}
        self.pages: Counter[int] = Counter()
        """Number of pages in each file, by id."""

    def replace(self, table: str, rows: Iterable[Row]) -> None:
        self._connection.execute(f"DELETE FROM {table}")
        self.insert(table, rows)

    def insert(self, table: str, rows: Iterable[Row]) -> None:
        columns = self._shapes[table].stored
        self._connection.executemany(
            f"INSERT INTO {table} ({', '.join(columns)}) "
            f"VALUES ({', '.join('?' for _ in columns)})",
            ([row[column] for column in columns] for row in rows),
        )

    def partition(self, partition: Repaired) -> None:
        counts = PageCounts.of_locations(partition.pages)
        self.insert(
            "partitions",
            [
                {
                    "id": partition.partition_id,
                    "topic_id": partition.topic_id,
                    "value": partition.value,
                    "log_start_offset": partition.log_start_offset,
                    "next_offset": partition.next_offset,
                    "bytes": counts.bytes,
                    "last_timestamp": partition.last_timestamp,
                    "pages": counts.pages,
                    "merged_pages": counts.merged_pages,
                    "merged_rows": counts.merged_rows,
                    "merged_bytes": counts.merged_bytes,
                }
            ],
        )
        for page in partition.pages:
            self.pages[self._id_of(page.address.folio)] += 1
        self.insert(
            "pages",
            (
                {
                    "partition_id": partition.partition_id,
                    "end_offset": page.end_offset,
                    "start_offset": page.start_offset,
                    "timestamp": page.timestamp,
                    "folio_id": self._id_of(page.address.folio),
                    "position": page.address.position,
                    "length": page.address.length,
                    "first_timestamp": page.first_timestamp,
                    "format": int(page.format),
                    "first_row": page.first_row,
                    "slice_bytes": page.slice_bytes,
                    "schema_version": page.schema_version,
                }
                for page in partition.pages
            ),
        )

    def write_folios(self, inline: dict[str, bytes]) -> dict[int, str]:
        used = {folio_id: self._folios[folio_id] for folio_id in self.pages}
        self.insert(
            "folios",
            (
                {"id": each, "name": name, "pages": self.pages[each], "retired_at": None}
                for each, name in used.items()
            ),
        )
        self.insert(
            "inline_folios",
            (
                {"folio_id": each, "data": inline[name]}
                for each, name in used.items()
                if name.endswith(INLINE_SUFFIX) and name in inline
            ),
        )
        return used

    def _id_of(self, folio: str) -> int:
        folio_id = self._ids.get(folio)
        if folio_id is None:
            folio_id = self._ids[folio] = max(self._folios, default=0) + 1
            self._folios[folio_id] = folio
        return folio_id
