"""Traces: what a call does, over client, server, storage and metadata, as OpenTelemetry's spans.

Off unless a process sets them up (`setup.start`) or a program that uses the client has a tracer
provider of its own; then every function here but `notice` costs one look at a variable.
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
