"""Procedures, the effects that they wait for, and the runner that carries those out.

A procedure is a generator. It yields an effect, is sent its result, and returns its own. So the
same code runs over replicas in process, over gRPC, and in a simulation with a virtual clock; only
the runner differs (`Runner` in the product).
"""

import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from wings_core.errors import WingsError
from wings_core.share.model import PendingDeadLetters
from wings_core.share.replica.requests import Answer, HoldReplica, Request

ANSWERS_SECONDS_MAX = 2.0
"""Longest wait for the answers of replicas."""

GRACE_SECONDS = 0.2
"""Longest wait for the other replicas once a majority has answered."""


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Sends requests to replicas, all at once; the result is the answers by replica.

    It comes when all have answered, when `enough` says so of the answers so far (which may be
    none), when the time is up, or a short while after the `majority`th answer that is no error.
    A request without an answer by then may still be carried out.
    """

    requests: Mapping[int, tuple[Request, ...]]
    """Requests by number of the replica, made of it together."""
    enough: Callable[[Mapping[int, Sequence[Answer]]], bool]
    """Tells whether the answers so far are enough."""
    majority: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Lets some time pass."""

    seconds: float


@dataclass(frozen=True, slots=True)
class FinishDeadLetters:
    """Waits for dead letters to be durable; the result is None or the error."""

    pending: PendingDeadLetters


Effect = Broadcast | Pause | FinishDeadLetters

T = TypeVar("T")
Procedure = Generator[Effect, Any, T]
"""A procedure that returns a `T`."""


class ReplicaLink(Protocol):
    """The way to one replica."""

    def begin_all(
        self, requests: Sequence[Request], seconds: float, done: Callable[[int, Answer], None]
    ) -> None:
        """Make requests together; see `HoldReplica.perform`.

        Args:
            requests: At least one.
            seconds: The time within which `done` is called.
            done: Called once for each request, with its index, from any thread, maybe before this
                returns. It must not block.
        """
        ...

    def close(self) -> None:
        """End the requests under way with `Unavailable`, and later ones too."""
        ...


class LocalLink:
    """Link to a replica in this process: requests are made on the caller's thread.

    Args:
        replica: Not closed with the link.
    """

    def __init__(self, replica: HoldReplica) -> None:
        self.replica = replica

    def begin_all(
        self, requests: Sequence[Request], seconds: float, done: Callable[[int, Answer], None]
    ) -> None:
        """Make requests in one write of the replica, and call `done` before this returns."""
        del seconds
        for number, answer in enumerate(self.replica.perform(requests)):
            done(number, answer)

    def close(self) -> None:
        """Do nothing."""


class Runner:
    """Runs procedures on the caller's thread; all methods from any thread.

    Args:
        links: To the replicas, by their numbers.
    """

    def __init__(self, links: Sequence[ReplicaLink]) -> None:
        self._links = links

    def run(self, procedure: Procedure[T]) -> T:
        """Run a procedure to its end, and return or raise what it does; blocks for its effects."""
        (outcome,) = self.run_all([procedure])
        if isinstance(outcome, WingsError):
            raise outcome
        return outcome

    def run_all(self, procedures: Sequence[Procedure[T]]) -> list[T | WingsError]:
        """Run procedures side by side; their requests to a replica at one time go together.

        Blocks for their effects. None of them may depend on a change of another.

        Returns:
            The result of each, in order, or its error.
        """
        outcomes: dict[int, Any] = {}
        values: dict[int, object] = {index: None for index in range(len(procedures))}  # noqa: C420
        while values:
            broadcasts: dict[int, Broadcast] = {}
            for index, value in list(values.items()):
                try:
                    effect = procedures[index].send(value)
                except StopIteration as stop:
                    outcomes[index] = stop.value
                    del values[index]
                except WingsError as error:
                    outcomes[index] = error
                    del values[index]
                else:
                    if isinstance(effect, Broadcast):
                        broadcasts[index] = effect
                    else:
                        values[index] = _carry_out(effect)
            if broadcasts:
                values |= self._broadcast_all(broadcasts)
        return [outcomes[index] for index in range(len(procedures))]

    def close(self) -> None:
        """Close the links."""
        for link in self._links:
            link.close()

    def _broadcast_all(self, broadcasts: Mapping[int, Broadcast]) -> dict[int, Any]:
        begun = {index: _Answers(broadcast) for index, broadcast in broadcasts.items()}
        asked: dict[int, tuple[list[Request], list[tuple[_Answers, int]]]] = {}
        for index, broadcast in broadcasts.items():
            for number, requests in broadcast.requests.items():
                of_replica, places = asked.setdefault(number, ([], []))
                of_replica += requests
                places += [(begun[index], at) for at in range(len(requests))]
        for number, (requests, places) in asked.items():
            done = partial(_tell, number, places)
            self._links[number].begin_all(requests, ANSWERS_SECONDS_MAX, done)
        return {index: answers.wait() for index, answers in begun.items()}


class _Answers:
    """The answers to a broadcast that was begun."""

    def __init__(self, broadcast: Broadcast) -> None:
        self._broadcast = broadcast
        self._answers: dict[int, Sequence[Answer]] = {}
        self._parts: dict[int, dict[int, Answer]] = {number: {} for number in broadcast.requests}
        """The answers of each replica so far, by index of the request."""
        self._changed = threading.Condition()
        self._deadline = time.monotonic() + ANSWERS_SECONDS_MAX

    def add(self, number: int, at: int, answer: Answer) -> None:
        """Take the answer of a replica to one of its requests; from any thread."""
        with self._changed:
            parts, wanted = self._parts[number], len(self._broadcast.requests[number])
            parts[at] = answer
            if len(parts) == wanted:
                self._answers[number] = [parts[each] for each in range(wanted)]
                self._changed.notify()

    def wait(self) -> dict[int, Sequence[Answer]]:
        """Return the answers once there are enough, or the time is up; see `Broadcast`."""
        broadcast, answers, deadline = self._broadcast, self._answers, self._deadline
        with self._changed:
            hurried = False
            while len(answers) < len(broadcast.requests) and not broadcast.enough(answers):
                heard = sum(map(is_heard, answers.values()))
                if heard >= broadcast.majority and not hurried:
                    hurried = True
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    break
                self._changed.wait(remaining)
            return dict(answers)


def is_heard(answers: Sequence[Answer]) -> bool:
    """Tell whether a replica answered one of its requests at least without an error."""
    return not all(isinstance(answer, WingsError) for answer in answers)


def _tell(number: int, places: Sequence[tuple[_Answers, int]], index: int, answer: Answer) -> None:
    """Tell a broadcast the answer of a replica to the request with an index."""
    answers, at = places[index]
    answers.add(number, at, answer)


def _carry_out(effect: Pause | FinishDeadLetters) -> object:
    if isinstance(effect, Pause):
        return time.sleep(effect.seconds)
    try:
        return effect.pending.finish()
    except WingsError as error:
        return error
