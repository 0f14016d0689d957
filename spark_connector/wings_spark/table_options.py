"""Options of tables: what `CREATE TABLE … USING wings OPTIONS (…)` keeps for later queries.

Spark gives a data source in Python the options of a table when the table is created, and none when
it is read or written. What it keeps is the schema, with the columns' metadata: so the options are
put there, and are found in what reads, writes and streams of the table are given.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from wings_core.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_PROVIDER = "provider"
_OPTION = "option."
"""Spark passes a table's own properties (provider, owner, comment, the user's TBLPROPERTIES) among
the options, and each option again with this before its name."""

_SECRET = "token"

_METADATA = "wings.options"


def plain_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return a user's options, without the properties of a table that is being created."""
    if not is_of_table(given):
        return dict(given)
    begin = len(_OPTION)
    return {name[begin:]: given[name] for name in given if name.startswith(_OPTION)}


def is_of_table(given: Mapping[str, str]) -> bool:
    """Tell whether options come with a table that is being created."""
    return _PROVIDER in given


def with_options(schema: "StructType", options: Mapping[str, str]) -> "StructType":
    """Return a schema whose columns bear the options of their table.

    Raises:
        InvalidArgument: One of them is a secret.
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
    """Return the options of a query: those of its table, and over these what it was given.

    Raises:
        InvalidArgument: There are none, as of a table that was created with columns.
    """
    found: dict[str, str] = {}
    for field in schema.fields:
        if _METADATA in (field.metadata or {}):
            found = json.loads(field.metadata[_METADATA])
    found |= plain_options(given)
    if not found:
        raise InvalidArgument(
            "there are no options: create a table without columns, as in CREATE TABLE t USING "
            "wings OPTIONS (endpoint '…', topic '…'); Spark keeps none of one with columns"
        )
    return found
