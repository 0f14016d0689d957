"""The check of a deployment: a data directory with its databases, or nodes over PostgreSQL."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from wings_core.check.log import FAULTS, check_log
from wings_core.check.report import PROBLEMS_MAX, CheckReport, Problem
from wings_core.data_directory import DataDirectory
from wings_core.errors import WingsError
from wings_core.limits import Limits
from wings_core.metadata.interfaces import Metadata, all_topics
from wings_core.metadata.open import open_metadata, open_postgres
from wings_core.metadata.sqlite.files import is_empty, metadata_problems
from wings_core.metadata.sqlite.notes import MOVED, PUSHED, read_notes
from wings_core.share.open import all_groups
from wings_core.share.replica.sqlite_store import problems_of as hold_problems
from wings_core.storage.inline_folios import InlineFolios
from wings_core.storage.open import open_shared_storage, open_storage

Progress = Callable[[int], None]
"""Called after each page with the number of pages done."""

_Ends = Mapping[str, Mapping[str, int]]
"""Lower bounds of the end offsets of partitions, by topic UUID and partition."""


def check_directory(
    path: Path, metadata_url: str | None = None, progress: Progress | None = None
) -> CheckReport:
    """Check the databases of a data directory, and every page of its log; see `check_log`.

    Nothing is written. A database too damaged to be read is reported, too.

    Args:
        path: The directory; a server may be using it.
        metadata_url: URL of PostgreSQL, if it stores the metadata; it checks its own files.
        progress: Called after each page with the number of pages done.

    Raises:
        InvalidArgument: There is no such directory, or it is not a data directory.
        WingsError: The metadata is not damaged, but cannot be read.
    """
    with DataDirectory.open_read_only(path) as directory:
        metadata, holds = directory.metadata, directory.holds
        problems: list[Problem] = []
        ends = {} if metadata_url else _noted_ends(directory.notes)
        if metadata_url is None and metadata.exists():
            problems += [Problem(each, folio=metadata.name) for each in metadata_problems(metadata)]
        if holds.exists():
            problems += [Problem(each, folio=holds.name) for each in hold_problems(holds)]
        report = CheckReport()
        try:
            report, groups, missing = _check_log(directory, metadata_url, progress, ends)
            problems += missing
            if groups and holds.exists() and is_empty(holds):
                message = f"it is empty, and there are {groups} share groups"
                problems.append(Problem(message, folio=holds.name))
        except FAULTS as error:
            if not problems and isinstance(error, WingsError):
                raise
            problems.append(Problem(f"the log cannot be checked: {error}"))
    return replace(
        report,
        problems=(*problems, *report.problems)[:PROBLEMS_MAX],
        problems_total=len(problems) + report.problems_total,
    )


def _check_log(
    directory: DataDirectory, metadata_url: str | None, progress: Progress | None, ends: _Ends
) -> tuple[CheckReport, int, list[Problem]]:
    """Check the log; returns also the number of share groups, and the problems found by notes."""
    with closing(open_metadata(directory, metadata_url, read_only=True)) as metadata:
        inline = InlineFolios(metadata.registry.read_inline)
        with closing(open_storage(directory, Limits(), inline=inline).store) as store:
            report = check_log(metadata, store, progress)
        groups = len(all_groups(metadata.admin, metadata.groups))
        missing: list[Problem] = []
        bound = directory.bound_to
        if bound not in (None, metadata.store_id):
            missing.append(Problem(f"the directory belongs to metadata {bound}, which this is not"))
        with suppress(*FAULTS):  # The report says why metadata cannot be read.
            missing += _missing(metadata, ends)
        return report, groups, missing


def _noted_ends(path: Path) -> _Ends:
    """Return the ends of partitions in a file of notes; empty if there is no file.

    SQLite opens without an error if the write-ahead log of metadata is missing, or truncated
    between two transactions; the last commits are then lost, and metadata alone does not show it.
    Notes are read before metadata, since a running server writes a note after its commit.

    Raises:
        OSError: The file cannot be read.
    """
    topics: dict[int, str] = {}
    partitions: dict[int, tuple[str, str]] = {}
    ends: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for table, rows in read_notes(path):
        for row in rows:
            if table == "topics":
                topics[row[0]] = row[1]
            elif table == "partitions" and row[1] in topics:
                partitions[row[0]] = topics[row[1]], row[2]  # Ids are reused.
            elif table in (PUSHED, MOVED) and row[0] in partitions:
                uuid, partition = partitions[row[0]]
                ends[uuid][partition] = max(ends[uuid].get(partition, 0), row[1] + 1)
    return ends


def _missing(metadata: Metadata, ends: _Ends) -> Iterator[Problem]:
    """Yield a problem for each partition that ends in metadata before a noted page.

    Raises:
        WingsError: Metadata cannot be read.
    """
    for topic in all_topics(metadata.admin):
        noted = ends.get(topic.uuid, {})
        states = metadata.registry.partition_states(topic.uuid) if noted else ()
        known = {str(state.partition): state.next_offset for state in states}
        for partition, end in noted.items():
            start = known.get(partition, 0)
            if start < end:
                message = "these messages are in NOTES, but not in metadata"
                yield Problem(message, str(topic.name), partition, start, end - 1)


def check_nodes(
    metadata_url: str,
    hot_url: str | None = None,
    remote_url: str | None = None,
    progress: Progress | None = None,
) -> CheckReport:
    """Check every page of the log of nodes without data directories; see `check_log`.

    Nothing is written, and nodes may run. PostgreSQL checks its own files.

    Args:
        metadata_url: The URL of PostgreSQL.
        hot_url: The object store of new messages; None for the one recorded by the nodes.
        remote_url: The object store of old messages; None as for `hot_url`.
        progress: Called after each page with the number of pages done.

    Raises:
        InvalidArgument: The metadata belongs to another kind of deployment, or the nodes use other
            object stores.
        WingsError: PostgreSQL or an object store cannot be read at all.
    """
    with closing(open_postgres(metadata_url, read_only=True)) as metadata:
        metadata.check_claim_for_nodes()
        storage = open_shared_storage(
            metadata,
            Limits(),
            hot_url=hot_url,
            remote_url=remote_url,
            inline=InlineFolios(metadata.registry.read_inline),
            store_id=None,
        )
        with closing(storage.store) as store:
            return check_log(metadata, store, progress)
