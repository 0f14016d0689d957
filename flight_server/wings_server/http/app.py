"""The HTTP application: routes only; each parses, calls one plain function, and translates."""

from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Literal

from fastapi import FastAPI
from pydantic import BaseModel

from wings_core.errors import Unavailable
from wings_server.http import errors
from wings_server.http.api import add_api
from wings_server.http.documentation import complete
from wings_server.http.service import HttpService


class Status(BaseModel):
    """The answer of the health endpoints."""

    status: Literal["ok"] = "ok"


def create_app(ready: Callable[[], bool], service: HttpService | None = None) -> FastAPI:
    """Build the application.

    Args:
        ready: Whether the server accepts requests; false from the beginning of its stop.
        service: The service behind the endpoints under `/v1` and `/metrics`; None: neither exists.
    """
    app = FastAPI(
        title="Wings",
        version=version("wings-flight"),
        summary="A durable message log served over Arrow Flight, and in part over HTTP.",
        # Their pages load scripts from the network; the document itself is at /openapi.json.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    if service is None:
        errors.install(app)
    else:
        errors.install(app, partial(service.metrics.failed, "http"))
        add_api(app, service)
        complete(app)

    # Handlers are coroutines so that none takes a thread.

    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz", tags=["health"])
    async def healthz() -> Status:  # pyright: ignore[reportUnusedFunction]
        """Answer 200 while the process is alive, also while it drains."""
        return Status()

    @app.head("/readyz", include_in_schema=False)
    @app.get("/readyz", tags=["health"], responses={503: {"model": errors.ErrorBody}})
    async def readyz() -> Status:  # pyright: ignore[reportUnusedFunction]
        """Answer 200 while the server accepts requests, 503 while it starts or drains."""
        if not ready():
            raise Unavailable("the server is starting or stopping")
        return Status()

    return app
