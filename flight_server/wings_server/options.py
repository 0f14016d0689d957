"""Options of the command line that several servers have."""

from pathlib import Path
from typing import Annotated

import typer

from wings_core.security.command_line import without_password

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.toml", envvar="WINGS_CONFIG", help="File of settings, by their names."
    ),
]

TlsCertOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The listeners' certificate chain, in PEM; with --tls-key."),
]

TlsKeyOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Its private key.")]

TlsClientCaOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Authorities, in PEM, that clients' certificates are checked against: mutual TLS.",
    ),
]

InsecureOption = Annotated[
    bool | None,
    typer.Option(
        "--insecure",
        help="Listen beyond loopback though tokens or TLS are missing; the log says what is open.",
    ),
]

DrainSecondsOption = Annotated[
    float | None,
    typer.Option(help="Longest wait for calls under way when stopping. Default: 10."),
]

LogLevelOption = Annotated[
    str | None, typer.Option(help="debug, info, warning or error. Default: info.")
]

LogFormatOption = Annotated[
    str | None,
    typer.Option(help="console or json. Default: console on a terminal, else json."),
]

MetadataUrlOption = Annotated[
    str | None,
    typer.Option(
        metavar="postgresql://USER@HOST/DATABASE",
        callback=without_password,
        help="PostgreSQL that holds the metadata; a password goes into WINGS_METADATA_URL or "
        "PGPASSWORD, which others do not see. Default: a file in the data directory.",
    ),
]
