"""A batch on its way into a flush, and the stream that it came by."""

import itertools
import threading
import time
from typing import Protocol

from wings_core import tracing
from wings_core.errors import WingsError
from wings_core.ingest.prepare import PreparedBatch
from wings_core.model import Accepted, CommitResult, Rejected


class PushStream:
    """Batches that are committed in order, and none after one that was refused.

    Args:
        returns: Whether one thread answers its batches in order, and calls `Pending.outcome` of the
            next each time it has; what comes meanwhile is left to it, not to the flusher.
    """

    _numbers = itertools.count()

    def __init__(self, *, returns: bool = False) -> None:
        self.number = next(self._numbers)
        self.returns = returns
        self.waits = False
        """Whether that thread waits for an outcome, or runs the flush that brings it;"""
        self.answers = False
        """or was told one a moment ago, and will be back for the next."""
        self.refused: WingsError | None = None
        """Set by the flush, and by the stream's reader; later batches are refused with it too."""
        self.last: Pending | None = None
        """The last that was submitted, if no flush has taken it yet."""


class FlushesNow(Protocol):
    """What has batches in its flushes: the group commit."""

    def flush_now(self, wanted: "Pending") -> None:
        """Flush until the batch's outcome is known, unless a flush is running already."""
        ...


class Pending:
    """A batch on its way into a flush; its outcome is known once that flush is over.

    Or several small ones of a stream, which were joined.
    """

    __slots__ = ("_group", "_known", "batch", "bytes", "results", "since", "span", "stream")

    def __init__(self, group: FlushesNow, stream: PushStream, batch: PreparedBatch) -> None:
        self.stream = stream
        self.batch = batch
        self.bytes = 0
        """What it takes in memory, as the group commit counts it."""
        self.since = time.monotonic()
        self.span = tracing.present()
        self._group = group
        self.results: tuple[CommitResult, ...] = ()
        """As of `outcomes`; none until they are known."""
        # Held until the outcome is known; a bare lock is the cheapest thing to wait for.
        self._known = threading.Lock()
        self._known.acquire()

    def outcomes(self) -> tuple[CommitResult, ...]:
        """Return the results of the batches that were joined; blocks until they are known.

        Runs the flush on the caller's thread where none is running.

        Returns:
            One result for each of them, or one that all of them have in common.
        """
        if not self.flush():
            with self._known:
                pass
        assert self.results
        return self.results

    def flush(self) -> bool:
        """Flush on the caller's thread where no flush is running; returns whether it is `done`."""
        if not self.results:
            self._group.flush_now(self)
        return bool(self.results)

    def outcome(self) -> CommitResult:
        """Return whether a batch was accepted with which none was joined; blocks as `outcomes`."""
        (result,) = self.outcomes()
        return result

    def accepted(self) -> Accepted:
        """Return what was committed; blocks as `outcome`.

        Raises:
            WingsError: What the batch was refused with.
        """
        result = self.outcome()
        if isinstance(result, Rejected):
            raise result.error
        assert isinstance(result, Accepted), "a staged batch has an outcome, and no offsets"
        return result

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return bool(self.results)

    def set_results(self, results: tuple[CommitResult, ...]) -> None:
        """Make the outcome known, as of `outcomes`; the thread that flushes calls it once."""
        self.results = results
        self._known.release()
