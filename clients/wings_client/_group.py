"""A member of a consumer group: its heartbeats, and the reads of what it is assigned.

A thread heartbeats, whatever the program does meanwhile. Each change of what the member may read
begins a new stream over its slots, from where it stands; batches of the streams before are dropped
as they are taken. What is revoked is given up once the program has processed what it was handed of
it, and that is committed.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

from wings_client._chunks import Chunks, OnDataLoss
from wings_client._consumer_reads import BATCHES_WAITING_MAX, Consumed, probe_of
from wings_client._errors import is_passing
from wings_client._handover import Handover, HandoverClosed
from wings_client._messages import build
from wings_client._model import RangesBatch, Topic
from wings_client._threads import Work
from wings_client._transport import Transport
from wings_core.contracts.chunks import PartitionRanges
from wings_core.contracts.consumer_groups import GroupHeartbeat
from wings_core.contracts.reads import ALL
from wings_core.contracts.tickets import FollowTicket
from wings_core.errors import FencedMember, InvalidArgument, InvalidTicket, WingsError
from wings_core.model import MemberEpoch
from wings_core.partitions import JsonScalar

SESSION_SECONDS = 45.0
POLL_SECONDS = 300.0

CLOCK_SHARE = 0.95
"""Share of a session after which a member that was not heard takes it for ended."""

RETRY_SECONDS = 0.5
"""Pause after a heartbeat that failed."""

LEAVE_SECONDS = 5.0
"""How long `close` waits for the member to leave."""

SlotsCallback = Callable[[Sequence[int]], object]
"""Called with the slots that were assigned or are revoked."""

_logger = logging.getLogger("wings_client")


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """How a consumer is a member of its group; see `Client.consumer`."""

    member: str
    instance: str | None
    session_seconds: float
    poll_seconds: float
    on_assigned: SlotsCallback | None
    on_revoked: SlotsCallback | None

    @classmethod
    def of(cls, member: str | None, **options: Any) -> "GroupOptions":
        """Return options, with a name of its own for a member without one."""
        return cls(member or uuid4().hex, **options)


class GroupOffsets(Protocol):
    """Needs of a member in its consumer's offsets."""

    @property
    def delivered(self) -> dict[JsonScalar, int]:
        """The next offset by partition, after all that was delivered."""
        ...

    @property
    def unprocessed(self) -> frozenset[JsonScalar]:
        """Partitions of the last batch delivered, until it counts as processed."""
        ...

    @property
    def unfinished(self) -> frozenset[JsonScalar]:
        """Partitions of which something was delivered and not committed."""
        ...

    def deliver(self, taken: Consumed) -> None:
        """Record that a batch was delivered."""
        ...

    def commit(self) -> None:
        """Commit what was processed."""
        ...

    def forget(self, partitions: frozenset[JsonScalar]) -> None:
        """Forget partitions that are another's now."""
        ...

    def forget_all(self) -> None:
        """Forget all partitions, as the member joins anew."""
        ...


class _Read(NamedTuple):
    """A batch, and the number of the stream that it came by."""

    number: int
    batch: RangesBatch


