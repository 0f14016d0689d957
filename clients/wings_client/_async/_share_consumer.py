"""The async share consumer: the engine of a `ShareConsumer`, its deliveries awaited."""

from collections.abc import AsyncIterator
from functools import partial
from types import TracebackType
from typing import Self

from wings_client._acquire import AckType
from wings_client._async._turns import Turns
from wings_client._share_consumer import ShareConsumer
from wings_client._share_model import Delivery, Rows


class AsyncShareConsumer(AsyncIterator[Delivery]):
    """A member of a share group; made by `AsyncClient.share_consumer`. One task iterates.

    See `ShareConsumer` for what it guarantees; every call takes what its namesake there takes, and
    is awaited. A task that is cancelled while it waits for a delivery leaves it to the next.

    Attributes:
        group: The share group.
        topic: Whose messages it shares.
        member: What it calls itself.
    """

    def __init__(self, reads: Turns, calls: Turns, consumer: ShareConsumer) -> None:
        self.group = consumer.group
        self.topic = consumer.topic
        self.member = consumer.member
        self._reads = reads
        self._calls = calls
        self._consumer = consumer  # Kept, as the client closes what is still there.
        self._engine = consumer.engine

    async def __anext__(self) -> Delivery:
        """Return the next delivery; waits until there is one.

        Raises:
            StopAsyncIteration: Nothing came for as long as the timeout, or it was closed.
            WingsError: The server's refusal; `Unavailable` where it could not be reached again.
        """
        # Taken here, not on the thread: a task that was cancelled would lose it.
        delivery = self._engine.take()
        if delivery is None:
            await self._reads.run(self._engine.fill)
            delivery = self._engine.take()
        if delivery is None:
            raise StopAsyncIteration
        return delivery

    async def accept(self, delivery: Delivery, rows: Rows = None) -> None:
        """Say that messages are done; see `ShareConsumer.accept`."""
        await self._settle(delivery, "accept", rows)

    async def release(
        self, delivery: Delivery, rows: Rows = None, *, delay: float | None = None
    ) -> None:
        """Give messages back; see `ShareConsumer.release`."""
        await self._settle(delivery, "release", rows, delay=delay)

    async def reject(
        self, delivery: Delivery, rows: Rows = None, *, reason: str | None = None
    ) -> None:
        """Give messages up; see `ShareConsumer.reject`."""
        await self._settle(delivery, "reject", rows, reason=reason)

    async def renew(self, delivery: Delivery, rows: Rows = None) -> None:
        """Hold messages for longer; see `ShareConsumer.renew`."""
        await self._settle(delivery, "renew", rows)

    async def close(self) -> None:
        """End iteration, and release what is still held; where that fails, it expires."""
        await self._calls.run(self._engine.close)

    async def __aenter__(self) -> Self:
        """Return the consumer itself."""
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it."""
        await self.close()

    async def _settle(
        self,
        delivery: Delivery,
        kind: AckType,
        rows: Rows,
        delay: float | None = None,
        reason: str | None = None,
    ) -> None:
        settle = partial(self._engine.settle, delivery, kind, rows, delay=delay, reason=reason)
        await self._calls.run(settle)
