"""The HTTP application: routes only; each parses, calls one plain function, and translates."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Literal

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from wings_core import tracing
from wings_core.errors import Unavailable
from wings_server.http import errors
from wings_server.http.actions import add_actions
from wings_server.http.api import add_api
from wings_server.http.application import Application
from wings_server.http.authentication import Authentication
from wings_server.http.console_files import add_console
from wings_server.http.origins import Origins
from wings_server.http.service import HttpService
from wings_server.http.traces import Traces


class Status(BaseModel):
    """The answer of the health endpoints."""

    status: Literal["ok"] = "ok"


class Readiness(Status):
    """The answer of a server that accepts requests."""

    share_groups: str | None = None
    """Why they are closed, where they are; all else is served."""


def create_app(
    ready: Callable[[], bool],
    service: HttpService | None = None,
    hosts: Collection[str] = (),
) -> Application:
    """Build the application.

    Args:
        ready: Whether the server accepts requests; false from the beginning of its stop.
        service: The service behind the endpoints under `/v1` and `/metrics`; None: neither exists.
        hosts: Names by which the server may be asked, besides those of loopback.
    """
    app = Application()
    if service is None:
        errors.install(app)
    else:
        app.add_middleware(Authentication, service=service)
        app.add_middleware(Origins, hosts=hosts)
        if tracing.is_on():
            app.add_middleware(Traces)
        errors.install(app, partial(service.metrics.failed, "http"))
        add_api(app, service)
        add_actions(app, service)
        add_console(app)

    # Handlers are coroutines so that none takes a thread.

    async def healthz(request: Request) -> Response:
        """Answer 200 while the process is alive, also while it drains."""
        del request
        return _json(Status())

    async def readyz(request: Request) -> Response:
        """Answer 200 while the server accepts requests.

        503 while it starts or drains, and with the reason while pushes are refused for want of
        room on the disk.
        """
        del request
        if not ready():
            raise Unavailable("the server is starting or stopping")
        disk = None if service is None else service.log.disk
        if disk is not None and disk.refusal is not None:
            raise Unavailable(disk.refusal)
        damage = None if service is None else service.log.shares.damage
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
