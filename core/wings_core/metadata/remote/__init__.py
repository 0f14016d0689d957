"""Metadata kept by a metadata service, over gRPC.

Read `channel` first (the connection, and what a call can end with), then `deduplicate` (concurrent
requests share calls), `rpc` (calls that are declared), `watches` (long polls) and `registry`. The
service itself uses `rpc` too; dataclasses and messages are converted by
`wings_core.protocol.messages`.

Locks: that of `Deduplicate`, of the caches and of a watch are leaves. A commit holds its own during
its call, so that a node has one flush under way.
"""

from wings_core.metadata.remote.deduplicate import Deduplicate
from wings_core.metadata.remote.store import RemoteMetadata

__all__ = ["Deduplicate", "RemoteMetadata"]
