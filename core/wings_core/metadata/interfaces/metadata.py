"""A store as a whole."""

from typing import Protocol

from wings_core.metadata.interfaces.admin import Admin
from wings_core.metadata.interfaces.groups import Groups
from wings_core.metadata.interfaces.nodes import Nodes
from wings_core.metadata.interfaces.offset_registry import OffsetRegistry
from wings_core.metadata.interfaces.shards import Shards
from wings_core.metadata.interfaces.stages import Stages
from wings_core.metadata.maintenance import Maintenance


class Metadata(Protocol):
    """One store of metadata: its interfaces, opened and closed together."""

    @property
    def admin(self) -> Admin:
        """Namespaces and topics."""
        ...

    @property
    def registry(self) -> OffsetRegistry:
        """The log's index."""
        ...

    @property
    def stages(self) -> Stages:
        """What was staged."""
        ...

    @property
    def groups(self) -> Groups:
        """Share groups."""
        ...

    @property
    def shards(self) -> Shards:
        """What is read into the log once."""
        ...

    @property
    def nodes(self) -> Nodes:
        """The Flight nodes that are there."""
        ...

    @property
    def maintenance(self) -> Maintenance:
        """What moves old pages."""
        ...

    def close(self) -> None:
        """Let go of the store; later calls raise `Unavailable`."""
        ...
