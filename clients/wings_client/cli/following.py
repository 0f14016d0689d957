"""`wings tail` and `wings consume`: show messages as they arrive, until Ctrl-C."""

import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Annotated, Any

import pyarrow as pa
import typer

from wings_client import Client, Consumer, Topic
from wings_client._arguments import build
from wings_client._chunks import OnDataLoss
from wings_client._consumer_reads import ConsumerReads
from wings_client._transport import Transport
from wings_client.cli.endpoint import RETRY, connected, connected_transport, short_name
from wings_client.cli.options import (
    DEFAULT,
    ConsumerArgument,
    EndpointOption,
    FollowingOptions,
    PartitionOption,
    TopicArgument,
    grouped,
)
from wings_client.cli.output import Format, Writer, check_output, stream_writer
from wings_client.cli.values import (
    Offset,
    count_of,
    parse_offset,
    parse_partition,
    parse_start_or_last,
    partition_text,
)
from wings_core.contracts.reads import ReadOptions
from wings_core.contracts.sql import LiveBody
from wings_core.errors import InvalidTicket
from wings_core.partitions import JsonScalar

PARTITION, OFFSET, TIMESTAMP = "__partition", "__offset", "__timestamp"


class Display:
    """Writes batches as they arrive, and counts messages.

    Args:
        wanted: The format.
        system_columns: Whether to show system columns; otherwise a table shows only the offset.
        names: The columns to show instead, in order.

    Attributes:
        messages: Number of messages written.
    """

    def __init__(
        self, wanted: Format, *, system_columns: bool, names: Sequence[str] | None = None
    ) -> None:
        self.messages = 0
        self._names = names
        self._format: Format = wanted
        self._system_columns = system_columns
        self._writer: Writer | None = None

    def show(self, batch: pa.RecordBatch) -> None:
        """Write a batch with system columns."""
        system = [name for name in batch.schema.names if name in {PARTITION, OFFSET, TIMESTAMP}]
        names = [name for name in batch.schema.names if name not in system]
        if self._system_columns:
            names += system
        elif self._format == "table":
            names.insert(0, OFFSET)
        shown = batch.select(list(self._names or names))
        if self._writer is None:
            self._writer = stream_writer(shown.schema, self._format)
        self.messages += batch.num_rows
        self._writer.write(shown)

    def run(self, batches: Iterator[pa.RecordBatch], done: Callable[[], str] = str) -> None:
        """Write all batches, until they end or on Ctrl-C.

        Args:
            batches: Batches; blocks while there are none.
            done: Returns the text to print after the count of messages.

        Raises:
            typer.Exit: Interrupted by Ctrl-C, with its exit status.
        """
        interrupted = False
        try:
            for batch in batches:
                self.show(batch)
        except KeyboardInterrupt:
            interrupted = True
        if self._writer is not None:
            self._writer.close()
        if interrupted:
            typer.echo(f"stopped after {count_of(self.messages, 'message')}{done()}", err=True)
            raise typer.Exit(130)


def say(text: str) -> None:
    """Print a line on standard error, if it is a terminal."""
    if sys.stderr.isatty():
        typer.echo(text, err=True)


