"""CoordinatorCore: leases messages and takes acknowledgements, without threads or clocks.

    partition table ─▶ acquirer:    select ─▶ hold at a majority ─▶ archive what is at the limit
               └─────▶ acknowledge: validate ─▶ dead letters, leases proved ─▶ tombstones, releases

`finalize` is what the two have in common.
"""

import random
import uuid
from collections.abc import Callable, Sequence

from wings_core.errors import WingsError
from wings_core.partitions import Partition
from wings_core.share.clock import Clock
from wings_core.share.coordinator.acknowledge import Acknowledge
from wings_core.share.coordinator.acquirer import Acquirer
from wings_core.share.coordinator.finalize import Finalizer
from wings_core.share.coordinator.partition_table import Bounds, PartitionTable, key_of
from wings_core.share.interfaces import DeadLetters
from wings_core.share.model import Acknowledgement, LeasedRange, OffsetRange, ShareGroup
from wings_core.share.quorum.effects import Procedure
from wings_core.share.quorum.quorum import HoldQuorum
from wings_core.share.quorum.votes import Known
from wings_core.share.replica.interfaces import LeaseEntry
from wings_core.share.state.partition import SharePartition

__all__ = ["Bounds", "CoordinatorCore"]


class CoordinatorCore:
    """The procedures of a coordinator.

    Args:
        quorum: Of the replicas.
        dead_letters: None: no group has any.
        clock: What leases are counted by.
        rng: For back-off.
        changed: Called with a group's UUID, outside the lock, when something may have become
            available.

    Attributes:
        id: In the leases; unique for each start.
    """

    finalizer_type = Finalizer

    def __init__(
        self,
        quorum: HoldQuorum,
        dead_letters: DeadLetters | None,
        clock: Clock,
        rng: random.Random,
        changed: Callable[[str], None] = lambda _: None,
        id: str | None = None,  # noqa: A002 - of the coordinator.
    ) -> None:
        self.id = id or uuid.uuid4().hex
        self._quorum = quorum
        self._changed = changed
        self._table = PartitionTable(quorum, clock, self.id)
        finalizer = self.finalizer_type(self._table, quorum, dead_letters, clock)
        self._acquirer = Acquirer(self._table, quorum, finalizer, clock, rng, changed)
        self._acknowledge = Acknowledge(self.id, self._table, finalizer, clock, changed)

    # Groups.

    def create(self, group: ShareGroup, starts: dict[Partition, int]) -> Procedure[None]:
        """Put a group at its start; partitions that are not named begin at 0.

        Raises:
            Unavailable: No majority answered.
        """
        for partition, start in starts.items():
            if start > 0:
                yield from self._quorum.repair(
                    key_of(group, partition), [OffsetRange(0, start - 1)]
                )

    def delete(self, group: ShareGroup) -> Procedure[None]:
        """Forget a group, here and at the replicas."""
        self.forget(group)
        yield from self._quorum.forget(group.uuid)
        self._changed(group.uuid)

    def forget(self, group: ShareGroup) -> None:
        """Forget a group that was deleted, here alone; nothing of it is begun again."""
        self._table.forget(group)

    def is_deleted(self, group: ShareGroup) -> bool:
        """Tell whether a group is known to be deleted."""
        return self._table.is_deleted(group)

    def load(self, group: ShareGroup, partitions: Sequence[Partition]) -> Procedure[None]:
        """Read the state of partitions that this coordinator does not know yet.

        Raises:
            GroupNotFound: The group was deleted.
            Unavailable: No majority answered.
        """
        return self._table.load(group, partitions)

    def read(
        self, group: ShareGroup, partitions: Sequence[Partition]
    ) -> Procedure[dict[Partition, Known]]:
        """Return what a majority of replicas knows of partitions.

        Raises:
            Unavailable: No majority answered.
        """
        return self._quorum.read(group.uuid, group.topic.uuid, partitions)

    def is_loaded(self, group: ShareGroup, partition: Partition) -> bool:
        """Tell whether the state of a partition is known."""
        return self._table.is_loaded(group, partition)

    def look(self, group: ShareGroup, partition: Partition, bounds: Bounds) -> float | None:
        """Return in how many seconds a loaded partition may have something to hand out.

        0: now; None: only after a change that is heard of.
        """
        return self._table.look(group, partition, bounds)

    def needs_catch_up(self, group: ShareGroup, partition: Partition) -> bool:
        """Tell whether to `catch_up` with a partition; see `PartitionTable.needs_catch_up`."""
        return self._table.needs_catch_up(group, partition)

    def catch_up(self, group: ShareGroup, partition: Partition) -> Procedure[None]:
        """Hear what other coordinators have finished in a loaded partition."""
        return self._acquirer.catch_up(group, partition)

    def state(self, group: ShareGroup, partition: Partition) -> SharePartition:
        """Return the state of a loaded partition, for whoever looks at it from outside."""
        return self._table.get(group, partition).state

    def exhausted_partitions(self, group: ShareGroup) -> list[Partition]:
        """Return the loaded partitions that may have something at the limit to give up."""
        return self._table.exhausted(group)

    # Messages.

    def acquire(
        self,
        group: ShareGroup,
        partition: Partition,
        bounds: Bounds,
        member: str,
        messages_max: int,
        rows_max: int,
        batch_end: Callable[[int], int] | None = None,
        *,
        alone: bool = True,
    ) -> Procedure[list[LeasedRange]]:
        """Hand out what there is in a loaded partition; see `Acquirer.acquire`."""
        return self._acquirer.acquire(
            group, partition, bounds, member, messages_max, rows_max, batch_end, alone=alone
        )

    def acknowledge(
        self,
        group: ShareGroup,
        partition: Partition,
        bounds: Bounds,
        member: str,
        asked: Sequence[Acknowledgement],
    ) -> Procedure[list[WingsError | None]]:
        """Settle messages of a loaded partition; returns an error or None for each entry."""
        return self._acknowledge.run(group, partition, bounds, member, asked)

    def give_back(
        self, group: ShareGroup, partition: Partition, entries: Sequence[LeaseEntry]
    ) -> Procedure[None]:
        """Release what never reached its member, in a loaded partition: no delivery is counted."""
        return self._acquirer.give_back(group, partition, entries)

    def archive_exhausted(
        self, group: ShareGroup, partition: Partition, bounds: Bounds
    ) -> Procedure[None]:
        """Give up what is at the limit in a loaded partition, and hand out nothing.

        Raises:
            Unavailable: No majority answered.
        """
        return self._acquirer.archive_exhausted(group, partition, bounds)
