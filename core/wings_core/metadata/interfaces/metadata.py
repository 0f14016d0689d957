"""A store as a whole."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from wings_core.metadata.interfaces.admin import Admin
from wings_core.metadata.interfaces.groups import Groups
from wings_core.metadata.interfaces.nodes import Nodes
from wings_core.metadata.interfaces.offset_registry import OffsetRegistry
from wings_core.metadata.interfaces.shards import Shards
from wings_core.metadata.interfaces.stages import Stages
from wings_core.metadata.interfaces.tokens import Tokens
from wings_core.metadata.maintenance import Maintenance
from wings_core.metadata.tables import TableStates


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
        """Batches that were staged and not published yet."""
        ...

    @property
    def groups(self) -> Groups:
        """Share groups."""
        ...

    @property
    def shards(self) -> Shards:
        """The progress of sources that are read into the log once."""
        ...

    @property
    def nodes(self) -> Nodes:
        """The registered Flight nodes."""
        ...

    @property
    def tokens(self) -> Tokens:
        """The tokens that principals present."""
        ...

    @property
    def maintenance(self) -> Maintenance:
        """Retention, merged pages and leases."""
        ...

    @property
    def tables(self) -> TableStates:
        """The files of topics that are tables."""
        ...

    def copying(self) -> AbstractContextManager[Callable[[Path], None]]:
        """Fix the state of the store at one moment; no writer waits for it.

        Returns:
            A context that yields a function, which writes that state into a new file: the SQLite
            database of an embedded server, of this code's version. It blocks while it writes.

        Raises:
            ResourceExhausted: There is no room for the file.
            WingsError: The store cannot be read.
        """
        ...

    def close(self) -> None:
        """Close the store once calls under way have ended; later calls raise `Unavailable`."""
        ...
