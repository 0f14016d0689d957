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

DataDirOption = Annotated[
    Path | None,
    typer.Option(
        help="Directory of messages and metadata; made if missing. Default: ./wings-data."
    ),
]

MetadataOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Metadata service of this node (`wings metadata serve`); nodes on one machine may "
        "share a data directory. Default: none, metadata is in the data directory.",
    ),
]

HotOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Object store that new messages go to: s3://BUCKET/PREFIX, gs://, az://, or a "
        "directory; credentials from the environment, files, or the machine's role. "
        "Default: that of before, at first the data directory.",
    ),
]

HoldReplicasOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT,…",
        help="Replicas of what workers of share groups hold (`wings holds serve`), the same "
        "for all nodes; a majority must be up. Default: one in the data directory, or, for a "
        "node, its metadata service.",
    ),
]

HoldsOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Where a node without a data directory serves what workers of share groups hold, "
        "to the other nodes. Default: a free port of the address of Flight.",
    ),
]

RemoteOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Object store that old messages move to, merged and compressed; as --hot. "
        "Default: that of before, at first where new messages go.",
    ),
]

IcebergCatalogOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="REST catalog for the tables of topics. Default: one in the metadata's "
        "PostgreSQL, or in the data directory.",
    ),
]

FlightOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Where Arrow Flight is served; port 0 picks a free one. Default: 127.0.0.1:7777.",
    ),
]

AdvertiseOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Where clients reach Flight on this node; every node of the cluster tells it to "
        "them. Port 0 is the real one. Default: where it is served.",
    ),
]

HttpOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Where HTTP is served; port 0 picks a free one. Default: 127.0.0.1:7780.",
    ),
]

ProcessesOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Processes that serve the log, one for each few cores. Flight is served by each, "
        "on the port named and those after it, and HTTP by all on one port; clients find the "
        "others by themselves. Default: 1.",
    ),
]

ClusterCaOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Authorities, in PEM, that the metadata service and replicas of holds are checked "
        "against: they are then called by TLS, with this server's certificate.",
    ),
]

AllowedHostOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="A name by which HTTP may be asked, besides those of loopback and the advertised "
        "one; may be given many times.",
    ),
]
