"""Calls that open something: awaited, entered or iterated at once.

asyncpg's cursors, aiohttp's requests and httpx's streams each support one of these ways; an
`Opening` supports all three.
"""

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")
M_co = TypeVar("M_co", covariant=True)


class Opening(Coroutine[Any, Any, M_co]):
    """The coroutine of a call that opens something.

        follow = await client.follow("readings")
        async with client.follow("readings") as follow: ...
        async for batch, start_offset, end_offset in client.follow("readings"): ...

    It is used once, in one of these ways. The last two close what they opened; a loop that is left
    early closes it as soon as the event loop runs again.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, M_co]) -> None:
        self._coroutine = coroutine
        self._opened: M_co | None = None

    def __await__(self) -> Generator[Any, Any, M_co]:
        """Open it, and return it."""
        return self._coroutine.__await__()

    async def __aenter__(self) -> M_co:
        """Open it, and return it."""
        self._opened = await self._coroutine
        return await _context(self._opened).__aenter__()

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """Close it."""
        return await _context(self._opened).__aexit__(error_type, error, traceback)

    async def __aiter__(self: "Opening[AsyncIterable[T]]") -> AsyncGenerator[T]:
        """Open it, and yield its items; closes it at the end."""
        async with self as opened:
            async for item in opened:
                yield item

    def send(self, value: Any) -> Any:
        """Go on, as any coroutine."""
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error where it waits, as any coroutine."""
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """Close it unstarted or where it waits, as any coroutine."""
        self._coroutine.close()


def opening(call: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Opening[T]]:
    """Decorate a coroutine function so that it returns an `Opening`."""

    @wraps(call)
    def opened(*args: P.args, **kwargs: P.kwargs) -> Opening[T]:
        return Opening(call(*args, **kwargs))

    return opened


def _context(opened: object) -> AbstractAsyncContextManager[Any]:
    return cast("AbstractAsyncContextManager[Any]", opened)
