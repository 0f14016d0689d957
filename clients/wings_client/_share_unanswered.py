"""Acknowledgements of a share stream, not waited for: gathered, sent and answered.

Those of a moment share a request, as rows of a producer share a batch: a message costs both sides
more than what stands in it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from wings_core.contracts.share import AcknowledgementEntry
from wings_core.errors import WingsError, error_from_json

UNANSWERED_MAX = 500
"""How many requests may be unanswered, so that a worker that only writes is slowed to the pace of
the answers."""

GATHERED_MAX = 100
"""The most acknowledgements that share a request."""

LINGER_SECONDS = 0.005
"""How long one waits for others."""

Answered = Callable[[WingsError | None], None]
"""Takes the error of the first entry that was refused, or None."""


@dataclass(slots=True, eq=False)
class Sent:
    """An acknowledgement.

    Attributes:
        entries: What is sent.
        answered: Is told of its answer.
        messages: How many it is for.
        is_told: Whether it was; twice only where a signal handler raised meanwhile.
    """

    entries: Sequence[AcknowledgementEntry]
    answered: Answered
    messages: int
    is_told: bool = False

    def tell(self, error: WingsError | None) -> None:
        """Tell of the answer, or of the end of the stream; the first call counts."""
        if not self.is_told:
            self.answered(error)
            self.is_told = True


class Unanswered:
    """Those of a stream, whose lock guards this.

    A signal handler may raise at any step: then the stream is broken, and all that is here is told.

    Attributes:
        gathered: Those that were not sent yet.
    """

    def __init__(self) -> None:
        self.gathered: list[Sent] = []
        self._requests: dict[int, list[Sent]] = {}

    @property
    def is_full(self) -> bool:
        """Whether so many requests are unanswered that nothing more may be sent."""
        return len(self._requests) >= UNANSWERED_MAX

    @property
    def gathered_messages(self) -> int:
        """Of how many messages those are that were not sent yet."""
        return sum(each.messages for each in self.gathered)

    @property
    def messages(self) -> int:
        """Of how many messages all are that were not told of an answer yet."""
        return sum(each.messages for each in self.all())

    def requested(self, number: int, sent: list[Sent]) -> None:
        """Record the request that they are sent by."""
        self._requests[number] = sent
        if sent is self.gathered:
            self.gathered = []

    def answers(
        self, number: int, results: Sequence[dict[str, Any]]
    ) -> list[tuple[Sent, WingsError | None]]:
        """Return what is to be told by the answer to a request, until `told`; none if unknown."""
        found = iter(results)
        answers: list[tuple[Sent, WingsError | None]] = []
        for sent in self._requests.get(number, ()):
            refused = [each for each in islice(found, len(sent.entries)) if each["code"]]
            answers.append((sent, error_from_json(refused[0]) if refused else None))
        return answers

    def told(self, number: int) -> None:
        """Forget a request, of whose answer all were told, or sent by another."""
        self._requests.pop(number, None)

    def all(self) -> list[Sent]:
        """Return all, sent or not; also without the lock."""
        requests = [*self._requests.values()]  # At one moment, as others change it meanwhile.
        return [*chain.from_iterable(requests), *self.gathered]

    def clear(self) -> None:
        """Forget all, which were told of the end of the stream."""
        self._requests.clear()
        self.gathered = []
