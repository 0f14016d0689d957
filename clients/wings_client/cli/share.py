"""`wings share`: share groups, their deliveries and their dead letters."""

import sys
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import groupby
from typing import Annotated, Any

import pyarrow as pa
import typer

from wings_client import Client, ShareConsumer, ShareGroup, ShareMembers
from wings_client._messages import wire_time
from wings_client.cli.endpoint import DEFAULT, EndpointOption, connected, short_name
from wings_client.cli.following import (
    RETRY,
    ColumnsOption,
    Display,
    FilterOption,
    FormatOption,
    IdleOption,
    SystemColumnsOption,
)
from wings_client.cli.output import Format, check_output, write_all
from wings_client.cli.plugins import MARKUP
from wings_client.cli.share_work import work
from wings_client.cli.tables import Column, render, terminal_width
from wings_client.cli.values import chosen_columns, parse_offset, parse_partition, partition_text
from wings_core.errors import InvalidArgument, TopicNotFound
from wings_core.names import DEFAULT_NAMESPACE

PARTITIONS_SHOWN_MAX = 20
"""Partitions that `describe` shows by default."""

HOLDS_SHOWN_MAX = 50
"""Held ranges that `members` shows."""

LETTERS_MAX = 100
"""Dead letters that `dlq show` shows by default."""

LETTER_COLUMNS = [
    "source_topic",
    "source_partition",
    "source_offset",
    "share_group",
    "delivery_count",
    "reason",
    "error",
    "dead_lettered_at",
]
"""The columns that `dlq show` shows by default."""

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=MARKUP,
    help=(
        "Share a topic among workers, as a queue.\n\n"
        "Each message is held by one member of a group at a time, until it is accepted; one that "
        "is released, or whose lock expires, is delivered again, up to the group's limit."
    ),
)
dlq = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=MARKUP,
    help="Look at dead letters, and send them back.",
)
app.add_typer(dlq, name="dlq")
app.command()(work)

GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the share group.")]
TopicArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Full name, or id in the default namespace.")
]
DlqArgument = Annotated[
    str, typer.Argument(metavar="DLQ_TOPIC", help="The topic of dead letters: full name, or id.")
]
LockOption = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="How long a message is held: 1 to 43200. Default: 30."),
]
LimitOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="How often a message is delivered: 1 to 100. Default: 5."),
]
InFlightOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="Most messages of a partition held at once. Default: 2000."),
]
DlqOption = Annotated[
    str | None,
    typer.Option("--dlq", metavar="TOPIC", help="Topic of dead letters, created if not there."),
]
PayloadOption = Annotated[
    bool | None,
    typer.Option("--payload/--no-payload", help="Whether dead letters hold their message."),
]


PartitionOption = Annotated[
    str | None,
    typer.Option(metavar="V", help="One partition, read by the key's type. Default: all."),
]


class Mode(StrEnum):
    """How many messages an acquire delivers."""

    RECORD_LIMIT = "record_limit"
    BATCH_OPTIMIZED = "batch_optimized"


ModeOption = Annotated[
    Mode | None,
    typer.Option(help="Exactly what was asked for, or whole batches. Default: record_limit."),
]


class Ordering(StrEnum):
    """Whether messages of a partition are worked on one after another."""

    NONE = "none"
    PARTITION = "partition"


OrderingOption = Annotated[
    Ordering | None,
    typer.Option(help="Side by side, or a partition's messages in their order. Default: none."),
]


DeliverAtOption = Annotated[
    str | None,
    typer.Option(
        "--deliver-at", metavar="COLUMN", help="A timestamp column: no message before its time."
    ),
]


