"""The interfaces of a store of metadata.

`Admin` names namespaces and topics, `OffsetRegistry` indexes the log, `Stages` keeps unpublished
batches, `Groups` share groups, `Shards` the progress of sources, `Nodes` the Flight nodes, `Tokens`
what principals present.

One behaviour suite runs over every implementation (`tests/unit/metadata`). All calls may come
from any thread. They block for the store's own time only, except `OffsetRegistry.wait`.
"""

from wings_core.metadata.interfaces.admin import Admin, all_topics
from wings_core.metadata.interfaces.groups import Groups
from wings_core.metadata.interfaces.metadata import Metadata
from wings_core.metadata.interfaces.nodes import NODE_LEASE_SECONDS_MAX, NODES_MAX, Nodes
from wings_core.metadata.interfaces.offset_registry import (
    LOCATIONS_MAX,
    MANY_LOCATIONS_MAX,
    OFFSET_MAX,
    POSITIONS_MAX,
    RETIRE_MAX,
    OffsetRegistry,
)
from wings_core.metadata.interfaces.shards import Shards
from wings_core.metadata.interfaces.stages import Stages
from wings_core.metadata.interfaces.tokens import Tokens

__all__ = [
    "LOCATIONS_MAX",
    "MANY_LOCATIONS_MAX",
    "NODES_MAX",
    "NODE_LEASE_SECONDS_MAX",
    "OFFSET_MAX",
    "POSITIONS_MAX",
    "RETIRE_MAX",
    "Admin",
    "Groups",
    "Metadata",
    "Nodes",
    "OffsetRegistry",
    "Shards",
    "Stages",
    "Tokens",
    "all_topics",
]
