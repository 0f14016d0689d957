"""Arrow types as trees: the children of a nested type, and construction of similar types.

All traversals of types use this module, which alone lists the supported kinds of nesting.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

if TYPE_CHECKING:
    # pyarrow's own classes cannot be subscripted at run time.
    ArrowField = pa.Field[Any]
    ArrowArray = pa.Array[Any]


def fields_of(schema: pa.Schema) -> "list[ArrowField]":
    """Return the columns of a schema."""
    return [cast("ArrowField", field) for field in cast("Any", schema)]


def is_list(data_type: pa.DataType) -> bool:
    """Return whether a type is a list: of the kind list, large list or fixed-size list."""
    return (
        pa.types.is_list(data_type)
        or pa.types.is_large_list(data_type)
        or pa.types.is_fixed_size_list(data_type)
    )


def is_supported_nesting(data_type: pa.DataType) -> bool:
    """Return whether a type is nested in a supported way: list, struct or map."""
    return is_list(data_type) or pa.types.is_struct(data_type) or pa.types.is_map(data_type)


def children(data_type: pa.DataType) -> "list[ArrowField]":
    """Return the fields inside a type: a list's item, a struct's fields, a map's key and value.

    Empty for every other type.

    Raises:
        UnicodeDecodeError: Not raised here, but by the `name` of a field from a hostile schema.
    """
    nested = cast("Any", data_type)
    if pa.types.is_map(data_type):
        return [nested.key_field, nested.item_field]
    if is_supported_nesting(data_type):
        return [nested.field(index) for index in range(data_type.num_fields)]
    return []


def shape(data_type: pa.DataType) -> tuple[int, ...]:
    """Return the parameters of a nested type apart from its kind and children."""
    nested = cast("Any", data_type)
    if pa.types.is_fixed_size_list(data_type):
        return (int(nested.list_size),)
    if pa.types.is_map(data_type):
        return (int(nested.keys_sorted),)
    return (data_type.num_fields,)


def map_entries(array: "ArrowArray") -> Any:
    """Convert an array of maps to lists of structs of key and value, without a copy.

    A cast does the same, but rejects nulls in a non-nullable field under a null struct.
    """
    maps = cast("Any", array)
    validity, offsets = maps.buffers()[:2]
    entries = cast("Any", pa.StructArray).from_arrays([maps.keys, maps.items], ["key", "value"])
    buffers = [validity, offsets]
    return cast("Any", pa.Array).from_buffers(
        pa.list_(entries.type), len(maps), buffers, offset=maps.offset, children=[entries]
    )


def leaves(column: Any) -> Iterator[Any]:
    """Yield the leaf columns of a nested column; a flat column yields itself."""
    waiting: list[Any] = list(column.chunks) if isinstance(column, pa.ChunkedArray) else [column]
    while waiting:
        array = waiting.pop()
        if pa.types.is_map(array.type):
            array = map_entries(array)
        if is_list(array.type):
            waiting.append(array.flatten())
        elif pa.types.is_struct(array.type):
            waiting += reversed(array.flatten())
        else:
            yield array


def with_children(data_type: pa.DataType, fields: "Sequence[ArrowField]") -> pa.DataType:
    """Return a type of the same kind and shape with other fields; a flat type is returned as is."""
    build = cast("Any", pa)
    if pa.types.is_struct(data_type):
        return build.struct(list(fields))
    if pa.types.is_map(data_type):
        # Arrow IPC drops other names of a map's parts, so they are dropped here, too.
        key, value = fields[0].with_name("key"), fields[1].with_name("value")
        return build.map_(key, value, bool(shape(data_type)[0]))
    if pa.types.is_fixed_size_list(data_type):
        return build.list_(fields[0], shape(data_type)[0])
    if pa.types.is_large_list(data_type):
        return build.large_list(fields[0])
    if pa.types.is_list(data_type):
        return build.list_(fields[0])
    return data_type
