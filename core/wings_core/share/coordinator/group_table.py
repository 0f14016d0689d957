"""GroupTable: the groups that members use on this node, their followers, and their partitions.

Followers (calls that wait, streams) hear at once of a group that is altered or deleted here, and of
other nodes' changes by a look-up from time to time, one for all followers of a group.
"""

import itertools
import logging
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from wings_core.errors import GroupNotFound, NotFound, ResourceExhausted, Unavailable, WingsError
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.model import PartitionState, ShareGroup
from wings_core.partitions import Partition
from wings_core.share.clock import Clock
from wings_core.share.coordinator.partition_table import Bounds, PartitionTable
from wings_core.share.coordinator.ready import ReadyPartitions

FOLLOWERS_MAX = 16_384
"""Most followers at once; further ones are refused."""

LOOK_SECONDS = 0.5
"""Interval at which followed groups are looked up."""

LOOKS_MAX = 100
"""Most groups looked up at a time; the others have their turn later."""

UNUSED_SECONDS = 60.0
"""Time after which the index of a group that no member has asked for is dropped."""

FindGroup = Callable[[ShareGroup], ShareGroup]
"""Returns a group as it is now; raises `NotFound` where it is not there any more."""

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Followed:
    """A group that has followers, as last heard of, and their callbacks."""

    group: ShareGroup
    callbacks: dict[object, Callable[[], None]] = field(
        default_factory=dict[object, Callable[[], None]]
    )


class GroupTable:
    """The groups of a coordinator, each with its index; all methods from any thread.

    Args:
        partitions: The coordinator's partitions; those of deleted groups are forgotten.
        registry: The log's index.
        clock: The clock of leases.
        local: Whether the only replica is in this process.
        find_group: Looks a group up, for changes by other nodes; None: there are no others.
        used: Called whenever a group was added or has changed.
        sooner: Called when `wake_due` is to be called earlier than it was told last.

    Attributes:
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
        self._find_group = find_group
        self._partitions = partitions
        self._registry = registry
        self._clock = clock
        self._is_local = local
        self._used = used
        self._sooner = sooner
        self._lock = threading.Lock()
        self._groups: dict[str, ShareGroup] = {}
        self._indexes: dict[str, ReadyPartitions] = {}
        """The indexes, by group."""
        self._followed: dict[str, _Followed] = {}
        self._followers = 0
        self._turns = itertools.count()
        self._is_closed = False
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
        group = self._current(group)
        known = self._groups.get(group.uuid)
        if known is group:
            return group  # To compare them takes long, as they have a schema.
        with self._lock:
            group = self._current(group)  # It may have been altered just now.
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
        self, index: ReadyPartitions, group: ShareGroup, partition: Partition, *, recent: bool
    ) -> PartitionState:
        """Return where a partition's log stands; `recent`: a moment ago, where that is known."""
        state = index.known_state(partition) if recent else None
        if state is None:
            state = self._registry.partition_state(group.topic.uuid, partition)
            index.note(state)
        return state

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
        self._tell(group.uuid)

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
        self._is_closed = True
        for group_uuid in list(self._followed):
            self._tell(group_uuid)
        for index in list(self._indexes.values()):
            index.close()

    # Followers.

    @contextmanager
    def followed(self, group: ShareGroup, callback: Callable[[], None]) -> Generator[None]:
        """Call back during the block whenever the group was altered or deleted.

        Raises:
            ResourceExhausted: Too many follow already.
        """
        token = object()
        with self._lock:
            if self._followers >= FOLLOWERS_MAX:
                raise ResourceExhausted(f"{FOLLOWERS_MAX} wait for messages of groups already")
            self._followers += 1
            followed = self._followed.setdefault(group.uuid, _Followed(group))
            followed.callbacks[token] = callback
        try:
            yield
        finally:
            with self._lock:
                self._followers -= 1
                del followed.callbacks[token]
                if not followed.callbacks:
                    del self._followed[group.uuid]

    def altered(self, group: ShareGroup) -> None:
        """Go on with a group as it is now, where it is known here, and wake those who wait."""
        with self._lock:
            if group.uuid in self._followed:
                self._followed[group.uuid].group = group
            if group.uuid in self._groups:
                self._groups[group.uuid] = group
            index = self._indexes.get(group.uuid)
        self._tell(group.uuid)
        if index is not None:
            index.wake_all()

    def look_at_followed(self) -> float:
        """Look up groups that have followers; returns the seconds until the next look."""
        with self._lock:
            groups = [followed.group for followed in self._followed.values()]
        begin = next(self._turns) * LOOKS_MAX % len(groups) if len(groups) > LOOKS_MAX else 0
        self.look_up((groups[begin:] + groups[:begin])[:LOOKS_MAX])
        return LOOK_SECONDS

    def look_up(self, groups: Sequence[ShareGroup]) -> None:
        """Look groups up for changes by other nodes; blocks for metadata."""
        for group in groups:
            if self._find_group is None or self._is_closed:
                return
            try:
                found = self._find_group(group)
            except NotFound:
                self.forget(group)
            except WingsError as error:
                _logger.info("the group %s could not be looked up: %s", group.name, error.message)
            except Exception:
                _logger.exception("looking at the group %s failed", group.name)
            else:
                if found != group:
                    self.altered(found)

    def _current(self, group: ShareGroup) -> ShareGroup:
        """Return a group as last heard of, where it has followers; else as it is given."""
        followed = self._followed.get(group.uuid)
        return group if followed is None else followed.group

    def _tell(self, group_uuid: str) -> None:
        """Call the followers of a group."""
        with self._lock:
            followed = self._followed.get(group_uuid)
            callbacks = [] if followed is None else list(followed.callbacks.values())
        for callback in callbacks:
            callback()
