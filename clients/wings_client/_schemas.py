"""Schemas of topics from what people have: classes of Python, data frames, names and types.

A value that Python's annotation says is never None makes a column that may not be null.
"""

import dataclasses
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Required, Union, cast
from uuid import UUID

import pyarrow as pa

from wings_client._rows import frame_table, is_pandas
from wings_core.arrow_types import fields_of, plain_schema
from wings_core.contracts.messages import shortened
from wings_core.errors import InvalidArgument, InvalidSchema
from wings_core.type_names import parse_type

SchemaLike = object
"""The types of which `Client.create_topic` makes a schema."""

DECIMAL_PRECISION = 38
DECIMAL_SCALE = 9
"""Decimal scale of a `Decimal` whose annotation does not say them."""

EXPECTED = (
    "expected a pyarrow schema, a mapping of names to types, a class (a pydantic model, a "
    "dataclass, a TypedDict or a NamedTuple), a pandas or Polars data frame or its schema, or "
    "anything with the Arrow PyCapsule interface"
)

SUPPORTED = (
    "int, float, str, bytes, bool, datetime, date, time, timedelta, Decimal, UUID, list[T], "
    "tuple[T, ...], dict[K, V], Literal, enums of str or int, models, dataclasses, TypedDicts and "
    "NamedTuples, each also as T | None; Annotated[T, pyarrow type] names any other"
)

_FLAT: dict[object, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    datetime: pa.timestamp("us", tz="UTC"),
    date: pa.date32(),
    time: pa.time64("us"),
    timedelta: pa.duration("us"),
    Decimal: pa.decimal128(DECIMAL_PRECISION, DECIMAL_SCALE),
    UUID: pa.string(),
}

_LISTS = (list, Sequence)
_MAPS = (dict, Mapping)
_UNIONS = (Union, types.UnionType)
_NOT_NULL = " not null"


class _Hint(NamedTuple):
    """Properties that an annotation gives of a column."""

    type: pa.DataType
    nullable: bool = False


class _Place(NamedTuple):
    """Where an annotation is, for errors and against classes inside of themselves."""

    name: str
    classes: tuple[type, ...] = ()

    def within(self, name: str) -> "_Place":
        return self._replace(name=f"{self.name}.{name}" if self.name else name)


def schema_of(given: SchemaLike, argument: str = "schema") -> pa.Schema:
    """Return the schema that an argument stands for, of plain types and without metadata.

    Reads no rows, but asks a lazy Polars frame, or a relation of DuckDB, for its schema.

    Raises:
        InvalidSchema: A field is of no type that a column can have; fact `column`.
        InvalidArgument: No schema can be made of it.
    """
    try:
        found = _arrow_schema(given)
    except pa.ArrowException as error:
        name = type(given).__name__
        raise InvalidArgument(
            shortened(f"{argument}: cannot make a schema of this {name}: {error}")
        ) from None
    if found is None and isinstance(given, Mapping):
        columns = cast("Mapping[str, object]", given).items()
        found = pa.schema([_named(str(name), each) for name, each in columns])
    if found is None and isinstance(given, type) and (fields := _class_fields(given, _Place(""))):
        found = pa.schema(list(fields))
    if found is None:
        name = type(given).__name__
        if is_class_of_fields(type(given)):
            name = f"{name} instance (pass its class)"
        raise InvalidArgument(f"{argument}: cannot make a schema of a {name}: {EXPECTED}")
    return plain_schema(found)


def _arrow_schema(given: Any) -> pa.Schema | None:
    """Return the schema of something that has one of Arrow, or of pandas or Polars; else None."""
    if isinstance(given, pa.Schema):
        return given
    if isinstance(given, (pa.Table, pa.RecordBatch, pa.RecordBatchReader)):
        return given.schema
    if isinstance(given, type):
        return None
    if (found := _frame_schema(given)) is not None:
        return found
    if hasattr(given, "__arrow_c_schema__"):
        return pa.schema(given)
    if hasattr(given, "__arrow_c_stream__"):
        with pa.RecordBatchReader.from_stream(given) as reader:
            return reader.schema
    return pa.record_batch(given).schema if hasattr(given, "__arrow_c_array__") else None


