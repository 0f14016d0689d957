"""Spark's types for a topic's columns.

Spark has no unsigned numbers, no nanoseconds and no zones of its own, so a column becomes the
narrowest type that holds all its values; `to_spark_schema` cuts nanoseconds to microseconds.

    uint8, uint16, uint32    short, int, long           uint64       decimal(20, 0)
    float16                  float                      time         time(6)
    timestamp with a zone    timestamp                  duration     interval day to second
    timestamp without        timestamp_ntz              date64       date
"""

from typing import Any, cast

import pyarrow as pa
from pyspark.sql import types as spark

from wings_core.arrow_types import children, fields_of, is_list
from wings_core.errors import InvalidArgument
from wings_core.type_names import type_name

DECIMAL_PRECISION_MAX = 38

_FLAT: tuple[tuple[str, type[spark.DataType]], ...] = (
    ("is_null", spark.NullType),
    ("is_boolean", spark.BooleanType),
    ("is_int8", spark.ByteType),
    ("is_int16", spark.ShortType),
    ("is_int32", spark.IntegerType),
    ("is_int64", spark.LongType),
    ("is_uint8", spark.ShortType),
    ("is_uint16", spark.IntegerType),
    ("is_uint32", spark.LongType),
    ("is_float16", spark.FloatType),
    ("is_float32", spark.FloatType),
    ("is_float64", spark.DoubleType),
    ("is_string", spark.StringType),
    ("is_large_string", spark.StringType),
    ("is_string_view", spark.StringType),
    ("is_binary", spark.BinaryType),
    ("is_large_binary", spark.BinaryType),
    ("is_binary_view", spark.BinaryType),
    ("is_fixed_size_binary", spark.BinaryType),
    ("is_date", spark.DateType),
    ("is_duration", spark.DayTimeIntervalType),
    ("is_time", spark.TimeType),
)


def spark_schema(schema: pa.Schema) -> spark.StructType:
    """Return the schema of a DataFrame that holds these columns.

    Raises:
        InvalidArgument: Spark has no type for a column.
    """
    return spark.StructType(
        [
            spark.StructField(field.name, spark_type(field.type, field.name), field.nullable)
            for field in fields_of(schema)
        ]
    )


def spark_type(data_type: pa.DataType, column: str) -> spark.DataType:
    """Return Spark's narrowest type that holds all values of an Arrow type.

    Args:
        data_type: Type of a topic's column, or nested in one.
        column: The column's name, for the error.

    Raises:
        InvalidArgument: Spark has no such type.
    """
    for check, found in _FLAT:
        if getattr(pa.types, check)(data_type):
            return found()
    if pa.types.is_uint64(data_type):
        return spark.DecimalType(20, 0)
    if pa.types.is_timestamp(data_type):
        zoned = cast("Any", data_type).tz is not None
        return spark.TimestampType() if zoned else spark.TimestampNTZType()
    if pa.types.is_dictionary(data_type):
        return spark_type(cast("Any", data_type).value_type, column)
    nested = _nested(data_type, column)
    if nested is not None:
        return nested
    raise InvalidArgument(
        f"column {column!r:.80} is of type {type_name(data_type):.120}, which Spark has no type "
        "for: leave it out with the option 'columns'",
        column=column,
    )


def _nested(data_type: pa.DataType, column: str) -> spark.DataType | None:
    if pa.types.is_decimal(data_type):
        return _decimal(cast("Any", data_type))
    if pa.types.is_struct(data_type):
        return spark.StructType(
            [
                spark.StructField(child.name, spark_type(child.type, column), child.nullable)
                for child in children(data_type)
            ]
        )
    parts = [(spark_type(child.type, column), child.nullable) for child in children(data_type)]
    if pa.types.is_map(data_type):
        (key, _), (value, nullable) = parts
        return spark.MapType(key, value, nullable)
    if is_list(data_type):
        ((item, nullable),) = parts
        return spark.ArrayType(item, nullable)
    return None


def _decimal(data_type: Any) -> spark.DataType | None:
    # A negative scale means zeros before the point, which Spark counts as digits.
    precision, scale = data_type.precision, data_type.scale
    if scale < 0:
        precision, scale = precision - scale, 0
    precision = max(precision, scale)
    return spark.DecimalType(precision, scale) if precision <= DECIMAL_PRECISION_MAX else None
