"""Effects: what the logic of share groups waits for, as values.

A procedure is a generator. It yields an effect, is sent its result, and returns its own. So the
same code runs over replicas in process, over gRPC, and in a simulation with a virtual clock; only
what carries the effects out differs (`links.Runner` does in the product).
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from wings_core.share.interfaces import PendingDeadLetters
from wings_core.share.replica.requests import Bundle, Request

ANSWERS_SECONDS_MAX = 2.0
"""How long the answers of replicas are waited for."""


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Send requests to replicas, all at once; the result is `Answers`, of bundles lists of them.

    It comes when all have answered, when `enough` says so of the answers so far (which may be
    none), when the time is up, or a short while after the `majority`th answer that is no error.
    A request without an answer by then may still be carried out.
    """

    requests: Mapping[int, Request | Bundle]
    """By number of the replica."""
    enough: Callable[[Any], bool]
    """Of the answers by number of the replica: `Answers`, or of bundles lists of them."""
    majority: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Let some time pass."""

    seconds: float


@dataclass(frozen=True, slots=True)
class FinishDeadLetters:
    """Wait for dead letters to be durable; the result is None or the error."""

    pending: PendingDeadLetters


Effect = Broadcast | Pause | FinishDeadLetters

T = TypeVar("T")
Procedure = Generator[Effect, Any, T]
"""A procedure."""
