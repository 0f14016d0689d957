"""CoordinatorCore: leases messages and takes acknowledgements, without threads or clocks.

    partition table ─▶ leases:      select ─▶ hold at a majority
               └─────▶ acknowledge: validate ─▶ dead letters, leases proved ─▶ tombstones, releases

`finalize` is what the two have in common.
"""

import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wings_core.model import HeldRange, ShareGroup
from wings_core.partitions import Partition
from wings_core.share.clock import Clock
from wings_core.share.coordinator.acknowledge import Settling
from wings_core.share.coordinator.finalize import Finalizer
from wings_core.share.coordinator.lease import Leases
from wings_core.share.coordinator.partition_table import Bounds, PartitionTable, key_of
from wings_core.share.model import DeadLetterSink, OffsetRange
from wings_core.share.quorum.quorum import HoldQuorum
from wings_core.share.quorum.run import Procedure
from wings_core.share.quorum.votes import KnownPartition

__all__ = ["Bounds", "CoordinatorCore"]


@dataclass(frozen=True, slots=True)
class Told:
    """Callbacks of a coordinator's procedures, called outside the lock."""

    changed: Callable[[str, Partition], None] = lambda _group, _partition: None
    """Called with a group's UUID and a partition that may have something available."""
    archived: Callable[[str, int], None] = lambda _group, _messages: None
    """Called with a group's UUID and the number of its messages that were archived."""
    met_limit: Callable[[], None] = lambda: None
    """Called when messages are at the delivery limit, which are to be archived."""


class CoordinatorCore:
    """The procedures of a coordinator.

    Args:
        quorum: Of the replicas.
        dead_letters: None: no group has any.
        clock: What leases are counted by.
        rng: For back-off.
        told: Called for what others are to hear of.
        id: In the leases; None: a new one.

    Attributes:
        id: In the leases; unique for each start.
        now: Returns the time that leases are counted by.
        table: The partitions that are known here.
        leases: Leases their messages, and archives those at the delivery limit.
        acknowledge: Takes what members say of those.
    """

    finalizer_type = Finalizer
    leases_type = Leases
    acknowledge_type = Settling

    def __init__(
        self,
        quorum: HoldQuorum,
        dead_letters: DeadLetterSink | None,
        clock: Clock,
        rng: random.Random,
        told: Told | None = None,
        id: str | None = None,  # noqa: A002 - of the coordinator.
    ) -> None:
        told = told or Told()
        self.id = id or uuid.uuid4().hex
        self._quorum = quorum
        self.now = clock.now
        self.table = PartitionTable(quorum, clock, self.id, told.met_limit)
        changed = told.changed
        finalizer = self.finalizer_type(self.table, quorum, dead_letters, clock, told.archived)
        self.leases = self.leases_type(self.table, quorum, finalizer, clock, rng, changed)
        self.acknowledge = self.acknowledge_type(self.id, self.table, finalizer, clock, changed)

    # Groups.

    def begin(
        self, group: ShareGroup, partition: Partition, finished: Sequence[OffsetRange]
    ) -> Procedure[None]:
        """Finish what a new group does not have of a partition; without this it has all.

        Raises:
            Unavailable: No majority answered.
        """
        return self._quorum.repair(key_of(group, partition), finished)

    def delete(self, group: ShareGroup) -> Procedure[None]:
        """Forget a group, here and at the replicas."""
        self.table.forget(group)
        yield from self._quorum.forget(group.uuid)

    def held(self, group: ShareGroup) -> Procedure[dict[Partition, list[HeldRange]]]:
        """Return what a majority of replicas knows to be held, in order of offset.

        Raises:
            Unavailable: No majority answered.
        """
        return self._quorum.held(group.uuid)

    def read(
        self, group: ShareGroup, partitions: Sequence[Partition]
    ) -> Procedure[dict[Partition, KnownPartition]]:
        """Return what a majority of replicas knows of partitions.

        Raises:
            Unavailable: No majority answered.
        """
        return self._quorum.read(group.uuid, group.topic.uuid, partitions)
