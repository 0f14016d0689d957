"""CoordinatorCore: hands out messages and settles them, as procedures without threads or clocks.

    places ─▶ hand_out:    select ─▶ hold at a majority ─▶ give up what is at the limit
         └──▶ acknowledge: check ─▶ (dead letters, leases proved) ─▶ tombstones, releases

`settlement` is what the two have in common.
"""

import random
import uuid
from collections.abc import Callable, Sequence

from wings_core.errors import WingsError
from wings_core.partitions import Partition
from wings_core.share.acknowledge import Acknowledge
from wings_core.share.clock import Clock
from wings_core.share.hand_out import HandOut
from wings_core.share.interfaces import DeadLetters, LeaseEntry
from wings_core.share.model import Acknowledgement, LeasedRange, OffsetRange, ShareGroup
from wings_core.share.partition import SharePartition
from wings_core.share.places import Bounds, Places, key_of
from wings_core.share.quorum import HoldQuorum
from wings_core.share.settlement import Settlement
from wings_core.share.steps import Steps
from wings_core.share.votes import Known

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

    settlement_type = Settlement

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
        self._places = Places(quorum, clock, self.id)
        settlement = self.settlement_type(self._places, quorum, dead_letters, clock)
        self._hand_out = HandOut(self._places, quorum, settlement, clock, rng, changed)
        self._acknowledge = Acknowledge(self.id, self._places, settlement, clock, changed)

    # Groups.

    def create(self, group: ShareGroup, starts: dict[Partition, int]) -> Steps[None]:
        """Put a group at its start; partitions that are not named begin at 0.

        Raises:
            Unavailable: No majority answered.
        """
        for partition, start in starts.items():
            if start > 0:
                yield from self._quorum.repair(
                    key_of(group, partition), [OffsetRange(0, start - 1)]
                )

    def delete(self, group: ShareGroup) -> Steps[None]:
        """Forget a group, here and at the replicas."""
        self.forget(group)
        yield from self._quorum.forget(group.uuid)
        self._changed(group.uuid)

    def forget(self, group: ShareGroup) -> None:
        """Forget a group that was deleted, here alone; nothing of it is begun again."""
        self._places.forget(group)

    def is_deleted(self, group: ShareGroup) -> bool:
        """Tell whether a group is known to be deleted."""
        return self._places.is_deleted(group)

    def load(self, group: ShareGroup, partitions: Sequence[Partition]) -> Steps[None]:
        """Read the state of partitions that this coordinator does not know yet.

        Raises:
            GroupNotFound: The group was deleted.
            Unavailable: No majority answered.
        """
        return self._places.load(group, partitions)

    def read(
        self, group: ShareGroup, partitions: Sequence[Partition]
    ) -> Steps[dict[Partition, Known]]:
        """Return what a majority of replicas knows of partitions.

        Raises:
            Unavailable: No majority answered.
        """
        return self._quorum.read(group.uuid, group.topic.uuid, partitions)

    def is_loaded(self, group: ShareGroup, partition: Partition) -> bool:
        """Tell whether the state of a partition is known."""
        return self._places.is_loaded(group, partition)

    def look(self, group: ShareGroup, partition: Partition, bounds: Bounds) -> float | None:
        """Return in how many seconds a loaded partition may have something to hand out.

        0: now; None: only after a change that is heard of.
        """
        return self._places.look(group, partition, bounds)

    def is_doubtful(self, group: ShareGroup, partition: Partition) -> bool:
        """Tell whether to `catch_up` with a partition; see `Places.is_doubtful`."""
        return self._places.is_doubtful(group, partition)

    def catch_up(self, group: ShareGroup, partition: Partition) -> Steps[None]:
        """Hear what other coordinators have finished in a loaded partition."""
        return self._hand_out.catch_up(group, partition)

    def state(self, group: ShareGroup, partition: Partition) -> SharePartition:
        """Return the state of a loaded partition, for whoever looks at it from outside."""
        return self._places.get(group, partition).state

    def exhausted_places(self, group: ShareGroup) -> list[Partition]:
        """Return the loaded partitions that may have something at the limit to give up."""
        return self._places.exhausted(group)

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
    ) -> Steps[list[LeasedRange]]:
        """Hand out what there is in a loaded partition; see `HandOut.acquire`."""
        return self._hand_out.acquire(
            group, partition, bounds, member, messages_max, rows_max, batch_end, alone=alone
        )

    def acknowledge(
        self,
        group: ShareGroup,
        partition: Partition,
        bounds: Bounds,
        member: str,
        asked: Sequence[Acknowledgement],
    ) -> Steps[list[WingsError | None]]:
        """Settle messages of a loaded partition; returns an error or None for each entry."""
        return self._acknowledge.run(group, partition, bounds, member, asked)

    def give_back(
        self, group: ShareGroup, partition: Partition, entries: Sequence[LeaseEntry]
    ) -> Steps[None]:
        """Release what never reached its member, in a loaded partition: no delivery is counted."""
        return self._hand_out.give_back(group, partition, entries)

    def give_up(self, group: ShareGroup, partition: Partition, bounds: Bounds) -> Steps[None]:
        """Give up what is at the limit in a loaded partition, and hand out nothing.

        Raises:
            Unavailable: No majority answered.
        """
        return self._hand_out.give_up(group, partition, bounds)
