"""`wings export`: a topic's messages as a file."""

import os
import secrets
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Annotated, Any, Literal, cast

import pyarrow as pa
import typer

from wings_client import Client, Topic
from wings_client.cli.endpoint import connected
from wings_client.cli.options import (
    DEFAULT,
    EndpointOption,
    PartitionOption,
    ReadingOptions,
    TopicArgument,
    grouped,
)
from wings_client.cli.output import parquet_writer, progress_line, stream_writer
from wings_client.cli.values import Offset, parse_offset, parse_partition
from wings_core.errors import InvalidArgument

ROW_GROUP_BYTES = 64 * 1024 * 1024
"""Approximate bytes in memory of a Parquet row group, or an Arrow batch."""

STANDARD_OUTPUT = "-"


ExportFormat = Literal["parquet", "arrow", "csv", "jsonl"]
"""How an exported file is written."""

_BY_SUFFIX: dict[str, ExportFormat] = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeOptions:
    """Options of the range of offsets to read."""

    partition: PartitionOption = None
    offset: Annotated[
        str,
        typer.Option(
            "--from",
            "--offset",
            metavar="WHERE",
            help="Start in each partition: an offset, earliest, latest, a time like "
            "2026-11-20T12:00:00Z or -1h, or -100 for the last hundred.",
        ),
    ] = "earliest"
    end: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="End, exclusive: a number or a time. Default: the log's end."
        ),
    ] = None


@grouped
def export(
    topic: TopicArgument,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="The file to write; - for standard output.")
    ],
    *,
    endpoint: EndpointOption = DEFAULT,
    file_format: Annotated[
        ExportFormat | None,
        typer.Option("--format", help="Default: by FILE's suffix."),
    ] = None,
    wanted_range: RangeOptions,
    reading: ReadingOptions,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing FILE.")] = False,
) -> None:
    """Write a topic's messages to a file of Parquet, Arrow, CSV or JSON lines.

    Writes the messages committed when the command starts, in order within each partition, with
    partitions mixed. FILE appears only when it is complete.

    $ wings export orders orders.parquet

    $ wings export orders - --format jsonl --from 2026-11-20T00:00:00Z --end 2026-11-21T00:00:00Z
    """
    wanted = _format(file, file_format)
    begin = parse_offset(wanted_range.offset)
    finish = None if wanted_range.end is None else parse_offset(wanted_range.end, "--end")
    if file == STANDARD_OUTPUT and wanted == "parquet" and sys.stdout.isatty():
        raise typer.BadParameter("parquet is binary: give a file", param_hint="FILE")
    with connected(endpoint, topic) as client:
        found = client.topic(topic)
        options = {**reading.arguments(found.schema), "offset": begin}
        readers = _readers(client, found, wanted_range.partition, finish, options)
        with _target(file, force=force) as sink:
            written = _write(sink, wanted, readers, is_stream=file == STANDARD_OUTPUT)
    if file != STANDARD_OUTPUT:
        typer.echo(f"{file}: {written:,} messages")


def _format(file: str, wanted: ExportFormat | None) -> ExportFormat:
    found = wanted or _BY_SUFFIX.get(Path(file).suffix.lower())
    if found is None:
        known = ", ".join(_BY_SUFFIX)
        raise typer.BadParameter(
            f"{file} has none of the suffixes {known}: give a format", param_hint="--format"
        )
    return found


def _readers(
    client: Client,
    topic: Topic,
    partition: str | None,
    finish: Offset | None,
    options: dict[str, Any],
) -> Iterator[pa.RecordBatchReader]:
    """Yield readers of the messages, at least one even if there are none."""
    one = partition is not None or topic.partition_key is None
    value = parse_partition(partition, topic) if one else None
    if finish is None or isinstance(finish, int):
        yield client.scan(topic, value, end_offset=finish, **options)
        return
    if one:
        at = client.resolve_offset(topic, finish, value)
        yield client.scan(topic, value, end_offset=at, **options)
        return
    ends = client.resolve_offsets(topic, finish)
    if not ends:
        yield client.scan(topic, **options)  # For the schema.
    for each, at in ends.items():
        options["partitions"] = [each]
        yield client.scan(topic, end_offset=at, **options)


def _write(
    sink: IO[bytes],
    wanted: ExportFormat,
    readers: Iterator[pa.RecordBatchReader],
    *,
    is_stream: bool,
) -> int:
    """Write the rows of all readers; returns their number."""
    first = next(readers)
    written = 0
    started = time.monotonic()
    with (
        progress_line("exporting") as show,
        _writer(sink, wanted, first.schema, is_stream) as write,
    ):
        pending: list[pa.RecordBatch] = []
        size = 0
        for batch in chain(first, chain.from_iterable(readers)):
            pending.append(batch)
            size += batch.nbytes
            written += batch.num_rows
            if size >= ROW_GROUP_BYTES:
                write(pa.Table.from_batches(pending))
                pending, size = [], 0
            rate = written / max(time.monotonic() - started, 1e-3)
            show(f"{written:,} messages, {rate:,.0f} a second")
        if pending:
            write(pa.Table.from_batches(pending))
    return written


@contextmanager
def _writer(
    sink: IO[bytes], wanted: ExportFormat, schema: pa.Schema, is_stream: bool
) -> Generator[Callable[[pa.Table], None]]:
    """Yield a writer of rows of a schema; leaving the block completes the file."""
    if wanted == "parquet":
        with parquet_writer(sink, schema) as write_table:
            yield write_table
    elif wanted == "arrow" and not is_stream:
        with pa.ipc.new_file(cast("Any", sink), schema) as arrow:
            yield lambda table: arrow.write_table(table.combine_chunks())
    else:
        writer = stream_writer(schema, wanted, sink)

        def write(table: pa.Table) -> None:
            for batch in table.combine_chunks().to_batches():
                writer.write(batch)

        yield write
        writer.close()


@contextmanager
def _target(file: str, *, force: bool) -> Generator[IO[bytes]]:
    """Yield a sink; a file gets its name, durably, when the block succeeds."""
    if file == STANDARD_OUTPUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(file)
    if path.exists() and not force:
        raise InvalidArgument(f"{path} exists already: --force replaces it")
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with unfinished.open("xb") as sink:
            yield sink
            sink.flush()
            os.fsync(sink.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
