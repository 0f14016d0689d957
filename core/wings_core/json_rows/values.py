"""Conversion of flat values that JSON has no type for, as whole columns, to and from texts.

Timestamps, dates, times and durations: Arrow formats and parses years 0000 to 9999. Other years are
shifted by eras of 400 years, after which the calendar repeats, and the year in the text is
replaced.

Binary is base64, by one call of the C codec per column: values are padded to a multiple of three
bytes, so that base64 of their concatenation is the concatenation of their base64; the padding is
then replaced by `=`.

Decimals have no exponents. Arrow writes small ones as `1E-9`, and zero with nine digits as `0E-9`;
here the digits of the unscaled integer are written, and the point is inserted.

Month-day-nano intervals are structs. Arrow has no kernels for them, so their 16 bytes are converted
as integers.

Columns have any type, for which pyarrow's stubs have no name, so they are typed as `Any`.
"""

import binascii
from array import array
from typing import Any, cast

import pyarrow as pa

from wings_core.arrow_compute import pc

Column = Any
"""An Arrow array of any type."""

arrow: Any = pa


class UnfitError(ValueError):
    """A value does not fit its type; `diagnostics` finds it."""


UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""Units per second."""

_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_DAY_SECONDS = 86_400
_ERA_YEARS = 400
_ERA_SECONDS = 146_097 * _DAY_SECONDS

_FIRST_SECOND = -62_167_219_200
"""Seconds since the epoch of 0000-01-01T00:00:00."""

_LAST_SECOND = 253_402_300_799
"""Seconds since the epoch of 9999-12-31T23:59:59."""

_CLOCK = r"\d\d:\d\d:\d\d"
_ZONE = r"Z|[+-]\d\d:\d\d"

_TIMESTAMP_PARTS = (
    r"^(?P<year>\d{4}|[+-]\d{4,12})(?P<rest>-\d\d-\d\dT"
    + _CLOCK
    + r")(?:\.(?P<fraction>\d{1,18}))?(?P<zone>"
    + _ZONE
    + ")?$"
)
_DURATION_PARTS = r"^(?P<sign>-?)PT(?P<seconds>\d{1,19})(?:\.(?P<fraction>\d{1,18}))?S$"

_BASE64 = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"

_DIGITS_MAX = {32: 9, 64: 18, 128: 38, 256: 76}
"""Digits that every decimal holds, by its number of bits."""

_DECIMAL = r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d{1,3})?"
_DECIMAL_PARTS = r"^(?P<sign>[+-]?)(?P<whole>\d*)\.?(?P<fraction>\d*)$"

INTERVAL = (
    pa.field("months", pa.int32(), nullable=False),
    pa.field("days", pa.int32(), nullable=False),
    pa.field("nanoseconds", pa.int64(), nullable=False),
)
"""Fields of the struct that represents an interval."""


def _none_to_two(data_type: pa.DataType, character: bytes) -> Column:
    """Return a column of three values with zero, one and two characters."""
    # Not from a Python list: on the first one pyarrow imports pandas, if it is installed.
    offsets = pa.py_buffer(array("i", [0, 0, 1, 3]))
    return arrow.Array.from_buffers(data_type, 3, [None, offsets, pa.py_buffer(character * 3)])


_ZEROS = _none_to_two(pa.binary(), b"\0")
_EQUALS = _none_to_two(pa.string(), b"=")


def is_zoned(data_type: pa.DataType) -> bool:
    """Return whether a type is a timestamp with a zone."""
    return pa.types.is_timestamp(data_type) and cast("Any", data_type).tz is not None


def timestamp_texts(values: Column) -> Column:
    """Return RFC 3339 texts in UTC, without the `Z`, even with a zone."""
    return _moment_texts(values.view(pa.int64()), values.type.unit)


def date_texts(values: Column) -> Column:
    """Return `YYYY-MM-DD` of a column of date32 or date64."""
    if values.type == pa.date32():
        days = values.view(pa.int32()).cast(pa.int64())
    else:
        days = pc.divide(values.view(pa.int64()), _DAY_SECONDS * 1000)
    seconds = pc.multiply(days, _DAY_SECONDS)
    if _has_plain_years(seconds, "s"):
        return days.cast(pa.int32()).view(pa.date32()).cast(pa.string())
    return pc.utf8_slice_codeunits(_moment_texts(seconds, "s"), 0, -len("T00:00:00.000000"))


def time_texts(values: Column) -> Column:
    """Return `HH:MM:SS.ffffff` of a column of time32 or time64."""
    if values.type == pa.time64("ns"):
        return _shortened(values.cast(pa.string()), values.view(pa.int64()))
    return values.cast(pa.time64("us")).cast(pa.string())


def duration_texts(values: Column) -> Column:
    """Return `PT1.500000S`, with a leading `-` if negative."""
    unit = values.type.unit
    counts = values.view(pa.int64())
    per_second = UNITS[unit]
    seconds = pc.divide(counts, per_second)
    fraction = pc.subtract(counts, pc.multiply(seconds, per_second))
    sign = pc.if_else(pc.less(counts, 0), "-", "")
    digits = max(6, _DIGITS[unit])
    # Signs are removed from the texts, as the least int64 has no positive counterpart.
    fraction = pc.multiply(fraction, 10**digits // per_second)
    fraction = pc.utf8_lpad(_unsigned_texts(fraction), digits, "0")
    if unit == "ns":
        fraction = _shortened(fraction, counts)
    return joined(sign, "PT", _unsigned_texts(seconds), ".", fraction, "S")


def parse_timestamps(texts: Column, data_type: pa.DataType) -> Column:
    """Parse results of `timestamp_texts`, and RFC 3339 with other offsets and fewer digits.

    Raises:
        ValueError: A text is malformed, has or lacks a zone, is out of range, or has digits beyond
            the type's unit.
    """
    zoned = is_zoned(data_type)
    unit: str = cast("Any", data_type).unit
    zone = f"(?:{_ZONE})" if zoned else ""
    pattern = rf"(?:\d{{4}}|[+-]\d{{4,12}})-\d\d-\d\dT{_CLOCK}(?:\.\d{{1,18}})?{zone}"
    _check_form(texts, pattern, "RFC 3339 with a zone" if zoned else "RFC 3339 without a zone")
    read_type = arrow.timestamp("ns" if unit == "ns" else "us")
    zoned_type = arrow.timestamp(read_type.unit, "UTC") if zoned else read_type
    try:
        # Coarser units are written with six digits, too: parsed as µs and cast if lossless.
        moments = texts.cast(zoned_type).view(read_type)
        counts = moments.cast(arrow.timestamp(unit)).view(pa.int64())
    except pa.ArrowInvalid:
        counts = _parse_moments(texts, unit)
    return counts.view(data_type)


def parse_dates(texts: Column, data_type: pa.DataType) -> Column:
    """Parse results of `date_texts`.

    Raises:
        ValueError: A text is malformed or out of range.
    """
    _check_form(texts, r"(?:\d{4}|[+-]\d{4,12})-\d\d-\d\d", "YYYY-MM-DD")
    try:
        return texts.cast(pa.date32()).cast(data_type)
    except pa.ArrowInvalid:
        days = pc.divide(_parse_moments(joined(texts, "T00:00:00"), "s"), _DAY_SECONDS)
    if data_type == pa.date32():
        return days.cast(pa.int32()).view(data_type)
    return pc.multiply_checked(days, _DAY_SECONDS * 1000).view(data_type)


def parse_times(texts: Column, data_type: pa.DataType) -> Column:
    """Parse results of `time_texts`, also with fewer digits.

    Raises:
        ValueError: A text is malformed, or has digits beyond the type's unit.
    """
    _check_form(texts, _CLOCK + r"(?:\.\d{1,9})?", "HH:MM:SS.ffffff")
    moments = joined("1970-01-01T", texts).cast(pa.timestamp("ns"))
    unit = cast("Any", data_type).unit
    counts = moments.cast(arrow.timestamp(unit)).view(pa.int64())
    if data_type.bit_width == pa.int32().bit_width:
        counts = counts.cast(pa.int32())
    return counts.view(data_type)


def parse_durations(texts: Column, data_type: pa.DataType) -> Column:
    """Parse results of `duration_texts`.

    Raises:
        ValueError: A text is malformed, out of range, or has digits beyond the type's unit.
    """
    unit: str = cast("Any", data_type).unit
    parts = _parts(texts, _DURATION_PARTS, "PT1.500000S")
    sign = pc.struct_field(parts, "sign")
    seconds = joined(sign, pc.struct_field(parts, "seconds")).cast(pa.int64())
    fraction = joined(sign, _fraction_digits(pc.struct_field(parts, "fraction"), unit))
    counts = pc.multiply_checked(seconds, UNITS[unit])
    return pc.add_checked(counts, fraction.cast(pa.int64())).view(data_type)


def base64_texts(values: Column) -> Column:
    """Return base64 of a column of any binary type."""
    values = values.cast(pa.binary())
    filled = pc.fill_null(values, b"")
    lengths = pc.binary_length(filled)
    rest = pc.subtract(lengths, pc.multiply(pc.divide(lengths, 3), 3))
    missing = pc.if_else(pc.equal(rest, 0), 0, pc.subtract(3, rest))
    padded = pc.binary_join_element_wise(filled, _ZEROS.take(missing), b"")
    encoded = binascii.b2a_base64(_data(padded), newline=False)
    texts = _cut(pa.string(), padded, 4, 3, encoded)
    texts = joined(_without_tail(texts, missing), _EQUALS.take(missing))
    return pc.if_else(values.is_valid(), texts, None)


def parse_base64(texts: Column, data_type: pa.DataType) -> Column:
    """Parse base64 into a column of any binary type.

    Raises:
        ValueError: A value is not canonical base64, or not of the type's length.
    """
    _check_form(texts, _BASE64, "base64")
    filled = pc.fill_null(texts, "")
    missing = pc.count_substring(filled, "=")
    digits = pc.replace_substring(filled, "=", "A")
    decoded = binascii.a2b_base64(_data(digits))
    padded = _cut(pa.binary(), digits, 3, 4, decoded)
    values = _without_tail(padded, missing)
    if not padded.equals(pc.binary_join_element_wise(values, _ZEROS.take(missing), b"")):
        raise UnfitError("expected base64 in its canonical form")
    return pc.if_else(texts.is_valid(), values, None).cast(data_type)


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
    _check_form(texts, _DECIMAL, "a decimal")
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
    if not exponents.true_count and longest + max(0, scale) <= _DIGITS_MAX[data_type.bit_width]:
        return texts.cast(data_type)
    if exponents.true_count:
        mask = pc.fill_null(exponents, False)
        plain = [_plain(text, data_type) for text in texts.filter(mask).to_pylist()]
        texts = pc.replace_with_mask(texts, mask, pa.array(plain, texts.type))
    parts = pc.extract_regex(texts, _DECIMAL_PARTS)
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


def interval_structs(values: Column) -> Column:
    """Return a column of `INTERVAL` with the same values and nulls."""
    data = [None, values.buffers()[1]]
    rows = arrow.arange(values.offset, values.offset + len(values))
    end = values.offset + len(values)
    halves = arrow.Array.from_buffers(pa.int32(), end * 4, data)
    wholes = arrow.Array.from_buffers(pa.int64(), end * 2, data)
    months = halves.take(pc.multiply(rows, 4))
    days = halves.take(pc.add(pc.multiply(rows, 4), 1))
    nanoseconds = wholes.take(pc.add(pc.multiply(rows, 2), 1))
    return arrow.StructArray.from_arrays(
        [months, days, nanoseconds], fields=list(INTERVAL), mask=pc.is_null(values)
    )


def intervals_of(structs: Column) -> Column:
    """Convert a column of `INTERVAL` to intervals.

    Raises:
        ValueError: A struct lacks a field.
    """
    parts = [pc.struct_field(structs, index) for index in range(3)]
    if any(part.null_count > structs.null_count for part in parts):
        raise UnfitError("expected months, days and nanoseconds")
    months, days, nanoseconds = [pc.fill_null(part, 0) for part in parts]
    count = len(structs)
    # Four int32 each: months, days, and the two halves of the nanoseconds.
    halves = arrow.Array.from_buffers(pa.int32(), count * 2, [None, nanoseconds.buffers()[1]])
    pool = arrow.concat_arrays([months, days, halves])
    rows = arrow.arange(0, count)
    order = [
        rows,
        pc.add(rows, count),
        pc.add(pc.multiply(rows, 2), 2 * count),
        pc.add(pc.multiply(rows, 2), 2 * count + 1),
    ]
    data = pool.take(_interleaved(order, count)).buffers()[1]
    validity = structs.is_valid().buffers()[1]
    return arrow.Array.from_buffers(pa.month_day_nano_interval(), count, [validity, data])


def joined(*parts: Column | str) -> Column:
    """Concatenate texts row by row; null if a part is null."""
    scalars = [pa.scalar(part) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*scalars, "")


def check_all(holds: Column, problem: str) -> None:
    """Check that a boolean column has no false values; nulls pass.

    Raises:
        UnfitError: A value is false.
    """
    if holds.false_count:
        raise UnfitError(problem)


def _moment_texts(counts: Column, unit: str) -> Column:
    """Return `2026-11-20T12:00:00.000000` for int64 counts of a unit since 1970."""
    if unit == "ns":  # Its range ends in the year 2262.
        return _shortened(_arrow_texts(counts, "ns"), counts)
    if _has_plain_years(counts, unit):
        return _arrow_texts(counts, unit)
    eras, rest = _floor_divided(counts, _ERA_SECONDS * UNITS[unit])
    texts = _arrow_texts(rest, unit)
    years = pc.utf8_slice_codeunits(texts, 0, 4).cast(pa.int64())
    years = pc.add(years, pc.multiply(eras, _ERA_YEARS))
    sign = pc.if_else(pc.less(years, 0), "-", pc.if_else(pc.greater(years, 9999), "+", ""))
    years = pc.utf8_lpad(_unsigned_texts(years), 4, "0")
    return joined(sign, years, pc.utf8_slice_codeunits(texts, 4))


def _arrow_texts(counts: Column, unit: str) -> Column:
    moments = counts.view(arrow.timestamp(unit))
    if unit != "ns":
        moments = moments.cast(pa.timestamp("us"))
    # Arrow writes a space where RFC 3339 has a T; a kernel on bytes is faster.
    return pc.binary_replace_slice(moments.cast(pa.string()), 10, 11, "T")


def _has_plain_years(counts: Column, unit: str) -> bool:
    """Return whether all years are 0000 to 9999."""
    extremes = pc.min_max(counts)
    first, last = extremes["min"].as_py(), extremes["max"].as_py()
    per_second = UNITS[unit]
    return first is None or (
        first >= _FIRST_SECOND * per_second and last < (_LAST_SECOND + 1) * per_second
    )


def _shortened(texts: Column, counts: Column) -> Column:
    """Shorten fractions of nine digits to six if the last three are zero."""
    thousands = pc.multiply(pc.divide(counts, 1000), 1000)
    return pc.if_else(pc.equal(counts, thousands), pc.utf8_slice_codeunits(texts, 0, -3), texts)


def _unsigned_texts(numbers: Column) -> Column:
    return pc.utf8_ltrim(numbers.cast(pa.string()), "-")


def _parse_moments(texts: Column, unit: str) -> Column:
    """Parse any year, any zeros beyond the unit, and the least values of the range; slower."""
    parts = _parts(texts, _TIMESTAMP_PARTS, "RFC 3339")
    years = pc.utf8_ltrim(pc.struct_field(parts, "year"), "+").cast(pa.int64())
    eras, years = _floor_divided(pc.subtract(years, 1970), _ERA_YEARS)
    years = pc.add(years, 1970).cast(pa.string())
    zone = pc.struct_field(parts, "zone")
    zone = pc.if_else(pc.equal(zone, ""), "Z", zone)
    moments = joined(years, pc.struct_field(parts, "rest"), zone).cast(pa.timestamp("s", "UTC"))
    seconds = _scaled(eras, _ERA_SECONDS, moments.view(pa.int64()))
    fraction = _fraction_digits(pc.struct_field(parts, "fraction"), unit).cast(pa.int64())
    return _scaled(seconds, UNITS[unit], fraction)


def _parts(texts: Column, pattern: str, form: str) -> Column:
    parts = pc.extract_regex(texts, pattern)
    if parts.null_count > texts.null_count:
        raise UnfitError(f"expected {form}")
    return parts


def _fraction_digits(digits: Column, unit: str) -> Column:
    """Convert the digits of a fraction to a count of the unit, as text; drops trailing zeros."""
    wanted = _DIGITS[unit]
    digits = pc.utf8_rtrim(digits, "0")
    longest = pc.max(pc.binary_length(digits)).as_py()
    if longest is not None and longest > wanted:
        raise UnfitError(f"digits beyond the unit {unit}")
    # At least one digit, so that there is a number to parse if the unit is a second.
    return pc.utf8_rpad(digits, max(1, wanted), "0")


def _data(column: Column) -> memoryview:
    """Return the concatenated bytes of all values of a kernel's result."""
    offsets = _offsets(column)
    data = column.buffers()[2]
    if data is None:
        return memoryview(b"")
    return memoryview(data)[offsets[0].as_py() : offsets[-1].as_py()]


