"""`wings share`: share groups of topics, and their members."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, cast

import pyarrow as pa
import typer

from wings_client import ShareConsumer, ShareGroup
from wings_client._arguments import wire_time
from wings_client.cli.app import command_group
from wings_client.cli.endpoint import RETRY, connected, short_name
from wings_client.cli.following import Display
from wings_client.cli.options import (
    DEFAULT,
    AllPartitionsOption,
    ColumnsOption,
    Confirmation,
    EndpointOption,
    FormatOption,
    GroupArgument,
    MemberOptions,
    NamespaceOption,
    PartitionOption,
    SystemColumnsOption,
    TopicArgument,
    grouped,
)
from wings_client.cli.output import check_output, write_list, write_partitions
from wings_client.cli.share_work import dlq, dlq_text, work
from wings_client.cli.values import (
    chosen_columns,
    count_of,
    duration,
    one_partition,
    parse_offset,
    parse_start_or_last,
    partition_text,
)
from wings_core.model import ShareConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupOptions:
    """Options of a group's configuration, named by its keys."""

    lock_duration_ms: Annotated[
        float | None,
        typer.Option(
            "--lock",
            metavar="DURATION",
            parser=duration("s"),
            help="Lock duration: 1s to 12h. Default: 30s.",
        ),
    ] = None
    delivery_limit: Annotated[
        int | None,
        typer.Option(metavar="N", help="Most deliveries of a message: 1 to 100. Default: 5."),
    ] = None
    in_flight_max: Annotated[
        int | None,
        typer.Option(
            "--in-flight",
            metavar="N",
            help="Most messages of a partition held at once. Default: 2000.",
        ),
    ] = None
    dlq_topic: Annotated[
        str | None,
        typer.Option("--dlq", metavar="TOPIC", help="Topic of dead letters, created if missing."),
    ] = None
    dlq_copy_payload: Annotated[
        bool | None,
        typer.Option("--payload/--no-payload", help="Whether dead letters contain the message."),
    ] = None
    acquire_mode: Annotated[
        Literal["record_limit", "batch_optimized"] | None,
        typer.Option(
            "--mode", help="The requested number, or whole batches. Default: record_limit."
        ),
    ] = None
    ordering: Annotated[
        Literal["none", "partition"] | None,
        typer.Option(help="Concurrently, or in order within a partition. Default: none."),
    ] = None
    deliver_at_column: Annotated[
        str | None,
        typer.Option(
            "--deliver-at",
            metavar="COLUMN",
            help="Timestamp column with the earliest delivery time.",
        ),
    ] = None

    @property
    def config(self) -> dict[str, Any]:
        """The given configuration keys."""
        given = {key: value for key, value in asdict(self).items() if value is not None}
        if self.lock_duration_ms is not None:
            given["lock_duration_ms"] = round(self.lock_duration_ms * 1000)
        return given


HOLDS_SHOWN_MAX = 50
"""Most held ranges that `members` shows."""


def summary(group: ShareGroup) -> str:
    """Return a group in one line: its name, lock, limit, dead letters and lag."""
    dead = f", dead letters to {dlq_text(group)}" if group.config["dlq_topic"] else ""
    return (
        f"{group.name} of {short_name(group.topic)}: {lock_text(group)} lock, "
        f"{text_of(group, 'delivery_limit')} deliveries{dead}, "
        f"{count_of(lag_of(group), 'message')} behind"
    )


def lag_of(group: ShareGroup) -> int:
    """Return the number of messages that a group has not finished."""
    return sum(partition.lag for partition in group.partitions)


def lock_text(group: ShareGroup) -> str:
    """Return a group's lock duration, in seconds."""
    milliseconds = group.config["lock_duration_ms"]
    assert isinstance(milliseconds, int)
    return f"{milliseconds / 1000:g} s"


def text_of(group: ShareGroup, key: str) -> str:
    """Return one value of a group's configuration."""
    value = group.config[key]
    return f"from {value['timestamp']}" if isinstance(value, dict) else f"{value}"


app = command_group(
    "Share a topic among workers, as a queue.\n\n"
    "Each message is held by one member of a group at a time, until it is accepted; a message "
    "that is released, or whose lock expires, is delivered again, up to the group's limit."
)
app.add_typer(dlq, name="dlq")
app.command()(work)


