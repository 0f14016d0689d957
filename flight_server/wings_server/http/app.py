"""The HTTP application: its routes, the middleware before them, and the console at `/`.

Hosts and origins are checked, which protects the server from web pages that a user visits. A page
of another site can send requests to a server on loopback, by its address or by a name that resolves
to it. The first has a foreign `Origin`, the second a foreign `Host`.

Authentication is by the header `authorization: Bearer TOKEN` of each request:

request ─▶ _HttpAuthentication: its principal, or 401 ─▶ the route: authorization, or 403

The files are read once, at the start, and looked up by their whole path, so that no path escapes.
The page uses the public API, with the token that its user enters.
"""

import hashlib
import ipaddress
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from http import HTTPStatus
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wings_core import tracing
from wings_core.errors import PermissionDenied, Unauthenticated, Unavailable, WingsError
from wings_core.security.principal import Principal
from wings_server.flight.authentication import secret_of
from wings_server.http import errors
from wings_server.http.api import add_api
from wings_server.http.application import OPEN_PATHS, Application
from wings_server.http.errors import status_of
from wings_server.http.service import HttpService
from wings_server.http.wire import PRINCIPAL, USAGE
from wings_server.quotas import using

FOLDER = "console"
"""Folder in this package, and path prefix of all files but the page."""

PAGE = "/"
"""Path of the page."""

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

_HEADERS = {
    # `no-cache`: browsers revalidate on each use, so that upgrades take effect at once.
    "cache-control": "no-cache",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


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
        app.add_middleware(_HttpAuthentication, service=service)
        app.add_middleware(_Origins, hosts=hosts)
        if tracing.is_on():
            app.add_middleware(Traces)

        errors.install(app, partial(service.metrics.failed, "http"), service.explained)
        add_api(app, service)
        _add_console(app)

    # Handlers are coroutines so that none takes a thread.

    async def healthz(request: Request) -> Response:
        """Return 200 while the process is alive, even while it drains."""
        del request
        return _json(Status())

    async def readyz(request: Request) -> Response:
        """Return 200 while the server accepts requests.

        Returns 503 while it starts or drains, and, with the reason, while pushes are rejected for
        lack of disk space, and of a node whose lease ended because it cannot reach metadata.
        """
        del request
        if not ready():
            raise Unavailable("the server is starting or stopping")
        disk = None if service is None else service.log.disk
        if disk is not None and disk.refusal is not None:
            raise Unavailable(disk.refusal)
        membership = None if service is None else service.log.membership
        if membership is not None and membership.silence is not None:
            raise Unavailable(f"this node is not listed: {membership.silence}")
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


class _HttpAuthentication:
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
        if scope["type"] != "http" or path in OPEN_PATHS or _is_console(path):
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
        client, _ = scope.get("client") or (None, None)
        if gate.authenticator.knows(secret):
            return gate.principal(secret, call, client)
        return await self._service.read(lambda: gate.principal(secret, call, client))


class _Origins:
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


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    media_type: str
    etag: str


def _add_console(app: Starlette) -> None:
    """Add the page and its files to an application, outside of the OpenAPI document."""
    found = _files()

    async def file(request: Request) -> Response:
        wanted = found.get(request.url.path)
        if wanted is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, "the console has no such file")
        return _answer(wanted, request.headers.get("if-none-match"))

    for path in (PAGE, f"/{FOLDER}/{{path:path}}"):
        app.add_route(path, file)  # Includes HEAD.


def _answer(file: _File, known: str | None) -> Response:
    headers = {**_HEADERS, "etag": file.etag}
    if known is not None and file.etag in (tag.strip() for tag in known.split(",")):
        return Response(status_code=304, headers=headers)
    # For HEAD, the listener omits the content.
    return Response(file.content, headers=headers, media_type=file.media_type)


@cache
def _files() -> Mapping[str, _File]:
    """Return the files by path; the page is at `PAGE`."""
    found: dict[str, _File] = {}
    for path, entry in _walk(files("wings_server.http") / FOLDER, f"/{FOLDER}"):
        content = entry.read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        media_type = _TYPES[path.rpartition(".")[2]]
        found[PAGE if path == f"/{FOLDER}/index.html" else path] = _File(content, media_type, etag)
    return found


def _walk(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{path}/{entry.name}")
        elif entry.name.rpartition(".")[2] in _TYPES:
            yield f"{path}/{entry.name}", entry


def _is_console(path: str) -> bool:
    """Return whether a path belongs to the console, and so needs no token."""
    return path == PAGE or path.startswith(f"/{FOLDER}/")
