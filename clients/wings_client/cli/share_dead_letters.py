"""`wings share dlq`: shows dead letters, and sends them back."""

from collections.abc import Iterator
from itertools import groupby
from typing import Annotated

import pyarrow as pa
import typer

from wings_client import Client, ShareGroup
from wings_client.cli.app import MARKUP
from wings_client.cli.endpoint import connected, short_name
from wings_client.cli.options import (
    DEFAULT,
    ColumnsOption,
    DryRunOption,
    EndpointOption,
    FilterOption,
    FormatOption,
    YesOption,
    goes_on,
)
from wings_client.cli.output import check_output, write_all, write_list
from wings_client.cli.values import chosen_columns, counts_text, messages_in
from wings_core.errors import InvalidArgument, TopicNotFound

DlqArgument = Annotated[
    str, typer.Argument(metavar="DLQ_TOPIC", help="The topic of dead letters: full name, or id.")
]
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
"""Columns that `dlq show` shows by default."""

dlq = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=MARKUP,
    help="Show dead letters, and send them back.",
)


@dlq.command("list")
def list_dead_letters(
    *, wanted_format: FormatOption = "table", endpoint: EndpointOption = DEFAULT
) -> None:
    """List the topics of dead letters of all share groups, with their numbers of letters.

    $ wings share dlq list
    """
    with connected(endpoint) as client:
        groups = [group for group in client.share_groups() if group.config["dlq_topic"]]
        groups.sort(key=dlq_text)
        rows = [
            (name, ", ".join(f"{each.name} of {short_name(each.topic)}" for each in found), count)
            for name, found in groupby(groups, dlq_text)
            if (count := _letters(client, name)) is not None
        ]
    names = ("dead letters", "of", "messages")
    write_list(names, rows, wanted_format, empty="no share group has a topic of dead letters")


@dlq.command("show")
def show_dead_letters(
    dlq_topic: DlqArgument,
    *,
    predicate: FilterOption = None,
    columns: ColumnsOption = None,
    messages: Annotated[
        bool,
        typer.Option("--messages", help="Show the messages instead of the letters."),
    ] = False,
    max_messages: Annotated[
        int, typer.Option(metavar="N", min=1, help="Most letters to show.")
    ] = LETTERS_MAX,
    wanted_format: FormatOption = "table",
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
        typer.Option(metavar="N", min=1, help="Only examine the first N. Default: all."),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="Topic to send them to. Default: their origin."),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(metavar="N", help="Approximate letters per second. Default: no limit."),
    ] = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Send dead letters back to their topics of origin, or to another, each once.

        $ wings share dlq redrive orders-dead --filter "error = 'timeout'" --rate 100

    A letter that was sent to a topic before is not sent there again. Asks for confirmation on a
    terminal; elsewhere `--yes` is required.
    """
    with connected(endpoint, dlq_topic) as client:
        # Only looked up to be shown: to redrive needs no right to read them.
        count = "the"
        if dry_run:
            letters = client.scan(dlq_topic, columns=["source_topic"], filter=predicate)
            found = sum(batch.num_rows for batch in letters)
            count = f"at most {min(found, max_messages or found):,}"
        which = "" if predicate is None else f", those with {predicate}"
        question = f"Send back {count} dead letters of {short_name(dlq_topic)}{which}"
        if not goes_on(question, yes=yes, dry_run=dry_run):
            return
        done = client.redrive(
            dlq_topic, filter=predicate, max_messages=max_messages, to=to, rate=rate
        )
    counts = counts_text(
        (done.redriven, "dead letters sent back"),
        (done.already_redriven, "were sent back before"),
        (done.without_payload, "hold no message"),
        (done.failed, "failed"),
    )
    typer.echo(counts)
    for failure in done.failures:
        typer.echo(failure, err=True)
    if done.failed:
        raise typer.Exit(1)


def _letters(client: Client, name: str) -> int | None:
    """Return the number of dead letters in a topic; None if it was deleted."""
    try:
        return messages_in(client.partitions(name))
    except TopicNotFound:
        return None


def _require_letters(schema: pa.Schema, name: str) -> None:
    if not {*LETTER_COLUMNS, "payload"} <= set(schema.names):
        raise InvalidArgument(
            f"{name} is not a topic of dead letters; `wings share dlq list` lists them"
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
    """Yield the messages in dead letters, by their topic of origin."""
    payloads: dict[str, list[bytes]] = {}
    for letter in letters.to_pylist():
        if letter["payload"] is not None:
            payloads.setdefault(letter["source_topic"], []).append(letter["payload"])
    for name, found in payloads.items():
        schema = client.topic(name).schema
        batches = [pa.ipc.read_record_batch(pa.py_buffer(each), schema) for each in found]
        yield name, pa.Table.from_batches(batches, schema)


def dlq_text(group: ShareGroup) -> str:
    """Return the topic of a group's dead letters; a dash if there is none."""
    name = group.config["dlq_topic"]
    return short_name(name) if isinstance(name, str) else "-"
