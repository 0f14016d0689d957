"""Traces of HTTP: each request of the API is a child span of the one in its headers."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wings_core import tracing


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
