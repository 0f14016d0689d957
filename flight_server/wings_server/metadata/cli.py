"""The command `wings metadata`."""

from pathlib import Path
from typing import Annotated

import typer

from wings_core.without_pandas import hide_pandas
from wings_server.options import (
    ConfigOption,
    DrainSecondsOption,
    InsecureOption,
    LogFormatOption,
    LogLevelOption,
    MetadataUrlOption,
    TlsCertOption,
    TlsClientCaOption,
    TlsKeyOption,
)

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
def serve(
    *,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Directory of the metadata, where PostgreSQL does not hold it; made if missing. "
            "Default: ./wings-data."
        ),
    ] = None,
    metadata_url: MetadataUrlOption = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where gRPC is served; port 0 picks a free one. Default: 127.0.0.1:7778.",
        ),
    ] = None,
    config: ConfigOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    tls_client_ca: TlsClientCaOption = None,
    insecure: InsecureOption = None,
    drain_seconds: DrainSecondsOption = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
) -> None:
    """Serve topics and offsets to nodes (`wings serve --metadata HOST:PORT`) until SIGTERM.

    It keeps them in the data directory or in PostgreSQL, and no messages. When it serves, it prints
    one line on standard output with the real port; logs go to standard error.

    Every flag may also be set in the environment (`WINGS_LISTEN=0.0.0.0:7778`) or in the file, as
    with `wings serve`.
    """
    flags = {**locals()}  # By the settings' names.
    hide_pandas()
    from wings_server.metadata.process import run
    from wings_server.settings import MetadataSettings, load

    run(load(flags.pop("config"), flags, MetadataSettings))
