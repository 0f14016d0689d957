"""Builds the tickets of a gather from templates.

The requests of a gather mostly differ in the partition and the numeric offset alone. So the first
of similar ones is validated by the ticket's model, and its ticket is the template of the others,
also in later gathers: the model takes a fifth of the time of a small read.
"""

import json
from collections.abc import Hashable, Iterable, Mapping
from operator import attrgetter
from types import NoneType
from typing import Any

from pydantic_core import to_json

from wings_client._messages import wire_partition
from wings_client._stream import milliseconds
from wings_client.gather._request import FETCH_MESSAGES, Request
from wings_core.contracts.messages import INT64_MAX
from wings_core.errors import InvalidTicket

TEMPLATES_MAX = 256
"""Templates that are kept from one gather to the next."""

_kept: dict[Hashable, dict[str, Any]] = {}
"""Read and written by atomic operations alone, so without a lock."""

_all_but_place = attrgetter(
    "topic",
    "kind",
    "timeout",
    "min_messages",
    "max_messages",
    "columns",
    "filter",
    "system_columns",
    "ticket",
    "partitions",
    "schema_version",
)

_rest = attrgetter(
    "topic",
    "kind",
    "min_messages",
    "max_messages",
    "filter",
    "system_columns",
    "schema_version",
)


class Tickets:
    """Builds tickets; `check` is called with the requests first, by one thread."""

    def __init__(self) -> None:
        self._templates: dict[Hashable, dict[str, Any]] = {}

    def check(self, requests: Iterable[Request], seconds: float) -> None:
        """Validate all requests.

        Args:
            requests: Of any kinds.
            seconds: How long the gather lasts.

        Raises:
            InvalidTicket: A value is out of range.
        """
        last: object = None
        for request in requests:
            # One that differs from the last only in its numbers needs no further check, which
            # would take several times as long.
            rest = _all_but_place(request)
            partition = request.partition
            if (
                rest == last
                and (type(partition) is int or (type(partition) is str and partition.isascii()))
                and type(request.offset) is int
                and 0 <= request.offset <= INT64_MAX
            ):
                continue
            self._check(request, seconds if request.timeout is None else request.timeout)
            last = rest if type(request.offset) is int else None

    def _check(self, request: Request, seconds: float) -> None:
        if request.timeout is not None and not request.timeout > 0:
            raise InvalidTicket(f"request: timeout must be positive; got {request.timeout}")
        if request.ticket is not None:
            return
        if request.partitions is not None or isinstance(request.offset, Mapping):
            request.to_ticket(seconds)
            return
        like = _like(request)
        if like in self._templates and _is_plain(request):
            return
        template = _kept.get(like)
        if template is None or not _is_plain(request):
            template = json.loads(request.to_ticket(seconds))
            if len(_kept) >= TEMPLATES_MAX:
                _kept.clear()
            _kept[like] = template
        self._templates[like] = template

    def make(
        self,
        request: Request,
        seconds: float,
        offset: "int | Mapping[Any, int] | None" = None,
        rows: int = 0,
    ) -> bytes:
        """Return the ticket to send for a request that was checked.

        Args:
            request: The request.
            seconds: How long the server may wait.
            offset: The offset to resume at, or those of many partitions; None: that of the request.
            rows: Rows already received, to be subtracted from those asked for.
        """
        if request.ticket is not None:
            return request.ticket
        if request.partitions is not None:
            return request.to_ticket(seconds, offset or None, rows)
        ticket = self._templates[_like(request)].copy()
        ticket["partition"] = wire_partition(request.partition)
        if offset is not None:
            ticket["offset"] = offset
        elif isinstance(request.offset, int):
            ticket["offset"] = request.offset
        if request.waits:
            ticket["timeout_ms"] = milliseconds(seconds)
        if rows > 0 and request.kind == "fetch":
            ticket["min_messages"] = max(1, (request.min_messages or 1) - rows)
            ticket["max_messages"] = (request.max_messages or FETCH_MESSAGES) - rows
        return to_json(ticket)


def _like(request: Request) -> Hashable:
    """Return the key of the template for a request's ticket."""
    offset = 0 if _is_number(request.offset) else request.offset
    columns = None if request.columns is None else tuple(request.columns)
    return offset, columns, _rest(request)


def _is_plain(request: Request) -> bool:
    """Return whether the fields that differ from the template are certainly valid."""
    partition = request.partition
    if isinstance(partition, str):
        return partition.isascii()
    return isinstance(partition, (int, bytes, NoneType))


def _is_number(offset: object) -> bool:
    return type(offset) is int and 0 <= offset <= INT64_MAX
