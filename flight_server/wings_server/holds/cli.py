"""The command `wings holds`."""

from pathlib import Path
from typing import Annotated

import typer

from wings_server.options import (
    ConfigOption,
    DrainSecondsOption,
    LogFormatOption,
    LogLevelOption,
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="Replicas of what the workers of share groups hold.",
)


@app.callback()
def root() -> None:
    """Make `serve` a command with a name, though it is the only one."""


@app.command()
def serve(
    *,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Directory of the tombstones; made if missing. Default: ./wings-data."),
    ] = None,
    holds_url: Annotated[
        str | None,
        typer.Option(
            metavar="postgresql://…",
            help="PostgreSQL that holds the tombstones instead of the data directory, extra "
            "`postgres`; better given as WINGS_HOLDS_URL, for it may hold a password.",
        ),
    ] = None,
    holds_schema: Annotated[
        str | None,
        typer.Option(
            help="Their schema there, another one for each replica. Default: wings_holds."
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where gRPC is served; port 0 picks a free one. Default: 127.0.0.1:7779.",
        ),
    ] = None,
    config: ConfigOption = None,
    drain_seconds: DrainSecondsOption = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
) -> None:
    """Serve one replica of holds to nodes (`wings serve --hold-replicas A,B,C`) until SIGTERM.

    It keeps tombstones in the data directory, or in PostgreSQL; what is held is in memory alone. A
    message is handed out when a majority of the replicas holds it: three of them go on while one
    is down. All nodes must name the same replicas. When it serves, it prints one line on standard
    output with the real port; logs go to standard error.
    """
    from wings_server.holds.process import run
    from wings_server.settings import HoldSettings, load

    flags = {
        "data_dir": data_dir,
        "holds_url": holds_url,
        "holds_schema": holds_schema,
        "listen": listen,
        "drain_seconds": drain_seconds,
        "log_level": log_level,
        "log_format": log_format,
    }
    run(load(config, flags, HoldSettings))
