"""GroupTable: the groups that members use on this node, and where the partitions of each stand."""

import threading
from collections.abc import Callable
from functools import partial

from wings_core.errors import GroupNotFound, Unavailable, WingsError
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.model import PartitionState, ShareGroup
from wings_core.partitions import Partition
from wings_core.share.clock import Clock
from wings_core.share.coordinator.partition_table import Bounds, PartitionTable
from wings_core.share.coordinator.ready import ReadyPartitions
from wings_core.share.coordinator.watchers import FindGroup, Watchers

UNUSED_SECONDS = 60.0
"""The index of a group that no member has asked for in so long is dropped."""


class GroupTable:
    """The groups of a coordinator, each with its index; all methods from any thread.

    Args:
        partitions: The coordinator's, of which those of deleted groups are forgotten.
        registry: The log's index.
        clock: What leases are counted by.
        local: Whether the only replica is in this process.
        find_group: Looks at groups for what other nodes did to them; None: there are no others.
        used: Called whenever a group was added or has changed.
        sooner: Called when `wake_due` is to be called earlier than it was told last.

    Attributes:
        watchers: Those who wait for messages of a group.
        refusal: Why no group can be served; None: groups are served.
    """

    def __init__(
        self,
        partitions: PartitionTable,
        registry: OffsetRegistry,
        clock: Clock,
        *,
        local: bool,
        find_group: FindGroup | None,
        used: Callable[[], None],
        sooner: Callable[[], None],
    ) -> None:
        self.watchers = Watchers(find_group, self.forget, self._know)
        self._partitions = partitions
        self._registry = registry
        self._clock = clock
        self._is_local = local
        self._used = used
        self._sooner = sooner
        self._lock = threading.Lock()
        self._groups: dict[str, ShareGroup] = {}
        self._indexes: dict[str, ReadyPartitions] = {}
        """By group."""
        self.refusal: str | None = None

    def known(self) -> list[ShareGroup]:
        """Return the groups, as they are now."""
        with self._lock:
            return list(self._groups.values())

    def get(self, group_uuid: str) -> ShareGroup | None:
        """Return a group as it is now; None: no member uses it here."""
        return self._groups.get(group_uuid)

    def is_altered(self, group: ShareGroup) -> bool:
        """Tell whether a group is another now than what was checked."""
        known = self._groups.get(group.uuid)
        return known is not None and known is not group and known.config != group.config

    def check(self, group: ShareGroup) -> ShareGroup:
        """Refuse what cannot be served any more; return and remember the group as it is now."""
        self.refuse()
        group = self.watchers.current(group)
        known = self._groups.get(group.uuid)
        if known is group:
            return group  # To compare them takes long, as they have a schema.
        with self._lock:
            group = self.watchers.current(group)  # It may have been altered just now.
            if self._partitions.is_deleted(group):
                raise GroupNotFound(f"group {group.name:.80} was deleted")
            self._groups[group.uuid] = group
        self._used()
        return group

    def refuse(self) -> None:
        """Raise `Unavailable` where no group can be served."""
        if self.refusal is not None:
            raise Unavailable(self.refusal)

    def index(self, group: ShareGroup) -> ReadyPartitions:
        """Return the index of a group, made where there is none."""
        index = self._indexes.get(group.uuid)
        if index is not None:
            return index
        topic_uuid = group.topic.uuid
        made = ReadyPartitions(
            self._clock.now,
            lambda: self._registry.partition_states(topic_uuid),
            lambda callback: self._registry.watch_topic(topic_uuid, callback),
            self._sooner,
            # Of what is held elsewhere a member must ask.
            partial(self._look, group.uuid) if self._is_local else None,
        )
        with self._lock:
            index = self._indexes.setdefault(group.uuid, made)
        if index is not made:
            made.close()
        return index

    def state(
        self, index: ReadyPartitions, group: ShareGroup, partition: Partition
    ) -> PartitionState:
        """Return where a partition's log stands; where it was just listed, as of then."""
        state = index.listed_state(partition)
        if state is None:
            state = self._registry.partition_state(group.topic.uuid, partition)
            index.note(state)
        return state

    def recent_state(
        self, index: ReadyPartitions, group: ShareGroup, partition: Partition
    ) -> PartitionState:
        """Return where a partition stood a moment ago; what is told of it since is in it."""
        state = index.known_state(partition) if self._is_local else None
        return self.state(index, group, partition) if state is None else state

    def bounds(self, group: ShareGroup, partition: Partition) -> Bounds | WingsError:
        """Return the bounds of a partition's log now, or why they are not known."""
        try:
            state = self._registry.partition_state(group.topic.uuid, partition)
        except WingsError as error:
            return error
        return Bounds(state.log_start_offset, state.next_offset)

    def known_bounds(self, group: ShareGroup, partition: Partition) -> Bounds | WingsError:
        """Return the bounds as last heard of, where there are such, else as `bounds`."""
        index = self._indexes.get(group.uuid)
        state = None if index is None else index.known_state(partition)
        if state is None:
            return self.bounds(group, partition)
        return Bounds(state.log_start_offset, state.next_offset)

    def changed(self, group_uuid: str, partition: Partition) -> None:
        """Hear that something may have become available in a partition."""
        index = self._indexes.get(group_uuid)
        if index is not None:
            index.changed(partition)

    def has_ready(self, group: ShareGroup) -> bool:
        """Tell whether something may be available, as far as was told; True without an index."""
        index = self._indexes.get(group.uuid)
        return index is None or index.has_ready

    def wake_another(self, group: ShareGroup) -> None:
        """Wake the next member of a group, where one waits and more is ready."""
        index = self._indexes.get(group.uuid)
        if index is not None:
            index.took_some()

    def _look(self, group_uuid: str, partition: Partition, end: int) -> float | None:
        """Return in how many seconds a partition may have messages; see `PartitionTable.look`."""
        group = self._groups.get(group_uuid)
        return 0.0 if group is None else self._partitions.look(group, partition, Bounds(0, end))

    def forget(self, group: ShareGroup) -> None:
        """Forget a group that was deleted, refuse it from now on, and wake its waiters."""
        with self._lock:
            self._partitions.forget(group)
            self._groups.pop(group.uuid, None)
            index = self._indexes.pop(group.uuid, None)
        if index is not None:
            index.close()
        self.watchers.wake(group.uuid)

    def wake_due(self) -> float | None:
        """Wake members for locks and delays that have ended.

        Returns:
            In how many seconds the next one ends, which no member looks for; None: none is known.
        """
        dues = [index.wake_due() for index in list(self._indexes.values())]
        return min((due for due in dues if due is not None), default=None)

    def drop_unused(self) -> None:
        """Drop the indexes of groups that no member has asked for in a while."""
        with self._lock:
            unused = [
                self._indexes.pop(group_uuid)
                for group_uuid, index in list(self._indexes.items())
                if index.is_idle and index.used_at + UNUSED_SECONDS < self._clock.now()
            ]
        for index in unused:
            index.close()

    def close(self) -> None:
        """Refuse groups from now on, and wake all who wait for them."""
        self.refusal = "the coordinator of share groups is closed"
        self.watchers.close()
        for index in list(self._indexes.values()):
            index.close()

    def _know(self, group: ShareGroup) -> None:
        """Go on with a group as it is now, where it is known here, and wake those who wait."""
        with self._lock:
            if group.uuid in self._groups:
                self._groups[group.uuid] = group
            index = self._indexes.get(group.uuid)
        self.watchers.wake(group.uuid)
        if index is not None:
            index.wake_all()
