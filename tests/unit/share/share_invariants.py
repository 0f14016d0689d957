"""What must hold in the simulation of share groups, whatever fails.

1. A message has at most one lease that has not expired.
2. It is not delivered after an acknowledgement of it succeeded.
3. Only the latest lease can finish it.
4. A tombstone that a replica answered for is there for good, also after a restart.
5. Every message that a coordinator has looked at is in exactly one state.
6. What was refused changed nothing, and what failed lost nothing: a message is finished because
   a worker accepted or rejected it, or may have, or because it met the limit, or by retention.
7. When all is well, everything is finished within the locks and the back-off.
8. No message is delivered more often than the limit, but for attempts that a crash forgot.
9. An expired or rejected message has a dead letter, but for what retention removed.
10. Where an acceptance or a rejection fails, nothing else of its request succeeded.
11. In a group that is ordered a message is delivered when all before it are finished, or come with
    it, and no other lease holds any.
12. A message is not delivered before its time.
13. What was released for later is not delivered earlier, unless a crash forgot it.
14. A stream's client that stands still is given nothing after a lock, and nothing again whose lock
    has ended since it spoke: so it costs a message one delivery.
15. What it releases is not given to it again before it asks for more.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import replica_calls

from wings_core.errors import InvalidRecordState, WingsError
from wings_core.model import LeasedRange
from wings_core.partitions import UNPARTITIONED
from wings_core.share.model import Acknowledgement, AcknowledgeType, ShareKey
from wings_core.share.replica.requests import (
    Answer,
    PartOutcome,
    RangeAnswer,
    Request,
    TombstoneRequest,
)

if TYPE_CHECKING:
    from share_simulation import CoordinatorCore, NodeClock, ReplicaNode, Stream, World

FINAL: tuple[AcknowledgeType, ...] = ("accept", "reject")

SLOWEST = 0.99
"""The least that passes of a second by a clock that runs fast."""


@dataclass(frozen=True)
class Attempt:
    """One entry of a try to acknowledge a range, or a part of it."""

    number: int
    leased: LeasedRange
    entry: Acknowledgement
    asked_at: float


@dataclass
class Active:
    """A lease that a coordinator relies on."""

    lease: str
    until: float


class Observer:
    """Sees all that happens, and asserts what must hold."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.dead_letters: set[int] = set()
        self.deliveries: Counter[int] = Counter()
        self.order: dict[int, list[str]] = defaultdict(list)
        self.active: dict[int, Active] = {}
        self.succeeded: dict[int, AcknowledgeType] = {}
        self.in_doubt: dict[int, dict[int, AcknowledgeType]] = defaultdict(dict)
        self.promised: dict[int, set[int]] = defaultdict(set)
        self.forgotten: Counter[int] = Counter()
        self.delayed: dict[int, float] = {}
        self._numbers = count()

    # Replicas.

    def replica_crashed(self, node: "ReplicaNode") -> None:
        key = ShareKey("group", "topic", UNPARTITIONED)
        partition = node.replica._partitions.get(key)  # pyright: ignore[reportPrivateUsage]
        for first, last, _ in [] if partition is None else partition.holds:
            for offset in range(first, last + 1):
                self.forgotten[offset] += 1
        self.delayed.clear()

    def replica_started(self, node: "ReplicaNode") -> None:
        self._check_promises(node)

    def replica_answered(self, node: "ReplicaNode", request: Request, answer: Answer) -> None:
        if isinstance(answer, WingsError) or not isinstance(request, TombstoneRequest):
            return
        promised = self.promised[node.number]
        for part in answer:
            assert isinstance(part, RangeAnswer)
            if part.outcome is not PartOutcome.NOK:
                promised.update(range(part.first, part.last + 1))
        for repaired in request.repair:
            promised.update(range(repaired.first, repaired.last + 1))

    def finished_at(self, node: "ReplicaNode") -> set[int]:
        """Return what a replica has the tombstone of."""
        states = replica_calls.read(node.replica, "group", [UNPARTITIONED])
        found = set(range(states[0].start_offset))
        for tomb in states[0].finished:
            found.update(range(tomb.first, tomb.last + 1))
        return found

    def _check_promises(self, node: "ReplicaNode") -> None:
        lost = self.promised[node.number] - self.finished_at(node)
        assert not lost, f"replica {node.number} lost the tombstones of {sorted(lost)}"

    # Workers.

    def asked(self, stream: "Stream") -> None:
        """See messages being acquired for a stream."""
        silent = self.world.time - stream.heard_at
        lock_seconds = self.world.group.config.lock_duration_ms / 1_000
        assert silent * SLOWEST <= lock_seconds, f"a client that was silent for {silent} gets more"

    def delivered(
        self,
        core: "CoordinatorCore",
        clock: "NodeClock",
        leased: LeasedRange,
        stream: "Stream | None" = None,
    ) -> None:
        world = self.world
        limit = world.group.config.delivery_limit
        until = self._until(core, clock, leased, leased.start_offset, leased.end_offset)
        if world.group.config.is_ordered:
            self._check_order(leased)
        for offset in range(leased.start_offset, leased.end_offset + 1):
            assert offset < world.log_end, f"{offset} was delivered and not produced"
            if offset < world.log_start:
                continue  # Retention may pass what is under way.
            due_us = world.due_us[offset] if world.due_us else None
            assert due_us is None or due_us <= world.time * 1_000_000 + 1, (
                f"{offset} was delivered before its time"
            )
            delayed_until = self.delayed.pop(offset, 0.0)
            assert world.time >= delayed_until, f"{offset} was to be delivered later"
            active = self.active.get(offset)
            assert active is None or active.until <= world.time, (
                f"{offset} is held with {active} and with {leased.lease}"
            )
            assert offset not in self.succeeded, f"{offset} was delivered after its acknowledgement"
            if stream is not None:
                before = active if active is not None and active.lease in stream.leases else None
                assert before is None or stream.heard_at >= before.until, (
                    f"{offset} is given again to a client that stands still"
                )
                assert offset not in stream.released, f"{offset} is given back unasked"
            self.deliveries[offset] += 1
            allowed = limit + self.forgotten[offset]
            assert self.deliveries[offset] <= allowed, (
                f"{offset} was delivered {self.deliveries[offset]} times"
            )
            assert leased.delivery_count <= limit
            self.order[offset].append(leased.lease)
            self.active[offset] = Active(leased.lease, until)
        if stream is not None:
            stream.leases.add(leased.lease)

    def _check_order(self, leased: LeasedRange) -> None:
        if leased.end_offset < self.world.log_start:
            return  # Retention may pass what is under way.
        unfinished = self.unfinished()
        before = [
            offset
            for offset in unfinished
            if offset < leased.start_offset and self.order[offset][-1:] != [leased.lease]
        ]
        assert not before, f"{leased.start_offset} was delivered before {before}"
        for offset, active in self.active.items():
            if offset not in unfinished:
                continue  # By retention, or by an acceptance that was in doubt.
            assert active.lease == leased.lease or active.until <= self.world.time, (
                f"{leased.start_offset} was delivered while {offset} was held with {active}"
            )

    def acknowledging(self, leased: LeasedRange, entry: Acknowledgement) -> Attempt:
        attempt = Attempt(next(self._numbers), leased, entry, self.world.time)
        for offset in range(entry.first, entry.last + 1):
            if entry.type in FINAL:
                self.in_doubt[offset][attempt.number] = entry.type
            active = self.active.get(offset)
            if entry.type != "renew" and active is not None and active.lease == leased.lease:
                del self.active[offset]  # From now on it may be over.
        return attempt

    def acknowledged(
        self,
        core: "CoordinatorCore",
        clock: "NodeClock",
        attempts: Sequence[Attempt],
        errors: Sequence[WingsError | None],
    ) -> None:
        """See what one request of a partition was answered."""
        kept = [
            error
            for attempt, error in zip(attempts, errors, strict=True)
            if attempt.entry.last >= self.world.log_start  # What is gone succeeds in any case.
        ]
        for attempt, error in zip(attempts, errors, strict=True):
            if error is not None and attempt.entry.type in FINAL:
                assert all(kept), f"some of {attempts} was done, and not what ends: {errors}"
            for offset in range(attempt.entry.first, attempt.entry.last + 1):
                if isinstance(error, InvalidRecordState):
                    self.in_doubt[offset].pop(attempt.number, None)
                if error is None and offset >= self.world.log_start:
                    self._succeeded(offset, attempt)
                    if attempt.entry.delay_ms:
                        seconds = attempt.entry.delay_ms / 1_000 * SLOWEST
                        self.delayed[offset] = attempt.asked_at + seconds
            if attempt.entry.type == "renew" and error is None:
                self._renewed(core, clock, attempt)

    def _renewed(self, core: "CoordinatorCore", clock: "NodeClock", attempt: Attempt) -> None:
        entry = attempt.entry
        until = self._until(core, clock, attempt.leased, entry.first, entry.last)
        for offset in range(entry.first, entry.last + 1):
            active = self.active.get(offset)
            if active is not None and active.lease == attempt.leased.lease:
                active.until = max(active.until, until)

    def _succeeded(self, offset: int, attempt: Attempt) -> None:
        kind = attempt.entry.type
        if kind not in FINAL:
            return
        latest = self.order[offset][-1]
        assert latest == attempt.leased.lease, (
            f"{offset} was finished with {attempt.leased.lease}, and its latest lease is {latest}"
        )
        assert kind == "accept" or offset in self.dead_letters, (
            f"{offset} was rejected and has no dead letter"
        )
        self.succeeded.setdefault(offset, kind)

    def _until(
        self,
        core: "CoordinatorCore",
        clock: "NodeClock",
        leased: LeasedRange,
        first: int,
        last: int,
    ) -> float:
        """Return until when the coordinator relies on a lease, as the world's time."""
        cells = core.table.get(self.world.group, UNPARTITIONED).state.records()
        ends = [
            cell.until
            for begin, end, cell in cells
            if begin <= last and first <= end and str(cell.lease) == leased.lease
        ]
        if not ends:
            return 0.0  # It is over already, or another coordinator counts.
        return self.world.time + (min(ends) - clock.now()) / clock.rate

    # All.

    def unfinished(self) -> list[int]:
        """Return what no majority has a tombstone of, of what the log still has."""
        world = self.world
        votes: Counter[int] = Counter()
        for node in world.replicas:
            votes.update(self.finished_at(node))
        majority = len(world.replicas) // 2 + 1
        return [o for o in range(world.log_start, world.log_end) if votes[o] < majority]

    def check_the_end(self) -> None:
        world = self.world
        for node in world.replicas:
            self._check_promises(node)
        for coordinator in world.coordinators:
            if coordinator.core.table.find(world.group, UNPARTITIONED) is not None:
                self._check_states(coordinator.core)
        for offset in range(world.log_start, world.log_end):
            may_be_accepted = "accept" in self.in_doubt[offset].values()
            accepted = self.succeeded.get(offset) == "accept"
            assert accepted or may_be_accepted or offset in self.dead_letters, (
                f"{offset} was finished and no worker acknowledged it, nor has it a dead letter"
            )

    def _check_states(self, core: "CoordinatorCore") -> None:
        state = core.table.get(self.world.group, UNPARTITIONED).state
        at = state.start_offset
        for first, last, _ in state.records():
            assert first == at
            at = last + 1
        assert at == state.frontier
