"""`wings push`: pushes the rows of a file to a topic, batch by batch, each row once."""

import codecs
import shlex
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, Protocol

import pyarrow as pa
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from wings_client import Client, Producer, Topic
from wings_client.cast import present_columns
from wings_client.cli.endpoint import DEFAULT, KEPT, EndpointOption, connected, short_name
from wings_client.cli.values import columns_text, file_options, parse_fields
from wings_client.files import FileFormat, OpenFile, open_file
from wings_client.files.parts import PartCheck
from wings_core.arrow_types import fields_of
from wings_core.errors import InvalidArgument, SchemaMismatch, TopicNotFound, WingsError
from wings_core.schema_changes import is_wider

if TYPE_CHECKING:
    from wings_core.arrow_types import ArrowField


FileOption = Annotated[
    Path, typer.Argument(metavar="FILE|-", help="What to push; - is standard input.")
]
FormatOption = Annotated[
    FileFormat | None,
    typer.Option("--format", help="Of the file. Default: by its name, or its first bytes."),
]
DelimiterOption = Annotated[
    str | None,
    typer.Option(metavar="CHAR", help="Between CSV's values. Default: a comma; a tab in .tsv."),
]
EncodingOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Of CSV, like latin1 or utf-16. Default: UTF-8."),
]
CreateOption = Annotated[
    bool, typer.Option("--create", help="Create the topic, if there is none, from the first rows.")
]
PartitionKeyOption = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="With --create: the column that rows are routed by."),
]
FieldOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME:TYPE", help="With --create: the type of a column, not to be inferred."
    ),
]


EvolveOption = Annotated[
    bool,
    typer.Option(
        "--evolve",
        help="Add the file's columns that the topic lacks, and take the wider types of columns of "
        "Parquet and Arrow. Needs the right `admin` on the topic.",
    ),
]


