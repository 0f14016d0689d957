"""Arguments and options that several commands have, and the question before a deletion."""

import sys
from typing import Annotated

import typer

from wings_client.cli.output import Format
from wings_core.names import DEFAULT_NAMESPACE

DEFAULT = "grpc://127.0.0.1:7777"
"""Default address of `wings serve`."""

PARTITIONS_SHOWN_MAX = 20
"""Partitions shown by default."""

TopicArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Full name, or id in the default namespace.")
]
EndpointOption = Annotated[
    str,
    typer.Option(
        "--endpoint",
        envvar="WINGS_ENDPOINT",
        metavar="grpc://HOST:PORT",
        help="Address of the server, or of several nodes, separated by commas.",
    ),
]


def _full_namespace(name: str | None) -> str | None:
    if name is None or "/" in name:
        return name
    return f"tenants/{DEFAULT_NAMESPACE.tenant}/namespaces/{name}"


NamespaceOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAMESPACE",
        callback=_full_namespace,
        help="Full name, or id in the default tenant. Default: all namespaces.",
    ),
]
AllPartitionsOption = Annotated[
    bool,
    typer.Option("--all-partitions", help=f"Show all, not the first {PARTITIONS_SHOWN_MAX} alone."),
]
ColumnsOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAMES", help="Columns to show, comma-separated; repeatable."),
]
FilterOption = Annotated[
    str | None, typer.Option("--filter", metavar="SQL", help="Show only matching messages.")
]
SystemColumnsOption = Annotated[
    bool,
    typer.Option(
        "--system-columns",
        help="Show __offset and __timestamp in every format, and __partition for all partitions.",
    ),
]
FormatOption = Annotated[
    Format,
    typer.Option(
        "--format", help="table for people; json (an object per line), csv, arrow for pipes."
    ),
]
IdleOption = Annotated[
    int | None,
    typer.Option(
        metavar="MS",
        min=1,
        help="End after this many milliseconds without a message. Default: never.",
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the share group.")]
MemberOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Name of this member. Default: a random name."),
]
AnyPartitionOption = Annotated[
    str | None,
    typer.Option(metavar="V", help="Partition value, by the key's type. Default: any."),
]


def require_terminal(yes: bool, done: str) -> None:
    """Make sure that `--yes` is given, or that there is a terminal to ask at.

    Args:
        yes: Whether it is given.
        done: What it would have done.
    """
    if not yes and not sys.stdin.isatty():
        raise typer.BadParameter(
            f"no terminal to ask for confirmation: give --yes to {done}", param_hint="--yes"
        )