@app.command()
@grouped
def create(
    group: GroupArgument,
    topic: TopicArgument,
    *,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="Start of the group: earliest, latest, a time like -1h, or -100 for the last "
            "hundred of each partition.",
        ),
    ] = "latest",
    options: ShareGroupOptions,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Accept an existing group, unchanged.")
    ] = False,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Create a share group of a topic.

    $ wings share create billing orders --from earliest --delivery-limit 3 --dlq orders-dead
    """
    begin = parse_start_or_last(start)
    if isinstance(begin, int) and if_not_exists:
        raise typer.BadParameter("would move an existing group", param_hint="--from")
    config: dict[str, Any] = {**options.config, "start": begin}
    if isinstance(begin, datetime):
        config["start"] = {"timestamp": wire_time(begin)}
    if isinstance(begin, int):
        config["start"] = "latest"
    with connected(endpoint, topic) as client:
        created = client.create_share_group(group, topic, config, if_not_exists=if_not_exists)
        if isinstance(begin, int):
            created = client.seek_share_group(group, topic, begin)
    typer.echo(summary(created))
    asked = ShareConfig(**options.config).model_dump(mode="json", exclude_unset=True)
    if others := [key for key in asked if asked[key] != created.config[key]]:
        changed = ", ".join(others)
        typer.echo(f"it existed, with another {changed}; `wings share alter` changes it", err=True)


@app.command()
@grouped
def alter(
    group: GroupArgument,
    topic: TopicArgument,
    *,
    options: ShareGroupOptions,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Change a share group; other settings do not change.

    $ wings share alter billing orders --delivery-limit 5
    """
    if not options.config:
        raise typer.BadParameter("give at least one option that changes something")
    with connected(endpoint, topic) as client:
        altered = client.alter_share_group(group, topic, options.config)
    typer.echo(summary(altered))


@app.command()
@grouped
def seek(
    group: GroupArgument,
    topic: TopicArgument,
    *,
    to: Annotated[
        str,
        typer.Option(
            metavar="WHERE",
            help="earliest, latest, an offset, a time like -1h, or -100 for the last hundred of "
            "each partition.",
        ),
    ],
    partition: PartitionOption = None,
    confirmation: Confirmation,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Move a share group to a position, forwards or backwards; held messages are released.

    Asks for confirmation on a terminal; elsewhere `--yes` is required.

        $ wings share seek billing orders --to 2026-11-20T12:00:00Z
    """
    where = parse_offset(to, "--to")
    with connected(endpoint, topic) as client:
        described = client.topic(topic)
        only = one_partition(partition, described)
        client.share_group(group, described)  # A dry run tells of a missing one, too.
        confirmation.ask(f"Move {group} of {short_name(described.name)} to {to}")
        moved = client.seek_share_group(group, described, where, partition=only)
    typer.echo(summary(moved))


@app.command()
@grouped
def purge(
    group: GroupArgument,
    topic: TopicArgument,
    *,
    partition: PartitionOption = None,
    confirmation: Confirmation,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Drop all messages that a share group has not finished; the topic keeps them.

    Asks for confirmation on a terminal; elsewhere `--yes` is required.

        $ wings share purge billing orders --yes
    """
    with connected(endpoint, topic) as client:
        described = client.topic(topic)
        only = one_partition(partition, described)
        question = f"Drop the unfinished messages of {group} of {short_name(described.name)}"
        confirmation.ask(question)
        purged = client.purge_share_group(group, described, partition=only)
    typer.echo(f"{purged:,} messages are dropped")


@app.command("list")
def list_groups(
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="Only groups of this topic. Default: all.")
    ] = None,
    *,
    namespace: NamespaceOption = None,
    wanted_format: FormatOption = "table",
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """List share groups by topic and name.

    $ wings share list orders
    """
    with connected(endpoint, topic or "") as client:
        groups = client.share_groups(topic, namespace=namespace)
    write_list(
        ("topic", "group", "lock", "limit", "dead letters to"),
        (
            (
                short_name(each.topic),
                each.name,
                lock_text(each),
                cast("int", each.config["delivery_limit"]),
                dlq_text(each) if each.config["dlq_topic"] else None,
            )
            for each in groups
        ),
        wanted_format,
        empty="no share groups; create one with `wings share create`",
    )


