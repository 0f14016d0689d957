"""Translation of DuckDB's errors into ours, with their position in the statement."""

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
    """Translate an error of DuckDB, or of Arrow within it, into the error of a query.

    Args:
        error: The failure, with DuckDB's JSON in its message.
        text: The statement as the caller wrote it.
        bound: The statement as sent to DuckDB.
    """
    if error.of_memory:
        return ResourceExhausted("the query needs more memory than it may use")
    found = _json_in(error.message)
    kind = str(found.get("exception_type", ""))
    message = str(found.get("exception_message", error)).strip()
    # The rest are hints about settings, which the caller cannot change, and names of tables.
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
    """Reject result types that no response format supports.

    Raises:
        InvalidSql: A column is an ENUM or of a type of DuckDB's own, or contains one.
    """
    for field in fields_of(schema):
        if _is_of_duckdb_alone(field.type):
            raise InvalidSql(
                f"column {field.name!r:.80} has type {field.type!s:.80}: cast it, say ::VARCHAR"
            )


def _is_of_duckdb_alone(data_type: pa.DataType) -> bool:
    if pa.types.is_dictionary(data_type) or isinstance(data_type, pa.BaseExtensionType):
        return True
    inner = (data_type.field(index).type for index in range(data_type.num_fields))
    return any(map(_is_of_duckdb_alone, inner))
