"""Detection of the least integer of a decimal's bits, which Arrow accepts at any precision.

Arrow's check of digits takes the absolute value, which overflows: -2^127 passes as decimal128(5,
2).
"""

from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from wings_core.arrow_types import children

if TYPE_CHECKING:
    from wings_core.arrow_types import ArrowArray


def has_wide_decimal(data_type: pa.DataType) -> bool:
    """Return whether a type is, or contains, a decimal of 128 or 256 bits."""
    return _is_wide(data_type) or any(has_wide_decimal(each.type) for each in children(data_type))


def has_least(values: "ArrowArray") -> bool:
    """Return whether an array of wide decimals contains the least integer of its bits."""
    compute: Any = import_module("pyarrow.compute")
    # Arrow cannot compare decimals of a negative scale; the scale does not matter here.
    plain: Any = pa.decimal128(38) if pa.types.is_decimal128(values.type) else pa.decimal256(76)
    bits = cast("Any", pa.Array).from_buffers(
        plain, len(values), cast("Any", values).buffers(), offset=cast("Any", values).offset
    )
    return bool(compute.equal(bits, _least(plain)).true_count)


def _is_wide(data_type: pa.DataType) -> bool:
    return pa.types.is_decimal128(data_type) or pa.types.is_decimal256(data_type)


@lru_cache(maxsize=2)
def _least(data_type: Any) -> Any:
    bits: int = data_type.bit_width
    raw = (-(1 << (bits - 1))).to_bytes(bits // 8, "little", signed=True)
    return cast("Any", pa.Array).from_buffers(data_type, 1, [None, pa.py_buffer(raw)])[0]
