"""Gather: one request to many partitions or servers, and the replies as they come.

from wings_client.gather import Request

requests = [Request("flights", partition, offset=0) for partition in ("JFK", "LAX")]
gather = client.gather(requests, timeout=2.0, stall_timeout=0.2)
for reply in gather:
    print(reply.request.partition, reply.batch.num_rows)
print(gather.end.reason)
"""

from wings_client.gather._gather import Gather
from wings_client.gather._request import (
    EMPTY,
    GatherEnd,
    GatherReason,
    ManyReply,
    Reply,
    Request,
    Sentinel,
    SourceState,
    Strategy,
    first,
    stall,
    wait,
)

__all__ = [
    "EMPTY",
    "Gather",
    "GatherEnd",
    "GatherReason",
    "ManyReply",
    "Reply",
    "Request",
    "Sentinel",
    "SourceState",
    "Strategy",
    "first",
    "stall",
    "wait",
]
