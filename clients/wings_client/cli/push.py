"""`wings push`: pushes the rows of files to a topic, each file whole or not at all."""

import codecs
import shlex
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated

import pyarrow as pa
import typer

from wings_client import Client, Topic
from wings_client.cli.endpoint import connected, short_name
from wings_client.cli.options import DEFAULT, EndpointOption, TopicArgument, grouped
from wings_client.cli.push_inputs import Input, inputs_of
from wings_client.cli.push_rows import PushRecord, StreamPush, WholePush, aside
from wings_client.cli.values import columns_text, comma_names, count_of, file_options, parse_fields
from wings_client.files import FileFormat, OpenFile, open_file
from wings_client.files.opened import NULLS, RECOGNISED, texts_of
from wings_client.files.parts import ChosenColumns, PartCheck
from wings_core.arrow_types import fields_of
from wings_core.errors import InvalidArgument, TopicNotFound, WingsError
from wings_core.schema_changes import is_wider

if TYPE_CHECKING:
    from wings_core.arrow_types import ArrowField


FilesOption = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE...",
        help="Files, directories, patterns like 'logs/*.csv', or s3://BUCKET/KEY; - for standard "
        "input.",
    ),
]

Reopen = Callable[[], AbstractContextManager[OpenFile]]
"""Opens a file again, from its start."""


@dataclass(frozen=True, kw_only=True)
class FilePushOptions:
    """Options of reading and pushing files."""

    file_format: Annotated[
        FileFormat | None,
        typer.Option("--format", help="Format of the files. Default: by name, or first bytes."),
    ] = None
    delimiter: Annotated[
        str | None,
        typer.Option(
            metavar="CHAR", help="Delimiter of CSV. Default: detected from the first lines."
        ),
    ] = None
    encoding: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Encoding of CSV, like latin1 or utf-16. Default: UTF-8."
        ),
    ] = None
    null: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Another unquoted text that is null in CSV, like NA."),
    ] = None
    time_format: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT",
            help="Form of the times in CSV beside ISO 8601, like '%Y/%m/%d %H:%M'.",
        ),
    ] = None
    create: Annotated[
        bool,
        typer.Option("--create", help="Create the topic, if it is missing, from the first rows."),
    ] = False
    evolve: Annotated[
        bool,
        typer.Option(
            "--evolve",
            help="Add the file's columns that the topic lacks, and widen columns to the types of "
            "Parquet, Arrow and ORC files. Needs the right `admin` on the topic.",
        ),
    ] = False
    partial: Annotated[
        bool,
        typer.Option(
            "--partial",
            help="Push rows as they are read: those before a bad row stay. Always used for "
            "standard input.",
        ),
    ] = False
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue interrupted pushes of the same files from the last day, and skip files "
            "pushed already, so that each row is pushed once.",
        ),
    ] = False
    partition_key: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="With --create: the column of the partition key."),
    ] = None
    field: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:TYPE",
            help="Type of a column, instead of the inferred one. In JSON, string keeps any value "
            "as text.",
        ),
    ] = None
    columns: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES", help="Columns of the files to push, comma-separated; repeatable."
        ),
    ] = None
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="NAMES", help="Columns of the files to leave out, like __typename."),
    ] = None

    def check(self) -> None:
        """Check the options.

        Raises:
            typer.BadParameter: An option is malformed, or contradicts another.
        """
        if self.partition_key is not None and not self.create:
            raise typer.BadParameter("--partition-key needs --create")
        if self.partial and self.resume:
            raise typer.BadParameter("--resume is for files pushed as a whole, not with --partial")
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise typer.BadParameter("one character", param_hint="--delimiter")
        encoding = self.encoding or "utf-8"
        try:
            codecs.getincrementaldecoder(encoding)
            with suppress(UnicodeError):  # One letter may be an incomplete text.
                b"a".decode(encoding)
        except (LookupError, ValueError) as error:
            raise typer.BadParameter(str(error), param_hint="--encoding") from None
        _ = self.fields

    @cached_property
    def fields(self) -> "Mapping[str, ArrowField]":
        """Columns with given types."""
        return parse_fields(self.field or [])

    @cached_property
    def guessed(self) -> set[str]:
        """Columns with inferred types, which apply to all rows of all files."""
        return set()

    @cached_property
    def chosen(self) -> ChosenColumns:
        """The columns to read."""
        return ChosenColumns(comma_names(self.columns) or None, comma_names(self.exclude))

    @property
    def texts(self) -> frozenset[str]:
        """Columns to read as strings."""
        return texts_of(self.fields)

    @property
    def of_rows(self) -> tuple[str | None, ...]:
        """Options that affect the rows read from a file."""
        nulls = [f"null {text}" for text in sorted(self.null or ())]
        only = [f"only {name}" for name in sorted(self.chosen.only or ())]
        without = [f"without {name}" for name in sorted(self.chosen.without)]
        texts = sorted(self.texts)
        times = [] if self.time_format is None else [f"times {self.time_format}"]
        csv = (self.delimiter, self.encoding, *times)
        return (self.file_format, *csv, *texts, *nulls, *only, *without)

    def opened(self, given: Input) -> AbstractContextManager[OpenFile]:
        """Open a file to read its rows."""
        return open_file(
            given.path,
            self.file_format,
            self.delimiter or RECOGNISED,
            self.encoding,
            name=given.name,
            texts=self.texts,
            nulls=(*NULLS, *(self.null or ())),
            time_format=self.time_format,
            chosen=self.chosen,
            folders=given.folders,
        )


