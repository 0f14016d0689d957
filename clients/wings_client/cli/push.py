"""`wings push`: pushes the rows of files to a topic, each file whole or not at all."""

import codecs
import shlex
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import pyarrow as pa
import typer

from wings_client import Client, Topic
from wings_client.cli.endpoint import DEFAULT, EndpointOption, TopicArgument, connected, short_name
from wings_client.cli.push_evolve import Reopen, evolved, inferred
from wings_client.cli.push_inputs import Input, inputs_of
from wings_client.cli.push_stream import Aside, StreamPush
from wings_client.cli.push_whole import WholePush
from wings_client.cli.values import columns_text, comma_names, file_options, parse_fields
from wings_client.files import FileFormat, OpenFile, open_file
from wings_client.files.opened import NULLS, RECOGNISED
from wings_client.files.parts import Chosen
from wings_core.errors import InvalidArgument, TopicNotFound, WingsError

if TYPE_CHECKING:
    from wings_core.arrow_types import ArrowField


FilesOption = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE...",
        help="What to push: files, directories, patterns like 'logs/*.csv', s3://BUCKET/KEY; - is "
        "standard input.",
    ),
]
FormatOption = Annotated[
    FileFormat | None,
    typer.Option("--format", help="Of the file. Default: by its name, or its first bytes."),
]
DelimiterOption = Annotated[
    str | None,
    typer.Option(metavar="CHAR", help="Between CSV's values. Default: that of the first lines."),
]
EncodingOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Of CSV, like latin1 or utf-16. Default: UTF-8."),
]
NullOption = Annotated[
    list[str] | None,
    typer.Option(
        "--null", metavar="TEXT", help="Of CSV: another text that is null without quotes, like NA."
    ),
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
        metavar="NAME:TYPE",
        help="The type of a column, not to be inferred. Of a string, in JSON: whatever is there is "
        "kept as text.",
    ),
]


ColumnsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAMES", help="Columns of the files to push, with commas or one by one: no others."
    ),
]
ExcludeOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAMES", help="Columns of the files to leave out, like __typename."),
]
PartialOption = Annotated[
    bool,
    typer.Option(
        "--partial",
        help="Push rows as they are read: those before a bad row stay. What comes by a pipe is "
        "always pushed so.",
    ),
]
ResumeOption = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Go on with pushes of the same files that were cut off within a day, and leave out "
        "files that are in: each row goes in once.",
    ),
]
EvolveOption = Annotated[
    bool,
    typer.Option(
        "--evolve",
        help="Add the file's columns that the topic lacks, and take the wider types of columns of "
        "Parquet, Arrow and ORC. Needs the right `admin` on the topic.",
    ),
]


@dataclass(frozen=True, slots=True)
class _Options:
    """How files are read and pushed."""

    file_format: FileFormat | None
    delimiter: str | None
    encoding: str | None
    nulls: tuple[str, ...]
    """Beside nothing between commas."""
    chosen: Chosen
    create: bool
    evolve: bool
    partial: bool
    resume: bool
    partition_key: str | None
    fields: "Mapping[str, ArrowField]"
    guessed: set[str]
    """Columns whose types were inferred, from one of the files: they hold for all rows of all."""

    @property
    def texts(self) -> frozenset[str]:
        """The columns that are to be of strings."""
        return frozenset(
            name for name, field in self.fields.items() if pa.types.is_string(field.type)
        )

    @property
    def of_rows(self) -> tuple[str | None, ...]:
        """Those that change which rows are read from a file."""
        nulls = [f"null {text}" for text in sorted(self.nulls)]
        only = [f"only {name}" for name in sorted(self.chosen.only or ())]
        without = [f"without {name}" for name in sorted(self.chosen.without)]
        texts = sorted(self.texts)
        return (self.file_format, self.delimiter, self.encoding, *texts, *nulls, *only, *without)

    def opened(self, given: Input) -> AbstractContextManager[OpenFile]:
        """Open a file to read its rows."""
        return open_file(
            given.path,
            self.file_format,
            self.delimiter or RECOGNISED,
            self.encoding,
            name=given.name,
            texts=self.texts,
            nulls=(*NULLS, *self.nulls),
            chosen=self.chosen,
            folders=given.folders,
        )


