"""Acknowledgements of a share stream that no caller waits for: gathered, sent and answered.

Neighbours in time share a request, as rows of a producer share a batch: a message costs both sides
more than what stands in it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from wings_core.contracts.share import AcknowledgementEntry
from wings_core.errors import WingsError, error_from_json

UNANSWERED_MAX = 500
"""How many requests may be unanswered. A server stops reading a stream when a thousand wait for
their turn, and could not write their answers to a client that only writes."""

GATHERED_MAX = 100
"""The most acknowledgements that share a request."""

LINGER_SECONDS = 0.005
"""How long one waits for others."""

Answered = Callable[[WingsError | None], None]
"""Takes the error of the first entry that was refused, or None."""


@dataclass(frozen=True, slots=True)
class Sent:
    """An acknowledgement: what is sent, and who is told of its answer."""

    entries: Sequence[AcknowledgementEntry]
    answered: Answered

    @property
    def messages(self) -> int:
        """How many messages it is for."""
        return sum(each.last - each.first + 1 for each in self.entries)


class Unanswered:
    """Those of a stream; its lock guards this.

    Attributes:
        gathered_messages: Of how many messages those are that were not sent yet.
    """

    def __init__(self) -> None:
        self.gathered_messages = 0
        self._gathered: list[Sent] = []
        self._requests: dict[int, list[Sent]] = {}

    @property
    def is_full(self) -> bool:
        """Whether so many requests are unanswered that nothing more may be sent."""
        return len(self._requests) >= UNANSWERED_MAX

    @property
    def gathered(self) -> int:
        """How many were not sent yet."""
        return len(self._gathered)

    def gather(self, sent: Sent) -> None:
        """Add one to those that are sent next."""
        self._gathered.append(sent)
        self.gathered_messages += sent.messages

    def take_gathered(self) -> list[Sent]:
        """Return those that were gathered, which are sent now."""
        gathered, self._gathered = self._gathered, []
        self.gathered_messages = 0
        return gathered

    def requested(self, number: int, sent: list[Sent]) -> None:
        """Record the request that they are sent by."""
        self._requests[number] = sent

    def answer(self, number: int, results: Sequence[dict[str, Any]]) -> Iterator["Answer"]:
        """Yield what the answer to a request says of each; of one that is not known, nothing."""
        sent = self._requests.pop(number, [])
        found = iter(results)
        for each in sent:
            refused = [one for one in islice(found, len(each.entries)) if one["code"] is not None]
            error = error_from_json(refused[0]) if refused else None
            yield Answer(each, error, is_alone=len(sent) == 1)

    def end(self) -> list[Sent]:
        """Return all that will not be answered any more."""
        requests, self._requests = self._requests, {}
        return [*(each for sent in requests.values() for each in sent), *self.take_gathered()]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server says of an acknowledgement.

    Attributes:
        sent: The acknowledgement.
        error: Why it was refused, or None.
        is_alone: Whether no other was in its request.
    """

    sent: Sent
    error: WingsError | None
    is_alone: bool
