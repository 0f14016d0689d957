"""Links to replicas, and what runs procedures over them on the caller's thread."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from wings_core.errors import WingsError
from wings_core.share.quorum.effects import (
    Broadcast,
    Effect,
    FinishDeadLetters,
    Pause,
    Procedure,
    T,
)
from wings_core.share.replica.interfaces import HoldReplica
from wings_core.share.replica.requests import Answer, Request, perform

GRACE_SECONDS = 0.2
"""How long the rest of the replicas is waited for once a majority has answered."""


class ReplicaLink(Protocol):
    """The way to one replica."""

    def begin(self, request: Request, seconds: float, done: Callable[[Answer], None]) -> None:
        """Make a request; `done` is called once, from any thread, within so many seconds.

        It may be called before this returns, and must not block.
        """
        ...

    def close(self) -> None:
        """End what is under way with `Unavailable`, as later requests end."""
        ...


class LocalLink:
    """A replica in this process: requests are made on the caller's thread.

    Args:
        replica: Closed by whoever opened it.
    """

    def __init__(self, replica: HoldReplica) -> None:
        self.replica = replica

    def begin(self, request: Request, seconds: float, done: Callable[[Answer], None]) -> None:
        """Make a request at once."""
        del seconds
        done(perform(self.replica, request))

    def close(self) -> None:
        """Do nothing."""


class Runner:
    """Runs procedures; all methods from any thread.

    Args:
        links: To the replicas, by their numbers.
    """

    def __init__(self, links: Sequence[ReplicaLink]) -> None:
        self._links = links

    def run(self, procedure: Procedure[T]) -> T:
        """Run a procedure to its end, and return or raise what it does; blocks for its effects."""
        value: object = None
        try:
            while True:
                value = self._do(procedure.send(value))
        except StopIteration as stop:
            return cast("T", stop.value)

    def close(self) -> None:
        """Close the links."""
        for link in self._links:
            link.close()

    def _do(self, effect: Effect) -> object:
        match effect:
            case Broadcast():
                return self._broadcast(effect)
            case Pause(seconds):
                time.sleep(seconds)
            case FinishDeadLetters(pending):
                try:
                    pending.finish()
                except WingsError as error:
                    return error
        return None

    def _broadcast(self, broadcast: Broadcast) -> dict[int, Answer]:
        answers: dict[int, Answer] = {}
        changed = threading.Condition()

        def done(number: int, answer: Answer) -> None:
            with changed:
                answers[number] = answer
                changed.notify()

        for number, request in broadcast.requests.items():
            link = self._links[number]
            link.begin(
                request, broadcast.seconds, lambda answer, number=number: done(number, answer)
            )
        deadline = time.monotonic() + broadcast.seconds
        with changed:
            hurried = False
            while len(answers) < len(broadcast.requests) and not broadcast.enough(answers):
                heard = sum(not isinstance(answer, WingsError) for answer in answers.values())
                if heard >= broadcast.majority and not hurried:
                    hurried = True
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    break
                changed.wait(remaining)
            return dict(answers)
