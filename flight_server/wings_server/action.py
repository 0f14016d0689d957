"""Actions: a body model and a function from the log and a body to JSON, in a table by name."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from wings_core.contracts.actions import ActionBody
from wings_server.served_log import ServedLog

Body = TypeVar("Body", bound=ActionBody)
Json = dict[str, Any] | list[dict[str, Any]]

Answer = Json | bytes
"""Result of an action; bytes are JSON already."""


def encoded(answer: Answer) -> bytes:
    """Encode the result of an action as JSON in UTF-8."""
    if isinstance(answer, bytes):
        return answer
    return json.dumps(answer, ensure_ascii=False).encode()


@dataclass(frozen=True, slots=True)
class Action(Generic[Body]):
    """An action: the model of its body, its function, and its sentence in `list_actions`."""

    body: type[Body]
    run: Callable[[ServedLog, Body], Answer]
    description: str


class Actions(dict[str, Action[Any]]):
    """Actions by name, in the order in which they were added."""

    def add(
        self, name: str, body: type[Body]
    ) -> Callable[[Callable[[ServedLog, Body], Answer]], Callable[[ServedLog, Body], Answer]]:
        """Return a decorator that adds a function; its docstring is the action's description."""

        def added(run: Callable[[ServedLog, Body], Answer]) -> Callable[[ServedLog, Body], Answer]:
            assert name not in self
            assert run.__doc__ is not None
            self[name] = Action(body, run, run.__doc__)
            return run

        return added
