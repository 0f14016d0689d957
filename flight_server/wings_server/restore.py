"""The command `wings restore`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wings_core.errors import WingsError
from wings_core.times import format_timestamp, parse_timestamp
from wings_server.cli import progress

if TYPE_CHECKING:
    from wings_core.backup.repository import Manifest, Repository


def restore(
    source: Annotated[
        str,
        typer.Argument(metavar="SRC", help="A directory, or s3://, gs:// or az:// and a bucket."),
    ],
    *,
    data_dir: Annotated[
        Path,
        typer.Option(metavar="DIR", help="The data directory to create: absent or empty."),
    ],
    backup: Annotated[
        str | None,
        typer.Option(
            metavar="BACKUP",
            help="Id, as in `wings backup list`. Default: the newest, or the first after --until.",
        ),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC", help="Restore only this topic; repeatable."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="RFC 3339, like 2026-01-31T12:00:00Z: each partition ends before its first "
            "message with a later timestamp.",
        ),
    ] = None,
) -> None:
    """Create a data directory from a backup; `wings serve --data-dir DIR` then serves it.

    It is a separate log from then on: the original server may run beside it. Messages of object
    stores are in DIR. Every checksum is verified.

    $ wings restore /mnt/backups --data-dir ./restored

    $ wings restore s3://backups/wings --data-dir ./old --topic orders --until 2026-01-31T12:00:00Z

    Exit status: 0 done, 1 rejected or failed: then no server opens DIR, and the next restore starts
    over there.
    """
    from wings_core.backup.repository import Repository
    from wings_core.backup.restore import restore as restore_backup

    cut_at = None if until is None else _time(until)
    repository = Repository.open(source)
    manifest = _chosen(repository, cut_at) if backup is None else repository.manifest(backup)
    with progress("restoring {0}: {1} bytes") as shown:
        made = restore_backup(repository, manifest, data_dir, topic or (), cut_at, shown)
    typer.echo(
        f"{data_dir}: the log of {format_timestamp(manifest.at_us)} with {made.topics:,} topics, "
        f"{made.bytes:,} bytes in {made.files:,} files with messages"
        + (f"; {made.cut_messages:,} later messages left out" if until is not None else "")
    )


def _chosen(repository: "Repository", cut_at: int | None) -> "Manifest":
    """Return the first backup after a time, as retention may have dropped messages of later ones.

    Otherwise the newest.
    """
    from wings_core.backup.repository import begin_of_id

    if cut_at is not None:
        begin = begin_of_id(cut_at)
        for each in repository.manifests():
            if each >= begin:
                return repository.manifest(each)
    return repository.newest()


def _time(text: str) -> int:
    try:
        return parse_timestamp(text)
    except (WingsError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--until") from None
