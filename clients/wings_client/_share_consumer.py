"""The share consumer: a member of a share group, which renews the locks of what it processes."""

from collections.abc import Iterator

from wings_client._forks import finalize
from wings_client._share_engine import ShareEngine
from wings_client._share_model import Delivery, Rows
from wings_client._transport import Closing


class ShareConsumer(Closing, Iterator[Delivery]):
    """A member of a share group; made by `Client.share_consumer`.

    Iterating yields deliveries and blocks while there are none. Each is held by this member, and
    renewed while the caller works (unless `auto_renew` is False), until it is acknowledged:
    `accept`, `release` or `reject`, whole or by rows. What is still held when the consumer is
    closed, or its `with` block is left, is released; if it is garbage-collected without either, the
    locks expire. One thread iterates; the other methods may be called from any.

    With `wait=False` an acknowledgement is sent, and not waited for: the worker goes on with the
    next delivery while it becomes durable. One that fails is raised by the next delivery, `flush`
    or `close`, whichever comes first; its messages may be redelivered.

    Attributes:
        group: The share group's name.
        topic: The topic of the group.
        member: This member's name.
        engine: The part that `AsyncShareConsumer` shares.
    """

    def __init__(self, engine: ShareEngine) -> None:
        self.group = engine.ticket.group
        self.topic = engine.ticket.topic
        self.member = engine.ticket.member
        self.engine = engine
        # The engine's threads never hold this object, so its finalizer can end them.
        finalize(self, engine.transport, engine.abandon)

    def __repr__(self) -> str:
        """Return its group, topic and name."""
        return f"ShareConsumer({self.group!r}, {self.topic!r}, member={self.member!r})"

    def __next__(self) -> Delivery:
        """Return the next delivery; blocks until there is one.

        Raises:
            StopIteration: Nothing came for as long as the timeout, or the consumer was closed.
            WingsError: The server's refusal; `Unavailable` where it could not be reached again. Or
                that of an acknowledgement that was not waited for.
        """
        while self.engine.fill():
            self.engine.raise_refused()
            delivery = self.engine.take_held()
            if delivery is not None:
                return delivery
        raise StopIteration

    def accept(self, delivery: Delivery, rows: Rows = None, *, wait: bool = True) -> None:
        """Acknowledge messages as processed; they are never delivered to the group again.

        Args:
            delivery: The delivery.
            rows: The rows of it; None: all.
            wait: Whether to return only when it is durable.

        Raises:
            InvalidRecordState: The lock on some has expired or ended by an acknowledgement; nothing
                was changed.
            Unavailable: The outcome is unknown; they may be redelivered.
        """
        self.engine.acknowledge(delivery, "accept", rows, wait=wait)

    def release(
        self,
        delivery: Delivery,
        rows: Rows = None,
        *,
        delay: float | None = None,
        reason: str | None = None,
        wait: bool = True,
    ) -> None:
        """Release messages for redelivery to any member; this delivery counts.

        Args:
            delivery: The delivery.
            rows: The rows of it; None: all.
            delay: Seconds for which they are not delivered.
            reason: The text of the error, for the dead letter if this was the last delivery.
            wait: Whether to return only when it is durable.

        Raises:
            InvalidRecordState: The lock on some has expired or ended; nothing was changed.
            Unavailable: The outcome is unknown.
        """
        self.engine.acknowledge(delivery, "release", rows, delay=delay, reason=reason, wait=wait)

    def reject(
        self,
        delivery: Delivery,
        rows: Rows = None,
        *,
        reason: str | None = None,
        wait: bool = True,
    ) -> None:
        """Reject messages: they become dead letters, if the group has a topic of them.

        Args:
            delivery: The delivery.
            rows: The rows of it; None: all.
            reason: The text of the error, for the dead letter.
            wait: Whether to return only when it is durable.

        Raises:
            InvalidRecordState: The lock on some has expired or ended; nothing was changed.
            Unavailable: The outcome is unknown; they may be redelivered.
        """
        self.engine.acknowledge(delivery, "reject", rows, reason=reason, wait=wait)

    def renew(self, delivery: Delivery, rows: Rows = None) -> None:
        """Renew the lock on messages: it lasts a lock duration from now.

        Args:
            delivery: The delivery.
            rows: The rows of it; None: all.

        Raises:
            InvalidRecordState: The lock on some has expired or ended; nothing was changed.
            Unavailable: The outcome is unknown.
        """
        self.engine.acknowledge(delivery, "renew", rows)

    def flush(self) -> None:
        """Wait until all that was acknowledged with `wait=False` is durable.

        Raises:
            WingsError: Why the first was not that failed since one was last raised; `Unavailable`
                where no answer came within the client's timeout.
        """
        with self.engine.telling():
            self.engine.flush()

    @property
    def uses_stream(self) -> bool:
        """Whether deliveries come over a share stream, as they do unless the timeout is 0.

        A server of a version without them is polled, as a warning of the logger `wings_client`
        says.
        """
        return self.engine.uses_stream

    def close(self) -> None:
        """End iteration, flush, and release what is still held; if that fails, the locks expire.

        Raises:
            WingsError: As `flush`. The consumer is closed all the same.
        """
        with self.engine.telling():
            self.engine.close()
