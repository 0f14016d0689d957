"""`wings share`: share groups and their deliveries."""

import sys
from collections.abc import Iterator
from typing import Annotated

import pyarrow as pa
import typer

from wings_client import ShareConsumer
from wings_client.cli.endpoint import (
    DEFAULT,
    AllPartitionsOption,
    EndpointOption,
    NamespaceOption,
    TopicArgument,
    connected,
    short_name,
)
from wings_client.cli.following import (
    RETRY,
    ColumnsOption,
    Display,
    FormatOption,
    IdleOption,
    SystemColumnsOption,
)
from wings_client.cli.output import Format, check_output
from wings_client.cli.plugins import MARKUP
from wings_client.cli.share_dead_letters import dlq
from wings_client.cli.share_options import (
    AnyPartitionOption,
    DeliverAtOption,
    DlqOption,
    GroupArgument,
    InFlightOption,
    LimitOption,
    LockOption,
    MemberOption,
    ModeOption,
    OrderingOption,
    PartitionOption,
    PayloadOption,
    YesOption,
    config_of,
    start_of,
)
from wings_client.cli.share_text import (
    description,
    dlq_text,
    lock_text,
    members_text,
    summary,
    text_of,
)
from wings_client.cli.share_work import work
from wings_client.cli.tables import Column, print_lines, rendered
from wings_client.cli.values import chosen_columns, parse_offset, parse_partition

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=MARKUP,
    help=(
        "Share a topic among workers, as a queue.\n\n"
        "Each message is held by one member of a group at a time, until it is accepted; a message "
        "that is released, or whose lock expires, is delivered again, up to the group's limit."
    ),
)
app.add_typer(dlq, name="dlq")
app.command()(work)


@app.command()
def create(
    group: GroupArgument,
    topic: TopicArgument,
    *,
    start: Annotated[
        str,
        typer.Option(
            "--from", metavar="WHERE", help="Start of the group: earliest, latest, or a time."
        ),
    ] = "latest",
    lock: LockOption = None,
    limit: LimitOption = None,
    in_flight: InFlightOption = None,
    dlq_topic: DlqOption = None,
    payload: PayloadOption = None,
    mode: ModeOption = None,
    ordering: OrderingOption = None,
    deliver_at: DeliverAtOption = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Accept an existing group, unchanged.")
    ] = False,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Create a share group of a topic.

    $ wings share create billing orders --from earliest --limit 3 --dlq orders-dead
    """
    config = config_of(lock, limit, in_flight, dlq_topic, payload, mode, ordering, deliver_at)
    with connected(endpoint, topic) as client:
        created = client.create_share_group(
            group, topic, {**config, "start": start_of(start)}, if_not_exists=if_not_exists
        )
    typer.echo(f"{created.name} of {short_name(created.topic)}: {summary(created)}")


@app.command()
def alter(
    group: GroupArgument,
    topic: TopicArgument,
    *,
    lock: LockOption = None,
    limit: LimitOption = None,
    in_flight: InFlightOption = None,
    dlq_topic: DlqOption = None,
    payload: PayloadOption = None,
    mode: ModeOption = None,
    ordering: OrderingOption = None,
    deliver_at: DeliverAtOption = None,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Change a share group; other settings do not change.

    $ wings share alter billing orders --limit 5
    """
    config = config_of(lock, limit, in_flight, dlq_topic, payload, mode, ordering, deliver_at)
    if not config:
        raise typer.BadParameter("give at least one option that changes something")
    with connected(endpoint, topic) as client:
        altered = client.alter_share_group(group, topic, config)
    typer.echo(f"{altered.name} of {short_name(altered.topic)}: {summary(altered)}")


