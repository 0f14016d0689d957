"""The async share consumer: the engine of a `ShareConsumer`, its deliveries awaited."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Self

from wings_client._acquire import AckType
from wings_client._async._pool import WorkerPool
from wings_client._share_consumer import ShareConsumer
from wings_client._share_model import Delivery, Rows
from wings_core.errors import WingsError


class AsyncShareConsumer(AsyncIterator[Delivery]):
    """A member of a share group; made by `AsyncClient.share_consumer`. One task iterates.

    See `ShareConsumer` for what it guarantees; every call takes what its namesake there takes, and
    is awaited. A task that is cancelled while it waits for a delivery leaves it to the next.

    Attributes:
        group: The share group's name.
        topic: The topic of the group.
        member: This member's name.
    """

    def __init__(self, reads: WorkerPool, calls: WorkerPool, consumer: ShareConsumer) -> None:
        self.group = consumer.group
        self.topic = consumer.topic
        self.member = consumer.member
        self._reads = reads
        self._calls = calls
        self._consumer = consumer  # A reference: the client holds its consumers weakly.
        self._engine = consumer.engine

    @property
    def uses_stream(self) -> bool:
        """Whether deliveries come over a share stream; see `ShareConsumer.uses_stream`."""
        return self._engine.uses_stream

    async def __anext__(self) -> Delivery:
        """Return the next delivery; waits until there is one.

        Raises:
            StopAsyncIteration: Nothing came for as long as the timeout, or it was closed.
            WingsError: See `ShareConsumer.__next__`.
        """
        self._engine.raise_refused()
        # Taken on the event loop: taken on a thread, it would be lost with a cancelled task.
        while (delivery := self._engine.take_held()) is None:
            if not await self._reads.run(self._engine.fill):
                raise StopAsyncIteration
            self._engine.raise_refused()
        return delivery

    async def accept(self, delivery: Delivery, rows: Rows = None, *, wait: bool = True) -> None:
        """Acknowledge messages as processed; see `ShareConsumer.accept`."""
        await self._acknowledge(delivery, "accept", rows, wait=wait)

    async def release(
        self,
        delivery: Delivery,
        rows: Rows = None,
        *,
        delay: float | None = None,
        reason: str | None = None,
        wait: bool = True,
    ) -> None:
        """Release messages for redelivery; see `ShareConsumer.release`."""
        await self._acknowledge(delivery, "release", rows, delay=delay, reason=reason, wait=wait)

    async def reject(
        self,
        delivery: Delivery,
        rows: Rows = None,
        *,
        reason: str | None = None,
        wait: bool = True,
    ) -> None:
        """Reject messages, which become dead letters; see `ShareConsumer.reject`."""
        await self._acknowledge(delivery, "reject", rows, reason=reason, wait=wait)

    async def renew(self, delivery: Delivery, rows: Rows = None) -> None:
        """Renew the lock on messages; see `ShareConsumer.renew`."""
        await self._acknowledge(delivery, "renew", rows)

    async def flush(self) -> None:
        """Wait until all that was acknowledged is durable; see `ShareConsumer.flush`."""
        with self._engine.telling():
            await self._calls.run(self._engine.flush)

    async def close(self) -> None:
        """End iteration, flush, and release what is still held; see `ShareConsumer.close`."""
        with self._engine.telling():
            await self._calls.run(self._engine.close)

    async def __aenter__(self) -> Self:
        """Return the consumer itself."""
        return self

    async def __aexit__(self, error_type: object, error: BaseException | None, *_: object) -> None:
        """Close the consumer; an error raised in the block takes precedence over one of its own."""
        try:
            await self.close()
        except WingsError:
            if error is None:
                raise

    async def _acknowledge(
        self,
        delivery: Delivery,
        kind: AckType,
        rows: Rows,
        delay: float | None = None,
        reason: str | None = None,
        *,
        wait: bool = True,
    ) -> None:
        acknowledge = partial(
            self._engine.acknowledge, delivery, kind, rows, delay=delay, reason=reason, wait=wait
        )
        await self._calls.run(acknowledge)
