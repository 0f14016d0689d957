"""Restore: creates a data directory from a backup.

    databases ─▶ the chosen topics ─▶ local names of the files ─▶ files with messages
              ─▶ cut at a time ─▶ FORMAT, last

Until the file FORMAT exists no server opens the directory. An aborted restore leaves the file
RESTORING in it; the next one starts over in that directory.
"""

import hashlib
import os
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from wings_core.backup.cut import cut_log
from wings_core.backup.repository import Manifest, Repository, StoredFile
from wings_core.contracts.backup import HOLDS_FILE, METADATA_FILE
from wings_core.data_directory import FORMAT_VERSION, RESTORING, DataDirectory
from wings_core.errors import InvalidArgument, StorageCorrupt, TopicNotFound, Unavailable
from wings_core.metadata.interfaces import all_topics
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.metadata.sqlite.schema import VERSIONS
from wings_core.model import INLINE_SUFFIX, Topic
from wings_core.names import TopicName
from wings_core.share.replica.sqlite_store import SqliteHoldStore
from wings_core.storage.files import sync_directory
from wings_core.storage.object_folios import FOLIO_SUFFIX
from wings_core.storage.parquet_file import PARQUET_SUFFIX
from wings_core.storage.segment_objects import (
    HOT_SEGMENT_SUFFIX,
    LOCAL_SEGMENT_SUFFIX,
    SEGMENT_SUFFIX,
    store_suffix,
)

_TIME_DIGITS = 16


def local_name(folio: str) -> str:
    """Return the name that a folio has in a directory; folios of object stores are renamed.

    A folio that was an object becomes a segment, named by the time it was begun; names are unique.
    """
    suffix = store_suffix(folio)
    if suffix == FOLIO_SUFFIX:
        stem = folio.rpartition("/")[2].removesuffix(FOLIO_SUFFIX)
        number = hashlib.sha256(folio.encode()).hexdigest()[:8]
        return f"{stem[:_TIME_DIGITS]}-{number}.segment"
    if suffix in {SEGMENT_SUFFIX, HOT_SEGMENT_SUFFIX}:
        parquet = PARQUET_SUFFIX if folio.endswith(PARQUET_SUFFIX) else ""
        return folio.removesuffix(parquet).removesuffix(suffix) + LOCAL_SEGMENT_SUFFIX + parquet
    return folio


PURGE_PAGES = 10_000
"""Pages of excluded topics that one transaction deletes."""

_OF_NODES = (
    *("nodes", "leases", "topic_tables", "table_segments"),
    *("consumer_groups", "consumer_group_members"),
)
"""Tables that only apply to the original log: its nodes, leases, Iceberg tables and the
members of consumer groups, which join anew."""

_HARMLESS = {"lost+found"}


@dataclass(frozen=True, slots=True)
class Restored:
    """Result of a restore."""

    topics: int
    files: int
    """Files with messages."""
    bytes: int
    """Bytes of these files and of the databases."""
    cut_messages: int
    """Messages left out as later than `until`."""


def restore(
    repository: Repository,
    manifest: Manifest,
    path: Path,
    topics: Sequence[str] = (),
    until: int | None = None,
    progress: Callable[[str, int], None] | None = None,
) -> Restored:
    """Create a data directory from a backup; blocks until it is complete and durable.

    Args:
        repository: The repository of the backup.
        manifest: The backup's manifest.
        path: The directory: absent, empty, or left by an aborted restore.
        topics: Topics to restore, by full name or by id in the default namespace; empty for all.
        until: Last timestamp to restore, in microseconds since the epoch. Each partition ends
            before its first later message. None restores all messages.
        progress: Called with the name of the step, and the bytes done.

    Raises:
        InvalidArgument: The directory is not empty, or the backup needs a later version of Wings.
        TopicNotFound: The backup has no such topic.
        StorageCorrupt: The backup is damaged; the message names the object.
        WingsError: The repository cannot be read, or the directory not written.
    """
    _check_versions(manifest)
    names = [TopicName.parse(name) for name in topics]
    path = path.absolute()
    try:
        _claim(path)
        return _Restore(repository, manifest, path, progress).run(names, until)
    except OSError as error:
        raise Unavailable(f"{path} cannot be written: {error.strerror or error}") from error


