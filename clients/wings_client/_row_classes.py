"""Rows as instances of the classes that topics are made of."""

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterator
from types import NoneType
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError

from wings_client._schemas import annotations_of, is_class_of_fields
from wings_client.arrow import RecordBatch
from wings_core.errors import InvalidArgument


def reader_of(model: type) -> Callable[[RecordBatch], Any]:
    """Return a function that makes an instance of `model` of a batch of one row.

    It raises ValueError, with the fields and the reasons, where the class refuses the row. Fields
    are found by their names, else by their aliases; maps are dicts, and enums come by their values
    in strict models too, as the columns have types. A null is the default of a field that has one
    and takes no None: rows are older than a column that was added.

    Raises:
        InvalidArgument: No row can become an instance, or one that was pushed would not be equal.
    """
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(model)
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:
        raise _no_rows(model, str(error).partition("\n")[0]) from None
    nested = [*_classes_in(model, set())]
    for each in nested:
        _check(each, is_row=each is model)
    computed: frozenset[str] = frozenset(getattr(model, "model_computed_fields", ()))
    defaults = {*_defaults(model)}
    by_alias = not any(map(_has_crossed_aliases, nested))

    def read(batch: RecordBatch) -> Any:
        try:
            row = batch.to_pylist(maps_as_pydicts="strict")[0]
        except (KeyError, TypeError) as error:  # A map with a key twice, or of lists.
            raise ValueError(str(error.args[0])) from None
        row = {
            name: value
            for name, value in row.items()
            if name not in computed and (value is not None or name not in defaults)
        }
        try:
            return adapter.validate_python(row, strict=False, by_alias=by_alias, by_name=True)
        except ValidationError as error:
            raise ValueError(
                "; ".join(
                    f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()
                )
            ) from None

    return read


def _classes_in(annotation: Any, seen: set[type]) -> Iterator[type]:
    """Yield the classes of fields in an annotation, however deep, each once."""
    if isinstance(annotation, type) and is_class_of_fields(annotation):
        if annotation not in seen:
            seen.add(annotation)
            yield annotation
            for _, inner in annotations_of(annotation):
                yield from _classes_in(inner, seen)
        return
    for inner in typing.get_args(annotation):
        yield from _classes_in(inner, seen)


def _check(model: Any, *, is_row: bool) -> None:
    """Raise `InvalidArgument` where a class has what no column gives back."""
    fields = _pydantic_fields(model)
    for name, field in fields.items():
        if field.exclude and field.is_required():
            raise _no_rows(
                model, f"its field {name!r} is excluded from columns, and has no default"
            )
    if dataclasses.is_dataclass(cast("object", model)):
        columns = {field.name for field in dataclasses.fields(model)}
        for name, parameter in inspect.signature(cast("type", model)).parameters.items():
            is_given = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if name not in columns and parameter.default is parameter.empty and not is_given:
                raise _no_rows(model, f"its argument {name!r} is no column, and has no default")
    extra = getattr(model, "model_config", {}).get("extra", "ignore")
    if getattr(model, "model_computed_fields", None) and extra != "ignore" and not is_row:
        raise _no_rows(model, f"it is nested, has computed fields, and extra={extra!r}")


def _defaults(model: Any) -> Iterator[str]:
    """Yield the fields that have a default and whose annotation takes no None."""
    if dataclasses.is_dataclass(model):
        missing = dataclasses.MISSING
        has_default = {
            field.name
            for field in dataclasses.fields(model)
            if field.default is not missing or field.default_factory is not missing
        }
    else:
        has_default = {
            name for name, field in _pydantic_fields(model).items() if not field.is_required()
        }
    for name, annotation in annotations_of(model):
        while typing.get_origin(annotation) is typing.Annotated:
            annotation = typing.get_args(annotation)[0]
        taken = (annotation, *typing.get_args(annotation))
        if name in has_default and not any(each in taken for each in (NoneType, None, Any, object)):
            yield name


def _has_crossed_aliases(model: Any) -> bool:
    """Return whether an alias of a field is the name of another one, which its column has."""
    fields = _pydantic_fields(model)
    return any(
        alias != name and alias in fields
        for name, field in fields.items()
        for alias in (field.alias, field.validation_alias)
        if isinstance(alias, str)
    )


def _pydantic_fields(model: Any) -> dict[str, Any]:
    return getattr(model, "model_fields", None) or getattr(model, "__pydantic_fields__", {})


def _no_rows(model: type, why: str) -> InvalidArgument:
    return InvalidArgument(f"a handler cannot take rows as {model.__name__:.80}: {why:.200}")
