"""Parsing of command-line values: partitions, offsets, columns and settings."""

import csv
import json
import math
import re
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import typer

from wings_client import PartitionState, Topic
from wings_core.arrow_types import fields_of
from wings_core.errors import InvalidArgument, InvalidSchema
from wings_core.partitions import JsonScalar, partition_of
from wings_core.times import duration_in
from wings_core.type_names import parse_type, type_name

if TYPE_CHECKING:
    from wings_core.arrow_types import ArrowField

_FILE_OPTIONS = {
    "format": "--format", "encoding": "--encoding", "fields": "--field",
    "time_format": "--time-format",
}  # fmt: skip
"""Options by the argument of `wings_client.files.open_file` or `OpenFile.schema`."""

Offset = int | Literal["earliest", "latest"] | datetime

_INTEGER = re.compile(r"[+-]?[0-9]+")

_ESCAPES = {
    **{code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))},
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
    # These break lines, or reverse the direction of the text after them.
    **{
        code: f"\\u{code:04x}"
        for code in (0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
    },
}


def parse_partition(text: str | None, topic: Topic) -> JsonScalar:
    """Parse a partition value by the type of a topic's key column.

    Args:
        text: The argument, base64 for a binary key; None if not given.
        topic: The topic of the partition.

    Raises:
        PartitionRequired: The topic has a key, but no value is given.
        PartitionNotAllowed: The topic has no key, but a value is given.
        PartitionTypeMismatch: The value is not of the key's type.
    """
    key_type = None
    if topic.partition_key is not None:
        key_type = next(
            field.type for field in fields_of(topic.schema) if field.name == topic.partition_key
        )
    value: JsonScalar = text
    if text is not None and key_type is not None:
        if pa.types.is_integer(key_type) and _INTEGER.fullmatch(text) and len(text) < 40:
            value = int(text)
        elif pa.types.is_boolean(key_type):
            value = {"true": True, "false": False}.get(text.lower(), text)
    partition_of(value, key_type)
    return value


def one_partition(text: str | None, topic: Topic) -> JsonScalar:
    """Return the partition that an option limits a command to; None: it is not given."""
    return None if text is None else parse_partition(text, topic)