@grouped
def push(
    topic: TopicArgument,
    files: FilesOption,
    *,
    options: FilePushOptions,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Push the rows of files to a topic, each file whole or not at all.

    From files, or from standard input:

        $ wings push flights flights-20k.json --create --partition-key origin

        $ wings push flights 'flights/2026-*.parquet'

        $ zcat events.jsonl.gz | wings push events - --format jsonl

    Reads JSON (`jsonl`: one object per line; `json`: one array, or consecutive objects), CSV with
    names in the first line, Parquet, and Arrow IPC, optionally compressed (`.gz`, `.zst`, `.bz2`),
    in batches, so that a file may be larger than memory. Columns are matched by name, and cast to
    the topic's types if no value changes.

    A file's rows become visible together, when all are read. A bad row is reported by its line, or
    its number from 1; then no row of its file is pushed, but other files are, and the exit status
    is 1. With `--partial`, and from standard input, rows are pushed as they are read; Ctrl-C stops
    after the response to the rows sent.

    An interrupted push can be resumed, without duplicates:

        $ wings push flights big.csv --resume

    `--create` infers types from the first 16 MiB and, for JSON lines and CSV, from samples of the
    rest. Rows that do not fit are rejected, even if only the text of a number would change, like
    007: give the type with `--field zip:string`, in JSON too.
    In CSV, an empty value is null, and `""` an empty string; `--null NA` adds another null.
    Times of CSV are those of ISO 8601; `--time-format '%Y/%m/%d %H:%M'` adds a form.

    Folders named like `day=2026-01-02` below a directory or pattern become columns. `--columns` and
    `--exclude` choose columns. An unnamed pandas index is left out.

    `--evolve` adds the file's new columns to the topic's schema, after checking that the whole file
    fits:

        $ wings push flights flights-with-gates.parquet --evolve
    """
    options.check()
    with connected(endpoint, topic) as client, inputs_of(files) as inputs:
        if not options.create:
            _found(client, topic, options)  # An unknown topic is reported before any file is read.
        problems = 0
        for each in inputs:
            try:
                with file_options():
                    _push_one(client, topic, each, options)
            except InvalidArgument as error:  # Specific to this file: the others are pushed.
                is_named = error.message.startswith(f"{each.name}:")
                message = error.message if is_named else f"{each.name}: {error.message}"
                message += _hint(error, options.guessed)
                if len(inputs) == 1:
                    raise type(error)(message, **error.facts) from None
                problems += 1
                typer.echo(f"wings: {message}", err=True)
        if problems:
            raise InvalidArgument(f"{problems} of {len(inputs)} files were not pushed")


def _push_one(client: Client, topic: str, given: Input, options: FilePushOptions) -> None:
    """Push one file, and print its number of rows.

    Raises:
        WingsError: The file was not pushed, or, with `--partial`, not completely.
        typer.Exit: The push was interrupted.
    """
    if given.path is None and sys.stdin.isatty():
        typer.echo("reading standard input; Ctrl-D ends it", err=True)
    stream = StreamPush()
    if not given.is_stream:
        typer.echo(_pushed(client, topic, given, options, stream))
        return
    try:
        told = aside(lambda: _pushed(client, topic, given, options, stream))
    except KeyboardInterrupt:
        stream.stop()
    typer.echo(told)


def _pushed(
    client: Client, topic: str, given: Input, options: FilePushOptions, stream: StreamPush
) -> str:
    """Push one file; returns the text to print."""
    started = time.monotonic()
    if given.is_empty and (found := _found(client, topic, options)) is not None:
        return f"0 rows pushed to {short_name(found.name)}: {given.name} is empty"
    is_whole = not given.is_stream and not options.partial
    with options.opened(given) as opened:
        if options.delimiter is None and opened.delimiter not in (None, ",", "\t"):
            typer.echo(f"values are separated by {opened.delimiter!r}", err=True)
        reopen = partial(options.opened, given) if is_whole else None
        described, is_new = _topic(client, topic, opened, options, reopen)
        whole = None
        if is_whole:
            record = PushRecord.begin(described, given, options.of_rows, options.guessed)
            whole = WholePush(client, described, record, is_resumed=options.resume)
            if whole.is_published:
                name = short_name(described.name)
                return f"{given.name} is in {name} already: {whole.rows:,} rows"
        with _deleted_if_empty(client, described, whole) if is_new else nullcontext():
            if whole is None:
                rows = stream.run(client, described, opened, options.guessed)
            else:
                rows = whole.run(opened)
    seconds = time.monotonic() - started
    source = f" from {given.name}" if given.is_one_of_many else ""
    pushed = f"{count_of(rows, 'row')} pushed to {short_name(described.name)}{source}"
    return f"{pushed} in {seconds:,.1f} s ({rows / max(seconds, 1e-3):,.0f} rows/s)"


def _found(client: Client, topic: str, options: FilePushOptions) -> Topic | None:
    """Return the topic; None if it is missing and to be created."""
    try:
        return client.topic(topic)
    except TopicNotFound as error:
        if not options.create:
            comma = "" if error.message.endswith("?") else ";"
            message = f"{error.message}{comma} --create creates it from the first rows"
            raise TopicNotFound(message, **error.facts) from None
        return None


def _topic(
    client: Client, topic: str, opened: OpenFile, options: FilePushOptions, reopen: Reopen | None
) -> tuple[Topic, bool]:
    """Return the topic for a file, and whether it was created."""
    described = _found(client, topic, options)
    if described is None:
        schema = _inferred(opened, options.fields)
        described = client.create_topic(topic, schema, options.partition_key, if_not_exists=True)
        typer.echo(f"created {short_name(described.name)}: {columns_text(described)}", err=True)
        options.guessed.update(schema.names)
        options.guessed.difference_update(options.fields)
        return described, True
    if options.partition_key not in (None, described.partition_key):
        raise InvalidArgument(
            f"the topic exists already, partitioned by {described.partition_key!r:.80}, not "
            f"by {options.partition_key!r:.80}"
        )
    if options.evolve:
        described, added = _evolved(client, described, opened, options.fields, reopen)
        options.guessed.update(added)
    return described, False


def _hint(error: InvalidArgument, guessed: set[str]) -> str:
    """Return a hint for the end of a column's error."""
    column = error.facts.get("column")
    if not isinstance(column, str):
        return ""
    if "is not a value of type timestamp" in error.message:
        return (
            "; times of another form: --time-format '%Y/%m/%d %H:%M', or push the column as a "
            "string, and use strptime in SQL"
        )
    if column in guessed:
        option = shlex.quote(f"{column}:TYPE")
        return (
            ". The column's type was inferred from first rows: to set it, push to a new topic with "
            f"--field {option}"
        )
    if column.startswith("__"):
        return f"; --exclude {shlex.quote(column)} leaves it out"
    return "; --evolve adds it" if "is not a column of the topic" in error.message else ""


@contextmanager
def _deleted_if_empty(client: Client, created: Topic, whole: WholePush | None) -> Generator[None]:
    """Delete a topic created for a file if the block fails and it is empty.

    It is kept if the push can be resumed.
    """
    try:
        yield
    except (WingsError, typer.Exit):
        if whole is not None and whole.is_resumable:
            raise
        with suppress(WingsError):  # The first error is the more specific one.
            if client.topic(created.name).uuid == created.uuid and not any(
                state.next_offset for state in client.partitions(created)
            ):
                client.delete_topic(created)
                typer.echo(f"deleted {short_name(created.name)}, which is empty", err=True)
        raise


def _evolved(
    client: Client,
    topic: Topic,
    file: OpenFile,
    fields: "Mapping[str, ArrowField]",
    reopen: Reopen | None,
) -> tuple[Topic, set[str]]:
    """Extend a topic's schema by a file's new columns and wider types.

    A file that can be read twice is checked as a whole before the topic is altered, so that a bad
    row leaves the topic unchanged.

    Returns:
        The altered topic, and its new columns with inferred types.

    Args:
        client: Client of the server.
        topic: The current topic.
        file: The open file, of which only the first bytes were read.
        fields: Columns with given types, by name.
        reopen: Opens the file again for the check; None for no check, if rows are pushed as they
            are read.

    Raises:
        SchemaMismatch: A row does not fit the new schema.
        WingsError: The file cannot be read, or the topic cannot be altered.
    """
    known = {field.name: field.type for field in fields_of(topic.schema)}
    found = fields_of(_inferred(file, fields))
    add = [field.with_nullable(True) for field in found if field.name not in known]
    # Types inferred from text are as wide as possible.
    has_types = file.format in {FileFormat.PARQUET, FileFormat.ARROW, FileFormat.ORC}
    widen = [
        field
        for field in found
        if has_types and field.name in known and field.name != topic.partition_key
        if is_wider(known[field.name], field.type)
    ]
    if not add and not widen:
        return topic, set()
    guessed = set() if has_types else {field.name for field in add}.difference(fields)
    if reopen is not None:
        wider = {field.name: field.type for field in widen}
        kept = [
            field.with_type(wider.get(field.name, field.type)) for field in fields_of(topic.schema)
        ]
        schema = pa.schema([*kept, *add])
        check = PartCheck(schema, topic.partition_key)
        with reopen() as again, _nothing_pushed():
            for part in again.parts(schema, guessed):
                check.check(part)
    altered = client.alter_schema(topic, add=pa.schema(add), widen=pa.schema(widen))
    typer.echo(
        f"{short_name(altered.name)} has version {altered.schema_version} of its schema: "
        f"{columns_text(altered)}",
        err=True,
    )
    return altered, guessed


def _inferred(file: OpenFile, fields: "Mapping[str, ArrowField]") -> pa.Schema:
    with _nothing_pushed():
        return file.schema(fields)


@contextmanager
def _nothing_pushed() -> Generator[None]:
    """Let errors of the block say that nothing was pushed."""
    try:
        yield
    except WingsError as error:
        raise type(error)(f"{error.message}; nothing was pushed", **error.facts) from None
