"""Interfaces of consumer groups, nodes and tokens, and of metadata as a whole."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from wings_core.metadata.interfaces.offset_registry import OffsetRegistry
from wings_core.metadata.interfaces.stages import Shards, Stages, Transactions
from wings_core.metadata.interfaces.topics import Admin, Groups
from wings_core.metadata.maintenance import Maintenance, MaintenanceLease, TableStates
from wings_core.model import GroupChange, Node, StoredGroup
from wings_core.security.quotas import Quotas
from wings_core.security.tokens import Token


class ConsumerGroups(Protocol):
    """The members of consumer groups, and the epochs that were given out.

    A group is known by the name of its consumer, from the first change that was saved on.
    """

    def load(self, consumer: str) -> StoredGroup:
        """Return a group as it was last saved; one that never was has epoch 0 and no members."""
        ...

    def save(self, lease: MaintenanceLease, consumer: str, change: GroupChange) -> bool:
        """Store a change of a group, durably and as a whole.

        Args:
            lease: The lease under which the change was decided, which must not have ended since.
            consumer: The group's.
            change: Changes since the group was loaded, or last saved.

        Returns:
            False: the lease was lost, and nothing is stored.
        """
        ...

    def names(self, names_max: int, *, after: str | None = None) -> list[str]:
        """Return the consumers that have a group, by name.

        Args:
            names_max: The first so many.
            after: Only those whose name is greater; None: all.
        """
        ...


NODES_MAX = 1_000
"""The most Flight nodes at once."""

SILENT_SECONDS = 86_400.0
"""Time for which a node that stopped without leaving is remembered."""

NODE_LEASE_SECONDS_MAX = 3_600.0
"""The longest lease of a node, in seconds."""


class Nodes(Protocol):
    """The Flight nodes that are registered, each by a lease that it renews while it runs."""

    def renew(self, node: Node, seconds: float) -> list[Node]:
        """Register a node, or renew its lease.

        Args:
            node: Its id and address; an earlier node of the same address is deregistered.
            seconds: How long the lease lasts from now on, by the store's clock, to
                `NODE_LEASE_SECONDS_MAX`.

        Returns:
            The nodes whose leases have not expired, this one among them, by address; at most
            `NODES_MAX`.

        Raises:
            InvalidArgument: An id or address that is empty, too long or not text, or a lease out of
                range.
            ResourceExhausted: There are `NODES_MAX` nodes already.
        """
        ...

    def leave(self, node_id: str) -> None:
        """Deregister a node, if it is registered.

        Raises:
            InvalidArgument: An id that is not text.
        """
        ...

    def live(self) -> list[Node]:
        """Return the nodes whose leases have not expired, by address."""
        ...

    def silent(self) -> list[Node]:
        """Return the nodes whose leases expired without `leave`, by address.

        At most `NODES_MAX`. A node of the same address takes its predecessor's place; one is
        forgotten `SILENT_SECONDS` after its lease expired.
        """
        ...


class Tokens(Protocol):
    """Tokens by name; their secrets are not kept."""

    def create(self, token: Token) -> Token:
        """Store a token and return it.

        Args:
            token: With a UUID that no other one has; where it is there already, it is returned as
                it is.

        Raises:
            AlreadyExists: There is a token of this name, or of this secret.
            ResourceExhausted: There are `TOKENS_MAX` tokens already.
            InvalidArgument: It cannot be stored; see `check_token`.
        """
        ...

    def revoke(self, name: str, token_id: str | None = None) -> Token:
        """Delete a token and return it as it was.

        Args:
            name: Its name.
            token_id: Its UUID; None: whichever has the name.

        Raises:
            TokenNotFound: There is none of this name, or its UUID differs.
        """
        ...

    def alter(self, name: str, quotas: Quotas, token_id: str | None = None) -> Token:
        """Replace a token's quotas and return it as it is then.

        Args:
            name: Its name.
            quotas: All that it has from now on.
            token_id: Its UUID; None: whichever has the name.

        Raises:
            TokenNotFound: There is none of this name, or its UUID differs.
            InvalidArgument: A quota is out of range.
        """
        ...

    def all(self, *, after: str | None = None, items_max: int | None = None) -> list[Token]:
        """Return the tokens, expired ones too, by name.

        Args:
            after: Only those whose name is greater; None: all.
            items_max: The first so many of them; None: all.
        """
        ...

    def changes(self) -> int:
        """Return how often a token was created, altered or revoked; 0: there was never any.

        Blocks for a few seconds at most, also where the store is out of reach.
        """
        ...


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
    def transactions(self) -> Transactions:
        """Transactions of named producers."""
        ...

    @property
    def groups(self) -> Groups:
        """Share groups."""
        ...

    @property
    def consumer_groups(self) -> ConsumerGroups:
        """Consumer groups."""
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