class _Restore:
    def __init__(
        self,
        repository: Repository,
        manifest: Manifest,
        path: Path,
        progress: Callable[[str, int], None] | None,
    ) -> None:
        self._repository = repository
        self._manifest = manifest
        self._directory = DataDirectory(path)
        self._progress = progress
        self._bytes = 0

    def run(self, topics: Sequence[TopicName], until: int | None) -> Restored:
        directory = self._directory
        for file in self._manifest.databases:
            self._write(file, {METADATA_FILE: directory.metadata, HOLDS_FILE: directory.holds})
        cut = 0
        _make_own(directory.metadata)
        with closing(SqliteMetadata(directory.metadata)) as metadata:
            left_out = _leave_out(metadata, topics)
            kept = metadata.registry.live_folios()
        self._free_holds(left_out)
        _rename(directory.metadata, kept)
        files = self._write_folios(kept)
        if until is not None:
            cut = cut_log(directory, until)
        with closing(SqliteMetadata(directory.metadata)) as metadata:
            count = sum(1 for _ in all_topics(metadata.admin))
        _finish(directory)
        return Restored(count, files, self._bytes, cut)

    def _write_folios(self, kept: set[str]) -> int:
        known = {file.name: file for file in self._manifest.folios}
        wanted = sorted(name for name in kept if not name.endswith(INLINE_SUFFIX))
        for name in wanted:
            file = known.get(name)
            if file is None:
                raise StorageCorrupt(
                    f"backup {self._manifest.backup} lacks the file {name}", file=name
                )
            local = local_name(name)
            is_merged = store_suffix(local) == LOCAL_SEGMENT_SUFFIX
            parent = self._directory.merged if is_merged else self._directory.segments
            self._write(file, {name: parent / local})
        return len(wanted)

    def _write(self, file: StoredFile, places: dict[str, Path]) -> None:
        """Write a file durably, and verify the checksum of each part."""
        place = places.get(file.name)
        if place is None:
            raise StorageCorrupt(
                f"the backup has a file {file.name}, which does not belong to a log"
            )
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            for part in file.parts:
                out.write(self._repository.read_part(file, part))
                self._bytes += part.size
                if self._progress is not None:
                    self._progress(file.name, self._bytes)
            out.flush()
            os.fsync(out.fileno())

    def _free_holds(self, left_out: Sequence[Topic]) -> None:
        """Delete the share groups of excluded topics, and the leases of the original log."""
        if not self._directory.holds.exists():
            return
        uuids = {topic.uuid for topic in left_out}
        with closing(SqliteHoldStore(self._directory.holds)) as holds:
            stored = holds.load()
            holds.write([], dict.fromkeys(holds.marks()))
            for group in {each.key.group_uuid for each in stored if each.key.topic_uuid in uuids}:
                holds.forget(group)


def _check_versions(manifest: Manifest) -> None:
    for what, found, known in (
        ("a data directory of format", manifest.format, FORMAT_VERSION),
        ("metadata of version", manifest.metadata_version, VERSIONS.newest),
    ):
        if found > known:
            raise InvalidArgument(
                f"backup {manifest.backup} has {what} {found}, and this version of Wings reads "
                f"up to {known}: restore it with Wings {manifest.wings}, which took it, or "
                "later"
            )


def _claim(path: Path) -> None:
    """Claim a new or empty directory, or one left by an aborted restore."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    names = {entry.name for entry in path.iterdir()} - _HARMLESS
    if RESTORING in names and "FORMAT" not in names:
        for name in sorted(
            names - {RESTORING}
        ):  # The marker goes last, so an abort can repeat this.
            entry = path / name
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    elif names:
        raise InvalidArgument(
            f"{path} is not empty: it holds {sorted(names)[0]}; restore into a new directory"
        )
    (path / RESTORING).touch(mode=0o600)
    sync_directory(path)


def _leave_out(metadata: SqliteMetadata, topics: Sequence[TopicName]) -> list[Topic]:
    """Delete all topics except `topics`, unless it is empty; returns the deleted ones."""
    if not topics:
        return []
    there = list(all_topics(metadata.admin))
    missing = set(topics) - {topic.name for topic in there}
    for name in sorted(missing, key=str):
        raise TopicNotFound(f"the backup has no topic {name}", topic=str(name))
    left_out = [topic for topic in there if topic.name not in set(topics)]
    for topic in left_out:
        metadata.admin.delete_topic(topic.name)
    while metadata.registry.purge(PURGE_PAGES):
        pass
    return left_out


def _make_own(path: Path) -> None:
    """Give metadata an identity of its own, and drop the state of the original log's processes."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        # A different log from here on: neither may take the other's files for its own.
        connection.execute("UPDATE identity SET id = lower(hex(randomblob(16)))")
        for table in _OF_NODES:
            connection.execute(f"DELETE FROM {table}")
        connection.execute("COMMIT")


def _rename(path: Path, folios: set[str]) -> None:
    """Rename folios to their local names in metadata."""
    renamed = [(local_name(name), name) for name in folios if local_name(name) != name]
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("UPDATE folios SET name = ? WHERE name = ?", renamed)
        connection.execute("COMMIT")


def _finish(directory: DataDirectory) -> None:
    for parent in (directory.segments, directory.merged):
        for folder, _, _ in os.walk(parent):
            sync_directory(Path(folder))
    sync_directory(directory.path)
    DataDirectory.complete(directory.path)
    (directory.path / RESTORING).unlink()
    sync_directory(directory.path)
