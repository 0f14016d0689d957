"""Broadcaster: sends requests to the replicas of one cluster and collects their answers."""

from collections.abc import Mapping, Sequence
from typing import cast

from wings_core.errors import GroupNotFound, Unavailable, WingsError
from wings_core.share.model import Lease, OffsetRange, ShareKey
from wings_core.share.quorum.effects import Broadcast, Procedure
from wings_core.share.replica.interfaces import Outcome, Part, ReleaseEntry
from wings_core.share.replica.requests import Answers, ReleaseRequest, Request

ANSWERS_SECONDS_MAX = 2.0
"""How long the answers of replicas are waited for."""


class Broadcaster:
    """Sends requests to replicas; its methods are procedures, see `effects`.

    Args:
        replicas: How many there are.

    Attributes:
        replicas: Their numbers.
        majority: How many are one.
    """

    def __init__(self, replicas: int) -> None:
        assert replicas >= 1
        self.replicas = range(replicas)
        self.majority = replicas // 2 + 1

    def to_all(self, request: Request, wanted: set[Outcome]) -> Procedure[Answers]:
        """Ask all until a majority has answered, and wholly as wanted where anything is wanted."""
        return self.ask(dict.fromkeys(self.replicas, request), wanted, {})

    def ask(
        self,
        requests: Mapping[int, Request],
        wanted: set[Outcome],
        before: Mapping[int, Sequence[Part]],
    ) -> Procedure[Answers]:
        """Ask until a majority has answered, and wholly as wanted where anything is wanted."""

        def agrees(answer: object) -> bool:
            if isinstance(answer, WingsError):
                return False
            if not wanted:
                return True
            return all(part.outcome in wanted for part in cast("Sequence[Part]", answer))

        agreed_before = sum(map(agrees, before.values()))

        def enough(answers: Answers) -> bool:
            agreed = agreed_before + sum(map(agrees, answers.values()))
            return agreed >= self.majority

        return (yield Broadcast(requests, ANSWERS_SECONDS_MAX, enough, self.majority))

    def give_back(
        self, key: ShareKey, ranges: Sequence[OffsetRange], lease: Lease
    ) -> Procedure[None]:
        """Release what a lease holds of ranges; never handed out, it counts as no delivery."""
        in_order = sorted(ranges, key=lambda gone: gone.first)
        entries = tuple(ReleaseEntry(gone.first, gone.last, lease, 0) for gone in in_order)
        # Nobody waits for the answers: what stays held by mistake expires.
        yield Broadcast(
            dict.fromkeys(self.replicas, ReleaseRequest(key, entries)),
            ANSWERS_SECONDS_MAX,
            lambda _: True,
            self.majority,
        )


def parts_of(answers: Answers) -> dict[int, Sequence[Part]]:
    """Return the answers that are no errors."""
    return {
        number: cast("Sequence[Part]", answer)
        for number, answer in answers.items()
        if not isinstance(answer, WingsError)
    }


def unavailable(answers: Answers) -> WingsError:
    """Return the error of a request that no majority answered."""
    errors = [answer for answer in answers.values() if isinstance(answer, WingsError)]
    gone = next((error for error in errors if isinstance(error, GroupNotFound)), None)
    if gone is not None:
        return gone
    if len(answers) == 1 and errors:
        return errors[0]
    said = f": {errors[0].message}" if errors else ""
    return Unavailable(f"no majority of the replicas of holds answered{said}")
