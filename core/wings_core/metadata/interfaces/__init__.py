"""The interfaces of a store of metadata.

`Admin` names namespaces and topics, `OffsetRegistry` indexes the log, `Stages` keeps unpublished
batches, `Transactions` those that become visible together, `Groups` share groups, `ConsumerGroups`
the members of consumer groups, `Shards` the progress of sources, `Nodes` the Flight nodes, `Tokens`
what principals present.

One behaviour suite runs over every implementation (`tests/unit/metadata`). All calls may come
from any thread. They block for the store's own time only, except `OffsetRegistry.wait`.
"""

from wings_core.metadata.interfaces.metadata import (
    NODE_LEASE_SECONDS_MAX,
    NODES_MAX,
    SILENT_SECONDS,
    Admin,
    ConsumerGroups,
    Groups,
    Metadata,
    Nodes,
    Tokens,
    all_topics,
)
from wings_core.metadata.interfaces.offset_registry import (
    LOCATIONS_MAX,
    MANY_LOCATIONS_MAX,
    OFFSET_MAX,
    POSITIONS_MAX,
    RETIRE_MAX,
    OffsetRegistry,
)
from wings_core.metadata.interfaces.stages import Shards, Stages, Transactions

__all__ = [
    "LOCATIONS_MAX",
    "MANY_LOCATIONS_MAX",
    "NODES_MAX",
    "NODE_LEASE_SECONDS_MAX",
    "OFFSET_MAX",
    "POSITIONS_MAX",
    "RETIRE_MAX",
    "SILENT_SECONDS",
    "Admin",
    "ConsumerGroups",
    "Groups",
    "Metadata",
    "Nodes",
    "OffsetRegistry",
    "Shards",
    "Stages",
    "Tokens",
    "Transactions",
    "all_topics",
]
