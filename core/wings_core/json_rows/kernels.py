"""Kernels that the modules beside this one share: joining texts, dividing, checking.

pyarrow's stubs know arrays and kernels by the type of their values, which here is any, so both are
typed as `Any`.
"""

from typing import Any

import pyarrow as pa
import pyarrow.compute

Column = Any
"""An Arrow array of any type."""

arrow: Any = pa
pc: Any = pyarrow.compute


class UnfitError(ValueError):
    """A column that was read has a value outside its type; `diagnostics` finds which one."""


def joined(*parts: Column | str) -> Column:
    """Return texts put together row by row; null where one of the parts is."""
    scalars = [pa.scalar(part) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*scalars, "")


def floor_divided(values: Column, divisor: int) -> tuple[Column, Column]:
    """Return quotients rounded down, and remainders of at least 0; never overflows."""
    quotient = pc.divide(values, divisor)
    remainder = pc.subtract(values, pc.multiply(quotient, divisor))
    below = pc.less(remainder, 0)
    quotient = pc.subtract(quotient, pc.cast(below, pa.int64()))
    return quotient, pc.if_else(below, pc.add(remainder, divisor), remainder)


def scaled(high: Column, factor: int, low: Column) -> Column:
    """Return `high * factor + low` of int64, where `low` is at least 0.

    Raises:
        pa.ArrowInvalid: The sum is out of range; that a product alone would be does no harm.
    """
    negative = pc.less(high, 0)
    high = pc.add(high, pc.cast(negative, pa.int64()))
    low = pc.if_else(negative, pc.subtract(low, factor), low)
    return pc.add_checked(pc.multiply_checked(high, factor), low)


def check_all(holds: Column, problem: str) -> None:
    """Check that a boolean column has no false in it; nulls pass.

    Raises:
        UnfitError: It has one.
    """
    if holds.false_count:
        raise UnfitError(problem)


def check_form(texts: Column, pattern: str, form: str) -> None:
    """Check that all texts match a regular expression of RE2, from first to last character.

    Raises:
        UnfitError: One does not.
    """
    check_all(pc.match_substring_regex(texts, f"^(?:{pattern})$"), f"expected {form}")
