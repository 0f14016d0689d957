"""Request and response bodies, in bounded memory and time."""

import asyncio
from collections.abc import AsyncGenerator
from http import HTTPStatus
from typing import Self

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from wings_core.errors import BatchTooLarge, InvalidArgument
from wings_core.security.quotas import CallUsage
from wings_server.resources import Budget

PIECE_BYTES = 256 * 1024
"""Size of the pieces of a response, each sent once the transport has taken the previous one."""

PIECE_SECONDS_MAX = 60.0
"""Longest time for a client to send or read the next piece of a body."""


PRINCIPAL = "wings.principal"
"""Key in a request's scope for its principal; missing at open paths, such as `/readyz`."""

USAGE = "wings.usage"
"""Key in a request's scope for its usage of quotas; None without quotas."""


class Body:
    """A request's body, whose bytes count as held until it is dropped.

    Args:
        budget: Budget that counts them.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._held = 0
        self.raw = b""

    def __enter__(self) -> Self:
        """Return this body, empty until `receive`."""
        return self

    def __exit__(self, *_: object) -> None:
        """Drop the body."""
        self.drop()

    def drop(self) -> None:
        """Drop the bytes and release their budget. Idempotent."""
        self.raw = b""
        self._budget.release(self._held)
        self._held = 0

    async def receive(self, request: Request, bytes_max: int) -> bytes:
        """Receive the whole body; waits for the client.

        Args:
            request: The request.
            bytes_max: Most bytes accepted.

        Raises:
            InvalidArgument: The body is compressed.
            BatchTooLarge: The body is longer; the rest of it is not read.
            ResourceExhausted: The budget, or the sender's quota, is exhausted.
            ClientDisconnect: The client disconnected before the end of the body.
            HTTPException: No byte arrived within `PIECE_SECONDS_MAX`.
        """
        coding = request.headers.get("content-encoding", "identity")
        if coding != "identity":
            raise InvalidArgument(f"the body's content-encoding is {coding:.40}: send it plain")
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and len(declared) < 20 and int(declared) > bytes_max:
            raise _too_large(bytes_max)
        usage: CallUsage | None = request.scope.get(USAGE)
        pieces: list[bytes] = []
        stream = request.stream()
        while piece := await _next_piece(stream):
            if self._held + len(piece) > bytes_max:
                raise _too_large(bytes_max)
            self._budget.take(len(piece))
            self._held += len(piece)
            if usage is not None:
                usage.take(len(piece))
            pieces.append(piece)
        self.raw = b"".join(pieces)
        return self.raw


async def _next_piece(stream: AsyncGenerator[bytes]) -> bytes:
    try:
        async with asyncio.timeout(PIECE_SECONDS_MAX):
            return await anext(stream, b"")
    except TimeoutError:
        raise HTTPException(
            HTTPStatus.REQUEST_TIMEOUT, f"no more of the body arrived in {PIECE_SECONDS_MAX:.0f} s"
        ) from None


def _too_large(bytes_max: int) -> BatchTooLarge:
    return BatchTooLarge(f"the body is larger than {bytes_max} bytes", bytes_max=bytes_max)


class JsonAnswer(Response):
    """A JSON response, sent as fast as its client reads, and counted as held until then.

    Args:
        content: The JSON.
        budget: Budget that counts its bytes.
        is_of_change: Whether the response reports a change. It is then sent even beyond the budget,
            since a client that gets an error would repeat the change.
    """

    media_type = "application/json"

    def __init__(self, content: bytes, budget: Budget, *, is_of_change: bool = False) -> None:
        self._budget = budget
        self._is_of_change = is_of_change
        super().__init__(content)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response.

        Raises:
            ResourceExhausted: The budget, or the caller's quota, is exhausted; nothing was sent.
        """
        del receive
        body = bytes(self.body)
        usage: CallUsage | None = scope.get(USAGE)
        if usage is not None:
            (usage.hold if self._is_of_change else usage.take)(len(body))
        if self._is_of_change:
            self._budget.hold(len(body))
        else:
            self._budget.take(len(body))
        try:
            start = {"status": self.status_code, "headers": self.raw_headers}
            await send({"type": "http.response.start", **start})
            for place in range(0, max(1, len(body)), PIECE_BYTES):
                piece = body[place : place + PIECE_BYTES]
                more = place + PIECE_BYTES < len(body)
                async with asyncio.timeout(PIECE_SECONDS_MAX):
                    await send({"type": "http.response.body", "body": piece, "more_body": more})
        finally:
            self._budget.release(len(body))
