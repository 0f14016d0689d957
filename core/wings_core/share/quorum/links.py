"""Links to replicas, and what runs procedures over them on the caller's thread."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, cast

from wings_core.errors import WingsError
from wings_core.share.quorum.effects import (
    Broadcast,
    FinishDeadLetters,
    Pause,
    Procedure,
    T,
)
from wings_core.share.replica.interfaces import HoldReplica
from wings_core.share.replica.requests import (
    Answer,
    Answers,
    ForgetRequest,
    HoldRequest,
    ReadRequest,
    ReleaseRequest,
    RenewRequest,
    Request,
    TombstoneRequest,
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

    def begin_all(
        self, requests: Sequence[Request], seconds: float, done: Callable[[int, Answer], None]
    ) -> None:
        """Make requests of several partitions together, as `begin` makes one.

        Args:
            requests: Of any kind but `ForgetRequest`.
            seconds: As of `begin`.
            done: Called once for each of them, with its index.
        """
        ...

    def close(self) -> None:
        """End what is under way with `Unavailable`, as later requests end."""
        ...


class LocalLink:
    """A replica in this process: requests are made on the caller's thread.

    Args:
        replica: Not closed with the link.
    """

    def __init__(self, replica: HoldReplica) -> None:
        self.replica = replica

    def begin(self, request: Request, seconds: float, done: Callable[[Answer], None]) -> None:
        """Make a request and call `done` with its answer before this returns."""
        del seconds
        done(perform(self.replica, request))

    def begin_all(
        self, requests: Sequence[Request], seconds: float, done: Callable[[int, Answer], None]
    ) -> None:
        """Make requests in one write of the replica; see `begin`."""
        del seconds
        for number, answer in enumerate(perform_each(self.replica, requests)):
            done(number, answer)

    def close(self) -> None:
        """Do nothing."""


def perform(replica: HoldReplica, request: Request) -> Answer:
    """Return the answer of a replica to a request; an error is an answer too."""
    try:
        match request:
            case HoldRequest() | ReadRequest():
                return replica.perform([request])[0]
            case RenewRequest(key, entries, ttl_ms):
                return replica.renew(key, entries, ttl_ms)
            case ReleaseRequest(key, entries):
                return replica.release(key, entries)
            case TombstoneRequest(key, entries, repair):
                return replica.tombstone(key, entries, repair)
            case ForgetRequest(group_uuid):
                replica.forget(group_uuid)
                return ()
    except WingsError as error:
        return error


class Runner:
    """Runs procedures; all methods from any thread.

    Args:
        links: To the replicas, by their numbers.
    """

    def __init__(self, links: Sequence[ReplicaLink]) -> None:
        self._links = links
        only = links[0] if len(links) == 1 else None
        self._only = only.replica if isinstance(only, LocalLink) else None
        """The only replica, where it is in this process."""

    def run(self, procedure: Procedure[T]) -> T:
        """Run a procedure to its end, and return or raise what it does; blocks for its effects."""
        value: object = None
        while True:
            try:
                effect = procedure.send(value)
            except StopIteration as stop:
                return cast("T", stop.value)
            if not isinstance(effect, Broadcast):
                value = _carry_out(effect)
            elif self._only is None:
                value = self._begin(effect).wait()
            else:
                value = {
                    number: perform(self._only, request)
                    for number, request in effect.requests.items()
                }

    def run_all(self, procedures: Sequence[Procedure[T]]) -> list[T | WingsError]:
        """Run procedures side by side; what they ask replicas for at one time goes together.

        Blocks for their effects. None of them may depend on what another changes.

        Returns:
            What each returns, in order, or the error that it raises.
        """
        outcomes: dict[int, T | WingsError] = {}
        values: dict[int, object] = {index: None for index in range(len(procedures))}  # noqa: C420
        while values:
            broadcasts: dict[int, Broadcast] = {}
            for index, value in values.items():
                try:
                    effect = procedures[index].send(value)
                except StopIteration as stop:
                    outcomes[index] = cast("T", stop.value)
                except WingsError as error:
                    outcomes[index] = error
                else:
                    if isinstance(effect, Broadcast):
                        broadcasts[index] = effect
                    else:
                        values[index] = _carry_out(effect)
            for index in outcomes:
                values.pop(index, None)
            values |= self._broadcast_all(broadcasts)
        return [outcomes[index] for index in range(len(procedures))]

    def close(self) -> None:
        """Close the links."""
        for link in self._links:
            link.close()

    def _broadcast_all(self, broadcasts: Mapping[int, Broadcast]) -> dict[int, Answers]:
        if self._only is not None:
            return _perform_all(self._only, broadcasts)
        if len(broadcasts) == 1:
            return {index: self._begin(broadcast).wait() for index, broadcast in broadcasts.items()}
        begun = {index: _Answers(broadcast) for index, broadcast in broadcasts.items()}
        asked: dict[int, list[tuple[_Answers, Request]]] = {}
        for index, broadcast in broadcasts.items():
            for number, request in broadcast.requests.items():
                asked.setdefault(number, []).append((begun[index], request))
        for number, of_replica in asked.items():
            self._begin_all(number, of_replica)
        return {index: answers.wait() for index, answers in begun.items()}

    def _begin_all(self, number: int, asked: Sequence[tuple["_Answers", Request]]) -> None:
        """Ask one replica for what several broadcasts want of it."""
        link = self._links[number]
        seconds = min(answers.seconds for answers, _ in asked)
        if len(asked) == 1 or any(isinstance(request, ForgetRequest) for _, request in asked):
            for answers, request in asked:
                link.begin(request, seconds, partial(answers.add, number))
            return

        def done(at: int, answer: Answer) -> None:
            asked[at][0].add(number, answer)

        link.begin_all([request for _, request in asked], seconds, done)

    def _begin(self, broadcast: Broadcast) -> "_Answers":
        answers = _Answers(broadcast)
        for number, request in broadcast.requests.items():
            link = self._links[number]
            link.begin(request, broadcast.seconds, partial(answers.add, number))
        return answers


class _Answers:
    """The answers to a broadcast that was begun.

    Attributes:
        seconds: How long they are waited for.
    """

    def __init__(self, broadcast: Broadcast) -> None:
        self._broadcast = broadcast
        self._answers: dict[int, Answer] = {}
        self._changed = threading.Condition()
        self._deadline = time.monotonic() + broadcast.seconds
        self.seconds = broadcast.seconds

    def add(self, number: int, answer: Answer) -> None:
        """Take the answer of a replica; from any thread."""
        with self._changed:
            self._answers[number] = answer
            self._changed.notify()

    def wait(self) -> Answers:
        """Return the answers once there are enough, or the time is up; see `Broadcast`."""
        broadcast, answers, deadline = self._broadcast, self._answers, self._deadline
        with self._changed:
            hurried = False
            while len(answers) < len(broadcast.requests) and not broadcast.enough(answers):
                heard = sum(not isinstance(answer, WingsError) for answer in answers.values())
                if heard >= broadcast.majority and not hurried:
                    hurried = True
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    break
                self._changed.wait(remaining)
            return dict(answers)


def _carry_out(effect: Pause | FinishDeadLetters) -> object:
    if isinstance(effect, Pause):
        return time.sleep(effect.seconds)
    try:
        return effect.pending.finish()
    except WingsError as error:
        return error


def perform_each(replica: HoldReplica, requests: Sequence[Request]) -> Sequence[Answer]:
    """Return the answer to each of some requests, carried out in one write."""
    try:
        return replica.perform(requests)
    except WingsError as error:
        # A copy each, as each may be raised.
        return [type(error)(error.message, **error.facts) for _ in requests]


def _perform_all(replica: HoldReplica, broadcasts: Mapping[int, Broadcast]) -> dict[int, Answers]:
    """Carry out broadcasts to the only replica, in one write of it."""
    found: dict[int, Answers] = {}
    for index, broadcast in broadcasts.items():
        requests = broadcast.requests
        if not requests:
            found[index] = {}
        elif len(broadcasts) == 1 or isinstance(requests[0], ForgetRequest):
            found[index] = {0: perform(replica, requests[0])}
    together = [index for index in broadcasts if index not in found]
    if not together:
        return found
    answers = perform_each(replica, [broadcasts[index].requests[0] for index in together])
    return found | {index: {0: answer} for index, answer in zip(together, answers, strict=True)}
