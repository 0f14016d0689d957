"""Traces: OpenTelemetry spans of calls, across client, server, storage and metadata.

Off unless a process starts them (`setup.start`), or a program that uses the client has a tracer
provider of its own. When off, every function but `notice` costs one check of a variable.
"""

from wings_core.tracing.recent import RecentPushes
from wings_core.tracing.spans import (
    begin,
    bound,
    client_span,
    current_ids,
    headers,
    is_on,
    linked_span,
    notice,
    present,
    server_span,
    shared_span,
    span,
    spread,
    under,
)

__all__ = [
    "RecentPushes",
    "begin",
    "bound",
    "client_span",
    "current_ids",
    "headers",
    "is_on",
    "linked_span",
    "notice",
    "present",
    "server_span",
    "shared_span",
    "span",
    "spread",
    "under",
]
