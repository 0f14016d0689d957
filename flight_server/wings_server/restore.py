"""The command `wings restore`."""

from pathlib import Path
from typing import Annotated

import typer

from wings_core.errors import WingsError
from wings_core.times import format_timestamp, parse_timestamp
from wings_server.cli import progress


def restore(
    source: Annotated[
        str,
        typer.Argument(metavar="SRC", help="A directory, or s3://, gs:// or az:// and a bucket."),
    ],
    *,
    data_dir: Annotated[
        Path,
        typer.Option(metavar="DIR", help="The data directory to make: not there yet, or empty."),
    ],
    backup: Annotated[
        str | None,
        typer.Option(
            metavar="BACKUP", help="As `wings backup list` names it. Default: the newest."
        ),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC", help="Restore this alone; may be given many times."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="RFC 3339, as 2026-01-31T12:00:00Z: each partition ends before its first message "
            "with a later timestamp.",
        ),
    ] = None,
) -> None:
    """Make a data directory of a backup; `wings serve --data-dir DIR` then serves it.

    It is another log from then on: the server that was backed up may run beside it. What lay in
    object stores is in DIR. Every checksum is compared.

    $ wings restore /mnt/backups --data-dir ./restored

    $ wings restore s3://backups/wings --data-dir ./old --topic orders --until 2026-01-31T12:00:00Z

    Exit status: 0 done, 1 refused or failed: then no server takes DIR, and the next restore begins
    anew there.
    """
    from wings_core.backup.repository import Repository
    from wings_core.backup.restore import restore as restore_backup

    cut_at = None if until is None else _time(until)
    repository = Repository.open(source)
    manifest = repository.newest() if backup is None else repository.manifest(backup)
    with progress("restoring {0}: {1} bytes") as shown:
        made = restore_backup(repository, manifest, data_dir, topic or (), cut_at, shown)
    typer.echo(
        f"{data_dir}: the log of {format_timestamp(manifest.at_us)} with {made.topics:,} topics, "
        f"{made.bytes:,} bytes in {made.files:,} files with messages"
        + (f"; {made.cut_messages:,} later messages left out" if until is not None else "")
    )


def _time(text: str) -> int:
    try:
        return parse_timestamp(text)
    except (WingsError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--until") from None
