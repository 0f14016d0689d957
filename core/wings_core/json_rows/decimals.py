"""Conversion of decimals to and from texts without exponents.

Arrow writes small decimals as `1E-9`, and zero with nine digits as `0E-9`; here the digits of the
unscaled integer are written, and the point is inserted.
"""

from typing import Any

import pyarrow as pa

from wings_core.arrow_compute import pc
from wings_core.json_rows.kernels import Column, UnfitError, check_all, check_form, joined

DIGITS_MAX = {32: 9, 64: 18, 128: 38, 256: 76}
"""Digits that every decimal holds, by its number of bits."""

_DECIMAL = r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d{1,3})?"
_PARTS = r"^(?P<sign>[+-]?)(?P<whole>\d*)\.?(?P<fraction>\d*)$"


def decimal_texts(values: Column) -> Column:
    """Return plain texts with as many digits after the point as the scale."""
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
    """Parse decimals, with or without an exponent.

    Raises:
        ValueError: A text is malformed, or has more digits before or after the point than the type
            holds.
    """
    check_form(texts, _DECIMAL, "a decimal")
    return decimals_of(texts, data_type)


def decimals_of(texts: Column, data_type: Any) -> Column:
    """Convert texts to decimals.

    Digits are counted here: Arrow's own conversion overflows without an error if a text, or the
    text at the type's scale, has more digits than the type's bits can hold.

    Args:
        texts: Signs and digits, optionally with a point and an exponent of up to three digits.
        data_type: A decimal of any width.

    Raises:
        ValueError: A text has more digits before or after the point than the type holds.
    """
    scale: int = data_type.scale
    exponents = pc.match_substring_regex(texts, "[eE]")
    longest: int = pc.max(pc.binary_length(texts)).as_py() or 0
    if not exponents.true_count and longest + max(0, scale) <= DIGITS_MAX[data_type.bit_width]:
        return texts.cast(data_type)
    if exponents.true_count:
        mask = pc.fill_null(exponents, False)
        plain = [_plain(text, data_type) for text in texts.filter(mask).to_pylist()]
        texts = pc.replace_with_mask(texts, mask, pa.array(plain, texts.type))
    parts = pc.extract_regex(texts, _PARTS)
    whole, fraction = pc.struct_field(parts, "whole"), pc.struct_field(parts, "fraction")
    fraction = pc.utf8_rtrim(fraction, "0")
    problem = f"more digits than {data_type} holds"
    check_all(pc.less_equal(pc.binary_length(fraction), max(0, scale)), problem)
    if scale < 0:
        whole = pc.utf8_lpad(whole, -scale, "0")
        check_all(pc.equal(pc.utf8_slice_codeunits(whole, scale), "0" * -scale), problem)
        digits = pc.utf8_slice_codeunits(whole, 0, scale)
    else:
        digits = joined(whole, pc.utf8_rpad(fraction, scale, "0"))
    digits = pc.utf8_ltrim(digits, "0")
    check_all(pc.less_equal(pc.binary_length(digits), data_type.precision), problem)
    unscaled = joined(pc.struct_field(parts, "sign"), pc.utf8_lpad(digits, 1, "0"))
    return unscaled.cast(_unscaled(data_type)).view(data_type)


def _plain(text: str, data_type: Any) -> str:
    """Rewrite a text with an exponent as one without.

    Raises:
        ValueError: The result would have too many digits for the type.
    """
    mantissa, _, exponent = text.lower().partition("e")
    whole, _, fraction = mantissa.lstrip("+-").partition(".")
    digits = whole + fraction
    significant = digits.lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(digits) - len(significant))
    significant = significant.rstrip("0")
    if not significant:
        return "0"
    room = data_type.precision - data_type.scale
    if point > room or len(significant) - point > data_type.scale:
        raise UnfitError(f"more digits than {data_type} holds")
    sign = "-" if text.startswith("-") else ""
    before, after = significant[: max(0, point)], significant[max(0, point) :]
    return f"{sign}{before.ljust(point, '0')}.{'0' * -point}{after}"


def _unscaled(data_type: Any) -> pa.DataType:
    """Return the type of the same width with scale 0, whose values are the stored integers."""
    make: Any = {32: pa.decimal32, 64: pa.decimal64, 128: pa.decimal128, 256: pa.decimal256}
    return make[data_type.bit_width](data_type.precision, 0)
