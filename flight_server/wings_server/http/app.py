"""The HTTP application: routes only; each parses, calls one plain function, and translates."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Literal

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wings_core import tracing
from wings_core.errors import Unavailable
from wings_server.http import errors
from wings_server.http.actions import add_actions
from wings_server.http.api import add_api
from wings_server.http.application import Application
from wings_server.http.authentication import HttpAuthentication
from wings_server.http.console_files import add_console
from wings_server.http.origins import Origins
from wings_server.http.service import HttpService


class Status(BaseModel):
    """Response of the health endpoints."""

    status: Literal["ok"] = "ok"


class Readiness(Status):
    """Response of a server that accepts requests."""

    share_groups: str | None = None
    """Reason why share groups are closed, or null; everything else works."""


def create_app(
    ready: Callable[[], bool],
    service: HttpService | None = None,
    hosts: Collection[str] = (),
) -> Application:
    """Build the application.

    Args:
        ready: Returns whether the server accepts requests; false once it begins to stop.
        service: The service behind `/v1` and `/metrics`; None for neither.
        hosts: Host names accepted in addition to those of loopback.
    """
    app = Application()
    if service is None:
        errors.install(app)
    else:
        app.add_middleware(HttpAuthentication, service=service)
        app.add_middleware(Origins, hosts=hosts)
        if tracing.is_on():
            app.add_middleware(Traces)

        errors.install(app, partial(service.metrics.failed, "http"), service.explained)
        add_api(app, service)
        add_actions(app, service)
        add_console(app)

    # Handlers are coroutines so that none takes a thread.

    async def healthz(request: Request) -> Response:
        """Return 200 while the process is alive, even while it drains."""
        del request
        return _json(Status())

    async def readyz(request: Request) -> Response:
        """Return 200 while the server accepts requests.

        Returns 503 while it starts or drains, and, with the reason, while pushes are rejected for
        lack of disk space.
        """
        del request
        if not ready():
            raise Unavailable("the server is starting or stopping")
        disk = None if service is None else service.log.disk
        if disk is not None and disk.refusal is not None:
            raise Unavailable(disk.refusal)
        damage = None if service is None else service.log.shares.coordinator.damage
        return _json(Readiness(share_groups=None if damage is None else damage.message))

    health: dict[str, Any] = {"tags": ["health"]}
    app.add("/healthz", healthz, **health, response_model=Status)
    unready = {503: {"model": errors.ErrorBody}}
    app.add("/readyz", readyz, **health, response_model=Readiness, responses=unready)
    for path, handler in (("/healthz", healthz), ("/readyz", readyz)):
        app.add(path, handler, "HEAD", is_described=False)
    return app


def _json(status: Status) -> Response:
    return JSONResponse(status.model_dump(exclude_none=True))


class Traces:
    """Middleware that creates spans for requests; only installed while tracing is on.

    Args:
        app: The application behind it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request within its span; probes, metrics and pages have none."""
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        received = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in scope["headers"]
            if name != b"authorization"
        }
        method = scope["method"]
        about = {"http.request.method": method, "url.path": scope["path"]}
        with tracing.server_span(method, received, about) as span:
            assert span is not None, "traces are on"

            async def answer(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                await send(message)

            await self._app(scope, receive, answer)
            route = getattr(scope.get("route"), "path", None)
            if route is not None:
                span.set_attribute("http.route", route)
                span.update_name(f"{method} {route}")
