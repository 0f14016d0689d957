"""CoordinatorCore: leases messages and takes acknowledgements, without threads or clocks.

    partition table ─▶ leases:      select ─▶ hold at a majority
               └─────▶ acknowledge: validate ─▶ dead letters, leases proved ─▶ tombstones, releases

`finalize` is what the two have in common.
"""

import random
import uuid
from collections.abc import Callable

from wings_core.partitions import Partition
from wings_core.share.clock import Clock
from wings_core.share.coordinator.finalize import Finalizer
from wings_core.share.coordinator.groups import Bounds, PartitionTable
from wings_core.share.coordinator.lease import Leases
from wings_core.share.coordinator.settle import Settling
from wings_core.share.model import DeadLetterSink
from wings_core.share.quorum.quorum import HoldQuorum

__all__ = ["Bounds", "CoordinatorCore"]


class CoordinatorCore:
    """The procedures of a coordinator.

    Args:
        quorum: The majority of the replicas.
        dead_letters: None: no group has any.
        clock: The clock of leases.
        rng: For back-off.
        id: In the leases; None: a new one.
        changed: Called with a group's UUID and a partition that may have something available.
        archived: Called with a group's UUID and the number of its messages that were archived.
        met_limit: Called when messages are at the delivery limit, which are to be archived.

    All three are called outside the lock.

    Attributes:
        id: In the leases; unique for each start.
        now: Returns the time that leases are counted by.
        table: The partitions that are known here.
        leases: Leases their messages, and archives those at the delivery limit.
        settling: Carries out acknowledgements of them.
    """

    finalizer_type = Finalizer
    leases_type = Leases
    settling_type = Settling

    def __init__(
        self,
        quorum: HoldQuorum,
        dead_letters: DeadLetterSink | None,
        clock: Clock,
        rng: random.Random,
        id: str | None = None,  # noqa: A002 - of the coordinator.
        *,
        changed: Callable[[str, Partition], None] = lambda _group, _partition: None,
        archived: Callable[[str, int], None] = lambda _group, _messages: None,
        met_limit: Callable[[], None] = lambda: None,
    ) -> None:
        self.id = id or uuid.uuid4().hex
        self.now = clock.now
        self.table = PartitionTable(quorum, clock, self.id, met_limit)
        finalizer = self.finalizer_type(self.table, quorum, dead_letters, clock, archived)
        self.leases = self.leases_type(self.table, quorum, finalizer, clock, rng, changed)
        self.settling = self.settling_type(self.id, self.table, finalizer, clock, changed)
