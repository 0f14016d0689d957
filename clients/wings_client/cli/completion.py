"""Completion in the shell of names that the server knows: within a second, and never an error.

`wings --install-completion` installs it in the shell that it is called from.
"""

from collections.abc import Callable, Iterable
from contextlib import redirect_stderr
from io import StringIO
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from wings_client import Client

    Read = Callable[[Client], Iterable[str]]

SECONDS_MAX = 1.0
"""Longest wait for the server."""


def topics(context: typer.Context, incomplete: str) -> list[str]:
    """Return the topics: ids in the default namespace, full names in others."""
    from wings_client.cli.endpoint import short_name

    return _found(context, incomplete, lambda of: (short_name(t.name) for t in of.topics()))


def consumers(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of the consumers, those of groups among them."""
    return _found(context, incomplete, lambda of: (each.consumer for each in of.consumers()))


def consumer_groups(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of the consumer groups."""
    return _found(context, incomplete, lambda of: (g.consumer for g in of.consumer_groups()))


def share_groups(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of the share groups of all topics."""
    return _found(context, incomplete, lambda of: sorted({g.name for g in of.share_groups()}))


def columns(context: typer.Context, incomplete: str) -> list[str]:
    """Return the topic's columns, after those that are given before a comma."""
    given, comma, begun = incomplete.rpartition(",")
    topic = _topic(context)
    if topic is None:
        return []
    found = _found(context, begun, lambda of: of.topic(topic).schema.names)
    return [given + comma + name for name in found]


def _topic(context: typer.Context) -> str | None:
    """Return the topic that the command is given; an option without its value leaves it unread."""
    arguments = [each.name for each in context.command.params if each.param_type_name == "argument"]
    unread = dict(zip(arguments, context.args, strict=False))
    return context.params.get("topic") or unread.get("topic")


def _found(context: typer.Context, begun: str, read: "Read") -> list[str]:
    """Return the names that begin so; none where the server cannot be asked."""
    with redirect_stderr(StringIO()):
        try:
            return [name for name in _read(context, read) if name.startswith(begun)]
        except Exception:  # noqa: BLE001 - a shell has no use for it.
            return []


def _read(context: typer.Context, read: "Read") -> list[str]:
    from wings_client import Client, Retry
    from wings_client._transport import Transport
    from wings_client.cli.access import current_access

    endpoint: Any = context.params["endpoint"]
    first = endpoint if isinstance(endpoint, str) else endpoint[0]
    transport = Transport(first, SECONDS_MAX, Retry(attempts=1), current_access())
    with Client(transport) as client:
        return list(read(client))
