"""Consumer groups: what of them is durable."""

from typing import Protocol

from wings_core.metadata.maintenance import MaintenanceLease
from wings_core.model import GroupChange, StoredGroup


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
