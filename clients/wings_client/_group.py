"""A member of a consumer group: its heartbeats, and the reads of what it is assigned.

A thread heartbeats, whatever the program does meanwhile. Each change of what the member may read of
a topic begins a new stream over its slots, from where it stands; batches of the streams before are
dropped as they are taken. What is revoked is given up once the program has processed what it was
handed of it, and that is committed.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby, repeat
from operator import itemgetter
from typing import Any, cast

from wings_client._arguments import build
from wings_client._chunks import Chunks, OnDataLoss
from wings_client._consumer_groups import AssignedSlots
from wings_client._consumer_offsets import ConsumerOffsets, TopicPartition
from wings_client._consumer_reads import BATCHES_WAITING_MAX, hand_over, is_on_its_way, probe_of
from wings_client._errors import is_passing
from wings_client._model import Consumed, RangesBatch, Topic, TopicBatch
from wings_client._share import member_name
from wings_client._threads import Handover, Work
from wings_client._transport import Transport
from wings_core.contracts.chunks import PartitionRanges
from wings_core.contracts.consumer_groups import GroupHeartbeat
from wings_core.contracts.reads import ALL
from wings_core.contracts.tickets import FollowTicket
from wings_core.errors import FencedMember, InvalidTicket, WingsError
from wings_core.model import MemberEpoch

SESSION_SECONDS = 45.0
POLL_SECONDS = 300.0

CLOCK_SHARE = 0.95
"""Share of a session after which a member that was not heard takes it for ended."""

RETRY_SECONDS = 0.5
"""Pause after a heartbeat that failed."""

LEAVE_SECONDS = 5.0
"""How long `close` waits for the member to leave."""

SlotsCallback = Callable[[Sequence[AssignedSlots]], object]
"""Called with the slots that were assigned or are revoked, by topic."""

Slot = tuple[str, int]
"""Full name of a topic, and a number."""

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
        return cls(member or member_name(), **options)


class _TopicReads:
    """The reads of one topic: one stream at a time, over the slots that may be read.

    Attributes:
        topic: The topic.
        slots: Slots that are read.
        has_dropped: Whether a batch was dropped as the session seemed to have ended.
        chunks: The stream; None: nothing is read. Batches of those before are another's to read.
    """

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.slots: frozenset[int] = frozenset()
        self.has_dropped = False
        self.chunks: Chunks | None = None

    def begin(self, slots: frozenset[int], chunks: Chunks | None) -> None:
        """Read by another stream from now on."""
        before, self.chunks = self.chunks, chunks
        self.slots = slots
        self.has_dropped = False
        if before is not None:
            before.cancel()

    def cancel(self) -> None:
        """End the stream."""
        if self.chunks is not None:
            self.chunks.cancel()


class GroupReads:
    """Reads what a member of a group is assigned, until it is closed.

    Args:
        transport: To the server.
        offsets: The consumer's: they name it and its topics.
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
        offsets: ConsumerOffsets,
        options: GroupOptions,
        keys: Mapping[str, Any],
        on_data_loss: OnDataLoss,
        *,
        commits: bool,
    ) -> None:
        self.handover: Handover[Any] = Handover(BATCHES_WAITING_MAX, givers=1)
        self._transport = transport
        self._name = offsets.name
        self._topics = {topic.name: _TopicReads(topic) for topic in offsets.topics}
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
        self._is_failing = False
        """Whether the last heartbeat failed."""
        self._is_closed = False
        """Whether nothing is handed out any more."""
        self._is_fenced = False
        """Whether a commit was refused, so that the member is to join anew."""
        self._is_away = False
        """Whether the member left, as its program asked for no batch for too long."""
        self._owned: frozenset[Slot] = frozenset()
        """Slots that the server takes for its own: also what it has yet to give up."""
        self._target: frozenset[Slot] = frozenset()
        self._slots: dict[TopicPartition, Slot] = {}
        """Slots of the partitions of which something was delivered."""
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
            chunks, batch = cast("tuple[Chunks, RangesBatch]", taken)
            reads = (each for each in self._topics.values() if each.chunks is chunks)
            stream = next(reads, None)
            if self._is_closed or stream is None or self._is_fenced:
                return None
            if time.monotonic() >= self._session_ends:
                stream.has_dropped = True
                return None
            if isinstance(batch.ranges, PartitionRanges):
                name = stream.topic.name
                places = zip(repeat(name), batch.ranges.partitions)
                slots = zip(repeat(name), batch.ranges.slots)
                self._slots.update(zip(places, slots, strict=True))
            self.answered()
            self._offsets.deliver(stream.topic, batch)
            return TopicBatch(*batch, stream.topic) if self._offsets.by_topic else batch

    def fenced(self) -> bool:
        """Drop everything and join anew, as a commit was refused; returns True."""
        _logger.warning("consumer group %r: a commit of this member was fenced", self._name)
        with self._lock:
            self._is_fenced = True  # Nothing is handed out any more; the thread drops the rest.
            self._offsets.forget_all()
        self._wake.set()
        return True

    def rewind(self) -> None:
        """Read on from the committed offsets."""
        with self._lock:
            self._offsets.rewind()
            self._slots.clear()
            for stream in self._topics.values():
                stream.has_dropped = True
            self._begin(self._reading)

    def lags(self) -> bool:
        """Return whether messages are committed that were not read yet; asks the server.

        True while the member is joining, or slots are on their way to it.
        """
        with self._lock:
            if self._closing.is_set():
                return False
            if self._epoch == 0 or self._target - self._owned:
                return True
            if self._reading != self._owned & self._target:
                return True
            reads = [(each.topic, each.chunks) for each in self._topics.values()]
        return any(self._lags(topic, chunks) for topic, chunks in reads if chunks is not None)

    def _lags(self, topic: Topic, chunks: Chunks) -> bool:
        probe = probe_of(self._transport, topic, self._keys, chunks)
        try:
            return any(True for _ in probe) or is_on_its_way(chunks) or not self.handover.idle
        finally:
            probe.cancel()

    def cancel(self) -> None:
        """Stop reading, and leave; does not block."""
        if self._transport.is_inherited:
            return
        self._closing.set()
        self._wake.set()
        self._stop()

    def close(self) -> None:
        """Stop reading; what is processed may still be committed before `leave`."""
        self._is_closed = True
        self._stop()

    def _stop(self) -> None:
        self.handover.close()
        for stream in self._topics.values():
            stream.cancel()

    def leave(self) -> None:
        """Leave the group; waits for it, at most `LEAVE_SECONDS`."""
        self._leaving.set()
        self.cancel()
        self._work.join(LEAVE_SECONDS)

    # The thread of heartbeats.

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._wake.wait(self._step())
                self._wake.clear()  # Before it is looked at whether `close` woke it.
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
            if not self._is_still_itself():
                return RETRY_SECONDS
            _logger.warning("consumer group %r: the session of this member ended", self._name)
            self._drop()
        return self._beat(now)

    def _beat(self, now: float) -> float:
        """Heartbeat, and take what is answered; returns when the next is due, in seconds."""
        try:
            answer = self._send(self._epoch)
        except FencedMember as error:
            if self._epoch > 0:
                _logger.warning("consumer group %r: this member was fenced", self._name)
            self._drop()
            if "instance" in error.facts:
                raise
            return RETRY_SECONDS
        except WingsError as error:
            if not is_passing(error, repeatable=True):
                raise
            if not self._is_failing:
                _logger.warning("consumer group %r: a heartbeat failed: %s", self._name, error)
            self._is_failing = True
            return RETRY_SECONDS
        self._is_failing = False
        with self._lock:
            if self._is_fenced:
                return 0.0
            self._session_ends = now + self._options.session_seconds * CLOCK_SHARE
            self._begin(self._reading)  # What was dropped comes again.
        self._epoch = answer["member_epoch"]
        assignment = answer["assignment"]
        if assignment is not None:
            slots = {each["topic"]: each["slots"] for each in assignment}
            self._target = frozenset(
                (topic, slot) for topic in self._topics for slot in slots.get(topic, ())
            )
        moved = self._reconcile()
        return 0.0 if moved else answer["heartbeat_ms"] / 1_000

    def _is_still_itself(self) -> bool:
        """Return whether the instance is no other member's by now, which joining would fence.

        False while the server cannot be asked.

        Raises:
            FencedMember: It is another's.
        """
        if self._options.instance is None or self._epoch <= 0:
            return True
        try:
            self._send(self._epoch)
        except FencedMember as error:
            if "instance" in error.facts:
                self._drop()
                raise
        except WingsError as error:
            return not is_passing(error, repeatable=True)
        return True

    def _send(self, epoch: int) -> Mapping[str, Any]:
        keys: dict[str, Any] = {}
        if epoch >= 0:
            keys = {
                "topics": list(self._topics),
                "owned": [
                    {"topic": each.topic, "slots": each.slots} for each in _by_topic(self._owned)
                ],
                "session_ms": round(self._options.session_seconds * 1_000),
            }
        if self._options.instance is not None:
            keys["instance"] = self._options.instance
        body = build(
            GroupHeartbeat,
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
                gone = frozenset(place for place, slot in self._slots.items() if slot in revoked)
                self._offsets.forget(gone)
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
        leaving = self._owned - self._target
        return bool(leaving) and any(self._slots.get(place) in leaving for place in held)

    @property
    def _reading(self) -> frozenset[Slot]:
        """Slots that are read."""
        return frozenset(
            (name, slot) for name, stream in self._topics.items() for slot in stream.slots
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

    def _begin(self, slots: frozenset[Slot]) -> None:
        """Read these slots, from where the member stands or its group has committed."""
        if self._is_closed:
            return
        wanted = {each.topic: frozenset(each.slots) for each in _by_topic(slots)}
        for name, stream in self._topics.items():
            mine = wanted.get(name, frozenset())
            if mine != stream.slots or stream.has_dropped:
                chunks = self._chunks(name, mine) if mine else None
                stream.begin(mine, chunks)
                if chunks is not None:
                    is_read = partial(_is_read, stream, chunks)
                    read = partial(hand_over, self.handover, chunks, chunks, is_read)
                    Work(read, "wings-consumer").start()

    def _chunks(self, topic: str, slots: frozenset[int]) -> Chunks:
        delivered = self._offsets.delivered
        at = {
            place[1]: delivered[place]
            for place, (name, number) in self._slots.items()
            if name == topic and number in slots
        }
        ticket = build(
            FollowTicket,
            "consumer",
            error=InvalidTicket,
            topic=topic,
            partitions=ALL,
            positions=tuple(at.items()),
            slots=sorted(slots),
            consumer=self._name,
            **self._keys,
        )
        seconds = self._transport.retry.reconnect_seconds
        chunks = Chunks(self._transport, ticket, reconnect_seconds=seconds)
        chunks.on_data_loss = self._on_data_loss
        return chunks


def _is_read(stream: _TopicReads, chunks: Chunks) -> bool:
    return stream.chunks is chunks


def _by_topic(slots: Iterable[Slot]) -> Iterator[AssignedSlots]:
    for topic, some in groupby(sorted(slots), itemgetter(0)):
        yield AssignedSlots(topic, tuple(number for _, number in some))


def _call(callback: SlotsCallback | None, slots: frozenset[Slot]) -> None:
    if callback is not None:
        callback(list(_by_topic(slots)))
