"""Handlers that take a row as a class of the program: a dataclass, or a pydantic model."""

import dataclasses
import inspect
from collections.abc import Callable
from functools import partial, wraps
from types import NoneType, UnionType
from typing import Any, TypeGuard, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from wings_client._share_model import Delivery
from wings_client._worker_model import Each, Message, Reject
from wings_core.errors import InvalidArgument


def of_rows(handler: Callable[[Any], Any], each: Each, *, is_async: bool) -> Callable[[Any], Any]:
    """Return a handler of messages for one whose parameter is annotated with a class of rows.

    A row that the class refuses is rejected, with the fields and the reasons; the handler is not
    called. Any other handler is returned as it is.

    Args:
        handler: The handler.
        each: Unit of one call.
        is_async: True of a coroutine function.

    Raises:
        InvalidArgument: It takes a class of rows, and the unit is a batch; or one of several.
    """
    model = _model_of(handler)
    if model is None:
        return handler
    if each != "row":
        raise InvalidArgument(f'a handler of {model.__name__} takes rows: each="row"')
    adapter: TypeAdapter[Any] = TypeAdapter(model)

    def converted(message: Message) -> Any:
        try:
            return adapter.validate_python(message.row)
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()
            )
            raise Reject(f"not a {model.__name__}: {problems}") from None

    if is_async:

        @wraps(handler)
        async def handle_async(message: Message) -> Any:
            return await handler(converted(message))

        return handle_async

    @wraps(handler)
    def handle(message: Message) -> Any:
        return handler(converted(message))

    return handle


def _model_of(handler: Callable[[Any], Any]) -> type | None:
    """Return the class of rows that a handler's first parameter is annotated with.

    `Row | None` is `Row`, as a message always has a row.

    Raises:
        InvalidArgument: It is annotated with one of several classes.
    """
    function = handler.func if isinstance(handler, partial) else handler
    called = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    try:
        names = list(inspect.signature(handler).parameters)
        found = get_type_hints(called).get(names[0]) if names else None
    except (NameError, TypeError, ValueError):  # Of names that are for checkers alone.
        return None
    kinds: list[Any] = [found]
    if get_origin(found) in {Union, UnionType}:
        kinds = [each for each in get_args(found) if each is not NoneType]
    models = [each for each in kinds if _is_model(each)]
    if models and len(kinds) > 1:
        names = " or ".join(getattr(each, "__name__", str(each)) for each in kinds)
        raise InvalidArgument(f"a handler takes its rows as one class, and this one takes {names}")
    return models[0] if models else None


def _is_model(kind: Any) -> TypeGuard[type]:
    if not isinstance(kind, type) or issubclass(kind, (Message, Delivery)):
        return False
    return dataclasses.is_dataclass(kind) or hasattr(kind, "model_validate")
