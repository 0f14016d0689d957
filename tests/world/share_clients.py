"""Clients of a world that are workers of a share group."""

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Any, cast

import world_threads
from group_clients import GroupClient
from history import Place
from programs import DEAD_LETTERS, SHARE_TOPIC, Operation
from share_history import Lease, Message
from world_clients import RETRY_SECONDS, LostError, numbers_of

from wings_core.errors import InvalidRecordState
from wings_core.fetch.cursors import PartitionCursor
from wings_core.fetch.fetcher import Cancel, Read
from wings_core.log import Log
from wings_core.model import LeasedRange, ShareConfig, ShareGroup
from wings_core.names import TopicName
from wings_core.partitions import Partition
from wings_core.share.model import Acknowledgement, AcknowledgeType, AcquireRequest
from wings_core.times import Deadline

if TYPE_CHECKING:
    from log_world import World

GROUP = "workers"
LOCK_MS = 2_000
LIMIT = 4
WAIT_SECONDS = 0.5
"""Longest wait of a worker for messages."""

ROUNDS_MAX = 4
"""How often a worker looks for messages, for each time that it is to get some."""

LONG_SECONDS = 0.6 * LOCK_MS / 1_000
"""A step of work that outlasts a lock, if it is not renewed."""


def config_of(kind: str) -> ShareConfig:
    """Return the configuration of a group of a kind of `SHARE_KINDS`."""
    return ShareConfig(
        lock_duration_ms=LOCK_MS,
        delivery_limit=LIMIT,
        start="earliest",
        ordering="partition" if kind == "ordered" else "none",
        dlq_topic=DEAD_LETTERS if kind == "letters" else None,
    )


