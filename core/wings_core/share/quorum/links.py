"""Links to replicas, and what runs procedures over them on the caller's thread."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, cast

from wings_core.errors import WingsError
from wings_core.share.quorum.effects import (
    ANSWERS_SECONDS_MAX,
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
    Bundle,
    ForgetRequest,
    Request,
    bundled,
    one_of,
    unbundled,
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
    if not isinstance(request, ForgetRequest):
        return perform_each(replica, [request])[0]
    try:
        replica.forget(request.group_uuid)
    except WingsError as error:
        return error
    return ()


def perform_each(replica: HoldReplica, requests: Sequence[Request]) -> Sequence[Answer]:
    """Return the answer to each of some requests, carried out in one write."""
    try:
        return replica.perform(requests)
    except WingsError as error:
        # A copy each, as each may be raised.
        return [type(error)(error.message, **error.facts) for _ in requests]


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
            elif self._only is not None:
                value = _perform_one(self._only, effect)
            else:
                value = self._broadcast_all({0: effect})[0]

    def run_all(self, procedures: Sequence[Procedure[T]]) -> list[T | WingsError]:
        """Run procedures side by side; what they ask replicas for at one time goes together.

        Blocks for their effects. None of them may depend on what another changes.

        Returns:
            What each returns, in order, or the error that it raises.
        """
        if len(procedures) == 1:
            return [self._outcome(procedures[0])]
        outcomes: dict[int, Any] = {}
        values: dict[int, object] = {index: None for index in range(len(procedures))}  # noqa: C420
        while values:
            broadcasts: dict[int, Broadcast] = {}
            for index, value in values.items():
                try:
                    effect = procedures[index].send(value)
                except StopIteration as stop:
                    outcomes[index] = stop.value
                except WingsError as error:
                    outcomes[index] = error
                else:
                    if isinstance(effect, Broadcast):
                        broadcasts[index] = effect
                    else:
                        values[index] = _carry_out(effect)
            for index in outcomes:
                values.pop(index, None)
            if broadcasts:
                values |= self._broadcast_all(broadcasts)
        return [outcomes[index] for index in range(len(procedures))]

    def _outcome(self, procedure: Procedure[T]) -> T | WingsError:
        try:
            return self.run(procedure)
        except WingsError as error:
            return error

    def close(self) -> None:
        """Close the links."""
        for link in self._links:
            link.close()

    def _broadcast_all(self, broadcasts: Mapping[int, Broadcast]) -> dict[int, Any]:
        if self._only is not None:
            return _perform_all(self._only, broadcasts)
        begun = {index: _Answers(broadcast) for index, broadcast in broadcasts.items()}
        asked: dict[int, list[tuple[_Answers, Request | Bundle]]] = {}
        for index, broadcast in broadcasts.items():
            for number, request in broadcast.requests.items():
                asked.setdefault(number, []).append((begun[index], request))
        for number, of_replica in asked.items():
            self._begin_all(number, of_replica)
        return {index: answers.wait() for index, answers in begun.items()}

    def _begin_all(self, number: int, asked: Sequence[tuple["_Answers", Request | Bundle]]) -> None:
        """Ask one replica for what several broadcasts want of it."""
        link = self._links[number]
        requests = unbundled(request for _, request in asked)
        if len(requests) == 1 or any(isinstance(request, ForgetRequest) for request in requests):
            for answers, request in asked:
                assert not isinstance(request, Bundle)
                link.begin(request, ANSWERS_SECONDS_MAX, partial(answers.add, number))
            return
        places: list[tuple[_Answers, int | None]] = []
        for answers, request in asked:
            if isinstance(request, Bundle):
                answers.expect(number, len(request.requests))
                places += [(answers, at) for at in range(len(request.requests))]
            else:
                places.append((answers, None))

        def done(at: int, answer: Answer) -> None:
            answers, part = places[at]
            answers.add(number, answer, part)

        link.begin_all(requests, ANSWERS_SECONDS_MAX, done)


class _Answers:
    """The answers to a broadcast that was begun."""

    def __init__(self, broadcast: Broadcast) -> None:
        self._broadcast = broadcast
        self._answers: dict[int, Answer | list[Answer]] = {}
        self._parts: dict[int, tuple[list[Answer], int]] = {}
        """Of the bundles of replicas: the answers so far, and how many are missing."""
        self._changed = threading.Condition()
        self._deadline = time.monotonic() + ANSWERS_SECONDS_MAX

    def expect(self, number: int, parts: int) -> None:
        """Expect so many answers of a replica, to be one."""
        self._parts[number] = ([()] * parts, parts)

    def add(self, number: int, answer: Answer, part: int | None = None) -> None:
        """Take the answer of a replica, or a part of it; from any thread."""
        with self._changed:
            if part is None:
                self._answers[number] = answer
            else:
                parts, missing = self._parts[number]
                parts[part] = answer
                self._parts[number] = (parts, missing - 1)
                if missing > 1:
                    return
                self._answers[number] = one_of(parts)
            self._changed.notify()

    def wait(self) -> Answers | dict[int, Answer | list[Answer]]:
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


def _perform_one(replica: HoldReplica, broadcast: Broadcast) -> dict[int, Any]:
    """Carry out a broadcast to the only replica."""
    request = broadcast.requests.get(0)
    if request is None:
        return {}
    if isinstance(request, Bundle):
        return {0: one_of(list(perform_each(replica, request.requests)))}
    return {0: perform(replica, request)}


def _perform_all(replica: HoldReplica, broadcasts: Mapping[int, Broadcast]) -> dict[int, Any]:
    """Carry out broadcasts to the only replica, in one write of it."""
    found: dict[int, Any] = {index: {} for index in broadcasts}
    asked: dict[int, Request | Bundle] = {}
    for index, broadcast in broadcasts.items():
        request = broadcast.requests.get(0)
        if isinstance(request, ForgetRequest):
            found[index] = {0: perform(replica, request)}
        elif request is not None:
            asked[index] = request
    if asked:
        answers = perform_each(replica, unbundled(asked.values()))
        for index, answer in zip(asked, bundled(asked.values(), answers), strict=True):
            found[index] = {0: answer}
    return found
