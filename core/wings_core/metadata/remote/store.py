"""Metadata that a service keeps: its interfaces over one connection."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self

from wings_core.metadata.interfaces import Metadata
from wings_core.metadata.remote.admin import RemoteAdmin, TopicCache
from wings_core.metadata.remote.channel import ServiceChannel
from wings_core.metadata.remote.copies import copying
from wings_core.metadata.remote.groups import RemoteGroups
from wings_core.metadata.remote.maintaining import RemoteMaintenance
from wings_core.metadata.remote.nodes import RemoteNodes
from wings_core.metadata.remote.registry import RemoteRegistry
from wings_core.metadata.remote.retries import Retries
from wings_core.metadata.remote.shards import RemoteShards
from wings_core.metadata.remote.staging import RemoteStages
from wings_core.metadata.remote.tables import RemoteTables
from wings_core.metadata.remote.tokens import RemoteTokens
from wings_core.security.peers import PeerAccess
from wings_core.times import now_us


class RemoteMetadata(Metadata):
    """Topics and the log's index at a metadata service; may be used in a `with` statement.

    It connects when it is first asked something, and again by itself whenever the connection is
    lost.

    Args:
        target: The service's `HOST:PORT`.
        clock: Microseconds since the epoch, of this node; the service's may differ.
        access: What is presented to the service.
    """

    def __init__(
        self,
        target: str,
        *,
        clock: Callable[[], int] = now_us,
        access: PeerAccess | None = None,
    ) -> None:
        self._channel = ServiceChannel(target, access)
        self._retries = Retries()
        topics = TopicCache()
        self._admin = RemoteAdmin(self._channel, topics)
        self._registry = RemoteRegistry(self._channel, topics, self._retries, clock)
        self._stages = RemoteStages(self._channel)
        self._maintenance = RemoteMaintenance(self._channel)
        self._tables = RemoteTables(self._channel)
        self._groups = RemoteGroups(self._channel)
        self._shards = RemoteShards(self._channel)
        self._nodes = RemoteNodes(self._channel)
        self._tokens = RemoteTokens(self._channel)

    def store_id(self, seconds_max: float) -> str:
        """Return the id of the service's metadata.

        Blocks until the service is reachable, at most for so many seconds.

        Raises:
            Unavailable: It did not come.
            Internal: Something else is served there, or a service of an earlier version.
        """
        return self._admin.get_store(seconds_max)

    @property
    def admin(self) -> RemoteAdmin:
        """Namespaces and topics."""
        return self._admin

    @property
    def registry(self) -> RemoteRegistry:
        """The log's index."""
        return self._registry

    @property
    def stages(self) -> RemoteStages:
        """What was staged."""
        return self._stages

    @property
    def tables(self) -> RemoteTables:
        """The files of topics that are tables."""
        return self._tables

    @property
    def maintenance(self) -> RemoteMaintenance:
        """Retention, merged pages and leases."""
        return self._maintenance

    @property
    def groups(self) -> RemoteGroups:
        """Share groups."""
        return self._groups

    @property
    def shards(self) -> RemoteShards:
        """The progress of sources that are read into the log once."""
        return self._shards

    @property
    def nodes(self) -> RemoteNodes:
        """The registered Flight nodes."""
        return self._nodes

    @property
    def tokens(self) -> RemoteTokens:
        """The tokens that principals present."""
        return self._tokens

    def copying(self) -> AbstractContextManager[Callable[[Path], None]]:
        """Have the service fix its state at one moment; see `Metadata.copying`."""
        return copying(self._channel)

    def close(self) -> None:
        """End the connection and the calls on it; later calls raise `Unavailable`."""
        self._retries.close()
        self._channel.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()