def _frame_schema(given: Any) -> pa.Schema | None:
    """Return the schema of a data frame of pandas or Polars, or of what says its types."""
    polars = sys.modules.get("polars")
    if is_pandas(given, "DataFrame"):
        return _pandas_schema(given)
    if is_pandas(given, "Series"):  # The dtypes of a data frame.
        return pa.schema([_named(str(name), each) for name, each in given.items()])
    if polars is not None and isinstance(given, (polars.DataFrame, polars.LazyFrame)):
        return _polars_schema(given.collect_schema())
    if polars is not None and isinstance(given, polars.Schema):
        return _polars_schema(given)
    return None


def _pandas_schema(frame: Any) -> pa.Schema:
    """Return the schema of a frame as it is pushed."""
    found = frame_table(frame).schema
    for field in fields_of(found):
        if pa.types.is_null(field.type):
            raise _unsupported(field.name, "a column of which every value is missing")
    return found


def _polars_schema(schema: object) -> pa.Schema:
    import polars as pl  # It is there: the schema is one of its.

    for name, data_type in cast("Mapping[str, object]", schema).items():
        if data_type == pl.Object:  # To Arrow it gives where they are in memory.
            raise _unsupported(name, "a column of objects of Python")
    with pa.RecordBatchReader.from_stream(pl.DataFrame(schema=cast("Any", schema))) as reader:
        return reader.schema


def _named(name: str, given: Any) -> Any:
    """Return the field of a mapping's entry, whose columns may be null unless it is of Python."""
    if isinstance(given, str):
        # As text has it, the type is the caller's, an error is about the text.
        text = given.removesuffix(_NOT_NULL)
        return pa.field(name, parse_type(text), nullable=text == given)
    if isinstance(given, pa.DataType):
        return pa.field(name, given)
    if isinstance(given, pa.Field):
        return cast("Any", given).with_name(name)
    if (found := _library_type(name, given)) is not None:
        return pa.field(name, found)
    return pa.field(name, *_hint(given, _Place(name)))


def _library_type(name: str, given: Any) -> pa.DataType | None:
    """Return the type for a dtype of NumPy, pandas or Polars; None where it is none."""
    module = (given if isinstance(given, type) else type(given)).__module__.partition(".")[0]
    if module == "polars":
        return _polars_schema({name: given}).field(0).type
    if module == "numpy":
        if getattr(given, "kind", "") == "O":
            raise _unsupported(name, "the dtype object (pass the frame itself)")
        return cast("Any", pa).from_numpy_dtype(given)
    if module == "pandas":
        return cast("Any", pa).array(sys.modules["pandas"].Series([], dtype=given)).type
    return None


def is_class_of_fields(given: type) -> bool:
    """Return whether a class is a model, a dataclass, a TypedDict or a NamedTuple."""
    return (
        dataclasses.is_dataclass(given)
        or hasattr(given, "model_fields")
        or typing.is_typeddict(given)
        or (issubclass(given, tuple) and hasattr(given, "_fields"))
    )


def _class_fields(given: type, place: _Place) -> list[Any]:
    """Return the fields of a class, in order; none where it is not a class of fields."""
    if not is_class_of_fields(given):
        return []
    if given in place.classes:
        raise _unsupported(place.name, f"{given.__name__}, which contains itself")
    if getattr(given, "__pydantic_root_model__", False):
        raise _unsupported(place.name, f"{given.__name__}, a RootModel, which has no fields")
    if issubclass(given, tuple) and any(hasattr(each, "model_fields") for each in place.classes):
        raise _unsupported(place.name, f"{given.__name__}, a NamedTuple, which pydantic dumps bare")
    inner = place._replace(classes=(*place.classes, given))
    fields: list[Any] = []
    for name, annotation in annotations_of(given, place.name):
        at = inner.within(name)
        found = _hint(annotation, at)
        fields.append(pa.field(name, found.type, nullable=found.nullable))
    return fields


def annotations_of(given: Any, place: str = "") -> Iterator[tuple[str, object]]:
    """Yield the names and annotations of the columns that a class of fields has, in order.

    Raises:
        InvalidSchema: An annotation names nothing; fact `column`, the place of the class.
    """
    if hasattr(given, "model_fields"):  # Of pydantic: what its `model_dump` returns.
        for name, field in given.model_fields.items():
            if not field.exclude:
                yield name, _annotated(field.annotation, field.metadata)
        for name, computed in given.model_computed_fields.items():
            yield name, computed.return_type
        return
    try:
        hints = typing.get_type_hints(given, include_extras=True)
    except NameError as error:
        raise InvalidSchema(
            f"the annotations of {given.__name__:.80} cannot be read: {error}", column=place
        ) from None
    if dataclasses.is_dataclass(given):
        hints = {field.name: hints[field.name] for field in dataclasses.fields(given)}
    optional: frozenset[str] = getattr(given, "__optional_keys__", frozenset())
    for name, hint in hints.items():
        yield name, hint | None if name in optional else hint