@app.command()
def create(
    group: GroupArgument,
    topic: TopicArgument,
    *,
    start: Annotated[
        str,
        typer.Option(
            "--from", metavar="WHERE", help="Where the group begins: earliest, latest, or a time."
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
        bool, typer.Option("--if-not-exists", help="Accept one that is there, as it is.")
    ] = False,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Create a share group of a topic.

    $ wings share create billing orders --from earliest --limit 3 --dlq orders-dead
    """
    config = _config(lock, limit, in_flight, dlq_topic, payload, mode, ordering, deliver_at)
    with connected(endpoint, topic) as client:
        created = client.create_share_group(
            group, topic, {**config, "start": _start(start)}, if_not_exists=if_not_exists
        )
    typer.echo(f"{created.name} of {short_name(created.topic)}: {_summary(created)}")


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
    """Change a share group; what is not given stays as it is.

    $ wings share alter billing orders --limit 5
    """
    config = _config(lock, limit, in_flight, dlq_topic, payload, mode, ordering, deliver_at)
    if not config:
        raise typer.BadParameter("give at least one option that changes something")
    with connected(endpoint, topic) as client:
        altered = client.alter_share_group(group, topic, config)
    typer.echo(f"{altered.name} of {short_name(altered.topic)}: {_summary(altered)}")


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
    """Move a share group to a position, forwards or backwards; its members begin anew.

    $ wings share seek billing orders --to 2026-11-20T12:00:00Z
    """
    with connected(endpoint, topic) as client:
        described = client.topic(topic)
        only = None if partition is None else parse_partition(partition, described)
        moved = client.seek_share_group(group, described, parse_offset(to), partition=only)
    typer.echo(f"{moved.name} of {short_name(moved.topic)}: {_summary(moved)}")


@app.command()
def purge(
    group: GroupArgument,
    topic: TopicArgument,
    *,
    partition: PartitionOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Drop all messages that a share group has not finished; the topic keeps them.

    Asks first on a terminal; elsewhere `--yes` must say that it is meant.

        $ wings share purge billing orders --yes
    """
    if not yes and not sys.stdin.isatty():
        raise typer.BadParameter(
            "there is no terminal to ask at: say --yes to drop the messages", param_hint="--yes"
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
        str | None, typer.Argument(metavar="TOPIC", help="Of this topic. Default: of all.")
    ] = None,
    *,
    namespace: Annotated[
        str | None,
        typer.Option(metavar="NAMESPACE", help="Full name, or id in the default tenant."),
    ] = None,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """List share groups by topic and name.

    $ wings share list orders
    """
    if namespace is not None and "/" not in namespace:
        namespace = f"tenants/{DEFAULT_NAMESPACE.tenant}/namespaces/{namespace}"
    with connected(endpoint, topic or "") as client:
        groups = client.share_groups(topic, namespace=namespace)
    if not groups:
        typer.echo("no share groups; create one with `wings share create`", err=True)
        return
    _print(
        render(
            [
                Column("topic", [short_name(group.topic) for group in groups]),
                Column("group", [group.name for group in groups]),
                Column("lock", [_lock_text(group) for group in groups], is_number=True),
                Column("limit", [_text(group, "delivery_limit") for group in groups], True),
                Column("dead letters to", [_dlq_text(group) for group in groups]),
            ],
            terminal_width(),
        )
    )


@app.command()
def describe(
    group: GroupArgument,
    topic: TopicArgument,
    *,
    all_partitions: Annotated[
        bool,
        typer.Option(
            "--all-partitions", help=f"Show all, not the first {PARTITIONS_SHOWN_MAX} alone."
        ),
    ] = False,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Show a share group's configuration, and how far it is in each partition.

    $ wings share describe billing orders
    """
    with connected(endpoint, topic) as client:
        found = client.share_group(group, topic)
    _print(_description(found, all_partitions=all_partitions))


@app.command()
def members(
    group: GroupArgument,
    topic: TopicArgument,
    *,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Show who holds what of a share group, since when, and how old its oldest message is.

    $ wings share members billing orders
    """
    with connected(endpoint, topic) as client:
        found = client.share_members(group, topic)
    _print(_members_text(found))


@app.command()
def delete(
    group: GroupArgument,
    topic: TopicArgument,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Delete a share group; the topic and its messages stay.

    Asks first on a terminal; elsewhere `--yes` must say that it is meant.

        $ wings share delete billing orders --yes
    """
    if not yes and not sys.stdin.isatty():
        raise typer.BadParameter(
            "there is no terminal to ask at: say --yes to delete the group, and how far it is",
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
    member: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What this member calls itself. Default: a random name."),
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(metavar="V", help="One partition, read by the key's type. Default: any."),
    ] = None,
    max_messages: Annotated[
        int, typer.Option(metavar="N", min=1, help="Take no more at once.")
    ] = 500,
    columns: ColumnsOption = None,
    system_columns: SystemColumnsOption = False,
    wanted_format: FormatOption = Format.TABLE,
    timeout: IdleOption = None,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Take messages as a member of a share group, show them, and accept them.

        $ wings share consume billing orders --format json | ./work

    Messages are accepted once they are written out, so what was cut off comes again. Ctrl-C ends
    it, with exit status 130, and releases what was not written.
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
            display.run(_accepted(consumer, shown), done=lambda: "; the others are given back")


@dlq.command("list")
def list_dead_letters(*, endpoint: EndpointOption = DEFAULT) -> None:
    """List the topics of dead letters of all share groups, and how many each holds.

    $ wings share dlq list
    """
    with connected(endpoint) as client:
        groups = [group for group in client.share_groups() if group.config["dlq_topic"]]
        groups.sort(key=_dlq_text)
        rows = [
            (name, ", ".join(f"{each.name} of {short_name(each.topic)}" for each in found), count)
            for name, found in _by_dlq(groups)
            if (count := _letters(client, name)) is not None
        ]
    if not rows:
        typer.echo("no share group has a topic of dead letters", err=True)
        return
    _print(
        render(
            [
                Column("dead letters", [name for name, _, _ in rows]),
                Column("of", [groups for _, groups, _ in rows]),
                Column("messages", [f"{count}" for _, _, count in rows], is_number=True),
            ],
            terminal_width(),
        )
    )


@dlq.command("show")
def show_dead_letters(
    dlq_topic: DlqArgument,
    *,
    predicate: FilterOption = None,
    columns: ColumnsOption = None,
    messages: Annotated[
        bool,
        typer.Option("--messages", help="Show the messages themselves, not what is said of them."),
    ] = False,
    max_messages: Annotated[
        int, typer.Option(metavar="N", min=1, help="Show no more than so many.")
    ] = LETTERS_MAX,
    wanted_format: FormatOption = Format.TABLE,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Show dead letters, the oldest first.

    $ wings share dlq show orders-dead --filter "reason = 'rejected'"

    $ wings share dlq show orders-dead --messages --format json
    """
    check_output(wanted_format)
    with connected(endpoint, dlq_topic) as client:
        topic = client.topic(dlq_topic)
        _require_letters(topic.schema, topic.name)
        wanted = chosen_columns(columns, topic.schema) or LETTER_COLUMNS
        if messages:
            wanted = ["source_topic", "payload"]
        reader = client.scan(topic, columns=wanted, filter=predicate)
        found = _first(reader, max_messages)
        if messages:
            for name, table in _messages(client, found):
                typer.echo(f"messages of {short_name(name)}:", err=True)
                write_all(table.to_batches(), table.schema, wanted_format)
            return
    write_all(found.to_batches(), found.schema, wanted_format)


@dlq.command()
def redrive(
    dlq_topic: DlqArgument,
    *,
    predicate: FilterOption = None,
    max_messages: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Look at the first so many alone. Default: all."),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="Send them there. Default: where they came from."),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(metavar="N", help="Send about so many a second. Default: without pause."),
    ] = None,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Send dead letters back to the topics that they came from, or to another, each once.

        $ wings share dlq redrive orders-dead --filter "error = 'timeout'" --rate 100

    One that was sent to a topic before is not sent there again, however often this is called.
    """
    with connected(endpoint, dlq_topic) as client:
        done = client.redrive(
            dlq_topic, filter=predicate, max_messages=max_messages, to=to, rate=rate
        )
    rest = [
        f"{count:,} {what}"
        for count, what in (
            (done.already_redriven, "were sent back before"),
            (done.without_payload, "hold no message"),
            (done.failed, "failed"),
        )
        if count
    ]
    typer.echo(", ".join([f"{done.redriven:,} dead letters sent back", *rest]))
    for failure in done.failures:
        typer.echo(failure, err=True)
    if done.failed:
        raise typer.Exit(1)


def _config(
    lock: float | None,
    limit: int | None,
    in_flight: int | None,
    dlq_topic: str | None,
    payload: bool | None,
    mode: Mode | None,
    ordering: Ordering | None,
    deliver_at: str | None,
) -> dict[str, Any]:
    given = {
        "lock_duration_ms": None if lock is None else round(lock * 1000),
        "delivery_limit": limit,
        "in_flight_max": in_flight,
        "dlq_topic": dlq_topic,
        "dlq_copy_payload": payload,
        "acquire_mode": None if mode is None else mode.value,
        "ordering": None if ordering is None else ordering.value,
        "deliver_at_column": deliver_at,
    }
    return {key: value for key, value in given.items() if value is not None}


def _start(text: str) -> object:
    start = parse_offset(text)
    if isinstance(start, int):
        raise typer.BadParameter("expected earliest, latest, or a time", param_hint="--from")
    if isinstance(start, str):
        return start
    return {"timestamp": wire_time(start)}


def _accepted(consumer: ShareConsumer, columns: list[str]) -> Iterator[pa.RecordBatch]:
    for delivery in consumer:
        yield delivery.batch.select([*columns, "__offset", "__timestamp"])
        # The next one is asked for, so this one was written.
        consumer.accept(delivery)


def _summary(group: ShareGroup) -> str:
    lag = sum(partition.lag for partition in group.partitions)
    dead = f", dead letters to {_dlq_text(group)}" if group.config["dlq_topic"] else ""
    return (
        f"{_lock_text(group)} lock, {_text(group, 'delivery_limit')} deliveries{dead}, "
        f"{lag:,} message{'' if lag == 1 else 's'} behind"
    )


def _lock_text(group: ShareGroup) -> str:
    milliseconds = group.config["lock_duration_ms"]
    assert isinstance(milliseconds, int)
    return f"{milliseconds / 1000:g} s"


def _dlq_text(group: ShareGroup) -> str:
    name = group.config["dlq_topic"]
    return short_name(name) if isinstance(name, str) else "-"


def _text(group: ShareGroup, key: str) -> str:
    value = group.config[key]
    return f"from {value['timestamp']}" if isinstance(value, dict) else f"{value}"


def _description(group: ShareGroup, *, all_partitions: bool) -> Iterator[str]:
    yield f"Group: {group.name}"
    yield f"Topic: {group.topic}"
    for key in group.config:
        yield f"{key}: {_text(group, key)}"
    yield ""
    if not group.partitions:
        yield "no partitions yet: each comes into being with its first message"
        return
    shown = group.partitions if all_partitions else group.partitions[:PARTITIONS_SHOWN_MAX]
    yield from render(
        [
            Column("partition", [partition_text(each.partition) for each in shown]),
            Column("start", [f"{each.start_offset}" for each in shown], is_number=True),
            Column("in flight", [f"{each.in_flight}" for each in shown], is_number=True),
            Column("lag", [f"{each.lag}" for each in shown], is_number=True),
        ],
        terminal_width(),
    )
    lag = sum(each.lag for each in group.partitions)
    held = sum(each.in_flight for each in group.partitions)
    count = len(group.partitions)
    hidden = f", {count - len(shown):,} of them not shown" if count > len(shown) else ""
    yield (
        f"{lag:,} messages behind, {held:,} of them in flight, "
        f"{count:,} partition{'' if count == 1 else 's'}{hidden}"
    )


def _members_text(found: ShareMembers) -> Iterator[str]:
    shown = found.holds[:HOLDS_SHOWN_MAX]
    if shown:
        yield from render(
            [
                Column("member", [each.member for each in shown]),
                Column("partition", [partition_text(each.partition) for each in shown]),
                Column("first", [f"{each.first}" for each in shown], is_number=True),
                Column("last", [f"{each.last}" for each in shown], is_number=True),
                Column("delivery", [f"{each.delivery_count}" for each in shown], is_number=True),
                Column("since", [wire_time(each.since) for each in shown]),
                Column("until", [wire_time(each.until) for each in shown]),
            ],
            terminal_width(),
        )
    hidden = len(found.holds) - len(shown) + found.holds_left_out
    rest = f", {hidden:,} more ranges not shown" if hidden else ""
    oldest = "" if found.oldest is None else f", the oldest {found.oldest.age_seconds:,.0f} s old"
    count = len(found.members)
    yield (
        f"{found.lag:,} messages behind{oldest}, {found.in_flight:,} of them held by "
        f"{count:,} member{'' if count == 1 else 's'}{rest}"
    )


def _by_dlq(groups: list[ShareGroup]) -> Iterator[tuple[str, list[ShareGroup]]]:
    for name, found in groupby(groups, _dlq_text):
        yield name, list(found)


def _letters(client: Client, name: str) -> int | None:
    """Return how many dead letters a topic holds; None where it was deleted."""
    try:
        states = client.partitions(name)
    except TopicNotFound:
        return None
    return sum(state.next_offset - state.log_start_offset for state in states)


def _require_letters(schema: pa.Schema, name: str) -> None:
    if not {*LETTER_COLUMNS, "payload"} <= set(schema.names):
        raise InvalidArgument(
            f"{name} is no topic of dead letters; `wings share dlq list` lists them"
        )


def _first(reader: pa.RecordBatchReader, rows_max: int) -> pa.Table:
    batches: list[pa.RecordBatch] = []
    left = rows_max
    for batch in reader:
        batches.append(batch.slice(0, left))
        left -= batches[-1].num_rows
        if left == 0:
            break
    return pa.Table.from_batches(batches, reader.schema)


def _messages(client: Client, letters: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield the messages in dead letters, by the topic that they came from."""
    payloads: dict[str, list[bytes]] = {}
    for letter in letters.to_pylist():
        if letter["payload"] is not None:
            payloads.setdefault(letter["source_topic"], []).append(letter["payload"])
    for name, found in payloads.items():
        schema = client.topic(name).schema
        batches = [pa.ipc.read_record_batch(pa.py_buffer(each), schema) for each in found]
        yield name, pa.Table.from_batches(batches, schema)


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        typer.echo(line)
