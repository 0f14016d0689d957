"""`wings ingest`: run a source, and look after it."""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from wings_client.cli.app import MARKUP
from wings_client.cli.output import Format, write_list
from wings_core.contracts.shards import describe_shard
from wings_spark.ingest import status as calls
from wings_spark.ingest.settings import SourceSettings

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=MARKUP,
    help="""Turn files that a queue announces into messages, each exactly once, on Spark.

A source is a TOML file; `docs/ingest.md` has all its keys. This one reads files
that you move into a directory:

    name = "orders"
    checkpoint = "state/orders"
    [queue]
    kind = "directory"
    path = "incoming"
    [target]
    endpoint = "grpc://127.0.0.1:7777"
    topic = "orders"

Then:

    $ wings topic create orders --like sample.jsonl
    $ wings ingest run --source orders.toml
    $ wings ingest status --source orders.toml
""",
)

SourceOption = Annotated[
    Path, typer.Option("--source", metavar="FILE", help="The source, as TOML.", dir_okay=False)
]
FormatOption = Annotated[
    Format, typer.Option("--format", help="jsonl: an object on each line; table for people.")
]
FilesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FILE]...", help="Ids, as `list` shows them. Default: all."),
]


@app.command()
def run(
    source: SourceOption,
    *,
    once: Annotated[
        bool, typer.Option("--once", help="End when the queue has nothing more.")
    ] = False,
    master: Annotated[
        str | None, typer.Option(help="Where Spark runs, like `local[4]` or `spark://HOST:PORT`.")
    ] = None,
) -> None:
    """Run the pipeline of a source until it is interrupted.

    The queue and the topic are checked first. Each batch writes a line of JSON on standard error:
    files by outcome, rows and bytes. SIGTERM and Ctrl-C end it within ten seconds; after a restart
    it continues from its checkpoint, and writes no row twice. It restarts by itself after
    any error but one of its settings, or of the places that they name.
    """
    settings = SourceSettings.load(source)
    from wings_spark.ingest.stopping import Stopped, StopSignals

    with StopSignals() as stop:
        try:
            from wings_spark.ingest.supervise import supervise

            supervise(settings, master, stop, once=once)
        except Stopped:
            pass
    if stop.asked:
        raise typer.Exit(stop.status)


@app.command()
def status(source: SourceOption, *, wanted_format: FormatOption = "jsonl") -> None:
    """Show figures: files by state, messages that wait, rows of the last batches."""
    found = calls.figures(SourceSettings.load(source))
    if wanted_format in {"json", "jsonl"}:
        _write(found)
    else:
        write_list(("figure", "value"), _flat(found), wanted_format)


@app.command("list")
def list_files(
    source: SourceOption,
    *,
    state: Annotated[
        str | None, typer.Option(help="Only files in this state: `open`, `finished` or `dead`.")
    ] = None,
    wanted_format: FormatOption = "jsonl",
) -> None:
    """List the remembered files."""
    found = calls.files_of_source(SourceSettings.load(source), state)
    _write_rows(map(describe_shard, found), wanted_format)


@app.command()
def dlq(source: SourceOption, *, wanted_format: FormatOption = "jsonl") -> None:
    """List the dead files, which failed too often, with their last errors."""
    found = calls.files_of_source(SourceSettings.load(source), "dead")
    _write_rows(map(describe_shard, found), wanted_format)


@app.command()
def retry(source: SourceOption, files: FilesArgument = None) -> None:
    """Read dead files again."""
    found = calls.retry(SourceSettings.load(source), files or None)
    for shard in found:
        _write({"shard": shard})
    for shard in files or []:
        if shard not in found:
            sys.stderr.write(f"wings: {shard} is not dead\n")
    if files and len(found) < len(files):
        raise typer.Exit(1)


@app.command()
def history(
    source: SourceOption,
    *,
    last: Annotated[int, typer.Option(metavar="N", min=1, help="The last N entries.")] = 1_000,
    wanted_format: FormatOption = "jsonl",
) -> None:
    """List what batches did with files, the oldest first: rows, bytes, times and outcome.

    Covers all pipelines of the source, if it has a topic for its history; otherwise the last
    batches of this one.
    """
    _write_rows(calls.history(SourceSettings.load(source), last), wanted_format)


@app.command()
def setup(
    source: SourceOption,
    *,
    make: Annotated[
        bool, typer.Option("--make", help="Make it, with the credentials of the environment.")
    ] = False,
) -> None:
    """Show how the source's buckets notify its queue of SQS: as commands of `aws`.

    These replace a bucket's notifications and the queue's policy. With `--make`, this
    command creates the queue, and keeps all other configuration.
    """
    from wings_spark.ingest.setup import Setup
    from wings_spark.ingest.setup import make as make_setup

    settings = SourceSettings.load(source)
    found = Setup.of(settings)
    if make:
        make_setup(found, settings)
        _write({"queue": found.arn, "buckets": list(found.folders)})
        return
    for command in found.commands():
        sys.stdout.write(command + "\n")


@app.command()
def backfill(
    source: SourceOption,
    place: Annotated[str, typer.Argument(help="`s3://BUCKET/PREFIX` or the like, or a directory.")],
) -> None:
    """Announce existing files to the queue; those that were read are not read again."""
    count = calls.backfill(SourceSettings.load(source), place)
    _write({"files": count})


def _write(found: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(found, ensure_ascii=False) + "\n")


def _write_rows(found: Iterable[dict[str, Any]], wanted: Format) -> None:
    """Write objects of the same keys; lines of JSON as they come."""
    if wanted == "jsonl":
        for each in found:
            _write(each)
        return
    rows = list(found)
    names = list(rows[0]) if rows else []
    write_list(names, [tuple(each.values()) for each in rows], wanted, "there are none")


def _flat(figures: dict[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Yield the paths and values of nested objects."""
    for name, value in figures.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield before + name, "" if value is None else str(value)
