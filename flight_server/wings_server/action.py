"""Action: what the actions of all parts of a log have in common."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from wings_core.contracts.actions import ActionBody
from wings_core.log import Log

Body = TypeVar("Body", bound=ActionBody)
Json = dict[str, Any] | list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Action(Generic[Body]):
    """An action: what it takes, what it does, and a sentence for whoever lists the actions."""

    body: type[Body]
    run: Callable[[Log, Body], Json]
    description: str

    def run_json(self, log: Log, raw: bytes) -> Json:
        """Parse a body and run the action.

        Raises:
            InvalidArgument: The body is not what the action takes.
            WingsError: What the action raises.
        """
        return self.run(log, self.body.parse_body(raw))