@grouped
def tail(
    topic: TopicArgument,
    *,
    partition: PartitionOption = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="earliest, latest, an offset, a time like 2026-11-20T12:00:00Z or -1h, or "
            "-100 for the last hundred of each partition. Later partitions are shown from their "
            "start.",
        ),
    ] = "latest",
    shown: FollowingOptions,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Show the messages of all partitions of a topic as they arrive.

    As a table for people, or as data for another program:

        $ wings tail flights --filter 'delay > 60' --columns origin,destination,delay

        $ wings tail flights --partition JFK --from earliest --format json | jq .delay

    Within a partition messages are shown in order, each once, even if the server restarts
    meanwhile. Ctrl-C ends it, with exit status 130.
    """
    check_output(shown.wanted_format, is_endless=True)
    offset = parse_offset(start)
    display = Display(shown.wanted_format, system_columns=shown.system_columns)
    with connected_transport(endpoint, topic, RETRY) as (client, transport):
        described = client.topic(topic)
        arguments = shown.arguments(described.schema)
        fixed = _fixed(described, partition)
        reads = _reads(client, transport, described, fixed, offset, arguments)
        say(f"following {short_name(described.name)} from {start}; Ctrl-C ends it")
        display.run(_batches(reads, shown.timeout))


def show_live(
    statement: str,
    namespace: str | None,
    start: str,
    idle_seconds: float | None,
    wanted: Format,
    endpoint: str,
) -> None:
    """Show the rows of a statement's live view as they arrive, until Ctrl-C.

    Also ends after `idle_seconds` without a row.
    """
    offset = parse_offset(start)
    with connected_transport(endpoint, retry=RETRY) as (client, transport):
        body = LiveBody(sql=statement, namespace=namespace)
        view = transport.act("sql-live", body, repeatable=True)
        topic = client.topic(view["topic"])
        names: list[str] | None = view["columns"]
        own = [name for name in names or () if name in topic.schema.names]
        arguments = {"columns": own or None, "filter": view["filter"], "system_columns": True}
        reads = _reads(client, transport, topic, _all(topic), offset, arguments)
        say(f"following {short_name(topic.name)} from {start}; Ctrl-C ends it")
        display = Display(wanted, system_columns=True, names=names)
        display.run(_batches(reads, idle_seconds))


def _reads(
    client: Client,
    transport: Transport,
    topic: Topic,
    fixed: list[JsonScalar] | None,
    offset: Offset,
    arguments: dict[str, Any],
) -> ConsumerReads:
    starts = _starts(client, topic, fixed, offset)
    options = build(ReadOptions, "tail", error=InvalidTicket, **arguments)
    return ConsumerReads(transport, topic, fixed, starts, options, on_data_loss="skip")


def _all(topic: Topic) -> list[JsonScalar] | None:
    """Return the partitions for a read of the whole topic."""
    return None if topic.partition_key is not None else [None]


def _fixed(topic: Topic, given: str | None) -> list[JsonScalar] | None:
    """Return the given partition; None for all."""
    return _all(topic) if given is None else [parse_partition(given, topic)]


def _starts(
    client: Client, topic: Topic, fixed: Sequence[JsonScalar] | None, offset: Offset
) -> dict[JsonScalar, int]:
    """Return the start offset of each partition, where it is not the log's start."""
    if offset == "earliest":
        return {}
    if fixed is not None:
        return {value: client.resolve_offset(topic, offset, value) for value in fixed}
    if isinstance(offset, int) and offset >= 0:
        states = {state.partition: state for state in client.partitions(topic)}
        return {value: max(offset, state.log_start_offset) for value, state in states.items()}
    return client.resolve_offsets(topic, offset)


def _batches(reads: ConsumerReads, idle_seconds: float | None) -> Generator[pa.RecordBatch]:
    """Yield the batches read; ends after `idle_seconds` without one."""
    try:
        reads.start()
        while True:
            taken = reads.handover.take(idle_seconds)
            accepted = None if taken is None else reads.accept(taken)
            if accepted is not None:
                yield accepted.batch
            elif reads.handover.ended or not reads.lags():
                return
    finally:
        reads.close()


PARTITIONS_SHOWN_MAX = 5
"""Partitions whose offsets are printed when a consumer resumes."""


@grouped
def consume(
    name: ConsumerArgument,
    topic: TopicArgument,
    *,
    partition: PartitionOption = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="Start of a consumer without offsets: earliest, latest, a time like -1h, or "
            "-100 for the last hundred of each partition.",
        ),
    ] = "earliest",
    on_data_loss: Annotated[
        OnDataLoss,
        typer.Option(
            help="If retention has deleted unread messages: end with an error, or skip them with a "
            "notice."
        ),
    ] = "error",
    group: Annotated[
        bool,
        typer.Option(
            "--group",
            help="Join as a member: the runs of one name share the partitions of the topic.",
        ),
    ] = False,
    instance: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="With --group: a name that survives restarts; a run of it that starts within 45 s "
            "of the last has its partitions.",
        ),
    ] = None,
    shown: FollowingOptions,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Show the messages of a topic as they arrive, resuming where the last run ended.

        $ wings consume alerts flights --filter 'delay > 60'

    With `--group`, each of several runs reads a part of the partitions, and takes over those of a
    run that ends:

        $ wings consume alerts flights --group

    The server stores the consumer's offset in each partition. A batch is committed after it is
    written, so an interrupted one is repeated. Standard error shows the offsets at which it
    resumes. Ctrl-C ends it, with exit status 130.
    """
    check_output(shown.wanted_format, is_endless=True)
    if group and partition is not None:
        raise typer.BadParameter("a member of a group is assigned its partitions: omit --partition")
    if instance is not None and not group:
        raise typer.BadParameter("--instance is of a member: add --group")
    offset = parse_start_or_last(start)
    display = Display(shown.wanted_format, system_columns=shown.system_columns)
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
            timeout=shown.timeout,
            group=group,
            instance=instance,
            **shown.arguments(described.schema),
        ) as consumer:
            display.run((taken.batch for taken in consumer), done=lambda: f"; {_where(consumer)}")


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
