"""Checks of hosts and origins, which protect the server from web pages that a user visits.

A page of another site can send requests to a server on loopback, by its address or by a name that
resolves to it. The first has a foreign `Origin`, the second a foreign `Host`.
"""

import ipaddress
from collections.abc import Collection
from urllib.parse import SplitResult, urlsplit

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from wings_core.errors import PermissionDenied
from wings_server.http.documentation import OPEN_PATHS


class Origins:
    """Middleware that returns 403 for other hosts, and for pages of other origins.

    Args:
        app: The application behind it.
        hosts: Lower-case host names without ports, in addition to those of loopback.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject a request, or pass it to the application."""
        if scope["type"] == "http":
            problem = self._problem(scope)
            if problem is not None:
                body = {"message": problem, "code": PermissionDenied.code}
                await JSONResponse(body, 403)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _problem(self, scope: Scope) -> str | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        origin = headers.get(b"origin")
        if scope["path"] not in OPEN_PATHS and not self._is_ours(host):
            return f"the host {host[:80]!r} is not allowed: add it with --allowed-host"
        if origin is not None:
            parts = _split(origin.decode("latin-1").lower())
            if parts is None or parts.netloc != host:
                return "the request comes from a page of another origin"
        return None

    def _is_ours(self, host: str) -> bool:
        parts = _split(f"//{host}")
        name = "" if parts is None else parts.hostname or ""
        if name in self._hosts or name == "localhost":
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False


def _split(url: str) -> SplitResult | None:
    """Return the parts of a URL; None if it is invalid."""
    try:
        return urlsplit(url)
    except ValueError:
        return None
