"""Lists of what a server has, and `wings profile`: of the servers that are used by name."""

from typing import Annotated

import typer

from wings_client._messages import wire_time
from wings_client.cli.app import MARKUP
from wings_client.cli.endpoint import act, connected, short_name, short_namespace
from wings_client.cli.environment import configuration_file
from wings_client.cli.options import (
    DEFAULT,
    PARTITIONS_SHOWN_MAX,
    ConsumerArgument,
    EndpointOption,
    FormatOption,
)
from wings_client.cli.output import write_list
from wings_client.cli.profiles import DEFAULT as DEFAULT_PROFILE
from wings_client.cli.profiles import profile_of, profiles
from wings_client.cli.values import count_of, partition_text
from wings_core.contracts.actions import ListNodes
from wings_core.errors import InvalidArgument

consumer = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=MARKUP,
    help="Look at named consumers: how far each is behind, groups included.",
)
namespace = typer.Typer(no_args_is_help=True, rich_markup_mode=MARKUP, help="Look at namespaces.")
node = typer.Typer(no_args_is_help=True, rich_markup_mode=MARKUP, help="Look at nodes.")
profile = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=MARKUP,
    help="Look at the profiles: named connections in `~/.config/wings.toml`.",
)


@namespace.callback()
@node.callback()
def root() -> None:
    """Keep `list` a named command, although it is the only one."""


@consumer.command("list")
def list_consumers(
    *, wanted_format: FormatOption = "table", endpoint: EndpointOption = DEFAULT
) -> None:
    """List named consumers by name, with their lag in each topic.

    $ wings consumer list
    """
    with connected(endpoint) as client:
        rows = [
            (each.consumer, short_name(topic.topic), topic.lag, wire_time(topic.committed_at))
            for each in client.consumers()
            for topic in each.topics
        ]
    names = ("consumer", "topic", "lag", "last commit")
    write_list(names, rows, wanted_format, empty="no consumers have committed offsets")


@consumer.command()
def describe(
    name: ConsumerArgument,
    *,
    wanted_format: FormatOption = "table",
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Show a consumer's offset and lag, of the partitions with the most lag.

    $ wings consumer describe alerts
    """
    with connected(endpoint) as client:
        found = client.consumer_lag(name, limit=PARTITIONS_SHOWN_MAX)
    if not found.topics:
        raise InvalidArgument(f"no consumer {name:.80} has committed offsets")
    write_list(
        ("topic", "partition", "offset", "end", "lag", "last commit"),
        (
            (
                short_name(each.topic),
                partition_text(each.partition),
                each.offset,
                each.next_offset,
                each.lag,
                wire_time(each.committed_at),
            )
            for each in found.partitions
        ),
        wanted_format,
    )
    if wanted_format != "table":
        return
    partitions = sum(each.partitions for each in found.topics)
    hidden = partitions - len(found.partitions)
    rest = f", {hidden:,} of them not shown" if hidden else ""
    typer.echo(
        f"{count_of(found.lag, 'message')} behind in {count_of(partitions, 'partition')}{rest}"
    )


@namespace.command("list")
def list_namespaces(
    *, wanted_format: FormatOption = "table", endpoint: EndpointOption = DEFAULT
) -> None:
    """List namespaces by name.

    $ wings namespace list
    """
    with connected(endpoint) as client:
        found = client.namespaces()
    write_list(
        ("namespace", "created"),
        (
            (short_namespace(each.name), each.created_at.isoformat(sep=" ", timespec="seconds"))
            for each in found
        ),
        wanted_format,
    )


@node.command("list")
def list_nodes(
    *, wanted_format: FormatOption = "table", endpoint: EndpointOption = DEFAULT
) -> None:
    """List the processes that serve the log, with their addresses.

    $ wings node list
    """
    names = ("flight", "http", "kafka", "since")
    write_list(
        names,
        ([each[name] for name in names] for each in act(endpoint, "list-nodes", ListNodes())),
        wanted_format,
    )


@profile.command("list")
def list_profiles(*, wanted_format: FormatOption = "table") -> None:
    """List the profiles by name, with their endpoints.

    $ wings profile list
    """
    write_list(
        ("profile", "endpoint"),
        ((name, keys.get("endpoint")) for name, keys in sorted(profiles().items())),
        wanted_format,
        empty=f"no profiles; write {configuration_file()}",
    )


@profile.command()
def show(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="Name of the profile.")
    ] = DEFAULT_PROFILE,
    *,
    wanted_format: FormatOption = "table",
) -> None:
    """Show a profile's keys.

    $ wings profile show prod
    """
    write_list(("key", "value"), profile_of(name).items(), wanted_format)
