"""Rows as JSON, in bulk: what HTTP answers and takes, exact for every type a topic may have.

| Arrow type | JSON value |
| --- | --- |
| null | null |
| bool | true, false |
| integers | numbers without fraction or exponent, of any size |
| floats | numbers; NaN and infinities are null; whole ones end in `.0` or have an exponent |
| string | strings |
| binary, also of fixed size | strings in base64: standard alphabet, padded, canonical |
| decimal | strings without exponent, all digits of the scale written: `"-1.50"` |
| timestamp with zone | `"2026-11-20T12:00:00.000000Z"`, always in UTC; any offset is taken |
| timestamp without zone | `"2026-11-20T12:00:00.000000"` |
| date | `"2026-11-20"` |
| time | `"12:00:00.000000"` |
| duration | `"PT90.500000S"`, `"-PT0.000001S"`: XML Schema's form, seconds alone |
| month_day_nano_interval | `{"months": 1, "days": -2, "nanoseconds": 3}` |
| list, also large or of fixed size | arrays |
| struct | objects |
| map | arrays of `{"key": …, "value": …}` |

Fractions have six digits; a value that has nanoseconds has nine, as it would be another one with
six. Years outside 0000 to 9999 have a sign, as ISO 8601 has them: `"+10000-01-01"`. Both ways are
the same form, so what was written is read back equal, but for floats that JSON lacks. In a row, a
field that is absent is null; keys are matched exactly, none may be unknown or there twice.

All work is done by Arrow's kernels on whole columns; no row becomes a Python object. (DuckDB's
`to_json` is no faster, takes names that differ in case alone for one, and would need every column
brought to these forms first.)
"""

from wings_core.json_rows.decode import decode_rows
from wings_core.json_rows.encode import (
    EncodedRows,
    encode_lines,
    encode_rows,
    encode_rows_within,
)

__all__ = ["EncodedRows", "decode_rows", "encode_lines", "encode_rows", "encode_rows_within"]
