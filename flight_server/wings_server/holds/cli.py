"""The command `wings holds`."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from wings_core.runtime import hide_numpy
from wings_server.flags import COMMON, MetadataUrl, takes

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="Replicas of the state of share groups.",
)


@app.command()
@takes(
    "data_dir",
    "holds_url",
    "holds_schema",
    "listen",
    *COMMON,
    data_dir="Directory of the tombstones; made if missing. Default: ./wings-data.",
    listen="Where gRPC is served; port 0 picks a free one. Default: 127.0.0.1:7779.",
)
def serve(**flags: Any) -> None:
    """Serve one replica of share groups' state (`wings serve --hold-replicas A,B,C`) until SIGTERM.

    Finished messages are stored in the data directory, or in PostgreSQL; held messages are only in
    memory. A message is delivered when a majority of the replicas holds it, so three replicas
    tolerate the loss of one. All nodes must name the same replicas. When ready, it prints one line
    with the actual port on standard output; logs go to standard error.
    """
    hide_numpy()
    from wings_server import lifecycle
    from wings_server.metadata.process import HoldServer
    from wings_server.settings import HoldSettings, load

    lifecycle.run(HoldServer(load(flags.pop("config"), flags, HoldSettings)))


@app.command()
def rebuild(
    data_dir: Annotated[
        Path,
        typer.Argument(metavar="DATA_DIR", help="The data directory of a stopped server."),
    ],
    metadata_url: MetadataUrl = None,
) -> None:
    """Rebuild a damaged `holds.sqlite` from its sound rows, so that share groups work again.

    No message is lost: messages that may not have been finished are delivered again; groups whose
    state is lost start at the beginning of their topic. The damaged file is kept beside the new
    one, under another name.
    """
    from wings_server.metadata.process import rebuild_directory

    rebuilt = rebuild_directory(data_dir, metadata_url or os.environ.get("WINGS_METADATA_URL"))
    for problem in rebuilt.problems:
        typer.echo(f"problem: {problem}")
    for group in rebuilt.groups_lost:
        typer.echo(f"lost: group {group.name} of {group.topic.name} starts over")
    typer.echo(
        f"rebuilt: {rebuilt.partitions:,} partitions of groups, "
        f"{rebuilt.ranges:,} ranges of messages"
    )
    if rebuilt.kept_as is not None:
        typer.echo(f"the damaged file is kept as {rebuilt.kept_as}")
