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
        typer.Argument(
            metavar="DATA_DIR", help="The damaged directory of a server that is stopped."
        ),
    ],
    into: Annotated[
        Path,
        typer.Option(metavar="NEW_DIR", help="The directory to make; must not be there yet."),
    ],
    copy: Annotated[
        bool,
        typer.Option(
            "--copy",
            help="Copy the files with messages, as from a disk that fails. Default: hard links to "
            "them, which take no room, where both directories are on one file system.",
        ),
    ] = False,
) -> None:
    """Rebuild what can be rebuilt of a damaged data directory, in a new one; list what is lost.

    DATA_DIR is only read. Topics, messages, consumers' offsets and share groups that are sound are
    taken over from `metadata.sqlite` and `holds.sqlite`, each row by itself. Messages keep their
    offsets: where it is not known any more where some lie, reading those is STORAGE_CORRUPT, and
    all others are read as before. Damaged pages stay as they are, and are listed as `wings check`
    lists them. Where `metadata.sqlite` is cut off or gone, the file `NOTES` beside it says where
    most messages lie.

    First run `wings check DATA_DIR`: a directory without problems needs no repair, and damaged
    holds alone are repaired in their place by `wings holds rebuild DATA_DIR`. Afterwards serve
    NEW_DIR, and keep DATA_DIR until you have what you need of it. Only directories that hold all
    of their messages are repaired: none with an object store, or metadata in PostgreSQL.

    Exit status: 0 nothing is lost, 1 something is, 2 it could not be repaired, and there is no
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
