"""Counts: what members of each group were delivered, and what was finished, since this start."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace

from wings_core.model import ShareGroup

GROUPS_MAX = 1_000
"""Groups that are counted at once; of more, the one that was counted longest begins again."""


@dataclass(slots=True)
class GroupCounts:
    """Messages of one group on this node."""

    delivered: int = 0
    """To members, each time."""
    redelivered: int = 0
    """Deliveries among those that were not the first of their message."""
    accepted: int = 0
    dead_lettered: int = 0
    """Rejected, or at the delivery limit; with or without a topic of dead letters."""


class ShareCounts:
    """Counts by topic and group; all methods from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], GroupCounts] = {}
        self._last: tuple[ShareGroup, GroupCounts] | None = None
        """The group that was counted last; to make its key takes longer than all else here."""

    def add(
        self,
        group: ShareGroup,
        *,
        delivered: int = 0,
        redelivered: int = 0,
        accepted: int = 0,
        dead_lettered: int = 0,
    ) -> None:
        """Count messages."""
        with self._lock:
            if self._last is None or self._last[0] is not group:
                self._last = (group, self._of(group))
            found = self._last[1]
            found.delivered += delivered
            found.redelivered += redelivered
            found.accepted += accepted
            found.dead_lettered += dead_lettered

    def _of(self, group: ShareGroup) -> GroupCounts:
        """Return the counts of a group; the lock is held."""
        key = (str(group.topic.name), group.name)
        found = self._counts.get(key)
        if found is None:
            if len(self._counts) >= GROUPS_MAX:
                del self._counts[next(iter(self._counts))]
            found = self._counts[key] = GroupCounts()
        return found

    def snapshot(self) -> Mapping[tuple[str, str], GroupCounts]:
        """Return the counts by the names of topic and group."""
        with self._lock:
            return {key: replace(counts) for key, counts in self._counts.items()}
