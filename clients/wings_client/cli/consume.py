"""`wings consume`: reads a topic as a named consumer, whose offsets the server stores."""

from collections.abc import Iterator
from typing import Annotated

import pyarrow as pa
import typer

from wings_client import Client, Consumer, Topic
from wings_client._chunks import OnDataLoss
from wings_client.cli.endpoint import DEFAULT, EndpointOption, TopicArgument, connected
from wings_client.cli.following import (
    RETRY,
    ColumnsOption,
    Display,
    FilterOption,
    FollowedOption,
    FormatOption,
    IdleOption,
    SystemColumnsOption,
)
from wings_client.cli.output import Format, check_output
from wings_client.cli.values import chosen_columns, parse_offset, parse_partition, partition_text

PARTITIONS_SHOWN_MAX = 5
"""Partitions whose offsets are printed when a consumer resumes."""


def consume(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the consumer.")],
    topic: TopicArgument,
    *,
    partition: FollowedOption = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="Start of a consumer without offsets: earliest, latest, or a time.",
        ),
    ] = "earliest",
    on_data_loss: Annotated[
        OnDataLoss,
        typer.Option(
            help="If retention has deleted unread messages: end with an error, or skip them with a "
            "notice."
        ),
    ] = "error",
    columns: ColumnsOption = None,
    predicate: FilterOption = None,
    system_columns: SystemColumnsOption = False,
    wanted_format: FormatOption = Format.TABLE,
    timeout: IdleOption = None,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Show the messages of a topic as they arrive, resuming where the last run ended.

        $ wings consume alerts flights --filter 'delay > 60'

    The server stores the consumer's offset in each partition. A batch is committed after it is
    written, so an interrupted one is repeated. Standard error shows the offsets at which it
    resumes. Ctrl-C ends it, with exit status 130.
    """
    check_output(wanted_format)
    offset = parse_offset(start)
    if isinstance(offset, int):
        raise typer.BadParameter("expected earliest, latest, or a time", param_hint="--from")
    display = Display(wanted_format, system_columns=system_columns)
    with connected(endpoint, topic, RETRY) as client:
        described = client.topic(topic)
        _say_where(client, name, described, start)
        only = None if partition is None else [parse_partition(partition, described)]
        with client.consumer(
            name,
            described,
            partitions=only,
            start=offset,
            on_data_loss=on_data_loss,
            timeout=None if timeout is None else timeout / 1000,
            columns=chosen_columns(columns, described.schema),
            filter=predicate,
            system_columns=True,
        ) as consumer:
            display.run(_batches(consumer), done=lambda: f"; {_where(consumer)}")


def _batches(consumer: Consumer) -> Iterator[pa.RecordBatch]:
    for taken in consumer:
        yield taken.batch


def _say_where(client: Client, name: str, topic: Topic, start: str) -> None:
    offsets = client.committed_offsets(name, topic)
    if not offsets:
        typer.echo(f"{name} has read nothing of it yet, and begins at {start}", err=True)
        return
    shown = [
        f"{partition_text(each.partition)} at {each.offset}"
        for each in offsets[:PARTITIONS_SHOWN_MAX]
    ]
    if len(offsets) > len(shown):
        shown.append(f"and {len(offsets) - len(shown):,} more")
    typer.echo(f"{name} resumes: {', '.join(shown)}", err=True)


def _where(consumer: Consumer) -> str:
    moved = "goes on after them" if consumer.positions else "stays where it was"
    return f"{consumer.name} {moved}"