def push(
    topic: TopicArgument,
    files: FilesOption,
    *,
    file_format: FormatOption = None,
    delimiter: DelimiterOption = None,
    encoding: EncodingOption = None,
    null: NullOption = None,
    create: CreateOption = False,
    evolve: EvolveOption = False,
    partial: PartialOption = False,
    resume: ResumeOption = False,
    partition_key: PartitionKeyOption = None,
    field: FieldOption = None,
    columns: ColumnsOption = None,
    exclude: ExcludeOption = None,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Push the rows of files to a topic, each file whole or not at all.

    From files, or from standard input:

        $ wings push flights flights-20k.json --create --partition-key origin

        $ wings push flights 'flights/2026-*.parquet'

        $ zcat events.jsonl.gz | wings push events - --format jsonl

    Reads JSON (`jsonl`: an object on each line; `json`: one array, or objects one after another),
    CSV with names in its first line, Parquet, and Arrow IPC, also compressed (`.gz`, `.zst`,
    `.bz2`), in batches: a file may be larger than memory. Columns are found by name, and cast to
    the topic's types where no value changes.

    A file's rows become visible at once, when all are read. A bad row is named by its line, or by
    its number from 1: then nothing of its file is pushed, and other files are, with exit status 1
    at the end. With `--partial`, and from standard input, rows are pushed as they are read; Ctrl-C
    stops after what was sent is answered.

    A push that was cut off goes on where it was, and pushes no row twice:

        $ wings push flights big.csv --resume

    `--create` infers types from the first 16 MiB, and of files of lines and CSV from samples of the
    rest. A row that does not fit them is refused, also one with a number that they would change,
    like 007: say what the column is by `--field zip:string`, in JSON too.
    In CSV, nothing between commas is null, `""` an empty string; `--null NA` makes a text null too.

    Folders below a directory or a pattern are columns where their names say so:
    `day=2026-01-02/a.csv`. `--columns` and `--exclude` choose columns. An index of pandas without a
    name is left out.

    `--evolve` lets the topic's schema grow by what the file has more, once all of the file is known
    to fit:

        $ wings push flights flights-with-gates.parquet --evolve
    """
    if partition_key is not None and not create:
        raise typer.BadParameter("--partition-key goes with --create")
    if partial and resume:
        raise typer.BadParameter("--resume goes with files that are pushed whole, not --partial")
    _check_text(delimiter, encoding)
    options = _Options(
        file_format,
        delimiter,
        encoding,
        tuple(null or ()),
        Chosen(comma_names(columns) or None, comma_names(exclude)),
        create,
        evolve,
        partial,
        resume,
        partition_key,
        parse_fields(field or []),
        set(),
    )
    with connected(endpoint, topic) as client, inputs_of(files) as inputs:
        if not create:
            _found(client, topic, options)  # An unknown one is told at once, before any is read.
        problems = 0
        for each in inputs:
            try:
                with file_options():
                    _push_one(client, topic, each, options)
            except InvalidArgument as error:  # It is the file's: the others may go in.
                is_named = error.message.startswith(f"{each.name}:")
                message = error.message if is_named else f"{each.name}: {error.message}"
                message += _hint(error.facts.get("column"), options.guessed)
                if len(inputs) == 1:
                    raise type(error)(message, **error.facts) from None
                problems += 1
                typer.echo(f"wings: {message}", err=True)
        if problems:
            raise InvalidArgument(f"{problems} of {len(inputs)} files were not pushed")


def _push_one(client: Client, topic: str, given: Input, options: _Options) -> None:
    """Push one file, and print how many rows it has.

    Raises:
        WingsError: It was not pushed, or with `--partial` not all of it.
        typer.Exit: It was interrupted.
    """
    if given.path is None and sys.stdin.isatty():
        typer.echo("reading standard input; Ctrl-D ends it", err=True)
    stream = StreamPush()
    if not given.is_stream:
        typer.echo(_pushed(client, topic, given, options, stream))
        return
    try:
        told = Aside(lambda: _pushed(client, topic, given, options, stream)).result()
    except KeyboardInterrupt:
        stream.stop()
    typer.echo(told)


def _pushed(client: Client, topic: str, given: Input, options: _Options, stream: StreamPush) -> str:
    """Push one file; returns what to print of it."""
    started = time.monotonic()
    if given.is_empty and (found := _found(client, topic, options)) is not None:
        return f"0 rows pushed to {short_name(found.name)}: {given.name} is empty"
    is_whole = given.path is not None and not given.is_stream and not options.partial
    with options.opened(given) as opened:
        if options.delimiter is None and opened.delimiter not in (None, ",", "\t"):
            typer.echo(f"values are separated by {opened.delimiter!r}", err=True)
        reopen = partial(options.opened, given) if is_whole else None
        described, is_new = _topic(client, topic, opened, options, reopen)
        whole = None
        if given.path is not None and is_whole:
            whole = WholePush(
                client,
                described,
                given.path,
                given.identity,
                options.of_rows,
                options.guessed,
                is_resumed=options.resume,
            )
            if whole.is_published:
                name = short_name(described.name)
                return f"{given.name} is in {name} already: {whole.rows:,} rows"
        with _deleted_if_empty(client, described, whole) if is_new else nullcontext():
            if whole is None:
                rows = stream.run(client, described, opened, options.guessed)
            else:
                rows = whole.run(opened)
    seconds = time.monotonic() - started
    counted = "1 row" if rows == 1 else f"{rows:,} rows"
    source = f" from {given.name}" if given.is_one_of_many else ""
    return (
        f"{counted} pushed to {short_name(described.name)}{source} in {seconds:,.1f} s "
        f"({rows / max(seconds, 1e-3):,.0f} rows/s)"
    )


def _found(client: Client, topic: str, options: _Options) -> Topic | None:
    """Return the topic; None if there is none, and it is to be created."""
    try:
        return client.topic(topic)
    except TopicNotFound as error:
        if not options.create:
            message = f"{error.message}; --create makes it, from the first rows"
            raise TopicNotFound(message, **error.facts) from None
        return None


def _topic(
    client: Client, topic: str, opened: OpenFile, options: _Options, reopen: Reopen | None
) -> tuple[Topic, bool]:
    """Return the topic for a file, and whether it was created."""
    described = _found(client, topic, options)
    if described is None:
        schema = inferred(opened, options.fields)
        described = _create(client, topic, schema, options.partition_key)
        options.guessed.update(schema.names)
        options.guessed.difference_update(options.fields)
        return described, True
    if options.partition_key not in (None, described.partition_key):
        raise InvalidArgument(
            f"the topic is there already, partitioned by {described.partition_key!r:.80}, not "
            f"by {options.partition_key!r:.80}"
        )
    if options.evolve:
        described, added = evolved(client, described, opened, options.fields, reopen)
        options.guessed.update(added)
    return described, False


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


def _hint(column: object, guessed: set[str]) -> str:
    """Return what an error of a column ends with: what may be done."""
    if not isinstance(column, str):
        return ""
    if column in guessed:
        option = shlex.quote(f"{column}:TYPE")
        return (
            ". The column's type is that of the first rows: to set it, push to a new topic with "
            f"--field {option}"
        )
    return f"; --exclude {shlex.quote(column)} leaves it out" if column.startswith("__") else ""


def _create(client: Client, topic: str, schema: pa.Schema, partition_key: str | None) -> Topic:
    created = client.create_topic(topic, schema, partition_key, if_not_exists=True)
    typer.echo(f"created {short_name(created.name)}: {columns_text(created)}", err=True)
    return created


@contextmanager
def _deleted_if_empty(client: Client, created: Topic, whole: WholePush | None) -> Generator[None]:
    """Delete the topic that was created for a file, if the block fails and it is empty.

    It stays if the push may go on.
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