@app.command()
def describe(
    group: GroupArgument,
    topic: TopicArgument,
    *,
    all_partitions: AllPartitionsOption = False,
    wanted_format: FormatOption = "table",
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Show a share group's configuration, and its progress in each partition; as data, that.

    $ wings share describe billing orders
    """
    with connected(endpoint, topic) as client:
        found = client.share_group(group, topic)
    if wanted_format == "table":
        typer.echo(f"Group: {found.name}")
        typer.echo(f"Topic: {found.topic}")
        for key in found.config:
            typer.echo(f"{key}: {text_of(found, key)}")
        typer.echo()
    held = sum(each.in_flight for each in found.partitions)
    write_partitions(
        ("partition", "start", "in flight", "lag"),
        [
            (partition_text(each.partition), each.start_offset, each.in_flight, each.lag)
            for each in found.partitions
        ],
        wanted_format,
        f"{lag_of(found):,} messages behind, {held:,} of them in flight",
        all_partitions=all_partitions,
    )


@app.command()
def members(
    group: GroupArgument,
    topic: TopicArgument,
    *,
    wanted_format: FormatOption = "table",
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Show the ranges held by a share group's members, and the age of its oldest message.

    Members that wait for messages hold none, and are not listed.

    $ wings share members billing orders
    """
    with connected(endpoint, topic) as client:
        found = client.share_members(group, topic)
    is_table = wanted_format == "table"
    shown = found.holds[:HOLDS_SHOWN_MAX] if is_table else found.holds
    if shown or not is_table:
        write_list(
            ("member", "partition", "first", "last", "delivery", "since", "until"),
            (
                (
                    each.member,
                    partition_text(each.partition),
                    each.first,
                    each.last,
                    each.delivery_count,
                    wire_time(each.since),
                    wire_time(each.until),
                )
                for each in shown
            ),
            wanted_format,
        )
    if not is_table:
        return
    hidden = len(found.holds) - len(shown) + found.holds_left_out
    rest = f", {hidden:,} more ranges not shown" if hidden else ""
    oldest = "" if found.oldest is None else f", the oldest {found.oldest.age_seconds:,.0f} s old"
    typer.echo(
        f"{found.lag:,} messages behind{oldest}, {found.in_flight:,} of them held by "
        f"{count_of(len(found.members), 'member')}{rest}"
    )


@app.command()
@grouped
def delete(
    group: GroupArgument,
    topic: TopicArgument,
    *,
    confirmation: Confirmation,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Delete a share group; the topic and its messages stay.

    Asks for confirmation on a terminal; elsewhere `--yes` is required.

        $ wings share delete billing orders --yes
    """
    with connected(endpoint, topic) as client:
        found = client.share_group(group, topic)
        question = f"Delete {group} of {short_name(found.topic)}, {lag_of(found):,} messages behind"
        confirmation.ask(question)
        client.delete_share_group(group, topic)
    typer.echo(f"{group} of {short_name(found.topic)} is deleted")


@app.command()
@grouped
def consume(
    group: GroupArgument,
    topic: TopicArgument,
    *,
    membership: MemberOptions,
    max_messages: Annotated[
        int, typer.Option(metavar="N", min=1, help="Most messages per delivery.")
    ] = 500,
    columns: ColumnsOption = None,
    system_columns: SystemColumnsOption = False,
    wanted_format: FormatOption = "table",
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Take messages as a member of a share group, show them, and accept them.

        $ wings share consume billing orders --format json | ./work

    Messages are accepted after they are written, so interrupted ones are delivered again. Ctrl-C
    ends it, with exit status 130, and releases unwritten messages.
    """
    check_output(wanted_format, is_endless=True)
    display = Display(wanted_format, system_columns=system_columns)
    with connected(endpoint, topic, RETRY) as client:
        described = client.topic(topic)
        shown = chosen_columns(columns, described.schema) or list(described.schema.names)
        arguments = membership.arguments(described)
        with client.share_consumer(
            group, described, max_messages=max_messages, **arguments
        ) as consumer:
            display.run(_accepted(consumer, shown), done=lambda: "; the others are released")


def _accepted(consumer: ShareConsumer, columns: list[str]) -> Iterator[pa.RecordBatch]:
    for delivery in consumer:
        yield delivery.batch.select([*columns, "__offset", "__timestamp"])
        # The next delivery is requested, so this one was written.
        consumer.accept(delivery)
