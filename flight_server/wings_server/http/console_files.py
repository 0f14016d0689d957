"""The console: static files of this package at `/`, served to every caller that names this host.

The files are read once, at the start, and looked up by their whole path, so that no path escapes.
The page uses the public API, with the token that its user enters.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

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


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    media_type: str
    etag: str


def add_console(app: Starlette) -> None:
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


def is_console(path: str) -> bool:
    """Return whether a path belongs to the console, and so needs no token."""
    return path == PAGE or path.startswith(f"/{FOLDER}/")
