"""Failures: what DuckDB says or makes that is not ours becomes an error, with its place."""

import json
import re
from typing import Any

import pyarrow as pa

from wings_core.arrow_types import fields_of
from wings_core.errors import Internal, InvalidSql, ResourceExhausted, WingsError
from wings_core.sql.parameters import BoundText
from wings_core.sql.statement import invalid_sql, without_hints
from wings_core.sql_process.interface import EngineFailed

MESSAGE_LENGTH_MAX = 400

_EXHAUSTED = frozenset({"Out of Memory", "IO", "Out of Range Memory"})
_FAULTS = frozenset({"INTERNAL", "FATAL"})


def translated(error: EngineFailed, text: str, bound: BoundText | None) -> WingsError:
    """Return the error of a query for one of DuckDB, or of Arrow within it.

    Args:
        error: The failure, with DuckDB's JSON in its message.
        text: The statement, as its caller has it.
        bound: The statement as DuckDB has it.
    """
    if error.of_memory:
        return ResourceExhausted("the query needs more memory than it may use")
    found = _json_in(error.message)
    kind = str(found.get("exception_type", ""))
    message = str(found.get("exception_message", error)).strip()
    # What follows are hints about settings, which are not the caller's, and names of tables.
    message = re.split(r"\n(?:Did you mean|Possible solutions|\n|LINE )", message)[0]
    message = without_hints(message.replace("\n", " "))[:MESSAGE_LENGTH_MAX]
    if kind in _EXHAUSTED or "max_temp_directory_size" in message:
        return ResourceExhausted(f"the query needs more memory or disk than it may use: {message}")
    if kind in _FAULTS:
        return Internal(f"the query failed in DuckDB: {message}")
    byte = int(found["position"]) if str(found.get("position", "")).isdigit() else None
    if byte is not None and bound is not None:
        byte = bound.original(byte - error.shift)
    return invalid_sql(message, text, byte)


def _json_in(message: str) -> dict[str, Any]:
    start = message.find("{")
    if start < 0:
        return {}
    try:
        found, _ = json.JSONDecoder().raw_decode(message[start:])
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def check_types(schema: pa.Schema) -> None:
    """Refuse results that none of the answers' forms has.

    Raises:
        InvalidSql: A column is an ENUM, or of a type of DuckDB's own, or has one within.
    """
    for field in fields_of(schema):
        if _is_of_duckdb_alone(field.type):
            raise InvalidSql(
                f"the column {field.name!r:.80} is {field.type!s:.80}: cast it, as by ::VARCHAR"
            )


def _is_of_duckdb_alone(data_type: pa.DataType) -> bool:
    if pa.types.is_dictionary(data_type) or isinstance(data_type, pa.BaseExtensionType):
        return True
    inner = (data_type.field(index).type for index in range(data_type.num_fields))
    return any(map(_is_of_duckdb_alone, inner))
