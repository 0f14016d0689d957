"""Plain types: the types of a topic's columns for Arrow types that only encode others."""

from typing import Any, cast

import pyarrow as pa

from wings_core.arrow_types import children, fields_of, with_children

_types = pa.types


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema without metadata, and without types that only encode others.

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
    """Return the plain type for a type, at every depth."""
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


def _plain_field(field: Any) -> Any:
    return pa.field(field.name, plain_type(field.type), nullable=field.nullable)
