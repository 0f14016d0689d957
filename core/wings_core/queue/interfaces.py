"""What a queue is to a pipeline: messages that are handed out for a while, at least once each."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class QueueMessage:
    """A message that was handed out, and is hidden from others until its deadline."""

    id: str
    """The same whenever the message is handed out. No other message has it, not even one of a queue
    that was made anew in the same place."""
    receipt: str
    """Of this time that it was handed out; what it is extended and acknowledged by."""
    body: str
    deliveries: int
    """How often it was handed out, this time included, as far as the queue knows."""
    deadline: float
    """When others may get it, in seconds since the epoch."""


class Queue(Protocol):
    """Tells of files, or carries data itself; safe from many threads.

    At least once is enough: a message may come twice, and after its deadline it comes again.
    """

    @property
    def gives_up(self) -> bool:
        """Whether a message that was handed out too often does not come again."""
        return False

    def visibility_seconds(self, asked: float) -> float:
        """Return for how long messages are hidden now where it is asked for so long.

        Args:
            asked: What `receive` and `extend` are called with.
        """
        return asked

    def receive(
        self, messages_max: int, visibility_seconds: float, wait_seconds: float = 0.0
    ) -> list[QueueMessage]:
        """Take messages, and hide them from others for a while.

        Blocks until there is one, at most for `wait_seconds`, without asking in a busy loop.

        Args:
            messages_max: At least 1; fewer may be returned though there are more.
            visibility_seconds: For how long; the queue may choose otherwise.
            wait_seconds: The longest wait for the first one.

        Raises:
            Unavailable: The queue cannot be reached.
            InvalidArgument: There is no such queue.
            Unauthenticated: The queue does not know who asks.
            PermissionDenied: Who asks may not; all calls below may raise the last two as well.
        """
        ...

    def extend(self, receipt: str, visibility_seconds: float) -> float | None:
        """Hide a message for so long from now on.

        Returns:
            Its new deadline; None where it is lost: it may be, or was, handed out again.

        Raises:
            Unavailable: The queue cannot be reached.
        """
        ...

    def acknowledge(self, receipts: Sequence[str]) -> None:
        """Delete messages for good; those that are lost come again, which is no error.

        Raises:
            Unavailable: The queue cannot be reached.
        """
        ...

    def send(self, bodies: Iterable[str]) -> None:
        """Add messages, such as of files that are to be read again.

        Raises:
            Unavailable: The queue cannot be reached; some may have been added.
        """
        ...

    def pending(self) -> int | None:
        """Return about how many messages wait to be handed out; None where nobody knows.

        Raises:
            Unavailable: The queue cannot be reached.
            InvalidArgument: There is no such queue.
        """
        ...

    def close(self) -> None:
        """Let go of the queue."""
        ...
