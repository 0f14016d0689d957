"""Spark's types for a topic's columns, and the conversion of its batches to them.

Spark has no unsigned numbers, no nanoseconds and no zones of its own, so a column becomes the
narrowest type that holds all its values; the conversion cuts nanoseconds to microseconds.

    uint8, uint16, uint32    short, int, long           uint64       decimal(20, 0)
    float16                  float                      time         time(6)
    timestamp with a zone    timestamp                  duration     interval day to second
    timestamp without        timestamp_ntz              date64       date

Spark checks only the first batch of a task, so every batch gets the same Arrow schema, including
names of list items and nullability.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import StructType

from wings_core.arrow_types import children, fields_of, is_list
from wings_core.cast import Conversion, cast_column, conversion
from wings_core.contracts.messages import shortened
from wings_core.errors import InvalidArgument, SchemaMismatch, WingsError
from wings_core.type_names import type_name
from wings_spark.spark_versions import ARROW_ZONE

if TYPE_CHECKING:
    from wings_core.arrow_types import ArrowArray, ArrowField

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

Convert = Callable[["ArrowArray"], "ArrowArray"]


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


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark requires for rows of `schema`."""
    return to_arrow_schema(schema, **ARROW_ZONE)


class SchemaConverter:
    """A converter of a topic's batches to Spark's schema.

    Args:
        source: The batches' schema; columns are matched by name.
        target: The schema to return, from `arrow_schema`.
        constants: Constant values of columns that the batches lack.

    Raises:
        SchemaMismatch: A column is missing, or its type cannot be converted to the target's.
    """

    def __init__(
        self, source: pa.Schema, target: pa.Schema, constants: dict[str, str] | None = None
    ) -> None:
        self._target = target
        self._constants = constants or {}
        self._columns: list[tuple[int, ArrowField, Convert | None]] = []
        for field in fields_of(target):
            index = source.get_field_index(field.name)
            if index < 0 and field.name not in self._constants:
                raise SchemaMismatch(
                    f"the topic has no column {field.name!r:.80}", column=field.name
                )
            convert = _conversion_of(source.field(index), field) if index >= 0 else None
            self._columns.append((index, field, convert))
        self._as_is = source.equals(target, check_metadata=True)

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch in the target schema; columns of the target's type are not copied.

        Raises:
            SchemaMismatch: A value does not fit the target's type; fact `column`.
        """
        if self._as_is:
            return batch
        arrays = [
            self._column(batch, index, field, convert) for index, field, convert in self._columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._target)

    def _column(
        self, batch: pa.RecordBatch, index: int, field: "ArrowField", convert: Convert | None
    ) -> "ArrowArray":
        if index < 0:
            return cast("Any", pa).repeat(self._constants[field.name], batch.num_rows)
        array = cast("ArrowArray", cast("Any", batch).column(index))
        if convert is not None:
            array = convert(array)
        if not field.nullable and array.null_count:
            raise SchemaMismatch(
                f"column {field.name!r:.80} holds nulls, and the schema asked for allows none",
                column=field.name,
            )
        return array


def _conversion_of(source: "ArrowField", target: "ArrowField") -> Convert | None:
    """Return the conversion of a column to its target type; None if the types are the same.

    Nanoseconds are truncated to microseconds if the target is the type chosen by `spark_type`; any
    other target must hold every value.

    Raises:
        SchemaMismatch: No conversion exists.
    """
    if source.type.equals(target.type):
        return None
    if target.type.equals(_own_type(source)):
        floors = pa.types.is_timestamp(source.type) and cast("Any", source.type).unit == "ns"
        cuts = _holds_nanoseconds(source.type)

        def convert(array: "ArrowArray") -> "ArrowArray":
            found: Any = array
            if floors:  # A cast would cut times before 1970 upwards.
                found = pc.floor_temporal(found, unit="microsecond")
            if pa.types.is_dictionary(array.type):
                found = found.dictionary_decode()
            try:
                return found.cast(target.type, safe=not cuts)
            except pa.ArrowInvalid as problem:
                raise SchemaMismatch(
                    shortened(f"column {source.name!r:.80} holds what Spark cannot: {problem}"),
                    column=source.name,
                ) from None

        return convert
    if conversion(source.type, target.type) is Conversion.NONE:
        raise SchemaMismatch(
            shortened(
                f"column {source.name!r:.80} is of type {type_name(source.type)}, which cannot be "
                f"read as {target.type}"
            ),
            column=source.name,
        )
    return lambda array: cast_column(array, target)


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


def _holds_nanoseconds(data_type: pa.DataType) -> bool:
    if pa.types.is_dictionary(data_type):
        return _holds_nanoseconds(data_type.value_type)
    nested = any(_holds_nanoseconds(field.type) for field in children(data_type))
    return nested or getattr(data_type, "unit", None) == "ns"


def _own_type(source: "ArrowField") -> pa.DataType | None:
    try:
        return to_arrow_type(spark_type(source.type, source.name), **ARROW_ZONE)
    except WingsError:
        return None
