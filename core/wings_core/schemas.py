"""Schemas of topics: parsing, validation, and their JSON form."""

import base64
import binascii
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from wings_core.arrow_types import children, fields_of, is_supported_nesting, shape, with_children
from wings_core.errors import InvalidSchema, suggested
from wings_core.partitions import is_partition_key_type
from wings_core.type_names import DEPTH_MAX, FLAT_TYPES, TIME_ZONE, parse_type, type_name

if TYPE_CHECKING:
    from wings_core.arrow_types import ArrowField

__all__ = [
    "COLUMN_NAME_BYTES_MAX",
    "DEPTH_MAX",
    "FIELDS_MAX",
    "FIXED_SIZE_MAX",
    "FieldSpec",
    "bare_schema",
    "check_topic_schema",
    "parse_type",
    "schema_from_fields",
    "schema_from_ipc",
    "schema_to_fields",
    "schema_to_ipc",
    "type_name",
]

COLUMN_NAME_BYTES_MAX = 1024
"""Longest name of a column or nested field, in bytes of UTF-8."""

FIELDS_MAX = 10_000
"""Most fields of a schema, nested ones included."""

FIXED_SIZE_MAX = 1 << 20
"""Most bytes or items of fixed-size types in a row, even a null one; nested sizes multiply."""

RESERVED_PREFIX = "__"
"""Prefix of the names of system columns, reserved for them."""

_FLAT_IDS = {data_type.id for data_type in FLAT_TYPES.values()} | {
    data_type.id
    for data_type in (
        pa.timestamp("us"), pa.duration("us"), pa.time32("s"), pa.time64("us"), pa.binary(1),
        pa.decimal32(1), pa.decimal64(1), pa.decimal128(1), pa.decimal256(1),
    )
}  # fmt: skip

_EXTENSION_NAME = b"ARROW:extension:name"


class FieldSpec(BaseModel):
    """A column as JSON: its name, its type as text, and whether it may be null."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    name: str
    type: str = Field(description="Arrow's name of the type, like `timestamp[us, tz=UTC]`.")
    nullable: bool = True
    id: int | None = Field(
        default=None,
        description="In descriptions: the column's permanent number, from 1. Ignored in requests.",
    )


def check_topic_schema(schema: pa.Schema, partition_key: str | None) -> None:
    """Check that a topic may have this schema.

    Args:
        schema: Schema of the topic; its metadata is ignored.
        partition_key: The name of the key column, None for none.

    Raises:
        InvalidSchema: No columns, or too many; an empty, reserved, too long or duplicate name, also
            in a struct; an unsupported type at any depth; a key that is not a column, or of an
            unsuitable type. Fact `column` is the dotted path, if a column is at fault.
    """
    if len(schema) == 0:
        raise InvalidSchema("a topic needs at least one column")
    _check_names(fields_of(schema), "")
    for field in fields_of(schema):
        if field.name.startswith(RESERVED_PREFIX):
            raise InvalidSchema(
                f"column {field.name!r:.80}: names that start with {RESERVED_PREFIX!r} are "
                "reserved for system columns",
                column=field.name,
            )
    # Checks the depth on the way, which bounds its recursion.
    count = sum(_checked_fields(field, field.name, 1, 1) for field in fields_of(schema))
    if count > FIELDS_MAX:
        raise InvalidSchema(f"the schema has {count} fields, nested ones counted: > {FIELDS_MAX}")
    if partition_key is not None:
        _check_key(schema, partition_key)


def schema_from_fields(fields: Iterable[FieldSpec]) -> pa.Schema:
    """Build a schema from its JSON form; callers validate it with `check_topic_schema`.

    Raises:
        InvalidSchema: A type cannot be parsed; fact `column` names the column.
    """
    built: list[ArrowField] = []
    for spec in fields:
        if len(built) == FIELDS_MAX:
            raise InvalidSchema(f"the schema has more than {FIELDS_MAX} columns")
        try:
            data_type = parse_type(spec.type)
        except InvalidSchema as error:
            message = f"column {spec.name!r:.80}: {error.message}"
            raise InvalidSchema(message, column=spec.name, **error.facts) from None
        if pa.types.is_null(data_type) and not spec.nullable:
            raise _never_filled(spec.name)
        built.append(pa.field(spec.name, data_type, nullable=spec.nullable))
    return pa.schema(built)


def schema_to_fields(schema: pa.Schema) -> tuple[FieldSpec, ...]:
    """Return a schema's JSON form, the inverse of `schema_from_fields`."""
    return tuple(
        FieldSpec(name=field.name, type=type_name(field.type), nullable=field.nullable)
        for field in fields_of(schema)
    )


def schema_from_ipc(text: str) -> pa.Schema:
    """Decode a schema from base64 of its Arrow IPC message, without metadata.

    Raises:
        InvalidSchema: The text is not base64, not a schema, or has an extension type, which would
            be lost with the metadata.
    """
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidSchema("schema_ipc is not base64") from None
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(raw))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidSchema(f"schema_ipc is not an Arrow IPC schema: {error!s:.200}") from None
    return bare_schema(schema)


def schema_to_ipc(schema: pa.Schema) -> str:
    """Encode a schema's Arrow IPC message as base64."""
    return base64.b64encode(schema.serialize()).decode("ascii")


