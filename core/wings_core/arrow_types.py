"""Arrow types as trees: children of nested types, similar types, and plain equivalents.

All traversals of types use this module, which alone lists the supported kinds of nesting. Plain
types are the equivalents of those that only encode other types.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from wings_core.arrow_compute import pc

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


_types = pa.types
_WITH_OFFSETS = (
    _types.is_string,
    _types.is_large_string,
    _types.is_binary,
    _types.is_large_binary,
)


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema without metadata and encodings.

    Dictionary and run-end encodings become their value types, extension types their storage types,
    views and list views the types with offsets.
    """
    return pa.schema(
        [
            pa.field(field.name, plain_type(field.type), nullable=field.nullable)
            for field in fields_of(schema)
        ]
    )


def plain_type(data_type: pa.DataType) -> pa.DataType:
    """Return the plain equivalent of a type, nested types included."""
    found = cast("Any", data_type)
    if isinstance(data_type, pa.BaseExtensionType):
        return plain_type(found.storage_type)
    if _types.is_dictionary(data_type) or _types.is_run_end_encoded(data_type):
        return plain_type(found.value_type)
    if _types.is_string_view(data_type):
        return pa.string()
    if _types.is_binary_view(data_type):
        return pa.binary()
    if _types.is_list_view(data_type):
        return pa.list_(_plain_field(found.value_field))
    if _types.is_large_list_view(data_type):
        return pa.large_list(_plain_field(found.value_field))
    return with_children(data_type, [_plain_field(child) for child in children(data_type)])


def plain_bytes(array: "ArrowArray") -> int:
    """Return an approximate upper bound of the bytes of a valid array in its plain type.

    Encodings, in which a value may stand for many rows, are not expanded for this.
    """
    found, data_type = cast("Any", array), array.type
    if isinstance(array, pa.ExtensionArray):
        return plain_bytes(found.storage)
    if _types.is_dictionary(data_type):
        return _total(_value_bytes(found.dictionary).take(found.indices))
    if _types.is_run_end_encoded(data_type):
        ends = found.run_ends.cast(pa.float64())
        starts = pa.concat_arrays([pa.array([0.0]), ends.slice(0, max(0, len(ends) - 1))])
        return _total(pc.multiply(_value_bytes(found.values), pc.subtract(ends, starts)))
    if _types.is_list_view(data_type) or _types.is_large_list_view(data_type):
        most = pc.max(_value_bytes(found.values)).as_py() or 0
        return _total(found.sizes.cast(pa.float64())) * int(most)
    if is_list(data_type):
        return array.nbytes - found.values.nbytes + plain_bytes(found.values)
    if _types.is_map(data_type):
        return 4 * len(array) + plain_bytes(found.keys) + plain_bytes(found.items)
    if _types.is_struct(data_type):
        return len(array) + sum(map(plain_bytes, found.flatten()))
    if _is_view(data_type):
        return _total(_value_bytes(array))
    return array.nbytes


def _total(values: Any) -> int:
    return int(pc.sum(values).as_py() or 0)


def _value_bytes(array: "ArrowArray") -> Any:
    """Return the bytes of each value in the plain type, as doubles."""
    data_type = array.type
    if _is_view(data_type):
        # A view has 16 bytes, beginning with the length, which is arbitrary for nulls.
        rows = array.offset + len(array)
        words = pa.Array.from_buffers(pa.int32(), 4 * rows, [None, array.buffers()[1]])
        views = cast("Any", pa.FixedSizeListArray).from_arrays(words, 4)
        lengths = pc.list_element(views, 0).slice(array.offset)
        lengths = pc.if_else(array.is_valid(), lengths, 0)
    elif any(is_kind(data_type) for is_kind in _WITH_OFFSETS):
        lengths = pc.binary_length(array)
    else:  # Nested types: the bytes of all values.
        is_flat = data_type.num_fields == 0
        most = data_type.bit_width / 8 if is_flat else float(plain_bytes(array))
        return cast("Any", pa).repeat(most, len(array))
    return pc.add(lengths.fill_null(0).cast(pa.float64()), 8.0)  # Plus an offset.


def _is_view(data_type: pa.DataType) -> bool:
    return _types.is_string_view(data_type) or _types.is_binary_view(data_type)


def _plain_field(field: Any) -> Any:
    return pa.field(field.name, plain_type(field.type), nullable=field.nullable)
