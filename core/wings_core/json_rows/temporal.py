"""Conversion of timestamps, dates, times and durations to and from texts.

Arrow formats and parses years 0000 to 9999. Other years are shifted by eras of 400 years, after
which the calendar repeats, and the year in the text is replaced.
"""

from typing import Any, cast

import pyarrow as pa

from wings_core.arrow_compute import pc
from wings_core.json_rows.kernels import (
    Column,
    UnfitError,
    arrow,
    check_form,
    floor_divided,
    joined,
    scaled,
)

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
    check_form(texts, pattern, "RFC 3339 with a zone" if zoned else "RFC 3339 without a zone")
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
    check_form(texts, r"(?:\d{4}|[+-]\d{4,12})-\d\d-\d\d", "YYYY-MM-DD")
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
    check_form(texts, _CLOCK + r"(?:\.\d{1,9})?", "HH:MM:SS.ffffff")
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


def _moment_texts(counts: Column, unit: str) -> Column:
    """Return `2026-11-20T12:00:00.000000` for int64 counts of a unit since 1970."""
    if unit == "ns":  # Its range ends in the year 2262.
        return _shortened(_arrow_texts(counts, "ns"), counts)
    if _has_plain_years(counts, unit):
        return _arrow_texts(counts, unit)
    eras, rest = floor_divided(counts, _ERA_SECONDS * UNITS[unit])
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
    eras, years = floor_divided(pc.subtract(years, 1970), _ERA_YEARS)
    years = pc.add(years, 1970).cast(pa.string())
    zone = pc.struct_field(parts, "zone")
    zone = pc.if_else(pc.equal(zone, ""), "Z", zone)
    moments = joined(years, pc.struct_field(parts, "rest"), zone).cast(pa.timestamp("s", "UTC"))
    seconds = scaled(eras, _ERA_SECONDS, moments.view(pa.int64()))
    fraction = _fraction_digits(pc.struct_field(parts, "fraction"), unit).cast(pa.int64())
    return scaled(seconds, UNITS[unit], fraction)


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