def push(
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="Full name, or id in the default namespace.")
    ],
    file: FileOption,
    *,
    file_format: FormatOption = None,
    delimiter: DelimiterOption = None,
    encoding: EncodingOption = None,
    create: CreateOption = False,
    evolve: EvolveOption = False,
    partition_key: PartitionKeyOption = None,
    field: FieldOption = None,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Push the rows of a file to a topic.

    From a file, or from standard input:

        $ wings push flights flights-20k.json --create --partition-key origin

        $ zcat events.jsonl.gz | wings push events - --format jsonl

    Reads JSON (`jsonl`: an object on each line; `json`: one array, or objects one after another),
    CSV with names in its first line, Parquet, and Arrow IPC, also compressed (`.gz`, `.zst`,
    `.bz2`), in batches: a file may be larger than memory. Columns are found by name, and cast to
    the topic's types where no value changes.

    A bad row is named by its line, or by its number from 1; nothing of its batch is kept, what was
    pushed before it stays, and the exit status is 1. Ctrl-C stops after what was sent is answered.

    `--create` infers types from the first 16 MiB. Where later rows do not fit them, say what the
    column is: `--field zip:string`. In CSV, nothing between commas is null, `""` an empty string.

    `--evolve` lets the topic's schema grow by what the file has more:

        $ wings push flights flights-with-gates.parquet --evolve
    """
    if partition_key is not None and not create:
        raise typer.BadParameter("--partition-key goes with --create")
    if field and not (create or evolve):
        raise typer.BadParameter("--field goes with --create or --evolve")
    _check_text(delimiter, encoding)
    fields = parse_fields(field or [])
    path = _path(file)
    with (
        file_options(),
        open_file(path, file_format, delimiter, encoding) as opened,
        connected(endpoint, topic) as client,
    ):
        created = False
        try:
            described, inferred = client.topic(topic), set[str]()
        except TopicNotFound:
            if not create:
                raise
            described = _create(client, topic, _inferred(opened, fields), partition_key)
            inferred = set(described.schema.names) - fields.keys()
            created = True
        if partition_key is not None and described.partition_key != partition_key:
            raise InvalidArgument(
                f"the topic is there already, partitioned by {described.partition_key!r:.80}, not "
                f"by {partition_key!r:.80}"
            )
        if evolve and not created:
            described = _evolved(client, described, opened, fields)
        try:
            with _deleted_if_empty(client, described) if created else nullcontext():
                _push(client, described, opened)
        except SchemaMismatch as error:
            column = error.facts.get("column")
            if isinstance(column, str) and column in inferred:
                raise _guessed(error, column) from None
            raise


def _check_text(delimiter: str | None, encoding: str | None) -> None:
    if delimiter is not None and len(delimiter) != 1:
        raise typer.BadParameter("one character", param_hint="--delimiter")
    if encoding is not None:
        _check_encoding(encoding)


def _check_encoding(name: str) -> None:
    try:
        codecs.getincrementaldecoder(name)
        with suppress(UnicodeError):  # One letter may be an incomplete text.
            b"a".decode(name)
    except (LookupError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--encoding") from None


def _path(file: Path) -> Path | None:
    """Return the path of the file; None for standard input.

    Raises:
        typer.BadParameter: There is no such file.
    """
    if str(file) == "-":
        if sys.stdin.isatty():
            typer.echo("reading standard input; Ctrl-D ends it", err=True)
        return None
    if not file.is_file() and not file.is_fifo():
        raise typer.BadParameter(f"there is no file {str(file)!r}", param_hint="FILE")
    return file


def _inferred(file: OpenFile, fields: "Mapping[str, ArrowField]") -> pa.Schema:
    try:
        return file.schema(fields)
    except WingsError as error:
        raise type(error)(f"{error.message}; nothing was pushed", **error.facts) from None


def _guessed(error: SchemaMismatch, column: str) -> SchemaMismatch:
    """Return the error with a hint: the type was inferred, and how to set it."""
    option = shlex.quote(f"{column}:TYPE")
    return SchemaMismatch(
        f"{error.message}. The column's type is that of the first rows: to set it, push to a new "
        f"topic with --field {option}",
        **error.facts,
    )


def _create(client: Client, topic: str, schema: pa.Schema, partition_key: str | None) -> Topic:
    created = client.create_topic(topic, schema, partition_key, if_not_exists=True)
    typer.echo(f"created {short_name(created.name)}: {columns_text(created)}", err=True)
    return created


def _evolved(
    client: Client, topic: Topic, file: OpenFile, fields: "Mapping[str, ArrowField]"
) -> Topic:
    """Let a topic's schema grow by what a file has more; returns the topic as it is then."""
    known = {field.name: field.type for field in fields_of(topic.schema)}
    found = fields_of(_inferred(file, fields))
    add = [field.with_nullable(True) for field in found if field.name not in known]
    # What is inferred from text is as wide as can be.
    has_types = file.format in {FileFormat.PARQUET, FileFormat.ARROW}
    widen = [
        field
        for field in found
        if has_types and field.name in known and field.name != topic.partition_key
        if is_wider(known[field.name], field.type)
    ]
    if not add and not widen:
        return topic
    altered = client.alter_schema(topic, add=pa.schema(add), widen=pa.schema(widen))
    typer.echo(
        f"{short_name(altered.name)} has version {altered.schema_version} of its schema: "
        f"{columns_text(altered)}",
        err=True,
    )
    return altered


def _target(topic: Topic, file: OpenFile) -> pa.Schema:
    """Return the columns that a file is read as: of a topic that has grown, those that it has."""
    is_json = file.format in {FileFormat.JSON, FileFormat.JSONL}
    if topic.schema_version == 1 or is_json:  # In JSON, what is absent is null.
        return topic.schema
    there = present_columns(file.rows.schema().names, topic.schema)
    return pa.schema(fields_of(topic.schema)[:there])


@contextmanager
def _deleted_if_empty(client: Client, created: Topic) -> Generator[None]:
    """Delete the topic that was created for a file, if the block fails and it is empty."""
    try:
        yield
    except (WingsError, typer.Exit):
        with suppress(WingsError):  # The first error is the more specific one.
            if client.topic(created.name).uuid == created.uuid and not any(
                state.next_offset for state in client.partitions(created)
            ):
                client.delete_topic(created)
                typer.echo(f"deleted {short_name(created.name)}, which is empty", err=True)
        raise


