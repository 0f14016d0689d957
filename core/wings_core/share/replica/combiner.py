"""Combiner: the requests of many threads, carried out together by the first that can.

What comes while a batch is under way waits for its lock, and goes into the next batch; so a hundred
threads share one sync, as pushes do. There is no thread beside the callers'.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass

from wings_core.errors import Internal, WingsError
from wings_core.share.replica.requests import Answer, Request

BATCH_MAX = 1_000
"""Requests that are carried out together at most, unless one call has more."""


@dataclass(slots=True, eq=False)
class _Pending:
    """What one call asks for."""

    requests: Sequence[Request]
    answers: Sequence[Answer] | None = None


class Combiner:
    """Gathers requests; all methods from any thread.

    Args:
        locked: Gives the lock under which batches are carried out; may refuse with `Unavailable`.
        perform: Carries out a batch under it; returns an answer for each, or raises what all fail
            with.
    """

    def __init__(
        self,
        locked: Callable[[], AbstractContextManager[None]],
        perform: Callable[[Sequence[Request]], Sequence[Answer]],
    ) -> None:
        self._locked = locked
        self._perform = perform
        self._waiting: deque[_Pending] = deque()

    def run(self, requests: Sequence[Request]) -> Sequence[Answer]:
        """Carry out requests in one batch with those of other threads; blocks until it is over.

        Returns:
            The answers, in order; an error is one.
        """
        pending = _Pending(requests)
        self._waiting.append(pending)
        try:
            with self._locked():
                # It was taken by the thread before, or is there yet.
                while pending.answers is None:
                    self._perform_waiting()
        except WingsError as error:
            if pending.answers is None:
                pending.answers = [error] * len(requests)
                # The thread that has the lock may take it at this moment.
                with suppress(ValueError):
                    self._waiting.remove(pending)
        assert pending.answers is not None
        return pending.answers

    def _perform_waiting(self) -> None:
        batch = [self._waiting.popleft()]
        requests = batch[0].requests
        if self._waiting:
            requests = list(requests)
            while self._waiting and len(requests) < BATCH_MAX:
                batch.append(self._waiting.popleft())
                requests += batch[-1].requests
        answers: Sequence[Answer]
        try:
            answers = self._perform(requests)
        except WingsError as error:
            # A copy each, as every thread raises its own.
            answers = [type(error)(error.message, **error.facts) for _ in requests]
        except BaseException as error:
            for each in batch:
                fault = Internal(f"a fault of the replica of holds: {error!r:.200}")
                each.answers = [fault] * len(each.requests)
            raise
        at = 0
        for each in batch:
            each.answers = answers[at : at + len(each.requests)]
            at += len(each.requests)
