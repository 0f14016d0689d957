"""Flags of the servers' commands: one for each setting available on the command line.

Nothing here imports the settings: `wings --help` imports this module too.
"""

import inspect
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Annotated, Any

import typer

from wings_core.security.tokens import without_password

_ADDRESS = "HOST:PORT"


MetadataUrl = Annotated[
    str | None,
    typer.Option(
        metavar="postgresql://USER@HOST/DATABASE",
        callback=without_password,
        help="PostgreSQL for the metadata; put passwords in WINGS_METADATA_URL or PGPASSWORD, "
        "which other users cannot see. Default: a file in the data directory.",
    ),
]


def _flag(kind: type, about: str, metavar: str | None = None, *names: str, **options: Any) -> Any:
    return Annotated[kind | None, typer.Option(*names, metavar=metavar, help=about, **options)]


FLAGS: dict[str, Any] = {
    "data_dir": _flag(
        Path, "Directory of messages and metadata; created if missing. Default: ./wings-data."
    ),
    "metadata_url": MetadataUrl,
    "metadata": _flag(
        str,
        "Metadata service of this node (`wings metadata serve`); nodes on one machine may share a "
        "data directory. Default: none; metadata is in the data directory.",
        _ADDRESS,
    ),
    "hot": _flag(
        str,
        "Object store for new messages: s3://BUCKET/PREFIX, gs://, az://, or a directory; "
        "credentials come from the environment, files, or the machine's role. Default: the one "
        "used before, initially the data directory.",
        "URL",
    ),
    "hold_replicas": _flag(
        str,
        "Replicas of share groups' state (`wings holds serve`), the same for all nodes; a majority "
        "must be up. Default: one in the data directory, or, for a node, its metadata service.",
        "HOST:PORT,…",
    ),
    "holds": _flag(
        str,
        "Address at which a node without a data directory serves share groups' state to the other "
        "nodes. Default: a free port of Flight's address.",
        _ADDRESS,
    ),
    "holds_url": _flag(
        str,
        "PostgreSQL for finished messages instead of the data directory (extra `postgres`); put "
        "passwords in WINGS_HOLDS_URL or PGPASSWORD.",
        "postgresql://USER@HOST/DATABASE",
        callback=without_password,
    ),
    "holds_schema": _flag(
        str, "Schema in that database, different for each replica. Default: wings_holds."
    ),
    "remote": _flag(
        str,
        "Object store for old messages, merged and compressed; see --hot. Default: the one used "
        "before, initially that of new messages.",
        "URL",
    ),
    "iceberg_catalog": _flag(
        str,
        "REST catalog for the tables of topics. Default: an SQL catalog in the metadata's "
        "PostgreSQL, or in the data directory.",
        "URL",
    ),
    "flight": _flag(
        str,
        "Address of Arrow Flight; port 0 picks a free one. Default: 127.0.0.1:7777.",
        _ADDRESS,
    ),
    "advertise": _flag(
        str,
        "Address at which clients reach Flight on this node, announced by every node. Port 0 is "
        "the actual one. Default: the address of --flight.",
        _ADDRESS,
    ),
    "http": _flag(
        str, "Address of HTTP; port 0 picks a free one. Default: 127.0.0.1:7780.", _ADDRESS
    ),
    "kafka": _flag(
        str,
        "Address of Kafka's protocol (extra `kafka`); port 0 picks a free one. Default: none.",
        _ADDRESS,
    ),
    "kafka_advertised": _flag(
        str,
        "Address at which Kafka's clients reach the server. Port 0 is the actual one. Default: the "
        "address of --kafka or, if that means all addresses, the host of Flight.",
        _ADDRESS,
    ),
    "kafka_partitions": _flag(
        int,
        "Number of partitions of topics that Kafka's clients create without one. Default: 1.",
        "N",
    ),
    "listen": _flag(str, "Address of gRPC; port 0 picks a free one.", _ADDRESS),
    "processes": _flag(
        int,
        "Number of processes, one for every few cores. Each serves Flight, on the given port and "
        "the following ones; all serve HTTP on one port. Clients find all of them. Default: 1.",
        "N",
    ),
    "config": _flag(Path, "Settings file.", "FILE.toml", envvar="WINGS_CONFIG"),
    "cluster_ca": _flag(
        Path,
        "Certificate authorities, in PEM, of the metadata service and of replicas, which are then "
        "called over TLS with this server's certificate.",
        "FILE",
    ),
    "allowed_host": _flag(
        list[str],
        "Host name accepted by HTTP, in addition to those of loopback and the advertised one; "
        "repeatable.",
        "NAME",
    ),
    "tls_cert": _flag(Path, "The listeners' certificate chain, in PEM; with --tls-key.", "FILE"),
    "tls_key": _flag(Path, "Its private key.", "FILE"),
    "tls_client_ca": _flag(
        Path,
        "Certificate authorities, in PEM, of clients' certificates, for mutual TLS.",
        "FILE",
    ),
    "insecure": _flag(
        bool,
        "Listen beyond loopback even without tokens or TLS; the log lists the open listeners.",
        None,
        "--insecure",
    ),
    "drain_seconds": _flag(
        str, "Longest wait for calls in progress on a stop, like 30s. Default: 10s.", "DURATION"
    ),
    "log_level": _flag(str, "debug, info, warning or error. Default: info."),
    "log_format": _flag(str, "console or json. Default: console on a terminal, else json."),
}
"""Flags by the names of their settings."""

SECURITY = ("tls_cert", "tls_key", "tls_client_ca", "insecure")
COMMON = ("config", *SECURITY, "drain_seconds", "log_level", "log_format")
"""Flags of all servers."""

_Command = Callable[..., None]


def takes(*names: str, **help_texts: str) -> Callable[[_Command], _Command]:
    """Return a decorator that gives a command flags as keyword arguments, None if not given.

    Args:
        names: Names of the flags' settings.
        help_texts: Help texts that replace those of `FLAGS`.
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
