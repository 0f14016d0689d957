"""Flags of the servers' commands: one for each setting that a command line may give.

Nothing here imports the settings: `wings --help` imports this module too.
"""

import inspect
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Annotated, Any

import typer

from wings_core.security.command_line import without_password

_ADDRESS = "HOST:PORT"


MetadataUrl = Annotated[
    str | None,
    typer.Option(
        metavar="postgresql://USER@HOST/DATABASE",
        callback=without_password,
        help="PostgreSQL that holds the metadata; a password goes into WINGS_METADATA_URL or "
        "PGPASSWORD, which others do not see. Default: a file in the data directory.",
    ),
]


def _flag(kind: type, about: str, metavar: str | None = None, *names: str, **options: Any) -> Any:
    return Annotated[kind | None, typer.Option(*names, metavar=metavar, help=about, **options)]


FLAGS: dict[str, Any] = {
    "data_dir": _flag(
        Path, "Directory of messages and metadata; made if missing. Default: ./wings-data."
    ),
    "metadata_url": MetadataUrl,
    "metadata": _flag(
        str,
        "Metadata service of this node (`wings metadata serve`); nodes on one machine may share a "
        "data directory. Default: none, metadata is in the data directory.",
        _ADDRESS,
    ),
    "hot": _flag(
        str,
        "Object store that new messages go to: s3://BUCKET/PREFIX, gs://, az://, or a directory; "
        "credentials from the environment, files, or the machine's role. Default: that of before, "
        "at first the data directory.",
        "URL",
    ),
    "hold_replicas": _flag(
        str,
        "Replicas of what workers of share groups hold (`wings holds serve`), the same for all "
        "nodes; a majority must be up. Default: one in the data directory, or, for a node, its "
        "metadata service.",
        "HOST:PORT,…",
    ),
    "holds": _flag(
        str,
        "Where a node without a data directory serves what workers of share groups hold, to the "
        "other nodes. Default: a free port of the address of Flight.",
        _ADDRESS,
    ),
    "holds_url": _flag(
        str,
        "PostgreSQL that holds the tombstones instead of the data directory, extra `postgres`; a "
        "password goes into WINGS_HOLDS_URL or PGPASSWORD.",
        "postgresql://USER@HOST/DATABASE",
        callback=without_password,
    ),
    "holds_schema": _flag(
        str, "Their schema there, another one for each replica. Default: wings_holds."
    ),
    "remote": _flag(
        str,
        "Object store that old messages move to, merged and compressed; as --hot. Default: that of "
        "before, at first where new messages go.",
        "URL",
    ),
    "iceberg_catalog": _flag(
        str,
        "REST catalog for the tables of topics. Default: one in the metadata's PostgreSQL, or in "
        "the data directory.",
        "URL",
    ),
    "flight": _flag(
        str,
        "Where Arrow Flight is served; port 0 picks a free one. Default: 127.0.0.1:7777.",
        _ADDRESS,
    ),
    "advertise": _flag(
        str,
        "Where clients reach Flight on this node; every node of the cluster tells it to them. Port "
        "0 is the real one. Default: where it is served.",
        _ADDRESS,
    ),
    "http": _flag(
        str, "Where HTTP is served; port 0 picks a free one. Default: 127.0.0.1:7780.", _ADDRESS
    ),
    "listen": _flag(str, "Where gRPC is served; port 0 picks a free one.", _ADDRESS),
    "processes": _flag(
        int,
        "Processes that serve the log, one for each few cores. Flight is served by each, on the "
        "port named and those after it, and HTTP by all on one port; clients find the others by "
        "themselves. Default: 1.",
        "N",
    ),
    "config": _flag(Path, "File of settings, by their names.", "FILE.toml", envvar="WINGS_CONFIG"),
    "cluster_ca": _flag(
        Path,
        "Authorities, in PEM, that the metadata service and replicas of holds are checked against: "
        "they are then called by TLS, with this server's certificate.",
        "FILE",
    ),
    "allowed_host": _flag(
        list[str],
        "A name by which HTTP may be asked, besides those of loopback and the advertised one; may "
        "be given many times.",
        "NAME",
    ),
    "tls_cert": _flag(Path, "The listeners' certificate chain, in PEM; with --tls-key.", "FILE"),
    "tls_key": _flag(Path, "Its private key.", "FILE"),
    "tls_client_ca": _flag(
        Path,
        "Authorities, in PEM, that clients' certificates are checked against: mutual TLS.",
        "FILE",
    ),
    "insecure": _flag(
        bool,
        "Listen beyond loopback though tokens or TLS are missing; the log says what is open.",
        None,
        "--insecure",
    ),
    "drain_seconds": _flag(float, "Longest wait for calls under way when stopping. Default: 10."),
    "log_level": _flag(str, "debug, info, warning or error. Default: info."),
    "log_format": _flag(str, "console or json. Default: console on a terminal, else json."),
}
"""The flags by the names of their settings."""

SECURITY = ("tls_cert", "tls_key", "tls_client_ca", "insecure")
COMMON = ("config", *SECURITY, "drain_seconds", "log_level", "log_format")
"""The flags of all servers."""

_Command = Callable[..., None]


def takes(*names: str, **help_texts: str) -> Callable[[_Command], _Command]:
    """Return a decorator by which a command gets flags as keyword arguments, None where not given.

    Args:
        names: The settings of the flags.
        help_texts: Texts that take the place of those of `FLAGS`.
    """

    def decorated(command: _Command) -> _Command:
        parameters = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_of(name, help_texts)
            )
            for name in names
        ]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        return command

    return decorated


def _of(name: str, help_texts: dict[str, str]) -> Any:
    """Return the annotation of a flag."""
    found = FLAGS[name]
    if name not in help_texts:
        return found
    option = copy(found.__metadata__[0])
    option.help = help_texts[name]
    return Annotated[found.__origin__, option]
