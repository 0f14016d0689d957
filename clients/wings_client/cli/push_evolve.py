"""`wings push --evolve`: extends a topic's schema by a file's new columns and wider types.

A file that can be read twice is checked as a whole before the topic is altered, so that a bad row
leaves the topic unchanged.
"""

from collections.abc import Callable, Mapping, Set
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import pyarrow as pa
import typer

from wings_client import Client, Topic
from wings_client.cli.endpoint import short_name
from wings_client.cli.values import columns_text
from wings_client.files import FileFormat, OpenFile
from wings_client.files.parts import PartCheck
from wings_core.arrow_types import fields_of
from wings_core.errors import WingsError
from wings_core.schema_changes import is_wider

if TYPE_CHECKING:
    from wings_core.arrow_types import ArrowField

Reopen = Callable[[], AbstractContextManager[OpenFile]]
"""Opens a file again, from its start."""


def evolved(
    client: Client,
    topic: Topic,
    file: OpenFile,
    fields: "Mapping[str, ArrowField]",
    reopen: Reopen | None,
) -> tuple[Topic, set[str]]:
    """Extend a topic's schema by a file's new columns and wider types.

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
    found = fields_of(inferred(file, fields))
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
        with reopen() as again:
            _check(again, pa.schema([*kept, *add]), topic.partition_key, guessed)
    altered = client.alter_schema(topic, add=pa.schema(add), widen=pa.schema(widen))
    typer.echo(
        f"{short_name(altered.name)} has version {altered.schema_version} of its schema: "
        f"{columns_text(altered)}",
        err=True,
    )
    return altered, guessed


def inferred(file: OpenFile, fields: "Mapping[str, ArrowField]") -> pa.Schema:
    """Return a file's columns; errors add that nothing was pushed."""
    try:
        return file.schema(fields)
    except WingsError as error:
        raise type(error)(f"{error.message}; nothing was pushed", **error.facts) from None


def _check(file: OpenFile, schema: pa.Schema, partition_key: str | None, exact: Set[str]) -> None:
    check = PartCheck(schema, partition_key)
    try:
        for part in file.parts(schema, exact):
            check.check(part)
    except WingsError as error:
        raise type(error)(f"{error.message}; nothing was pushed", **error.facts) from None
