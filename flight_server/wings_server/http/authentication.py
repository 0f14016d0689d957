"""Authentication over HTTP, by the header `authorization: Bearer TOKEN` of each request.

request ─▶ HttpAuthentication: its principal, or 401 ─▶ the route: authorization, or 403
"""

from contextlib import ExitStack
from typing import cast

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from wings_core.errors import Unauthenticated, WingsError
from wings_core.security.principal import Principal
from wings_server.flight.authentication import secret_of
from wings_server.gate import Gate
from wings_server.http.console_files import is_console
from wings_server.http.documentation import OPEN_PATHS
from wings_server.http.errors import status_of
from wings_server.http.service import HttpService
from wings_server.http.wire import PRINCIPAL, USAGE
from wings_server.quotas import PushQuotas, using


class HttpAuthentication:
    """Middleware that finds the principal of each request, or responds with 401.

    Args:
        app: The application behind it.
        service: The service whose gate knows the tokens.
    """

    def __init__(self, app: ASGIApp, service: HttpService) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject a request, or pass it to the application."""
        path = scope.get("path", "")
        if scope["type"] != "http" or path in OPEN_PATHS or is_console(path):
            await self._app(scope, receive, send)
            return
        with ExitStack() as call:  # The call counts until its whole response is sent.
            try:
                principal = scope[PRINCIPAL] = await self._principal(scope)
                scope[USAGE] = call.enter_context(using(principal))
            except WingsError as error:
                await self._refuse(error, scope, receive, send)
                return
            await self._app(scope, receive, send)

    async def _refuse(self, error: WingsError, scope: Scope, receive: Receive, send: Send) -> None:
        self._service.metrics.failed("http", error.code)
        answer = JSONResponse({"message": error.message, "code": error.code}, status_of(error))
        if isinstance(error, Unauthenticated):
            answer.headers["www-authenticate"] = "Bearer"
        await answer(scope, receive, send)

    async def _principal(self, scope: Scope) -> Principal:
        headers = [value for name, value in scope["headers"] if name == b"authorization"]
        secret = secret_of(headers)
        gate = self._service.gate
        call = f"{scope['method']} {scope['path']}"
        if gate.authenticator.knows(secret):
            return gate.principal(secret, call)
        return await self._service.read(lambda: gate.principal(secret, call))


def secret_presented(request: Request) -> str | None:
    """Return the secret that a request presents, if any."""
    return secret_of(request.headers.getlist("authorization"))


def principal_of(request: Request) -> Principal:
    """Return the principal of a request."""
    return cast("Principal", request.scope[PRINCIPAL])


def push_quotas_of(request: Request, gate: Gate) -> PushQuotas | None:
    """Return the quotas for a push by a request's principal; None without quotas."""
    return gate.push_quotas(principal_of(request), request.scope[USAGE])
