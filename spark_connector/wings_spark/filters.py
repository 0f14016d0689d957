"""Pushed filters: Spark's predicates as the SQL of a ticket's `filter`.

Spark does not evaluate pushed filters again, so only those with exactly the same meaning on the
server are pushed: over columns whose values Spark sees as they are stored, with literals of the
column's type.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import datasource as spark
from pyspark.sql.types import StructType

from wings_core.arrow_types import fields_of
from wings_spark.to_spark_schema import arrow_schema

SQL_LENGTH_MAX = 12 * 1024
"""Characters of all pushed filters together; the server takes 16 Ki, the user's own among them."""

FILTERS_MAX = 64
"""How many filters are pushed: the server bounds how often columns are named."""

VALUES_MAX = 1_000
"""Literals of one IN."""

_COMPARISONS: Mapping[type[spark.Filter], str] = {
    spark.EqualTo: "=",
    spark.EqualNullSafe: "IS NOT DISTINCT FROM",
    spark.GreaterThan: ">",
    spark.GreaterThanOrEqual: ">=",
    spark.LessThan: "<",
    spark.LessThanOrEqual: "<=",
}

_TEXT_FUNCTIONS: Mapping[type[spark.Filter], str] = {
    spark.StringStartsWith: "starts_with",
    spark.StringEndsWith: "ends_with",
    spark.StringContains: "contains",
}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def pushable(
    filters: Iterable[spark.Filter], schema: StructType, stored: pa.Schema
) -> tuple[str | None, list[spark.Filter]]:
    """Translate as many filters as possible.

    Args:
        filters: Joined by AND.
        schema: Of the rows as Spark sees them.
        stored: The topic's.

    Returns:
        One SQL predicate, None if no filter could be translated, and the filters left to Spark.
    """
    columns = _columns(schema, stored)
    taken: list[str] = []
    rest: list[spark.Filter] = []
    room = SQL_LENGTH_MAX
    for each in filters:
        sql = translate(each, columns)
        if sql is None or len(sql) + 5 > room or len(taken) == FILTERS_MAX:
            rest.append(each)
        else:
            taken.append(sql)
            room -= len(sql) + 5
    return " AND ".join(taken) or None, rest


def translate(found: spark.Filter, columns: Mapping[str, pa.DataType]) -> str | None:
    """Return a filter as the server's SQL, None if that would differ in meaning.

    Args:
        found: A filter of Spark's.
        columns: The types of those columns that may be filtered by.
    """
    if isinstance(found, spark.Not):
        inner = translate(found.child, columns)
        return None if inner is None else f"(NOT {inner})"
    path = cast("tuple[str, ...]", getattr(found, "attribute", ()))
    if len(path) != 1 or path[0] not in columns:
        return None
    name, data_type = _quoted(path[0], '"'), columns[path[0]]
    if isinstance(found, spark.IsNull):
        return f"({name} IS NULL)"
    if isinstance(found, spark.IsNotNull):
        return f"({name} IS NOT NULL)"
    if isinstance(found, spark.In):
        return _in(name, found.value, data_type)
    value = literal(getattr(found, "value", None), data_type)
    if value is None:
        return None
    operator = _COMPARISONS.get(type(found))
    if operator is not None:
        return f"({name} {operator} {value})"
    function = _TEXT_FUNCTIONS.get(type(found))
    if function is not None and _is_text(data_type):
        return f"{function}({name}, {value})"
    return None


def literal(value: object, data_type: pa.DataType) -> str | None:
    """Return a value as a SQL literal of a column's type, None if the type does not hold it."""
    if isinstance(value, bool):
        return str(value).lower() if pa.types.is_boolean(data_type) else None
    if isinstance(value, int) and pa.types.is_integer(data_type):
        return f"'{value}'::HUGEINT"
    if isinstance(value, float) and _is_float(data_type):
        return f"'{value!r}'::DOUBLE"
    if isinstance(value, Decimal):
        return _decimal(value, data_type)
    if isinstance(value, str) and _is_text(data_type):
        # Neither may stand in a filter.
        if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
            return None
        return _quoted(value, "'")
    if isinstance(value, (bytes, bytearray)) and _is_binary(data_type):
        return "'" + "".join(f"\\x{byte:02X}" for byte in value) + "'::BLOB"
    if isinstance(value, datetime):
        return _timestamp(value, data_type)
    if isinstance(value, date) and pa.types.is_date32(data_type):
        return f"'{value.isoformat()}'::DATE"
    return None