def partition_text(value: object) -> str:
    """Format a partition value, the inverse of `parse_partition`; None is `null`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return printable(str(value))


def parse_offset(text: str, option: str = "--from") -> Offset:
    """Parse an offset: a number, `earliest`, `latest`, or a time with a zone.

    A negative number counts from the end, as in all calls of the client.

    Args:
        text: The text.
        option: The option that it was given by, for the error.

    Raises:
        typer.BadParameter: The text is none of these.
    """
    from wings_client._arguments import offset_of  # Takes pydantic, which not all commands need.

    if _INTEGER.fullmatch(text) and len(text) < 20:
        return int(text)
    try:
        return offset_of(text)
    except InvalidArgument as error:
        raise typer.BadParameter(error.message, param_hint=option) from None


def duration(
    unit: Literal["ms", "s"], least: float = 0, most: float = math.inf
) -> Callable[[str], float]:
    """Return a parser of durations like `500ms`, `30s` or `2h`, which returns seconds.

    Args:
        unit: The unit of a plain number; those of `ms` are rounded.
        least: The least duration, in that unit.
        most: The greatest duration, in that unit.
    """

    def parse(text: str) -> float:
        value = duration_in(unit, str(text))
        if value is None:
            raise typer.BadParameter(
                f"{text!r:.80} is not a duration: expected a number with ms, s, m, h or d, like 30s"
            )
        if not least <= value <= most:
            bounds = f"at least {least:g}" if most == math.inf else f"{least:g} to {most:g}"
            raise typer.BadParameter(f"{text:.80} is not {bounds} {unit}")
        return round(value) / 1000 if unit == "ms" else value

    return parse


def parse_start(text: str, option: str = "--from") -> Literal["earliest", "latest"] | datetime:
    """Parse a start in all partitions: an offset, but no number.

    Args:
        text: The text.
        option: The option that it was given by, for the error.

    Raises:
        typer.BadParameter: The text is none, or a number.
    """
    start = parse_offset(text, option)
    if isinstance(start, int):
        raise typer.BadParameter("expected earliest, latest, or a time", param_hint=option)
    return start


def parse_start_or_last(text: str) -> Literal["earliest", "latest"] | datetime | int:
    """Parse a start in all partitions, or a negative number that counts from each one's end.

    Raises:
        typer.BadParameter: The text is none of these.
    """
    start = parse_offset(text)
    if isinstance(start, int) and start >= 0:
        raise typer.BadParameter(
            "expected earliest, latest, a time, or -100 for the last hundred of each partition",
            param_hint="--from",
        )
    return start


def parse_fields(texts: list[str]) -> "dict[str, ArrowField]":
    """Parse columns in the form `NAME:TYPE`, optionally followed by ` not null`.

    The first colon followed by a valid type separates them, so names and types may contain colons.

    Raises:
        typer.BadParameter: A text is malformed, a type unknown, or a name duplicate.
    """
    fields: dict[str, ArrowField] = {}
    for text in texts:
        field = _parse_field(text)
        if field.name in fields:
            raise typer.BadParameter(f"column {field.name!r:.80} is given twice")
        fields[field.name] = field
    return fields


def _parse_field(text: str) -> "ArrowField":
    problem = "expected NAME:TYPE, like delay:int64 or 'at:timestamp[us, tz=UTC] not null'"
    for colon in re.finditer(":", text):
        name, type_text = text[: colon.start()], text[colon.end() :].strip()
        bare = type_text.removesuffix("not null")
        try:
            data_type = parse_type(bare)
        except InvalidSchema as error:
            problem = error.message
        else:
            return pa.field(name, data_type, nullable=bare == type_text)
    raise typer.BadParameter(f"{text!r:.120}: {problem}")


@contextmanager
def file_options() -> Generator[None]:
    """Translate rejections of options by `wings_client.files` into usage errors.

    Raises:
        typer.BadParameter: In place of an `InvalidArgument` with the fact `argument`.
    """
    try:
        yield
    except InvalidArgument as error:
        argument = error.facts.get("argument")
        if argument is None:
            raise
        raise typer.BadParameter(
            error.message, param_hint=_FILE_OPTIONS.get(str(argument))
        ) from None


def chosen_columns(given: list[str] | None, schema: pa.Schema) -> list[str] | None:
    """Return the names of columns given individually or separated by commas.

    Args:
        given: The arguments; None for all.
        schema: The topic's schema, whose names may contain commas.
    """
    if given is None:
        return None
    names: list[str] = []
    for text in given:
        names += [text] if text in schema.names else [name.strip() for name in text.split(",")]
    return names


def comma_names(given: Iterable[str] | None) -> frozenset[str]:
    """Return names given individually or separated by commas; names with commas are quoted."""
    return frozenset(
        name for row in csv.reader(given or (), skipinitialspace=True) for name in row if name
    )


def parse_settings(given: Iterable[str]) -> dict[str, JsonScalar]:
    """Parse configuration keys in the form `KEY=VALUE`, the value as JSON or one word.

    Raises:
        typer.BadParameter: A text is malformed.
    """
    settings: dict[str, JsonScalar] = {}
    for text in given:
        key, sign, value = text.partition("=")
        try:
            found = json.loads(value)
        except ValueError:
            found = value if value.isidentifier() else [value]
        if not sign or isinstance(found, list | dict):
            raise typer.BadParameter(
                f"{text!r:.80}: expected KEY=VALUE, the value a number, true, false, null, a "
                "word, or a text in double quotes",
                param_hint="--set",
            )
        settings[key] = found
    return settings


def columns_text(topic: Topic) -> str:
    """Return a topic's columns and key on one line."""
    fields = ", ".join(
        f"{printable(field.name)} {type_name(field.type)}{'' if field.nullable else ' not null'}"
        for field in fields_of(topic.schema)
    )
    key = topic.partition_key
    return fields if key is None else f"{fields}; partitioned by {printable(key)}"


def count_of(number: int, one: str, many: str | None = None) -> str:
    """Return a number of things, like `1 row` and `2,000 rows`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def counts_text(*counts: tuple[int, str]) -> str:
    """Return counts with what they are of: the first one, and of the others those above 0."""
    shown = [each for index, each in enumerate(counts) if index == 0 or each[0]]
    return ", ".join(f"{count:,} {what}" for count, what in shown)


def messages_in(states: Iterable[PartitionState]) -> int:
    """Return the number of messages that partitions hold."""
    return sum(state.next_offset - state.log_start_offset for state in states)


def partitions_text(count: int, shown: int) -> str:
    """Return how many partitions there are, and how many of them a table leaves out."""
    hidden = f", {count - shown:,} of them not shown" if count > shown else ""
    return f"{count_of(count, 'partition')}{hidden}"


def one_line(text: str) -> str:
    """Return a text on one line, with runs of white space as one space."""
    return " ".join(printable(text.replace("\n", " ")).split())


def printable(text: str) -> str:
    """Return a text on one line, with control characters escaped."""
    return text.translate(_ESCAPES)
