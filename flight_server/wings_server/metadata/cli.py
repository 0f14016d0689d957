"""The command `wings metadata`."""

from typing import Any

import typer

from wings_core.runtime import hide_numpy
from wings_server.flags import COMMON, takes

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="The metadata of several nodes, as a service.",
)


@app.callback()
def root() -> None:
    """Make `serve` a command with a name, though it is the only one."""


@app.command()
@takes(
    "data_dir",
    "metadata_url",
    "listen",
    *COMMON,
    data_dir="Directory of the metadata, where PostgreSQL does not hold it; made if missing. "
    "Default: ./wings-data.",
    listen="Where gRPC is served; port 0 picks a free one. Default: 127.0.0.1:7778.",
)
def serve(**flags: Any) -> None:
    """Serve topics and offsets to nodes (`wings serve --metadata HOST:PORT`) until SIGTERM.

    It keeps them in the data directory or in PostgreSQL, and no messages. When it serves, it prints
    one line on standard output with the real port; logs go to standard error.

    Every flag may also be set in the environment (`WINGS_LISTEN=0.0.0.0:7778`) or in the file, as
    with `wings serve`.
    """
    hide_numpy()
    from wings_server import lifecycle
    from wings_server.metadata.process import MetadataServer
    from wings_server.settings import MetadataSettings, load

    lifecycle.run(MetadataServer(load(flags.pop("config"), flags, MetadataSettings)))