def _in(name: str, values: Iterable[object], data_type: pa.DataType) -> str | None:
    found = list(values)
    literals = [
        "NULL" if value is None else literal(value, data_type) for value in found[: VALUES_MAX + 1]
    ]
    if not literals or None in literals or len(literals) > VALUES_MAX:
        return None
    return f"({name} IN ({', '.join(cast('list[str]', literals))}))"


def _columns(schema: StructType, stored: pa.Schema) -> dict[str, pa.DataType]:
    """Return the types of the columns that Spark sees as the server does, by name."""
    wanted = {field.name: field.type for field in fields_of(arrow_schema(schema))}
    own = {field.name: field.type for field in fields_of(arrow_schema(_own_schema(stored)))}
    folded = [name.encode().lower() for name in stored.names]
    return {
        field.name: field.type
        for field in fields_of(stored)
        if field.name in wanted
        and _is_filterable(field.type)
        # The server's names do not differ by case alone.
        and folded.count(field.name.encode().lower()) == 1
        # With a cast that the user asked for, Spark compares.
        and wanted[field.name].equals(own.get(field.name))
    }


def _own_schema(stored: pa.Schema) -> StructType:
    from wings_spark.types import spark_schema

    return spark_schema(
        pa.schema([field for field in fields_of(stored) if _is_filterable(field.type)])
    )


def _is_filterable(data_type: pa.DataType) -> bool:
    found = cast("Any", data_type)
    if pa.types.is_timestamp(data_type):
        return found.unit != "ns"  # Spark sees them cut to microseconds.
    if pa.types.is_decimal(data_type):
        return pa.types.is_decimal128(data_type) and 0 <= found.scale <= found.precision
    return (
        pa.types.is_boolean(data_type)
        or pa.types.is_integer(data_type)
        or _is_float(data_type)
        or _is_text(data_type)
        or _is_binary(data_type)
        or pa.types.is_date32(data_type)
    )


def _is_float(data_type: pa.DataType) -> bool:
    return pa.types.is_float32(data_type) or pa.types.is_float64(data_type)


def _is_text(data_type: pa.DataType) -> bool:
    return pa.types.is_string(data_type) or pa.types.is_large_string(data_type)


def _is_binary(data_type: pa.DataType) -> bool:
    return (
        pa.types.is_binary(data_type)
        or pa.types.is_large_binary(data_type)
        or pa.types.is_fixed_size_binary(data_type)
    )


def _decimal(value: Decimal, data_type: pa.DataType) -> str | None:
    if not value.is_finite():
        return None
    if pa.types.is_uint64(data_type):  # A decimal in Spark.
        return f"'{int(value)}'::HUGEINT" if value == int(value) else None
    if not pa.types.is_decimal(data_type):
        return None
    precision, scale = cast("Any", data_type).precision, cast("Any", data_type).scale
    exponent = cast("int", value.normalize().as_tuple().exponent)
    if -exponent > scale or value.adjusted() >= precision - scale:
        return None
    return f"'{value:f}'::DECIMAL({precision}, {scale})"


def _timestamp(value: datetime, data_type: pa.DataType) -> str | None:
    if not pa.types.is_timestamp(data_type):
        return None
    zoned = cast("Any", data_type).tz is not None
    if zoned != (value.tzinfo is not None):
        return None
    moment = value if zoned else value.replace(tzinfo=UTC)
    microseconds = (moment - _EPOCH) // timedelta(microseconds=1)
    return f"make_timestamp{'tz' if zoned else ''}('{microseconds}'::BIGINT)"


def _quoted(text: str, quote: str) -> str:
    return quote + text.replace(quote, quote * 2) + quote
