"""Check a data directory: its databases, and the log in it."""

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from wings_core.check.log import FAULTS, check_log
from wings_core.check.noted import Ends, missing, noted_ends
from wings_core.check.report import PROBLEMS_MAX, CheckReport, Problem
from wings_core.data_directory import DataDirectory
from wings_core.errors import WingsError
from wings_core.limits import Limits
from wings_core.metadata.open import open_metadata
from wings_core.metadata.sqlite.integrity import is_empty, metadata_problems
from wings_core.share.open import all_groups
from wings_core.share.replica.sqlite_store import problems_of as hold_problems
from wings_core.storage.inline_folios import InlineFolios
from wings_core.storage.open import open_storage


def check_directory(
    path: Path, metadata_url: str | None = None, progress: Callable[[int], None] | None = None
) -> CheckReport:
    """Check the databases of a data directory, and every page of its log; see `check_log`.

    Nothing is written. What a damaged database keeps from being looked at is reported as well.

    Args:
        path: The directory, of which a server may be using it.
        metadata_url: Where PostgreSQL is, if metadata is there: that checks its own files.
        progress: Called after each page with the number of pages done.

    Raises:
        InvalidArgument: There is no such directory, or it is something else.
        WingsError: Its metadata, which shows no damage, cannot be read.
    """
    with DataDirectory.open_read_only(path) as directory:
        problems: list[Problem] = []
        ends = {} if metadata_url else noted_ends(directory.notes)
        if metadata_url is None and directory.metadata.exists():
            name = directory.metadata.name
            problems += [
                Problem(each, folio=name) for each in metadata_problems(directory.metadata)
            ]
        if directory.holds.exists():
            name = directory.holds.name
            problems += [Problem(each, folio=name) for each in hold_problems(directory.holds)]
        try:
            report, groups, lost = _check_log(directory, metadata_url, progress, ends)
            problems += lost
            if groups and directory.holds.exists() and is_empty(directory.holds):
                message = f"it is empty, and there are {groups} share groups"
                problems.append(Problem(message, folio=directory.holds.name))
        except FAULTS as error:
            if not problems and isinstance(error, WingsError):
                raise
            problems.append(Problem(f"the log cannot be checked: {error}"))
            report = CheckReport(
                topics=0,
                partitions=0,
                pages=0,
                rows=0,
                bytes=0,
                stages=0,
                problems=(),
                problems_total=0,
                unreferenced_folios=(),
            )
    return replace(
        report,
        problems=(*problems, *report.problems)[:PROBLEMS_MAX],
        problems_total=len(problems) + report.problems_total,
    )


def _check_log(
    directory: DataDirectory,
    metadata_url: str | None,
    progress: Callable[[int], None] | None,
    ends: Ends,
) -> tuple[CheckReport, int, list[Problem]]:
    """Check the log; return also how many share groups there are, and what only notes know."""
    with closing(open_metadata(directory, metadata_url, read_only=True)) as metadata:
        inline = InlineFolios(metadata.registry.read_inline)
        with closing(open_storage(directory, Limits(), inline=inline).store) as store:
            report = check_log(metadata, store, progress)
        groups = len(all_groups(metadata.admin, metadata.groups))
        lost: list[Problem] = []
        with suppress(*FAULTS):  # The report has what keeps metadata from being read.
            lost += missing(metadata, ends)
        return report, groups, lost
