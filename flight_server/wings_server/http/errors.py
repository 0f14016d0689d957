"""Translation of errors to HTTP responses, `{"message", "code"}`; the only place for it."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus

import structlog
from pydantic import BaseModel, Field
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wings_core.errors import (
    BatchTooLarge,
    Conflict,
    Internal,
    InvalidArgument,
    NotFound,
    OffsetOutOfRange,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
    WingsError,
)
from wings_server.flight.boundary import ClientGone

_logger = structlog.get_logger("wings.http")

_STATUS: dict[type[WingsError], HTTPStatus] = {
    InvalidArgument: HTTPStatus.BAD_REQUEST,
    Unauthenticated: HTTPStatus.UNAUTHORIZED,
    PermissionDenied: HTTPStatus.FORBIDDEN,
    NotFound: HTTPStatus.NOT_FOUND,
    Conflict: HTTPStatus.CONFLICT,
    BatchTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    OffsetOutOfRange: HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
    ResourceExhausted: HTTPStatus.TOO_MANY_REQUESTS,
    Unavailable: HTTPStatus.SERVICE_UNAVAILABLE,
}
"""Statuses by error class, subclasses included; other errors are a 500."""


class ErrorBody(BaseModel):
    """The body of every error."""

    message: str = Field(description="The problem, for people.")
    code: str = Field(description="A stable code, for programs.")


def status_of(error: WingsError) -> HTTPStatus:
    """Return the HTTP status of an error."""
    found = (_STATUS[cls] for cls in type(error).__mro__ if cls in _STATUS)
    return next(found, HTTPStatus.INTERNAL_SERVER_ERROR)


def install(
    app: Starlette,
    on_error: Callable[[str], None] = lambda code: None,
    explained: Callable[[Request, WingsError], Awaitable[WingsError]] | None = None,
) -> None:
    """Install handlers that return every error in the documented form.

    Args:
        app: The application.
        on_error: Called with the code of each error.
        explained: Returns the error to send in place of another.
    """
    app.state.on_error = on_error
    app.state.explained = explained
    app.add_exception_handler(WingsError, _wings_error)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(MemoryError, _no_memory)
    app.add_middleware(_Faults, on_error=on_error)


def _answer(request: Request, status: int, code: str, message: str) -> JSONResponse:
    request.app.state.on_error(code)
    return JSONResponse({"message": message, "code": code}, status)


async def _gone(_request: Request, _error: Exception) -> Response:
    """Return a response that is never sent, as the client has disconnected."""
    return Response(status_code=HTTPStatus.BAD_REQUEST)


async def _wings_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, WingsError)
    if isinstance(error, ClientGone):
        return await _gone(request, error)
    explained = request.app.state.explained
    told = error if explained is None else await explained(request, error)
    status = status_of(told)
    if status is HTTPStatus.INTERNAL_SERVER_ERROR:
        _logger.error("request failed", path=request.url.path, **told.to_json())
    return _answer(request, status, told.code, told.message)


async def _no_memory(request: Request, error: Exception) -> Response:
    _logger.warning("request failed for lack of memory", path=request.url.path, reason=str(error))
    return await _wings_error(request, ResourceExhausted(f"out of memory: {error!s:.200}"))


async def _http_exception(request: Request, error: Exception) -> JSONResponse:
    """Handle the framework's errors: unknown paths, and methods that a path does not support."""
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    code = InvalidArgument.code if status is HTTPStatus.BAD_REQUEST else status.name
    answer = _answer(request, status, code, f"{request.method} {request.url.path}: {error.detail}")
    answer.headers.update(error.headers or {})
    return answer


class _Faults:
    """Middleware for unexpected exceptions, which the framework would also re-raise to uvicorn.

    uvicorn closes the connection of a request that raised, so that the client's next request fails.
    """

    def __init__(self, app: ASGIApp, on_error: Callable[[str], None]) -> None:
        self._app = app
        self._on_error = on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def note_and_send(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, note_and_send)
        except Exception as error:
            if begun or scope["type"] != "http" or isinstance(error, HTTPException):
                raise
            request = f"{scope['method']} {scope['path']}"
            _logger.exception("request failed by a fault of the server", request=request)
            summary = f"internal error in {request}: {type(error).__name__}"
            self._on_error(Internal.code)
            body = {"message": summary, "code": Internal.code}
            await JSONResponse(body, HTTPStatus.INTERNAL_SERVER_ERROR)(scope, receive, send)