def _annotated(annotation: Any, metadata: Sequence[object]) -> Any:
    for each in metadata:
        annotation = Annotated[annotation, each]
    return annotation


def _hint(annotation: Any, place: _Place) -> _Hint:
    """Return the type of an annotation, and whether a value may be None."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _of_annotated(arguments[0], arguments[1:], place)
    if origin in (Required, NotRequired):
        return _hint(arguments[0], place)
    if origin in _UNIONS:
        return _of_union(annotation, arguments, place)
    if origin is Literal:
        return _of_values(annotation, arguments, place)
    if origin in _LISTS or (origin is tuple and arguments[1:] == (...,)):
        return _Hint(pa.list_(pa.field("item", *_hint(arguments[0], place.within("[]")))))
    if origin in _MAPS:
        return _of_map(arguments[0], arguments[1], place)
    if hasattr(annotation, "__supertype__"):  # A NewType.
        return _hint(annotation.__supertype__, place)
    if hasattr(annotation, "__value__"):  # An alias made by `type`.
        return _hint(annotation.__value__, place)
    if isinstance(annotation, pa.DataType):
        return _Hint(annotation, nullable=True)
    return _of_class(annotation, place)


def _of_map(key: Any, value: Any, place: _Place) -> _Hint:
    found = _hint(key, place.within("key")).type
    if pa.types.is_nested(found):  # In Python it would come back as a dict or a list.
        raise _unsupported(place.within("key").name, f"{_text(key)} as the key of a map")
    values = pa.field("value", *_hint(value, place.within("value")))
    return _Hint(cast("Any", pa).map_(found, values))


def _of_class(annotation: Any, place: _Place) -> _Hint:
    if (flat := _FLAT.get(annotation)) is not None:
        return _Hint(flat)
    if isinstance(annotation, type):
        if issubclass(annotation, Enum):
            if issubclass(annotation, (str, int)):
                return _Hint(pa.string() if issubclass(annotation, str) else pa.int64())
        elif fields := _class_fields(annotation, place):
            return _Hint(pa.struct(fields))
    raise _unsupported(place.name, _text(annotation))


def _of_annotated(annotation: Any, metadata: Sequence[Any], place: _Place) -> _Hint:
    for each in metadata:
        if isinstance(each, pa.DataType):
            return _Hint(each, _allows_none(annotation))
    found = _hint(annotation, place)
    digits = [each for each in metadata if getattr(each, "max_digits", None) is not None]
    scales = [each for each in metadata if getattr(each, "decimal_places", None) is not None]
    if pa.types.is_decimal(found.type) and (digits or scales):
        precision = min(digits[0].max_digits, DECIMAL_PRECISION) if digits else DECIMAL_PRECISION
        scale = scales[0].decimal_places if scales else min(DECIMAL_SCALE, precision)
        return found._replace(type=pa.decimal128(precision, scale))
    return found


def _allows_none(annotation: Any) -> bool:
    is_union = typing.get_origin(annotation) in _UNIONS
    return is_union and type(None) in typing.get_args(annotation)


def _of_union(annotation: Any, arguments: Sequence[Any], place: _Place) -> _Hint:
    others = [each for each in arguments if each is not type(None)]
    if len(others) != 1:
        raise _unsupported(place.name, _text(annotation))
    found = _hint(others[0], place)
    return found._replace(nullable=found.nullable or len(others) < len(arguments))


def _of_values(annotation: Any, values: Sequence[Any], place: _Place) -> _Hint:
    """Return the type of a Literal, whose values are all of one."""
    for kind in (str, bytes, bool, int):
        there = [each for each in values if each is not None]
        if there and all(isinstance(each, kind) for each in there):
            return _Hint(_FLAT[kind], len(there) < len(values))
    raise _unsupported(place.name, _text(annotation))


def _text(annotation: Any) -> str:
    name = getattr(annotation, "__name__", None)
    return name if isinstance(annotation, type) and name else repr(annotation)


def _unsupported(name: str, found: str) -> InvalidSchema:
    return InvalidSchema(
        f"field {name!r:.80}: no column is made of {found:.120}; supported are {SUPPORTED}",
        column=name,
    )
