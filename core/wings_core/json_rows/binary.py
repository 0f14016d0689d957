"""Conversion of binary columns to and from base64, by one call of the C codec per column.

Values are padded to a multiple of three bytes, so that base64 of their concatenation is the
concatenation of their base64; the padding is then replaced by `=`.
"""

import binascii
from array import array

import pyarrow as pa

from wings_core.arrow_compute import pc
from wings_core.json_rows.kernels import Column, UnfitError, arrow, check_form, joined

_BASE64 = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"


def _none_to_two(data_type: pa.DataType, character: bytes) -> Column:
    """Return a column of three values with zero, one and two characters."""
    # Not from a Python list: on the first one pyarrow imports pandas, if it is installed.
    offsets = pa.py_buffer(array("i", [0, 0, 1, 3]))
    return arrow.Array.from_buffers(data_type, 3, [None, offsets, pa.py_buffer(character * 3)])


_ZEROS = _none_to_two(pa.binary(), b"\0")
_EQUALS = _none_to_two(pa.string(), b"=")


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
    check_form(texts, _BASE64, "base64")
    filled = pc.fill_null(texts, "")
    missing = pc.count_substring(filled, "=")
    digits = pc.replace_substring(filled, "=", "A")
    decoded = binascii.a2b_base64(_data(digits))
    padded = _cut(pa.binary(), digits, 3, 4, decoded)
    values = _without_tail(padded, missing)
    if not padded.equals(pc.binary_join_element_wise(values, _ZEROS.take(missing), b"")):
        raise UnfitError("expected base64 in its canonical form")
    return pc.if_else(texts.is_valid(), values, None).cast(data_type)


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
