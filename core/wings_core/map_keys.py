"""Detection of duplicate keys in maps, which are invalid, and unreadable for filters."""

from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from wings_core.arrow_compute import pc
from wings_core.arrow_types import children, is_list, map_entries

if TYPE_CHECKING:
    from wings_core.arrow_types import ArrowArray


def has_map(data_type: pa.DataType) -> bool:
    """Return whether a type is, or contains, a map."""
    return pa.types.is_map(data_type) or any(has_map(each.type) for each in children(data_type))


def has_key_twice(maps: "ArrowArray") -> bool:
    """Return whether a map in an array has a duplicate key; as in SQL, NaN = NaN and 0.0 = -0.0.

    Args:
        maps: Valid maps with keys of any type; values under nulls are ignored.
    """
    entries = map_entries(maps)
    lengths = pc.fill_null(pc.list_value_length(entries), 0)
    if (pc.max(lengths).as_py() or 0) < 2:
        return False
    keys = entries.flatten().flatten()[0]
    rows = pc.list_parent_indices(_lists(lengths, keys))
    return _has_pair_twice(pc.cast(rows, pa.int64()), _ids(keys))


def _lists(lengths: Any, values: Any) -> Any:
    """Return `values` split into lists of `lengths`."""
    ends = pc.cumulative_sum(pc.cast(lengths, pa.int64()))
    offsets = pa.concat_arrays([pa.nulls(1, pa.int64()).fill_null(0), ends])
    return cast("Any", pa.LargeListArray).from_arrays(offsets, values)


def _has_pair_twice(high: Any, low: Any) -> bool:
    pairs = _paired(high, low)
    return pc.count_distinct(pairs).as_py() < len(pairs)


def _paired(high: Any, low: Any) -> Any:
    """Return a number for each pair of non-negative numbers, equal only for equal pairs."""
    return pc.add(pc.multiply(high, (pc.max(low).as_py() or 0) + 1), low)


def _ids(values: Any) -> Any:
    """Return a number below the length for each value, equal only for equal values."""
    data_type = values.type
    if pa.types.is_struct(data_type):
        ids = pc.cast(values.is_valid(), pa.int64())
        for part in values.flatten():
            ids = _encoded(_paired(ids, _ids(part)))
        return ids
    if pa.types.is_map(data_type):
        return _ids(map_entries(values))
    if is_list(data_type):
        items = pc.cast(_ids(values.flatten()), pa.string())
        lengths = pc.fill_null(pc.list_value_length(values), 0)
        texts = pc.binary_join(_lists(lengths, items), ",")
        return _encoded(
            pc.if_else(values.is_valid(), pc.binary_join_element_wise(texts, ";", ""), None)
        )
    if pa.types.is_float16(data_type):
        values = values.cast(pa.float32())
    if pa.types.is_floating(data_type):
        values = pc.if_else(pc.is_nan(values), float("nan"), pc.add(values, 0.0))
    if pa.types.is_decimal32(data_type) or pa.types.is_decimal64(data_type):
        values = values.cast(pa.decimal128(data_type.precision, data_type.scale))
    return _encoded(values)


def _encoded(values: Any) -> Any:
    return pc.cast(values.dictionary_encode(null_encoding="encode").indices, pa.int64())