def _offsets(column: Column) -> Column:
    return arrow.Array.from_buffers(
        pa.int32(), len(column) + 1, [None, column.buffers()[1]], offset=column.offset
    )


def _cut(
    data_type: pa.DataType, like: Column, numerator: int, denominator: int, data: bytes
) -> Column:
    """Split the codec's output at the ends of the input's values."""
    offsets = _offsets(like)
    offsets = pc.subtract(offsets, offsets[0])
    # Dividing first is exact, as all offsets are multiples of the denominator.
    offsets = pc.multiply(pc.divide(offsets, denominator), numerator).cast(pa.int32())
    buffers = [None, offsets.buffers()[1], pa.py_buffer(data)]
    return arrow.Array.from_buffers(data_type, len(like), buffers)


def _without_tail(values: Column, lengths: Column) -> Column:
    """Cut 0, 1 or 2 bytes off the end of each value."""
    cut = pc.utf8_slice_codeunits if values.type == pa.string() else pc.binary_slice
    one, two = cut(values, 0, -1), cut(values, 0, -2)
    return pc.if_else(pc.equal(lengths, 0), values, pc.if_else(pc.equal(lengths, 1), one, two))


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


def _interleaved(columns: list[Column], count: int) -> Column:
    """Interleave columns: the first values of all, then the second ones, and so on."""
    width = len(columns)
    places = arrow.arange(0, count * width)
    row = pc.divide(places, width)
    column = pc.subtract(places, pc.multiply(row, width))
    return arrow.concat_arrays(columns).take(pc.add(pc.multiply(column, count), row))


def _floor_divided(values: Column, divisor: int) -> tuple[Column, Column]:
    """Return floored quotients and non-negative remainders, without overflow."""
    quotient = pc.divide(values, divisor)
    remainder = pc.subtract(values, pc.multiply(quotient, divisor))
    below = pc.less(remainder, 0)
    quotient = pc.subtract(quotient, pc.cast(below, pa.int64()))
    return quotient, pc.if_else(below, pc.add(remainder, divisor), remainder)


def _scaled(high: Column, factor: int, low: Column) -> Column:
    """Return `high * factor + low` in int64, for non-negative `low`.

    Raises:
        pa.ArrowInvalid: The sum is out of range (the product alone may be).
    """
    negative = pc.less(high, 0)
    high = pc.add(high, pc.cast(negative, pa.int64()))
    low = pc.if_else(negative, pc.subtract(low, factor), low)
    return pc.add_checked(pc.multiply_checked(high, factor), low)


def _check_form(texts: Column, pattern: str, form: str) -> None:
    """Check that all texts fully match an RE2 regular expression.

    Raises:
        UnfitError: A text does not match.
    """
    check_all(pc.match_substring_regex(texts, f"^(?:{pattern})$"), f"expected {form}")
