"""The application's routes, and their OpenAPI document."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

Handler = Callable[..., Awaitable[Response]]
"""A handler of `request`, and of the path's parameters by name."""


class Application(Starlette):
    """A Starlette application; FastAPI only builds its OpenAPI document, on first use.

    Handlers parse requests themselves. FastAPI's routes would take a third of a server's start, and
    time of each request, to search for models that no handler has.
    """

    def __init__(self) -> None:
        super().__init__()
        self.router.redirect_slashes = False
        self._described: list[tuple[str, Handler, dict[str, Any]]] = []
        self._document: dict[str, Any] | None = None
        self._building = threading.Lock()
        self.add_route("/openapi.json", self._answer_document)

    def add(
        self,
        path: str,
        handler: Handler,
        method: str = "GET",
        *,
        is_described: bool = True,
        **about: Any,
    ) -> None:
        """Add a route for a single method.

        Args:
            path: Path with parameters in braces.
            handler: Handles the requests; its docstring is the description.
            method: The HTTP method.
            is_described: Whether the OpenAPI document includes it.
            about: Further arguments of `FastAPI.add_api_route` for the document.
        """

        async def answer(request: Request) -> Response:
            return await handler(request=request, **request.path_params)

        route = Route(path, answer)
        route.methods = {method}  # Starlette would add HEAD to GET.
        self.router.routes.append(route)
        if is_described:
            self._described.append((path, handler, {"methods": [method], **about}))

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document, built on the first call."""
        with self._building:  # Concurrent callers wait for it.
            if self._document is None:
                self._document = self._build()
            return self._document

    def _build(self) -> dict[str, Any]:
        from fastapi import FastAPI

        from wings_server.http.documentation import complete

        described = FastAPI(
            title="Wings",
            version=version("wings-flight"),
            summary="A durable message log served over Arrow Flight, and in part over HTTP.",
        )
        for path, handler, about in self._described:
            described.add_api_route(path, handler, **about)
        return complete(described.openapi())

    async def _answer_document(self, request: Request) -> Response:
        del request
        return JSONResponse(await asyncio.to_thread(self.openapi))
