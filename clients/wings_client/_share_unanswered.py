"""Acknowledgements of a share stream that no caller waits for: gathered, sent and answered.

Those of a moment share a request, as rows of a producer share a batch: a message costs both sides
more than what stands in it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
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


@dataclass(frozen=True, slots=True)
class Sent:
    """An acknowledgement: what is sent, who is told of its answer, and how many messages it is."""

    entries: Sequence[AcknowledgementEntry]
    answered: Answered
    messages: int


class Unanswered:
    """Those of a stream, whose lock guards this.

    Attributes:
        gathered: Those that were not sent yet.
        gathered_messages: Of how many messages these are.
        messages: Of how many messages all are, sent or not.
    """

    def __init__(self) -> None:
        self.gathered: list[Sent] = []
        self.gathered_messages = 0
        self.messages = 0
        self._requests: dict[int, list[Sent]] = {}

    @property
    def is_full(self) -> bool:
        """Whether so many requests are unanswered that nothing more may be sent."""
        return len(self._requests) >= UNANSWERED_MAX

    def gather(self, sent: Sent) -> None:
        """Add one to those that are sent next."""
        self.gathered.append(sent)
        self.gathered_messages += sent.messages
        self.messages += sent.messages

    def take_gathered(self, number: int) -> list[AcknowledgementEntry]:
        """Return what was gathered, which is sent now by the request of this number."""
        sent, self.gathered = self.gathered, []
        self.gathered_messages = 0
        self._requests[number] = sent
        return [entry for each in sent for entry in each.entries]

    def answer(
        self, number: int, results: Sequence[dict[str, Any]]
    ) -> Iterator[tuple[Sent, WingsError | None]]:
        """Yield each acknowledgement of a request, and its error: none where it is not known."""
        found = iter(results)
        for sent in self._requests.pop(number, ()):
            refused = [each for each in islice(found, len(sent.entries)) if each["code"]]
            self.messages -= sent.messages
            yield sent, error_from_json(refused[0]) if refused else None

    def end(self) -> list[Sent]:
        """Return all, of which none is answered any more."""
        sent = [*(each for request in self._requests.values() for each in request), *self.gathered]
        self.gathered, self.gathered_messages, self.messages = [], 0, 0
        self._requests.clear()
        return sent