def _push(client: Client, topic: Topic, file: OpenFile) -> None:
    started = time.monotonic()
    target = _target(topic, file)
    check = PartCheck(target, topic.partition_key)
    producer = client.producer(topic)
    try:
        with _shown(file, producer) as progress:
            for part in file.rows.parts(target):
                check.check(part)
                producer.send(part.batch)
                progress.update()
            progress.wait()
            producer.close()
    except WingsError as error:
        _fail(error, producer)
    except KeyboardInterrupt:
        _stop(producer)
    seconds = time.monotonic() - started
    rows = producer.rows_committed
    counted = "1 row" if rows == 1 else f"{rows:,} rows"
    typer.echo(
        f"{counted} pushed to {short_name(topic.name)} in {seconds:,.1f} s "
        f"({rows / max(seconds, 1e-3):,.0f} rows/s)"
    )


def _fail(error: WingsError, producer: Producer) -> NoReturn:
    """Wait for the batches in flight, and raise the error with the count of committed rows.

    Raises:
        WingsError: Always.
    """
    with suppress(WingsError):  # The first error is the more specific one.
        _close_when_answered(producer)
    facts = {**error.facts, KEPT: _kept(producer)}
    raise type(error)(f"{error.message}; {facts[KEPT]}", **facts) from None


def _stop(producer: Producer) -> NoReturn:
    """Wait for the batches in flight, and print how many rows are committed.

    Raises:
        typer.Exit: Always, with the status of an interrupt.
    """
    problem = ""
    try:
        _close_when_answered(producer)
    except WingsError as error:
        problem = f" ({error.message})"
    typer.echo(f"wings: stopped{problem}; {_kept(producer)}", err=True)
    raise typer.Exit(130)


def _close_when_answered(producer: Producer) -> None:
    """Wait until every batch is answered or failed, and close."""
    # A second `close`, after an interrupted one, would not wait.
    producer.flush()
    producer.close()


def _kept(producer: Producer) -> str:
    rows, in_doubt = producer.rows_committed, producer.rows_in_doubt
    if in_doubt:
        before = "" if not rows else f"the first {_counted(rows)} committed, and "
        further = "rows" if not rows else "further rows"
        return f"{before}up to {in_doubt:,} {further} may be committed"
    if not rows:
        return "nothing was pushed"
    return (
        f"the first {_counted(rows)} committed, and nothing after {'it' if rows == 1 else 'them'}"
    )


def _counted(rows: int) -> str:
    return "row is" if rows == 1 else f"{rows:,} rows are"


class _Shown(Protocol):
    def update(self) -> None:
        """Update the progress."""
        ...

    def wait(self) -> None:
        """Update the progress until every batch is answered."""
        ...


@contextmanager
def _shown(file: OpenFile, producer: Producer) -> Generator[_Shown]:
    """Show a bar with rows a second on standard error, where that is a terminal."""
    console = Console(stderr=True)
    columns = (
        TextColumn("pushing"),
        BarColumn(bar_width=20),
        # In a narrow terminal, the bar shrinks, not this.
        _Amount(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        yield _Bar(progress, file, producer)


class _Bar:
    """Keeps a progress bar up to date."""

    def __init__(self, progress: Progress, file: OpenFile, producer: Producer) -> None:
        self._progress = progress
        self._file = file
        self._producer = producer
        self._started = time.monotonic()
        self._task = progress.add_task("", total=file.total, rows=0, rate=0.0)

    def update(self) -> None:
        rows = self._producer.rows_committed
        seconds = max(time.monotonic() - self._started, 1e-3)
        self._progress.update(
            self._task, completed=self._file.position, rows=rows, rate=rows / seconds
        )

    def wait(self) -> None:
        if not self._progress.disable:
            self._producer.flush()
            self.update()


class _Amount(ProgressColumn):
    """Rows, and rows a second."""

    def render(self, task: "Task") -> Text:
        """Return the text for a task."""
        fields = task.fields
        return Text(f"{fields['rows']:,} rows, {fields['rate']:,.0f} rows/s")