def bare_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema without metadata, at all levels.

    Raises:
        InvalidSchema: Nesting is too deep, a name is not UTF-8, or there is an extension type; one
            unknown to this process is recognised by its field's metadata.
    """
    try:
        return pa.schema([_bare_field(field, 1) for field in fields_of(schema)])
    except UnicodeDecodeError:
        raise InvalidSchema("the name of a column or nested field is not UTF-8") from None


def _bare_field(field: "ArrowField", depth: int) -> "ArrowField":
    if depth > DEPTH_MAX:
        raise InvalidSchema(f"the schema is nested more than {DEPTH_MAX} levels deep")
    metadata = field.metadata
    if metadata is not None and _EXTENSION_NAME in metadata:
        shown = metadata[_EXTENSION_NAME].decode("utf-8", "replace")
        raise _unsupported(field.name, f"extension type {shown!r:.80}")
    if pa.types.is_null(field.type) and not field.nullable:
        raise _never_filled(field.name)
    fields = [_bare_field(child, depth + 1) for child in children(field.type)]
    return pa.field(field.name, with_children(field.type, fields), nullable=field.nullable)


def _check_names(fields: "Iterable[ArrowField]", parent: str) -> None:
    """Check the names of the columns, or of a struct's fields."""
    inside = f" in {parent!r:.80}" if parent else ""
    seen: set[str] = set()
    try:
        names = [field.name for field in fields]
    except UnicodeDecodeError:
        raise InvalidSchema(f"a column's name{inside} is not UTF-8") from None
    for name in names:
        if not name:
            raise InvalidSchema(f"a column{inside} has an empty name")
        if len(name.encode("utf-8", "replace")) > COLUMN_NAME_BYTES_MAX:
            raise InvalidSchema(
                f"a column's name{inside} is longer than {COLUMN_NAME_BYTES_MAX} bytes: {name:.60}"
            )
        if "\0" in name:
            raise InvalidSchema(f"column {name!r:.80}{inside} has a NUL in its name", column=name)
        if name in seen:
            raise InvalidSchema(f"column {name!r:.80} is duplicate{inside}", column=name)
        seen.add(name)


def _checked_fields(field: "ArrowField", path: str, depth: int, width: int) -> int:
    """Check a field's type; returns the number of fields, itself included.

    Args:
        field: A column, or a field of a nested type.
        path: Dotted path of the field.
        depth: Level of nesting; 1 for a column.
        width: Product of the fixed list sizes of the levels above.
    """
    data_type = field.type
    if depth > DEPTH_MAX:
        raise InvalidSchema(
            f"column {path!r:.80} is nested more than {DEPTH_MAX} levels deep", column=path
        )
    width *= _fixed_size(data_type)
    if width > FIXED_SIZE_MAX:
        raise InvalidSchema(
            f"column {path!r:.80}: fixed sizes make a row larger than {FIXED_SIZE_MAX}", column=path
        )
    if pa.types.is_null(data_type) and not field.nullable:
        raise _never_filled(path)
    if data_type.id in _FLAT_IDS:
        if pa.types.is_timestamp(data_type):
            _check_zone(path, data_type)
        return 1
    if not is_supported_nesting(data_type):
        raise _unsupported(path, f"type {data_type!s:.120}")
    fields = children(data_type)
    if pa.types.is_struct(data_type):
        _check_names(fields, path)
    count = 1
    for child in fields:
        # Such a name would be ambiguous in the text of the type.
        if ": " in child.name or child.name.startswith(">"):
            raise InvalidSchema(
                f"column {path!r:.80}: the nested name {child.name!r:.80} may not contain ': ' or "
                "begin with '>'",
                column=path,
            )
        count += _checked_fields(child, f"{path}.{child.name}", depth + 1, width)
    return count


def _fixed_size(data_type: pa.DataType) -> int:
    if pa.types.is_fixed_size_list(data_type):
        return max(1, shape(data_type)[0])
    if pa.types.is_fixed_size_binary(data_type):
        return max(1, data_type.byte_width)
    return 1


def _never_filled(path: str) -> InvalidSchema:
    # pyarrow cannot build such a field, but reads one from an IPC message.
    return InvalidSchema(
        f"column {path!r:.80} is of type null, so it must be nullable", column=path
    )


def _check_zone(path: str, data_type: pa.DataType) -> None:
    zone: str | None = cast("Any", data_type).tz
    if zone is not None and TIME_ZONE.fullmatch(zone) is None:
        raise InvalidSchema(f"column {path!r:.80}: {zone!r:.80} is not a time zone", column=path)


def _unsupported(path: str, what: str) -> InvalidSchema:
    return InvalidSchema(
        f"column {path!r:.80}: {what} is not supported (dictionary, extension, view, run-end and "
        "union types are not); cast it to a plain type",
        column=path,
    )


def _check_key(schema: pa.Schema, partition_key: str) -> None:
    index = schema.get_field_index(partition_key)
    if index < 0:
        hint = suggested(partition_key, schema.names)
        raise InvalidSchema(f"the partition key {partition_key!r:.80} is not a column{hint}")
    data_type = schema.types[index]
    if not is_partition_key_type(data_type):
        raise InvalidSchema(
            f"column {partition_key!r:.80} of type {data_type!s:.80} cannot be the partition key: "
            "it must be an integer, string, binary or bool column",
            column=partition_key,
        )