class ShareClient(GroupClient):
    """A client that knows share groups, too.

    Args:
        world: Its world.
        number: Its number in the world.
    """

    def __init__(self, world: "World", number: int) -> None:
        super().__init__(world, number)
        self._shares = world.shares
        self._worker = f"m{number}"
        self._random = Random(f"{world.schedule} worker {number}")

    # Operations. ##################################################################################

    def take(self, operation: Operation) -> None:
        """Lease up to `rows` messages, work on them, and settle each range in some way."""
        for lease in self._acquire(operation.rows):
            world_threads.sleep(operation.milliseconds / 1_000)
            types = ("accept", "accept", "accept", "release", "reject")
            self._settle(lease, cast("AcknowledgeType", self._random.choice(types)))

    def neglect(self, operation: Operation) -> None:
        """Lease up to `rows` messages, and never settle them."""
        self._acquire(operation.rows)

    def renew(self, operation: Operation) -> None:
        """Lease up to `rows` messages, and work on them for longer than the lock."""
        for lease in self._acquire(operation.rows)[:1]:
            world_threads.sleep(LONG_SECONDS)
            began_ns = self._scheduler.now_ns
            if self._settle(lease, "renew"):
                lease.is_over, lease.until_ns = False, began_ns + LOCK_MS * 10**6
                world_threads.sleep(LONG_SECONDS)
                self._settle(lease, "accept")

    def finish(self, operation: Operation) -> None:
        """Once all other clients are done, accept messages until the group is at the end."""
        while len(self._world.doing) > 1:
            world_threads.sleep(WAIT_SECONDS)
        while not self._is_at_end():
            for lease in self._acquire(operation.rows):
                self._settle(lease, "accept")

    # Inside. ######################################################################################

    def _group(self, log: Log) -> ShareGroup:
        topic, config = TopicName.parse(SHARE_TOPIC), self._world.share_config
        return log.shares.create(topic, GROUP, config, if_not_exists=True)

    def _acquire(self, most: int) -> list[Lease]:
        """Lease some messages, within some tries, and read their rows."""
        for _ in range(ROUNDS_MAX):

            def acquire(log: Log) -> list[Lease]:
                group = self._group(log)
                request = AcquireRequest(group, self._worker, None, most)
                began = self._scheduler.now_ns
                found = log.shares.coordinator.acquire(
                    request, Deadline.after(WAIT_SECONDS), Cancel()
                )
                now_ns = self._scheduler.now_ns
                leases = [self._granted(each, began, now_ns) for each in found]
                for part in log.shares.deliver(group, self._worker, found, Cancel()):
                    place = SHARE_TOPIC, str(part.range.partition)
                    numbers = numbers_of(cast("Any", part))
                    assert len(numbers) == part.range.messages, f"{numbers} for {part.range}"
                    self._history.see(place, part.range.start_offset, numbers, now_ns)
                return leases

            leases = self._shares.leases
            count, asked_ns = len(leases), self._scheduler.now_ns
            try:
                found = self._call(acquire)
                if self._scheduler.now_ns - asked_ns >= LOCK_MS * 10**6:
                    self._shares.lost += 1  # Locks were over before messages were handed out.
            except LostError:
                self._shares.lost += 1
                found = [each for each in leases[count:] if each.member == self._worker]
                world_threads.sleep(RETRY_SECONDS)
            if found:
                return found
        return []

    def _granted(self, found: LeasedRange, began_ns: int, now_ns: int) -> Lease:
        place = SHARE_TOPIC, str(found.partition)
        until_ns = began_ns + found.lock_duration_ms * 10**6
        first, last, life = found.start_offset, found.end_offset, self._scheduler.current.life
        lease = Lease(place, first, last, found.lease, self._worker, life, until_ns)
        self._shares.grant(lease, found.delivery_count, began_ns, now_ns)
        return lease

    def _settle(self, lease: Lease, kind: AcknowledgeType) -> bool:
        """Settle a lease; returns whether that is known to be done."""
        finishes = kind in ("accept", "reject")
        entry = Acknowledgement(
            Partition(lease.place[1]), lease.first, lease.last, lease.text, kind, reason="why"
        )
        if finishes:
            self._shares.tried.update(lease.messages)

        def settle(log: Log) -> bool:
            group, life = self._group(log), self._scheduler.current.life
            (error,) = log.shares.coordinator.acknowledge(group, lease.member, [entry])
            if isinstance(error, InvalidRecordState):
                is_good = life is lease.life and self._scheduler.now_ns < lease.until_ns
                assert not is_good, f"{lease} was refused at {self._scheduler.now_ns}"
                return False
            if error is not None:
                raise error
            return True

        lease.is_over = True
        try:
            is_done = self._call(settle)
        except LostError:
            return False
        if not is_done:
            if finishes:  # Nothing was done of it.
                self._shares.tried.subtract(lease.messages)
            return False
        if finishes:
            rejected = kind == "reject"
            self._shares.finish(lease, self._scheduler.now_ns, rejected=rejected)
        return True

    def _is_at_end(self) -> bool:
        """Tell whether all messages are finished; False where that is not known."""

        def lag(log: Log) -> int:
            states = log.shares.coordinator.positions.describe(self._group(log))
            return sum(each.lag for each in states)

        try:
            return self._call(lag) == 0
        except LostError:
            world_threads.sleep(RETRY_SECONDS)
            return False


def letters_of(log: Log) -> Sequence[Message]:
    """Return the messages of which there are dead letters."""
    topic = log.admin.get_topic(TopicName.parse(DEAD_LETTERS))
    cursors = [
        PartitionCursor(each.partition, each.log_start_offset, each.next_offset)
        for each in log.registry.partition_states(topic.uuid)
    ]
    found: list[Message] = []
    for chunk in log.fetcher.scan(Read.of(topic, cursors), Cancel()):
        rows = chunk.batch.select(["source_partition", "source_offset"]).to_pylist()
        found += [((SHARE_TOPIC, each["source_partition"]), each["source_offset"]) for each in rows]
    return found


def ends_of(log: Log) -> dict[Place, int]:
    """Return the next offset of each place of the group's topic."""
    topic = log.admin.get_topic(TopicName.parse(SHARE_TOPIC))
    states = log.registry.partition_states(topic.uuid)
    return {(SHARE_TOPIC, str(each.partition)): each.next_offset for each in states}
