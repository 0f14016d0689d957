"""Conversion of rows to and from JSON in bulk, for HTTP; exact for every type of a topic.

| Arrow type | JSON value |
| --- | --- |
| null | null |
| bool | true, false |
| integers | numbers without fraction or exponent, of any size |
| floats | numbers; NaN and infinities are null; whole ones end in `.0` or have an exponent |
| string | strings |
| binary, also of fixed size | strings in base64: standard alphabet, padded, canonical |
| decimal | strings without exponent, all digits of the scale written: `"-1.50"` |
| timestamp with zone | `"2026-11-20T12:00:00.000000Z"`, always in UTC; any offset is accepted |
| timestamp without zone | `"2026-11-20T12:00:00.000000"` |
| date | `"2026-11-20"` |
| time | `"12:00:00.000000"` |
| duration | `"PT90.500000S"`, `"-PT0.000001S"`: XML Schema's form, in seconds |
| month_day_nano_interval | `{"months": 1, "days": -2, "nanoseconds": 3}` |
| list, also large or of fixed size | arrays |
| struct | objects |
| map | arrays of `{"key": …, "value": …}` |

Fractions have six digits, or nine if a value has nanoseconds. Years outside 0000 to 9999 have a
sign, as in ISO 8601: `"+10000-01-01"`. Encoding and decoding use the same forms, so rows survive
the round trip, except floats that JSON lacks. In a row, an absent field is null; keys are matched
exactly, and an unknown or duplicate key is an error.

Arrow's kernels process whole columns; no row becomes a Python object. (DuckDB's `to_json` is not
faster, merges names that differ only in case, and would need every column in these forms.)
"""

from wings_core.json_rows.decode import decode_rows
from wings_core.json_rows.encode import (
    EncodedRows,
    count_not_finite,
    encode_lines,
    encode_rows,
    encode_rows_within,
    object_columns,
)

__all__ = [
    "EncodedRows",
    "count_not_finite",
    "decode_rows",
    "encode_lines",
    "encode_rows",
    "encode_rows_within",
    "object_columns",
]
