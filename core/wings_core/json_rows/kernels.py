"""Kernels shared by the modules of this package: joining texts, division, checks.

Columns have any type, for which pyarrow's stubs have no name, so they are typed as `Any`.
"""

from typing import Any

import pyarrow as pa

from wings_core.arrow_compute import pc

Column = Any
"""An Arrow array of any type."""

arrow: Any = pa


class UnfitError(ValueError):
    """A value does not fit its type; `diagnostics` finds it."""


def joined(*parts: Column | str) -> Column:
    """Concatenate texts row by row; null if a part is null."""
    scalars = [pa.scalar(part) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*scalars, "")


def floor_divided(values: Column, divisor: int) -> tuple[Column, Column]:
    """Return floored quotients and non-negative remainders, without overflow."""
    quotient = pc.divide(values, divisor)
    remainder = pc.subtract(values, pc.multiply(quotient, divisor))
    below = pc.less(remainder, 0)
    quotient = pc.subtract(quotient, pc.cast(below, pa.int64()))
    return quotient, pc.if_else(below, pc.add(remainder, divisor), remainder)


def scaled(high: Column, factor: int, low: Column) -> Column:
    """Return `high * factor + low` in int64, for non-negative `low`.

    Raises:
        pa.ArrowInvalid: The sum is out of range (the product alone may be).
    """
    negative = pc.less(high, 0)
    high = pc.add(high, pc.cast(negative, pa.int64()))
    low = pc.if_else(negative, pc.subtract(low, factor), low)
    return pc.add_checked(pc.multiply_checked(high, factor), low)


def check_all(holds: Column, problem: str) -> None:
    """Check that a boolean column has no false values; nulls pass.

    Raises:
        UnfitError: A value is false.
    """
    if holds.false_count:
        raise UnfitError(problem)


def check_form(texts: Column, pattern: str, form: str) -> None:
    """Check that all texts fully match an RE2 regular expression.

    Raises:
        UnfitError: A text does not match.
    """
    check_all(pc.match_substring_regex(texts, f"^(?:{pattern})$"), f"expected {form}")
