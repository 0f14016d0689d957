"""`wings consume`: reads a topic under a name whose offsets the server keeps."""

from collections.abc import Iterator
from typing import Annotated

import pyarrow as pa
import typer

from wings_client import Client, Consumer, Topic
from wings_client._stream import OnDataLoss
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
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the consumer.")],
    topic: TopicArgument,
    *,
    partition: FollowedOption = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="Where a name begins that has read nothing yet: earliest, latest, or a time.",
        ),
    ] = "earliest",
    on_data_loss: Annotated[
        OnDataLoss,
        typer.Option(
            help="Where retention has passed its place in a partition: end with an error, or skip "
            "what is gone, and say so."
        ),
    ] = "error",
    columns: ColumnsOption = None,
    predicate: FilterOption = None,
    system_columns: SystemColumnsOption = False,
    wanted_format: FormatOption = Format.TABLE,
    timeout: IdleOption = None,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Show the messages of a topic as they come, and resume there the next time.

        $ wings consume alerts flights --filter 'delay > 60'

    The server keeps the name's offset in each partition. A batch is committed once it is written
    out, so one that was cut off comes again. Standard error says at which offsets it resumes.
    Ctrl-C ends it, with exit status 130.
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
