"""Decimals as texts without exponent, and back.

Arrow writes small ones as `1E-9`, and the zero of nine digits as `0E-9`; here the digits of the
unscaled integer are written, and the point is put among them.
"""

from typing import Any

import pyarrow as pa

from wings_core.json_rows.kernels import Column, check_form, joined, pc

_DECIMAL = r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d{1,3})?"


def decimal_texts(values: Column) -> Column:
    """Return plain texts with as many digits after the point as the scale says."""
    scale: int = values.type.scale
    digits = values.view(_unscaled(values.type)).cast(pa.string())
    if scale == 0:
        return digits
    if scale < 0:
        return pc.if_else(pc.equal(digits, "0"), digits, joined(digits, "0" * -scale))
    sign = pc.if_else(pc.starts_with(digits, "-"), "-", "")
    digits = pc.utf8_lpad(pc.utf8_ltrim(digits, "-"), scale + 1, "0")
    whole = pc.utf8_slice_codeunits(digits, 0, -scale)
    return joined(sign, whole, ".", pc.utf8_slice_codeunits(digits, -scale))


def parse_decimals(texts: Column, data_type: pa.DataType) -> Column:
    """Read decimals, also ones with an exponent.

    Raises:
        ValueError: One is of another form, or has more digits than the type takes before or after
            the point.
    """
    check_form(texts, _DECIMAL, "a decimal")
    return texts.cast(data_type)


def _unscaled(data_type: Any) -> pa.DataType:
    """Return the type of the same width whose values are the integers that are stored."""
    make: Any = {32: pa.decimal32, 64: pa.decimal64, 128: pa.decimal128, 256: pa.decimal256}
    return make[data_type.bit_width](data_type.precision, 0)
