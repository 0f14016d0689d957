"""Handlers by their signature: of messages, of deliveries, and of rows as instances of a class."""

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterator
from functools import partial, wraps
from inspect import Parameter
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints, is_typeddict

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError

from wings_client._schemas import annotations_of, is_class_of_fields
from wings_client._share_model import Delivery
from wings_client._worker_model import Each, Message, Reject
from wings_client.arrow import RecordBatch
from wings_core.errors import InvalidArgument

RowHandler = Callable[[Any], object] | Callable[[Any, Message], object]
"""A handler as `Client.worker` takes it: of a message, a delivery or a row, or of a row and its
message."""

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def of_rows(handler: Callable[..., Any], each: Each, *, is_async: bool) -> Callable[[Any], Any]:
    """Return a handler of messages for one whose parameter is annotated with a class of rows.

    A row that the class refuses is rejected, with the fields and the reasons; the handler is not
    called. A second parameter gets the `Message`. Any other handler is returned as it is.

    Args:
        handler: The handler.
        each: Unit of one call.
        is_async: True of a coroutine function.

    Raises:
        InvalidArgument: It cannot be called so; or takes a class of rows, and the unit is a batch;
            or one of several; or one that no row can become.
    """
    try:
        signature = inspect.signature(handler)
    except ValueError:  # A builtin that has none.
        return handler
    parameters = [
        parameter for parameter in signature.parameters.values() if parameter.kind in _POSITIONAL
    ]
    model = _model_of(handler, parameters[0]) if parameters else None
    if model is not None and each != "row":
        raise InvalidArgument(f'a handler of {model.__name__} takes rows: each="row"')
    takes_message = model is not None and _takes_message(handler, parameters[1:])
    try:
        signature.bind(*(None,) * (2 if takes_message else 1))
    except TypeError as error:
        raise InvalidArgument(
            f"the handler cannot be called: {error}; its parameters are {signature!s:.200}, and "
            + (
                "a worker gives it one argument, a Message, or the row as the class of its "
                "annotation, and after that the Message: handler(row: Order, message: Message)"
                if each == "row"
                else "a worker gives it one argument, a Delivery"
            )
        ) from None
    if model is None:
        return handler
    read = reader_of(model)

    def arguments(message: Message) -> tuple[Any, ...]:
        try:
            row = read(message.batch)
        except ValueError as error:
            raise Reject(f"not a {model.__name__}: {error}") from None
        return (row, message) if takes_message else (row,)

    if is_async:

        @wraps(handler)
        async def handle_async(message: Message) -> Any:
            return await handler(*arguments(message))

        return handle_async

    @wraps(handler)
    def handle(message: Message) -> Any:
        return handler(*arguments(message))

    return handle


def _model_of(handler: Callable[..., Any], parameter: Parameter) -> type | None:
    """Return the class of rows that a handler's first parameter is annotated with.

    `Row | None` is `Row`, as a message always has a row.

    Raises:
        InvalidArgument: It is annotated with one of several classes.
    """
    found = _hint(handler, parameter)
    kinds: list[Any] = [found]
    if get_origin(found) in {Union, UnionType}:
        kinds = [each for each in get_args(found) if each is not NoneType]
    models = [each for each in kinds if _is_model(each)]
    if models and len(kinds) > 1:
        names = " or ".join(getattr(each, "__name__", str(each)) for each in kinds)
        raise InvalidArgument(f"a handler takes its rows as one class, and this one takes {names}")
    return models[0] if models else None


def _is_model(kind: Any) -> bool:
    if not isinstance(kind, type) or issubclass(kind, (Message, Delivery)):
        return False
    return is_class_of_fields(kind) and not is_typeddict(kind)  # A message has keys too.


def _takes_message(handler: Callable[..., Any], others: list[Parameter]) -> bool:
    """Return whether a handler of rows has a second parameter for their message."""
    if not others:
        return False
    found = _hint(handler, others[0])
    if found in (None, Any):
        return others[0].default is Parameter.empty
    return Message in (found, *get_args(found))


def _hint(handler: Callable[..., Any], parameter: Parameter) -> Any:
    """Return the annotation of a parameter; None where it has none.

    Raises:
        InvalidArgument: It is a text that names nothing there.
    """
    given = parameter.annotation
    if given is Parameter.empty:
        return None
    function: Any = handler.func if isinstance(handler, partial) else handler
    if not inspect.isroutine(function):
        function = getattr(function, "__call__", function)  # noqa: B004 - its function.
    names = getattr(inspect.unwrap(function), "__globals__", {})
    holder: Any = SimpleNamespace(__annotations__={"it": given})
    try:
        return get_type_hints(holder, names)["it"]
    except TypeError:  # Something that is no type.
        return None
    except (NameError, AttributeError) as error:
        # A program may import these for checkers alone.
        for kind in (Message, Delivery):
            if str(given).rpartition(".")[2] == kind.__name__:
                return kind
        raise InvalidArgument(
            f"the annotation {given!r:.80} of the handler's {parameter.name!r:.80} cannot be read: "
            f"{error}; a worker needs the class itself, defined or imported at module level"
        ) from None


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
