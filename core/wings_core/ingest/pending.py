"""Pending batches, and the streams that they arrive on."""

import itertools
import threading
import time
from collections.abc import Callable

from wings_core import tracing
from wings_core.errors import WingsError
from wings_core.ingest.prepare import PreparedBatch
from wings_core.model import Accepted, CommitResult, Rejected


class PushStream:
    """A sequence of batches committed in order; after a rejected one, all are rejected.

    Args:
        returns: Whether one thread answers its batches in order, calling `Pending.outcome` of one
            after another; batches submitted meanwhile are left to it, not to the flusher.
    """

    _numbers = itertools.count()

    def __init__(self, *, returns: bool = False) -> None:
        self.number = next(self._numbers)
        self.returns = returns
        self.waits = False
        """Whether the answering thread waits for an outcome, or runs its flush."""
        self.answers = False
        """Whether the answering thread has an outcome, and will return for the next."""
        self.refused: WingsError | None = None
        """Error of the first rejected batch; all later batches get it."""
        self.last: Pending | None = None
        """The last submitted batch, until a flush takes it."""


class Pending:
    """A submitted batch, or several joined small ones of a stream, until the end of its flush.

    Args:
        flush_now: Flushes until the batch's outcome is known, unless a flush is running already.
        stream: The stream that it arrived on.
        batch: The batch.
    """

    __slots__ = ("_flush_now", "_known", "batch", "bytes", "results", "since", "span", "stream")

    def __init__(
        self, flush_now: "Callable[[Pending], None]", stream: PushStream, batch: PreparedBatch
    ) -> None:
        self.stream = stream
        self.batch = batch
        self.bytes = 0
        """Memory in bytes, as counted by the group commit."""
        self.since = time.monotonic()
        self.span = tracing.present()
        self._flush_now = flush_now
        self.results: tuple[CommitResult, ...] = ()
        """Results as in `outcomes`; empty until they are known."""
        # Held until the outcome is known; a bare lock is the cheapest primitive to wait for.
        self._known = threading.Lock()
        self._known.acquire()

    def outcomes(self) -> tuple[CommitResult, ...]:
        """Return the results of the joined batches; blocks until they are known.

        Runs the flush on the caller's thread if none is running.

        Returns:
            A result for each batch, or a single one that applies to all of them.
        """
        if not self.flush():
            with self._known:
                pass
        assert self.results
        return self.results

    def flush(self) -> bool:
        """Flush on the caller's thread if no flush is running; returns `done`."""
        if not self.results:
            self._flush_now(self)
        return bool(self.results)

    def outcome(self) -> CommitResult:
        """Return the result of a batch that no other was joined with; blocks as `outcomes` does."""
        (result,) = self.outcomes()
        return result

    def accepted(self) -> Accepted:
        """Return the committed ranges; blocks as `outcome` does.

        Raises:
            WingsError: The batch was rejected.
        """
        result = self.outcome()
        if isinstance(result, Rejected):
            raise result.error
        assert isinstance(result, Accepted), "a staged batch has no offsets"
        return result

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return bool(self.results)

    def set_results(self, results: tuple[CommitResult, ...]) -> None:
        """Set the results, as in `outcomes`; called once, by the flushing thread."""
        self.results = results
        self._known.release()
