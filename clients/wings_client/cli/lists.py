"""`wings consumer`, `wings namespace` and `wings node`: lists of what a server has."""

from typing import Annotated, Any

import typer

from wings_client.cli.app import MARKUP
from wings_client.cli.endpoint import act, connected, connected_transport, short_name
from wings_client.cli.options import DEFAULT, PARTITIONS_SHOWN_MAX, EndpointOption
from wings_client.cli.tables import print_table
from wings_client.cli.values import count_of, partition_text
from wings_core.contracts.actions import ListNodes
from wings_core.contracts.totals import CONSUMERS_MAX, ConsumerLag, ListConsumers
from wings_core.errors import InvalidArgument

consumer = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=MARKUP,
    help="Look at named consumers: how far each is behind, groups included.",
)
namespace = typer.Typer(no_args_is_help=True, rich_markup_mode=MARKUP, help="Look at namespaces.")
node = typer.Typer(no_args_is_help=True, rich_markup_mode=MARKUP, help="Look at nodes.")


@namespace.callback()
@node.callback()
def root() -> None:
    """Keep `list` a named command, although it is the only one."""


@consumer.command("list")
def list_consumers(*, endpoint: EndpointOption = DEFAULT) -> None:
    """List named consumers by name, with their lag in each topic.

    $ wings consumer list
    """
    rows: list[tuple[str, str, int, str]] = []
    after = ""
    with connected_transport(endpoint) as (_, transport):
        while True:
            body = ListConsumers(after=after, limit=CONSUMERS_MAX)
            found: Any = transport.act("list-consumers", body, repeatable=True)
            rows += (
                (each["consumer"], short_name(lag["topic"]), lag["lag"], lag["committed_at"])
                for each in found
                for lag in each["topics"]
            )
            if len(found) < CONSUMERS_MAX:
                break
            after = found[-1]["consumer"]
    if not rows:
        typer.echo("no consumers have committed offsets", err=True)
        return
    print_table(("consumer", "topic", "lag", "last commit"), rows)


@consumer.command()
def describe(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the consumer.")],
    *,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Show a consumer's offset and lag, of the partitions with the most lag.

    $ wings consumer describe alerts
    """
    body = ConsumerLag(consumer=name, limit=PARTITIONS_SHOWN_MAX)
    found = act(endpoint, "consumer-lag", body)
    if not found["topics"]:
        raise InvalidArgument(f"no consumer {name:.80} has committed offsets")
    print_table(
        ("topic", "partition", "offset", "end", "lag", "last commit"),
        (
            (
                short_name(each["topic"]),
                partition_text(each["partition"]),
                each["offset"],
                each["next_offset"],
                each["lag"],
                each["committed_at"],
            )
            for each in found["partitions"]
        ),
    )
    lag, partitions = (sum(each[key] for each in found["topics"]) for key in ("lag", "partitions"))
    hidden = partitions - len(found["partitions"])
    rest = f", {hidden:,} of them not shown" if hidden else ""
    typer.echo(f"{count_of(lag, 'message')} behind in {count_of(partitions, 'partition')}{rest}")


@namespace.command("list")
def list_namespaces(*, endpoint: EndpointOption = DEFAULT) -> None:
    """List namespaces by name.

    $ wings namespace list
    """
    with connected(endpoint) as client:
        found = client.namespaces()
    print_table(
        ("namespace", "created"),
        ((each.name, each.created_at.isoformat(sep=" ", timespec="seconds")) for each in found),
    )


@node.command("list")
def list_nodes(*, endpoint: EndpointOption = DEFAULT) -> None:
    """List the processes that serve the log, with their addresses.

    $ wings node list
    """
    print_table(
        ("flight", "http", "kafka", "since"),
        (
            (each["flight"], each["http"] or "-", each["kafka"] or "-", each["since"] or "-")
            for each in act(endpoint, "list-nodes", ListNodes())
        ),
    )
