"""Rebuild the file of a replica of holds from what of it is sound.

A message whose tombstone is lost is delivered again, and one whose count is lost is delivered as
often as one that was never: at least once still holds. What is not certain is left out, as
a tombstone that was never written would lose a message.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from wings_core.errors import AlreadyExists
from wings_core.metadata.sqlite.integrity import FAULTS, is_empty, open_to_check
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

LOCK_SECONDS_UNKNOWN = 30.0
"""Lock assumed of a group whose mark is lost and whose configuration is not at hand."""

_FILES = ("", "-wal", "-shm")


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
    partitions, marks = read_holds(path)
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


def read_holds(path: Path) -> tuple[list[StoredPartition], dict[str, Mark]]:
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
