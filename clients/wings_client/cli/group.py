"""`wings group`: consumer groups, whose members share the partitions of a topic."""

from typing import Annotated

import typer

from wings_client._consumer_groups import ConsumerGroupState
from wings_client.cli import completion
from wings_client.cli.app import command_group
from wings_client.cli.endpoint import connected, short_name
from wings_client.cli.options import (
    DEFAULT,
    AllPartitionsOption,
    Confirmation,
    EndpointOption,
    FormatOption,
    TopicArgument,
    grouped,
)
from wings_client.cli.output import PARTITIONS_SHOWN_MAX, write_list
from wings_client.cli.values import count_of, parse_start, partition_text, partitions_text

NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="GROUP",
        help="Name of the group, that of its consumers.",
        autocompletion=completion.consumer_groups,
    ),
]

app = command_group(
    "Look at consumer groups, and reset them.\n\n"
    "The consumers of one name are a group if they join as members (`wings consume --group`): "
    "each partition is read by one of them at a time. A share group (`wings share`) shares "
    "single messages instead."
)


@app.command("list")
def list_groups(
    *, wanted_format: FormatOption = "table", endpoint: EndpointOption = DEFAULT
) -> None:
    """List the consumer groups.

    $ wings group list
    """
    with connected(endpoint) as client:
        found = client.consumer_groups()
    write_list(
        ("group", "members", "topics"),
        ((each.consumer, each.members, ", ".join(map(short_name, each.topics))) for each in found),
        wanted_format,
        empty="no consumer groups",
    )


@app.command()
def describe(
    group: NameArgument,
    *,
    all_partitions: AllPartitionsOption = False,
    wanted_format: FormatOption = "table",
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Show a consumer group's members, and the offset and lag of each partition; as data, these.

    $ wings group describe alerts
    """
    with connected(endpoint) as client:
        found = client.consumer_group(group)
    is_table = wanted_format == "table"
    if found.members and is_table:
        write_list(
            ("member", "instance", "slots"),
            (
                (
                    each.member,
                    each.instance or "",
                    sum(len(some.slots) for some in each.assignment),
                )
                for each in found.members
            ),
        )
        typer.echo()
    # The partitions that lag most are those that are looked for.
    shown = sorted(found.partitions, key=lambda each: -each.lag)
    if is_table and not all_partitions:
        shown = shown[:PARTITIONS_SHOWN_MAX]
    if shown or not is_table:
        write_list(
            ("topic", "partition", "member", "offset", "end", "lag"),
            (
                (
                    short_name(each.topic),
                    partition_text(each.partition),
                    each.member or ("nobody" if is_table else None),
                    each.offset,
                    each.log_end_offset,
                    each.lag,
                )
                for each in shown
            ),
            wanted_format,
        )
    if is_table:
        typer.echo(f"{_summary(found)}, {partitions_text(len(found.partitions), len(shown))}")


@app.command()
def lag(
    group: NameArgument,
    *,
    wanted_format: FormatOption = "table",
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Print how many messages a consumer group is behind, by topic.

    $ wings group lag alerts
    """
    with connected(endpoint) as client:
        found = client.consumer_group(group)
    behind: dict[str, int] = {}
    for each in found.partitions:
        behind[each.topic] = behind.get(each.topic, 0) + each.lag
    rows = ((short_name(name), count) for name, count in behind.items())
    write_list(("topic", "lag"), rows, wanted_format)


@app.command()
@grouped
def reset(
    group: NameArgument,
    topic: TopicArgument,
    *,
    to: Annotated[
        str, typer.Option(metavar="WHERE", help="earliest, latest, or a time.", show_default=False)
    ],
    confirmation: Confirmation,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Set where a consumer group without members reads on in a topic.

    Asks for confirmation on a terminal; elsewhere `--yes` is required.

        $ wings group reset alerts flights --to 2026-11-20T12:00:00Z --yes
    """
    where = parse_start(to, "--to")
    with connected(endpoint, topic) as client:
        now = "" if confirmation.is_silent else f" (now {_summary(client.consumer_group(group))})"
        confirmation.ask(f"Reset {group} to {to}{now}")
        offsets = client.reset_consumer_group(group, topic, where)
    typer.echo(f"{group} reads on at {to} in {count_of(len(offsets), 'partition')}")


def _summary(found: ConsumerGroupState) -> str:
    return f"{count_of(len(found.members), 'member')}, {found.lag:,} messages behind"
