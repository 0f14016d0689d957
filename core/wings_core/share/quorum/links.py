"""Links to replicas, and what runs procedures over them on the caller's thread."""

import threading
import time
from collections.abc import Callable, Sequence
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

    def close(self) -> None:
        """Do nothing."""


def perform(replica: HoldReplica, request: Request) -> Answer:
    """Return the answer of a replica to a request; an error is an answer too."""
    try:
        match request:
            case HoldRequest(key, ranges, lease, ttl_ms, in_flight_max):
                return replica.hold(key, ranges, lease, ttl_ms, in_flight_max)
            case RenewRequest(key, entries, ttl_ms):
                return replica.renew(key, entries, ttl_ms)
            case ReleaseRequest(key, entries):
                return replica.release(key, entries)
            case TombstoneRequest(key, entries, repair):
                return replica.tombstone(key, entries, repair)
            case ReadRequest(group_uuid, partitions):
                return replica.read(group_uuid, partitions)
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

    def run(self, procedure: Procedure[T]) -> T:
        """Run a procedure to its end, and return or raise what it does; blocks for its effects."""
        value: object = None
        only = self._links[0] if len(self._links) == 1 else None
        try:
            while True:
                match procedure.send(value):
                    case Broadcast(requests) if isinstance(only, LocalLink):
                        value = {
                            number: perform(only.replica, request)
                            for number, request in requests.items()
                        }
                    case Broadcast() as broadcast:
                        value = self._broadcast(broadcast)
                    case Pause(seconds):
                        value = time.sleep(seconds)
                    case FinishDeadLetters(pending):
                        try:
                            value = pending.finish()
                        except WingsError as error:
                            value = error
        except StopIteration as stop:
            return cast("T", stop.value)

    def close(self) -> None:
        """Close the links."""
        for link in self._links:
            link.close()

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
