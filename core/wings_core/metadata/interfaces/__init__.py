"""What metadata must do.

`Admin` is for names and schemas, `OffsetRegistry` and `Stages` are for the log, `Groups` for those
who share topics.

Every implementation is tried by one behaviour suite (`tests/unit/metadata`). All calls may come
from any thread. They block for the store's own time only, except `OffsetRegistry.wait`.
"""

from wings_core.metadata.interfaces.admin import Admin
from wings_core.metadata.interfaces.groups import Groups
from wings_core.metadata.interfaces.metadata import Metadata
from wings_core.metadata.interfaces.nodes import NODE_LEASE_SECONDS_MAX, NODES_MAX, Nodes
from wings_core.metadata.interfaces.offset_registry import (
    LOCATIONS_MAX,
    OFFSET_MAX,
    RETIRE_MAX,
    OffsetRegistry,
)
from wings_core.metadata.interfaces.shards import Shards
from wings_core.metadata.interfaces.stages import Stages

__all__ = [
    "LOCATIONS_MAX",
    "NODES_MAX",
    "NODE_LEASE_SECONDS_MAX",
    "OFFSET_MAX",
    "RETIRE_MAX",
    "Admin",
    "Groups",
    "Metadata",
    "Nodes",
    "OffsetRegistry",
    "Shards",
    "Stages",
]