@app.command()
def seek(
    group: GroupArgument,
    topic: TopicArgument,
    *,
    to: Annotated[
        str,
        typer.Option(metavar="WHERE", help="earliest, latest, a time, or an offset."),
    ],
    partition: PartitionOption = None,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Move a share group to a position, forwards or backwards; held messages are released.

    $ wings share seek billing orders --to 2026-11-20T12:00:00Z
    """
    with connected(endpoint, topic) as client:
        described = client.topic(topic)
        only = None if partition is None else parse_partition(partition, described)
        moved = client.seek_share_group(group, described, parse_offset(to), partition=only)
    typer.echo(f"{moved.name} of {short_name(moved.topic)}: {summary(moved)}")


@app.command()
def purge(
    group: GroupArgument,
    topic: TopicArgument,
    *,
    partition: PartitionOption = None,
    yes: YesOption = False,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Drop all messages that a share group has not finished; the topic keeps them.

    Asks for confirmation on a terminal; elsewhere `--yes` is required.

        $ wings share purge billing orders --yes
    """
    if not yes and not sys.stdin.isatty():
        raise typer.BadParameter(
            "no terminal to ask for confirmation: give --yes to drop the messages",
            param_hint="--yes",
        )
    with connected(endpoint, topic) as client:
        described = client.topic(topic)
        only = None if partition is None else parse_partition(partition, described)
        if not yes:
            typer.confirm(f"Drop what {group} of {described.name} has not finished?", abort=True)
        purged = client.purge_share_group(group, described, partition=only)
    typer.echo(f"{purged:,} messages are dropped")


@app.command("list")
def list_groups(
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="Only groups of this topic. Default: all.")
    ] = None,
    *,
    namespace: NamespaceOption = None,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """List share groups by topic and name.

    $ wings share list orders
    """
    with connected(endpoint, topic or "") as client:
        groups = client.share_groups(topic, namespace=namespace)
    if not groups:
        typer.echo("no share groups; create one with `wings share create`", err=True)
        return
    print_lines(
        rendered(
            Column("topic", [short_name(group.topic) for group in groups]),
            Column("group", [group.name for group in groups]),
            Column("lock", [lock_text(group) for group in groups], is_number=True),
            Column("limit", [text_of(group, "delivery_limit") for group in groups], True),
            Column("dead letters to", [dlq_text(group) for group in groups]),
        )
    )


@app.command()
def describe(
    group: GroupArgument,
    topic: TopicArgument,
    *,
    all_partitions: AllPartitionsOption = False,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Show a share group's configuration, and its progress in each partition.

    $ wings share describe billing orders
    """
    with connected(endpoint, topic) as client:
        found = client.share_group(group, topic)
    print_lines(description(found, all_partitions=all_partitions))


@app.command()
def members(
    group: GroupArgument,
    topic: TopicArgument,
    *,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Show the ranges held by a share group's members, and the age of its oldest message.

    $ wings share members billing orders
    """
    with connected(endpoint, topic) as client:
        found = client.share_members(group, topic)
    print_lines(members_text(found))


@app.command()
def delete(
    group: GroupArgument,
    topic: TopicArgument,
    *,
    yes: YesOption = False,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Delete a share group; the topic and its messages stay.

    Asks for confirmation on a terminal; elsewhere `--yes` is required.

        $ wings share delete billing orders --yes
    """
    if not yes and not sys.stdin.isatty():
        raise typer.BadParameter(
            "no terminal to ask for confirmation: give --yes to delete the group and its progress",
            param_hint="--yes",
        )
    with connected(endpoint, topic) as client:
        found = client.share_group(group, topic)
        if not yes:
            lag = sum(partition.lag for partition in found.partitions)
            typer.confirm(f"Delete {group} of {found.topic}, {lag:,} messages behind?", abort=True)
        client.delete_share_group(group, topic)
    typer.echo(f"{group} of {short_name(found.topic)} is deleted")


@app.command()
def consume(
    group: GroupArgument,
    topic: TopicArgument,
    *,
    member: MemberOption = None,
    partition: AnyPartitionOption = None,
    max_messages: Annotated[
        int, typer.Option(metavar="N", min=1, help="Most messages per delivery.")
    ] = 500,
    columns: ColumnsOption = None,
    system_columns: SystemColumnsOption = False,
    wanted_format: FormatOption = Format.TABLE,
    timeout: IdleOption = None,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Take messages as a member of a share group, show them, and accept them.

        $ wings share consume billing orders --format json | ./work

    Messages are accepted after they are written, so interrupted ones are delivered again. Ctrl-C
    ends
    it, with exit status 130, and releases unwritten messages.
    """
    check_output(wanted_format)
    display = Display(wanted_format, system_columns=system_columns)
    with connected(endpoint, topic, RETRY) as client:
        described = client.topic(topic)
        shown = chosen_columns(columns, described.schema) or list(described.schema.names)
        only = None if partition is None else parse_partition(partition, described)
        with client.share_consumer(
            group,
            described,
            member=member,
            partition=only,
            max_messages=max_messages,
            timeout=None if timeout is None else timeout / 1000,
        ) as consumer:
            display.run(_accepted(consumer, shown), done=lambda: "; the others are released")


def _accepted(consumer: ShareConsumer, columns: list[str]) -> Iterator[pa.RecordBatch]:
    for delivery in consumer:
        yield delivery.batch.select([*columns, "__offset", "__timestamp"])
        # The next delivery is requested, so this one was written.
        consumer.accept(delivery)
