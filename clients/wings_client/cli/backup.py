"""`wings backup`: take backups of a server, list, verify and prune them."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from typer.core import TyperGroup

from wings_client._backup import take_backup
from wings_client.cli.endpoint import DEFAULT, EndpointOption, connected_transport
from wings_client.cli.plugins import MARKUP
from wings_core.backup.repository import Manifest, Repository
from wings_core.times import format_timestamp


class _BackupGroup(TyperGroup):
    """`wings backup DEST` is `wings backup create DEST`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in {"-h", "--help"}:
            args = ["create", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_BackupGroup,
    no_args_is_help=True,
    rich_markup_mode=MARKUP,
    help="Take a backup of a server that runs: `wings backup DEST`; list, verify and prune what is "
    "there.\n\n"
    "DEST is a directory, or `s3://BUCKET/PREFIX`, `gs://…`, `az://…`; `wings restore` makes a "
    "data directory of a backup. A directory named as one of the commands is given as `./list`.",
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
        typer.Option("--verify", help="Then read all of it again, and compare checksums."),
    ] = False,
) -> None:
    """Take a backup: the whole log as it is at one moment, while it is read and written.

    Copies what DEST has not from earlier backups. One that is killed leaves no backup, and what it
    copied is used by the next. Needs `admin` on `*` where the server has tokens.

    $ wings backup /mnt/backups

    $ wings backup s3://my-backups/wings --endpoint grpc://log:7777
    """
    repository = Repository.open(dest, create=True)
    with connected_transport(endpoint) as (_, transport), _progress("copying") as progress:
        manifest = take_backup(transport, repository, progress)
    typer.echo(_line(manifest))
    if verify:
        _verify(repository, [manifest])


@app.command("list")
def list_backups(dest: DestArgument) -> None:
    """List the backups, the oldest first: name, the moment, bytes in all, bytes it added."""
    repository = Repository.open(dest)
    for backup in repository.manifests():
        typer.echo(_line(repository.manifest(backup)))


@app.command()
def verify(
    dest: DestArgument,
    backup: Annotated[
        str | None, typer.Argument(metavar="[BACKUP]", help="Default: all there are.")
    ] = None,
) -> None:
    """Read backups and compare every checksum; names what is damaged or missing.

    Exit status: 0 all is right, 1 something is damaged.
    """
    repository = Repository.open(dest)
    names = repository.manifests() if backup is None else [backup]
    _verify(repository, [repository.manifest(each) for each in names])


@app.command()
def prune(
    dest: DestArgument,
    keep: Annotated[int, typer.Option("--keep", min=1, help="So many of the newest stay.")],
) -> None:
    """Delete all backups but the newest, and what only they need.

    Not while a backup is taken to the same place: it would lose what it has copied.
    """
    deleted, freed = Repository.open(dest).prune(keep)
    typer.echo(f"{deleted:,} backups deleted, {freed:,} bytes freed")


def _verify(repository: Repository, manifests: list[Manifest]) -> None:
    found = 0
    for problem in repository.problems(manifests):
        typer.echo(f"problem: {problem}")
        found += 1
    typer.echo("all right" if not found else f"{found:,} problem{'' if found == 1 else 's'} found")
    if found:
        raise typer.Exit(1)


def _line(manifest: Manifest) -> str:
    return (
        f"{manifest.backup}  {format_timestamp(manifest.at_us)}  {manifest.size:,} bytes, "
        f"{manifest.copied_bytes:,} of them new, in {len(manifest.files):,} files"
    )


@contextmanager
def _progress(what: str) -> Generator[Callable[[int, int], None]]:
    """Show progress on standard error, where that is a terminal."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(what)

        def show(files: int, size: int) -> None:
            progress.update(task, description=f"{what}: {files:,} files, {size:,} bytes new")

        yield show
