"""Options of tables, which `CREATE TABLE … USING wings OPTIONS (…)` keeps for later queries.

Spark passes the options of a table to a data source in Python only when the table is created, not
when it is read or written. It keeps the schema with the columns' metadata: so the options are
stored there, and found in the schema passed to reads, writes and streams of the table. Spark never
requests the schema again: if the topic has grown since, users must alter the table's columns.
"""

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from wings_core.arrow_types import fields_of
from wings_core.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_PROVIDER = "provider"
_OPTION = "option."
"""Prefix with which Spark repeats each option: it also passes a table's own properties (provider,
owner, comment, the user's TBLPROPERTIES) among the options."""

_SECRET = "token"

_METADATA = "wings.options"

_logger = logging.getLogger("wings_spark")


def plain_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return a user's options, without the properties of a table being created."""
    if not is_of_table(given):
        return dict(given)
    begin = len(_OPTION)
    return {name[begin:]: given[name] for name in given if name.startswith(_OPTION)}


def is_of_table(given: Mapping[str, str]) -> bool:
    """Return whether options belong to a table being created."""
    return _PROVIDER in given


def with_options(schema: "StructType", options: Mapping[str, str]) -> "StructType":
    """Return a schema whose columns carry the options of their table.

    Raises:
        InvalidArgument: An option is a secret.
    """
    from pyspark.sql.types import StructField, StructType

    if any(name.lower() == _SECRET for name in options):
        raise InvalidArgument(
            "option 'token' would be kept in the catalog, where others can read it: give "
            "'tokenFile', or set WINGS_TOKEN for the driver"
        )
    text = json.dumps(dict(options))
    return StructType(
        [
            StructField(field.name, field.dataType, field.nullable, {_METADATA: text})
            for field in schema.fields
        ]
    )


def options_of(given: Mapping[str, str], schema: "StructType") -> dict[str, str]:
    """Return the options of a query: its own, and those of its table that it does not override.

    Raises:
        InvalidArgument: There are no options, as in a table that was created with columns.
    """
    found = _kept(schema) | plain_options(given)
    if not found:
        raise InvalidArgument(
            "there are no options: create a table without columns, as in CREATE TABLE t USING "
            "wings OPTIONS (endpoint '…', topic '…'); Spark keeps none of one with columns"
        )
    return found


def _kept(schema: "StructType") -> dict[str, str]:
    """Return the options carried by the columns of a table; a DataFrame's carry none."""
    found: dict[str, str] = {}
    for field in schema.fields:
        if _METADATA in (field.metadata or {}):
            found = json.loads(field.metadata[_METADATA])
    return found


def tell_of_growth(schema: "StructType", topic_schema: Callable[[], pa.Schema]) -> None:
    """Log the statements that alter a table to have all columns of a topic that has grown.

    Args:
        schema: Columns of the read, from a table of Spark's catalog or not.
        topic_schema: Returns the columns that the topic has now; called for a table alone.
    """
    from wings_spark.types import spark_type

    if not _kept(schema):
        return
    known = {field.name: field.dataType for field in schema.fields}
    changes: list[str] = []
    for field in fields_of(topic_schema()):
        with suppress(InvalidArgument):  # Spark has no type for it.
            found = spark_type(field.type, field.name)
            column, kind = "`{}`".format(field.name.replace("`", "``")), found.simpleString()
            if field.name not in known:
                changes.append(f"ADD COLUMN {column} {kind}")
            elif known[field.name] != found:
                changes.append(f"ALTER COLUMN {column} TYPE {kind}")
    if changes:
        _logger.warning(
            "the topic has grown since the table was created, whose columns are as they were; to "
            "have all: %s",
            "; ".join(f"ALTER TABLE … {change}" for change in changes),
        )