class GroupReads:
    """Reads what a member of a group is assigned, until it is closed.

    Args:
        transport: To the server.
        name: The consumer's.
        topic: The topic to read.
        offsets: The consumer's.
        options: How it is a member.
        keys: Keys of the tickets: selection, and where to begin where nothing was committed.
        on_data_loss: Outcome of a read whose place retention has passed.
        commits: Whether to commit what was processed before it is given up.

    Attributes:
        handover: The queue of the batches that were read.
    """

    def __init__(
        self,
        transport: Transport,
        name: str,
        topic: Topic,
        offsets: GroupOffsets,
        options: GroupOptions,
        keys: Mapping[str, Any],
        on_data_loss: OnDataLoss,
        *,
        commits: bool,
    ) -> None:
        self.handover: Handover[Any] = Handover(BATCHES_WAITING_MAX, givers=1)
        self._transport = transport
        self._name = name
        self._topic = topic
        self._offsets = offsets
        self._options = options
        self._keys = keys
        self._on_data_loss: OnDataLoss = on_data_loss
        self._commits = commits
        # Held while a batch is handed to the program, and while what may be is changed.
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._leaving = threading.Event()
        self._epoch = 0
        self._session_ends = 0.0
        self._asked_at = time.monotonic()
        self._is_asking = False
        """Whether the program waits for a batch."""
        self._has_dropped = False
        """Whether a batch was dropped as the session seemed to have ended."""
        self._is_fenced = False
        """Whether a commit was refused, so that the member is to join anew."""
        self._is_away = False
        """Whether the member left, as its program asked for no batch for too long."""
        self._owned: frozenset[int] = frozenset()
        """Slots that the server takes for its own: also what it has yet to give up."""
        self._target: frozenset[int] = frozenset()
        self._reading: frozenset[int] = frozenset()
        self._slots: dict[JsonScalar, int] = {}
        """Slots of the partitions of which something was delivered."""
        self._number = 0
        self._read: Chunks | None = None
        self._work = Work(self._run, "wings-group")

    def fence(self) -> MemberEpoch:
        """Return what the member states with a commit."""
        return MemberEpoch(self._options.member, max(1, self._epoch))

    def start(self) -> None:
        """Start to heartbeat, unless that was done."""
        self._work.start()

    def asked(self) -> None:
        """Note that the program asks for a batch, and has processed the last."""
        self._is_asking = True
        if self._is_away or (self._owned != self._target and not self._is_busy()):
            self._wake.set()

    def answered(self) -> None:
        """Note that the program was told that there is no batch, or got one."""
        self._is_asking = False
        self._asked_at = time.monotonic()

    def accept(self, taken: Any) -> Consumed | None:
        """Return a batch that was taken as delivered; None: it is another's to read by now."""
        with self._lock:
            if taken.number != self._number or self._is_fenced:
                return None
            if time.monotonic() >= self._session_ends:
                self._has_dropped = True
                return None
            ranges = taken.batch.ranges
            if isinstance(ranges, PartitionRanges):
                for each, slot in zip(ranges, ranges.slots, strict=True):
                    self._slots[each.partition] = slot
            self.answered()
            self._offsets.deliver(taken.batch)
            return taken.batch

    def fenced(self) -> bool:
        """Drop everything and join anew, as a commit was refused; returns True."""
        _logger.warning("consumer group %r: a commit of this member was fenced", self._name)
        with self._lock:
            self._is_fenced = True  # Nothing is handed out any more; the thread drops the rest.
            self._offsets.forget_all()
        self._wake.set()
        return True

    def lags(self) -> bool:
        """Return whether messages are committed that were not read yet; asks the server.

        True while the member is joining, or slots are on their way to it.
        """
        with self._lock:
            read = self._read
            if self._closing.is_set():
                return False
            if self._epoch == 0 or self._target - self._owned:
                return True
            if self._reading != self._owned & self._target:
                return True
        if read is None:
            return False
        probe = probe_of(self._transport, self._topic, self._keys, read)
        try:
            return not self.handover.idle or any(True for _ in probe)
        finally:
            probe.cancel()

    def cancel(self) -> None:
        """Stop reading, and leave; does not block."""
        if self._transport.is_inherited:
            return
        self._closing.set()
        self._wake.set()
        self.handover.close()
        read = self._read
        if read is not None:
            read.cancel()

    def close(self) -> None:
        """Stop reading; what is processed may still be committed before `leave`."""
        self._number = -1
        self.handover.close()
        read = self._read
        if read is not None:
            read.cancel()

    def leave(self) -> None:
        """Leave the group; waits for it, at most `LEAVE_SECONDS`."""
        self._leaving.set()
        self.cancel()
        self._work.join(LEAVE_SECONDS)

    # The thread of heartbeats.

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._wake.clear()
                self._wake.wait(self._step())
            # What is processed may yet be committed, by `close`; one that is collected only leaves.
            self._leaving.wait(LEAVE_SECONDS)
            if self._epoch > 0:
                with suppress(WingsError):
                    self._send(-1)
        except BaseException as error:  # noqa: BLE001 - raised where the consumer is iterated.
            self.handover.fail(error)
            if self._epoch > 0:
                with suppress(WingsError):
                    self._send(-1)

    def _step(self) -> float:
        """Heartbeat, unless the member is to be away; returns when the next is due, in seconds."""
        now = time.monotonic()
        idle = not self._is_asking and now - self._asked_at > self._options.poll_seconds
        if idle and not self._is_away:
            _logger.warning(
                "consumer group %r: no batch was asked for in %g s, this member leaves",
                self._name,
                self._options.poll_seconds,
            )
            with suppress(WingsError):
                self._send(-1)
            self._drop()
            self._is_away = True
        if self._is_away and idle:
            return self._options.poll_seconds
        self._is_away = False
        if self._is_fenced or (self._epoch > 0 and now >= self._session_ends):
            _logger.warning("consumer group %r: the session of this member ended", self._name)
            self._drop()
        return self._beat(now)

    def _beat(self, now: float) -> float:
        """Heartbeat, and take what is answered; returns when the next is due, in seconds."""
        try:
            answer = self._send(self._epoch)
        except FencedMember:
            if self._epoch > 0:
                _logger.warning("consumer group %r: this member was fenced", self._name)
            self._drop()
            return RETRY_SECONDS
        except WingsError as error:
            if not is_passing(error, repeatable=True):
                raise
            return RETRY_SECONDS
        with self._lock:
            if self._is_fenced:
                return 0.0
            self._session_ends = now + self._options.session_seconds * CLOCK_SHARE
            if self._has_dropped:
                self._begin(self._reading)  # What was dropped comes again.
        self._epoch = answer["member_epoch"]
        assignment = answer["assignment"]
        if assignment is not None:
            slots = (each["slots"] for each in assignment if each["topic"] == self._topic.name)
            self._target = frozenset(slot for some in slots for slot in some)
        moved = self._reconcile()
        return 0.0 if moved else answer["heartbeat_ms"] / 1_000

    def _send(self, epoch: int) -> Mapping[str, Any]:
        keys: dict[str, Any] = {}
        if epoch >= 0:
            keys = {
                "topics": [self._topic.name],
                "owned": [{"topic": self._topic.name, "slots": sorted(self._owned)}],
                "session_ms": round(self._options.session_seconds * 1_000),
            }
        if self._options.instance is not None:
            keys["instance"] = self._options.instance
        body = build(
            GroupHeartbeat,
            InvalidArgument,
            "consumer",
            consumer=self._name,
            member=self._options.member,
            member_epoch=epoch,
            **keys,
        )
        return self._transport.act("group-heartbeat", body, repeatable=True)

    def _reconcile(self) -> bool:
        """Give up what is not to be read, as far as it is processed, and take what is new.

        Returns:
            Whether what the member holds has changed, which the server is to be told at once.
        """
        with self._lock:
            if self._reading != self._owned & self._target:
                self._begin(self._owned & self._target)
            revoked = self._owned - self._target
            if self._is_busy():
                return False  # The program is at it; it is given up when it asks for more.
        if revoked:
            if self._commits:
                try:
                    self._offsets.commit()
                except FencedMember:
                    self.fenced()
                    return False
            _call(self._options.on_revoked, revoked)
            with self._lock:
                gone = {each for each, slot in self._slots.items() if slot in revoked}
                self._offsets.forget(frozenset(gone))
                for partition in gone:
                    del self._slots[partition]
                self._owned -= revoked
            return True  # What is given up is said before anything is taken.
        new = self._target - self._owned
        if not new:
            return False
        _call(self._options.on_assigned, new)
        with self._lock:
            if self._is_fenced:
                return True
            self._owned |= new
            self._begin(self._owned)
        return True

    def _is_busy(self) -> bool:
        """Return whether the program is at a batch of slots that are to be given up.

        One that commits by itself is so until it has committed.
        """
        offsets = self._offsets
        held = offsets.unprocessed if self._commits else offsets.unfinished
        return any(
            slot in self._owned and slot not in self._target for slot in map(self._slots.get, held)
        )

    def _drop(self) -> None:
        """Read nothing any more, and join anew with the next heartbeat."""
        with self._lock:
            self._is_fenced = False
            lost, self._epoch = self._owned, 0
            self._owned = self._target = frozenset()
            self._begin(frozenset())
            self._slots.clear()
            self._offsets.forget_all()
        if lost:
            _call(self._options.on_revoked, lost)

    def _begin(self, slots: frozenset[int]) -> None:
        """Read these slots, from where the member stands or its group has committed."""
        if self._number < 0:
            return
        self._number += 1
        self._has_dropped = False
        self._reading = slots
        read, self._read = self._read, None
        if read is not None:
            read.cancel()
        if not slots:
            return
        delivered = self._offsets.delivered
        at = {each: delivered[each] for each, slot in self._slots.items() if slot in slots}
        ticket = build(
            FollowTicket,
            InvalidTicket,
            "consumer",
            topic=self._topic.name,
            partitions=ALL,
            positions=tuple(at.items()),
            slots=sorted(slots),
            consumer=self._name,
            **self._keys,
        )
        seconds = self._transport.retry.reconnect_seconds
        self._read = read = Chunks(self._transport, ticket, reconnect_seconds=seconds)
        read.on_data_loss = self._on_data_loss
        Work(partial(self._follow, read, self._number), "wings-consumer").start()

    def _follow(self, read: Chunks, number: int) -> None:
        try:
            for chunk in read:
                if number != self._number:
                    return
                self.handover.put(_Read(number, chunk))
        except HandoverClosed:
            return
        except BaseException as error:  # noqa: BLE001 - raised where the consumer is iterated.
            if number == self._number:
                self.handover.fail(error)


def _call(callback: SlotsCallback | None, slots: frozenset[int]) -> None:
    if callback is not None:
        callback(sorted(slots))
