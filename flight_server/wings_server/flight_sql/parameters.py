"""Parameters: of which types a driver sends the values of a prepared statement.

Arrow's driver of JDBC makes what it is told: of a long an int32 without a word if that is the type,
and of milliseconds microseconds. So the types are those that lose nothing of what JDBC has.
"""

import datetime
import decimal
from typing import Any

import pyarrow as pa

_DAY = datetime.date(2000, 1, 1)

_SAMPLES: dict[str, Any] = {
    "int64": 0,
    "double": 0.0,
    "bool": False,
    "string": "",
    "binary": b"",
    "date32[day]": _DAY,
    "time32[ms]": datetime.time(),
}


def sent_as(compared: pa.DataType) -> pa.DataType:
    """Return the type of values that are compared with a column of some type: else a text."""
    of = pa.types
    if of.is_integer(compared):
        return pa.int64()
    if of.is_decimal(compared):
        return compared if compared.scale else pa.int64()
    if of.is_floating(compared):
        return pa.float64()
    if of.is_boolean(compared):
        return pa.bool_()
    if of.is_binary(compared) or of.is_large_binary(compared):
        return pa.binary()
    if of.is_date(compared):
        return pa.date32()
    if of.is_time(compared):
        return pa.time32("ms")
    return pa.timestamp("ms", compared.tz) if of.is_timestamp(compared) else pa.string()


def sample_of(parameters: pa.Schema) -> pa.RecordBatch:
    """Return a row of some values for these parameters."""
    values = [[_sample(field.type)] for field in parameters]
    arrays = [pa.array(each, field.type) for each, field in zip(values, parameters, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=parameters)


def _sample(kind: Any) -> Any:
    if pa.types.is_decimal(kind):
        return decimal.Decimal(0).scaleb(-kind.scale)
    if pa.types.is_timestamp(kind):
        zone = None if kind.tz is None else datetime.UTC
        return datetime.datetime.combine(_DAY, datetime.time(), zone)
    return _SAMPLES[str(kind)]
