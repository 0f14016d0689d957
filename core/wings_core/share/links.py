"""Links to replicas, and what runs procedures over them on the caller's thread."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from wings_core.errors import WingsError
from wings_core.share.interfaces import HoldReplica
from wings_core.share.steps import (
    Answer,
    Ask,
    FinishDeadLetters,
    Pause,
    Request,
    Step,
    Steps,
    T,
    perform,
)

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

    def run(self, steps: Steps[T]) -> T:
        """Run a procedure to its end, and return or raise what it does; blocks for its steps."""
        value: object = None
        try:
            while True:
                value = self._do(steps.send(value))
        except StopIteration as stop:
            return cast("T", stop.value)

    def close(self) -> None:
        """Close the links."""
        for link in self._links:
            link.close()

    def _do(self, step: Step) -> object:
        match step:
            case Ask():
                return self._ask(step)
            case Pause(seconds):
                time.sleep(seconds)
            case FinishDeadLetters(pending):
                try:
                    pending.finish()
                except WingsError as error:
                    return error
        return None

    def _ask(self, ask: Ask) -> dict[int, Answer]:
        answers: dict[int, Answer] = {}
        changed = threading.Condition()

        def done(number: int, answer: Answer) -> None:
            with changed:
                answers[number] = answer
                changed.notify()

        for number, request in ask.requests.items():
            link = self._links[number]
            link.begin(request, ask.seconds, lambda answer, number=number: done(number, answer))
        deadline = time.monotonic() + ask.seconds
        with changed:
            hurried = False
            while len(answers) < len(ask.requests) and not ask.enough(answers):
                heard = sum(not isinstance(answer, WingsError) for answer in answers.values())
                if heard >= ask.majority and not hurried:
                    hurried = True
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    break
                changed.wait(remaining)
            return dict(answers)
