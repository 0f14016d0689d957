"""`wings backup`: take backups of a server, list, verify and prune them."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from wings_client._backup import take_backup
from wings_client.cli.app import command_group
from wings_client.cli.endpoint import connected_transport
from wings_client.cli.options import (
    DEFAULT,
    Confirmation,
    EndpointOption,
    FormatOption,
    grouped,
)
from wings_client.cli.output import progress_line, write_list
from wings_client.cli.values import count_of
from wings_core.backup.repository import Manifest, Repository
from wings_core.times import format_timestamp


class _BackupGroup(TyperGroup):
    """`wings backup DEST` is `wings backup create DEST`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in {"-h", "--help"}:
            args = ["create", *args]
        return super().parse_args(ctx, args)


app = command_group(
    "Take a backup of a running server: `wings backup DEST`; list, verify and prune "
    "backups.\n\n"
    "DEST is a directory, or `s3://BUCKET/PREFIX`, `gs://…`, `az://…`; `wings restore` creates a "
    "data directory from a backup. Write a directory with a command's name as `./list`.",
    cls=_BackupGroup,
)

DestArgument = Annotated[
    str, typer.Argument(metavar="DEST", help="A directory, or s3://, gs:// or az:// and a bucket.")
]


@app.command()
def create(
    dest: DestArgument,
    *,
    endpoint: EndpointOption = DEFAULT,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Then read all of it again, and verify checksums."),
    ] = False,
) -> None:
    """Take a backup: the whole log at one moment, while it is in use.

    Copies only data that DEST does not have from earlier backups. An aborted run leaves no backup;
    the next run uses the data that it copied. Needs `admin` on `*` if the server has tokens.

    $ wings backup /mnt/backups

    $ wings backup s3://my-backups/wings --endpoint grpc://log:7777
    """
    repository = Repository.open(dest, create=True)
    with connected_transport(endpoint) as (_, transport), progress_line("copying") as show:
        manifest = take_backup(
            transport,
            repository,
            lambda files, size: show(f"copying: {files:,} files, {size:,} bytes new"),
        )
    typer.echo(
        f"{manifest.backup}  {format_timestamp(manifest.at_us)}  {manifest.size:,} bytes, "
        f"{manifest.copied_bytes:,} of them new, in {len(manifest.files):,} files"
    )
    if verify:
        _verify(repository, [manifest])


@app.command("list")
def list_backups(dest: DestArgument, *, wanted_format: FormatOption = "table") -> None:
    """List the backups, the oldest first, with the bytes that each added.

    $ wings backup list /mnt/backups
    """
    repository = Repository.open(dest)
    write_list(
        ("backup", "at", "bytes", "new bytes", "files"),
        (
            (
                each.backup,
                format_timestamp(each.at_us),
                each.size,
                each.copied_bytes,
                len(each.files),
            )
            for each in map(repository.manifest, repository.manifests())
        ),
        wanted_format,
        empty="no backups",
    )


@app.command()
def verify(
    dest: DestArgument,
    backup: Annotated[
        str | None, typer.Argument(metavar="[BACKUP]", help="Default: all there are.")
    ] = None,
) -> None:
    """Read backups and verify every checksum; names damaged or missing data.

    Exit status: 0 no problems, 1 something is damaged.
    """
    repository = Repository.open(dest)
    names = repository.manifests() if backup is None else [backup]
    _verify(repository, [repository.manifest(each) for each in names])


@app.command()
@grouped
def prune(
    dest: DestArgument,
    keep: Annotated[int, typer.Option("--keep", min=1, help="Number of newest backups to keep.")],
    *,
    confirmation: Confirmation,
) -> None:
    """Delete all backups but the newest, and the data that only they need.

    Do not run it during a backup to the same place, which would lose data that it has copied. Asks
    for confirmation on a terminal; elsewhere `--yes` is required.
    """
    repository = Repository.open(dest)
    names = ", ".join(repository.manifests()[:-keep]) or "no backup"
    confirmation.ask(f"Delete {names}")
    deleted, freed = repository.prune(keep)
    typer.echo(f"{deleted:,} backups deleted, {freed:,} bytes freed")


def _verify(repository: Repository, manifests: list[Manifest]) -> None:
    found = 0
    for problem in repository.problems(manifests):
        typer.echo(f"problem: {problem}")
        found += 1
    typer.echo("all right" if not found else f"{count_of(found, 'problem')} found")
    if found:
        raise typer.Exit(1)
