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
"""Requests that are carried out together at most."""


@dataclass(slots=True, eq=False)
class _Pending:
    request: Request
    answer: Answer | None = None


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

    def run(self, requests: Sequence[Request]) -> list[Answer]:
        """Carry out requests in one batch with those of other threads; blocks until it is over.

        Returns:
            The answers, in order; an error is one.
        """
        pending = [_Pending(request) for request in requests]
        self._waiting.extend(pending)
        try:
            with self._locked():
                # Those of this call were taken by the thread before, or are there yet.
                while any(each.answer is None for each in pending):
                    self._perform_waiting()
        except WingsError as error:
            for each in pending:
                if each.answer is None:
                    each.answer = error
                    # The thread that has the lock may take it at this moment.
                    with suppress(ValueError):
                        self._waiting.remove(each)
        return [each.answer for each in pending if each.answer is not None]

    def _perform_waiting(self) -> None:
        batch: list[_Pending] = []
        while self._waiting and len(batch) < BATCH_MAX:
            batch.append(self._waiting.popleft())
        try:
            answers = self._perform([each.request for each in batch])
        except WingsError as error:
            # A copy each, as every thread raises its own.
            answers = [type(error)(error.message, **error.facts) for _ in batch]
        except BaseException as error:
            for each in batch:
                each.answer = Internal(f"a fault of the replica of holds: {error!r:.200}")
            raise
        for each, answer in zip(batch, answers, strict=True):
            each.answer = answer
