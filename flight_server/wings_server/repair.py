"""The command `wings repair`."""

import sys
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wings_core.errors import WingsError
from wings_server.cli import progress

if TYPE_CHECKING:
    from wings_core.repair import RepairReport


def repair(
    data_dir: Annotated[
        Path,
        typer.Argument(metavar="DATA_DIR", help="The damaged data directory of a stopped server."),
    ],
    into: Annotated[
        Path,
        typer.Option(metavar="NEW_DIR", help="The directory to create, which must not exist."),
    ],
    copy: Annotated[
        bool,
        typer.Option(
            "--copy",
            help="Copy the files with messages, for example from a failing disk. Default: hard "
            "links, which take no space, if both directories are on one file system.",
        ),
    ] = False,
) -> None:
    """Rebuild a damaged data directory as a new one, as far as possible; list the losses.

    DATA_DIR is only read. Sound topics, messages, consumers' offsets and share groups are taken
    from `metadata.sqlite` and `holds.sqlite`, row by row. Messages keep their offsets: those that
    cannot be located are reported as STORAGE_CORRUPT when read, and all others are read as before.
    Damaged pages are kept, and listed as by `wings check`. If `metadata.sqlite` is truncated or
    missing, the file `NOTES` beside it has the locations of most messages.

    First run `wings check DATA_DIR`: a directory without problems needs no repair, and if only
    `holds.sqlite` is damaged, `wings holds rebuild DATA_DIR` repairs it in place. Afterwards serve
    NEW_DIR, and keep DATA_DIR until you no longer need it. Only directories that hold all of their
    messages can be repaired: not those with an object store, or metadata in PostgreSQL.

    Exit status: 0 nothing is lost, 1 something is lost, 2 the repair failed, and there is no
    NEW_DIR.
    """
    from wings_core.repair import repair_directory

    try:
        with progress("{0}: {1}") as shown:
            report = repair_directory(data_dir, into, copy=copy, progress=shown)
    except WingsError as error:
        sys.stderr.write(f"wings: {error.message}\n")
        raise typer.Exit(2) from None
    typer.echo("\n".join(_report_lines(report)))
    raise typer.Exit(0 if report.ok else 1)


def _report_lines(report: "RepairReport") -> Generator[str]:
    yield from (f"found: {each}" for each in report.found)
    yield from (f"rebuilt: {each}" for each in report.rebuilt)
    yield from (f"lost: {each}" for each in report.lost)
    yield (
        f"{report.path}: {report.topics:,} topics, {report.partitions:,} partitions, "
        f"{report.pages:,} pages, {report.rows:,} rows"
    )
    yield "nothing is lost" if report.ok else f"{len(report.lost):,} losses"
