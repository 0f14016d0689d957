"""The offsets of a named consumer: delivered, processed and committed.

Locks, in this order: `_committing` (one commit at a time, so that no offset goes back), `_lock`.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple, Protocol, TypeVar

from wings_client._arguments import OffsetValue
from wings_client._cancellation import current_cancellation
from wings_client._errors import client_closed, is_passing
from wings_client._model import Consumed, ConsumerOffset, PartitionValue, Topic
from wings_client._retry import Backoff
from wings_client._transport import Transport
from wings_core.contracts.actions import OFFSETS_MAX
from wings_core.contracts.chunks import reached
from wings_core.errors import FencedMember, InvalidArgument, WingsError
from wings_core.model import MemberEpoch
from wings_core.partitions import JsonScalar
from wings_core.times import Deadline

T = TypeVar("T")

Start = OffsetValue
"""Where a consumer begins in a partition of which nothing was committed."""

TopicPartition = tuple[str, JsonScalar]
"""Full name of a topic, and the value of a partition."""

LOOK_SECONDS = 30.0
"""Pause between two looks for other consumers of the name."""

_logger = logging.getLogger("wings_client")


class ConsumerCalls(Protocol):
    """The calls of the client that a consumer makes."""

    def commit_offsets(
        self,
        consumer: str,
        topic: Topic,
        offsets: Mapping[PartitionValue, int],
        member: str | None = None,
        member_epoch: int | None = None,
    ) -> None:
        """Set a consumer's next offsets."""
        ...

    def committed_offsets(self, consumer: str, topic: Topic) -> list[ConsumerOffset]:
        """Return a consumer's next offsets."""
        ...

    def resolve_offsets(self, topic: Topic, offset: OffsetValue) -> dict[JsonScalar, int]:
        """Return the number that an offset stands for now in each partition."""
        ...


class Uncommitted(NamedTuple):
    """Offsets to commit, as of one moment."""

    offsets: dict[TopicPartition, int]
    losses: int
    """How often what was delivered had been forgotten."""


class ConsumerOffsets:
    """The offsets of one consumer in its topics; every offset is the next one to read.

    Args:
        transport: To the server.
        calls: The calls of the client.
        name: Name of the consumer.
        topics: The topics to read.
        by_topic: Whether its batches and positions name their topic.

    Attributes:
        name: Name of the consumer.
        topics: The topics.
        by_topic: Whether its batches and positions name their topic.
        read_at: The time at which the committed offsets were read, by `time.monotonic`.
    """

    def __init__(
        self,
        transport: Transport,
        calls: ConsumerCalls,
        name: str,
        topics: Sequence[Topic],
        *,
        by_topic: bool = False,
    ) -> None:
        self.by_topic = by_topic
        self._transport = transport
        self._calls = calls
        self.name = name
        self.topics = topics
        # A signal handler may commit on a thread that holds one of these.
        self._committing = threading.RLock()
        self._lock = threading.RLock()
        self._delivered: dict[TopicPartition, int] = {}
        self._last: dict[TopicPartition, int] = {}
        """Offsets of the last batch delivered, until it counts as processed."""
        self._uncommitted: dict[TopicPartition, int] = {}
        self._known: dict[TopicPartition, int] = {}
        """Offsets that the server has, as far as this consumer knows."""
        self._looks_at = 0.0
        """When to look for other consumers of the name next, by `time.monotonic`."""
        self._committed_at = self.read_at = time.monotonic()
        self.fence: Callable[[], MemberEpoch | None] = lambda: None
        """Returns the member that commits, of a consumer group."""
        self._last_at = self._oldest_at = 0.0
        """When something was delivered last, and the first of what is not committed."""
        self._losses = 0
        self.lost = False
        """Whether something that was delivered was forgotten before it was committed."""

    @property
    def unprocessed(self) -> frozenset[TopicPartition]:
        """Partitions of the last batch delivered, until it counts as processed."""
        with self._lock:
            return frozenset(self._last)

    @property
    def unfinished(self) -> frozenset[TopicPartition]:
        """Partitions of which something was delivered and not committed."""
        with self._lock:
            return frozenset(self._last) | frozenset(self._uncommitted)

    def forget(self, partitions: frozenset[TopicPartition]) -> None:
        """Forget partitions that another member reads now, and what is uncommitted of them."""
        with self._lock:
            self.lost |= not partitions.isdisjoint(self.unfinished)
            for offsets in (self._delivered, self._last, self._uncommitted):
                for partition in partitions:
                    offsets.pop(partition, None)

    def forget_all(self) -> None:
        """Forget all partitions, as the member of a group joins anew."""
        with self._lock:
            self._losses += 1
            self.forget(frozenset(self._delivered))

    def rewind(self) -> None:
        """Forget what was delivered and not committed, which is delivered again."""
        with self._lock:
            self._losses += 1
            self._delivered, self._last, self._uncommitted = {}, {}, {}

    @property
    def delivered(self) -> dict[TopicPartition, int]:
        """The next offset by partition, after all that was delivered."""
        with self._lock:
            return dict(self._delivered)

    @property
    def seconds_since_commit(self) -> float:
        """How long ago the last commit was, or the consumer was made."""
        return time.monotonic() - self._committed_at

    def first(self, topic: Topic, start: Start) -> dict[JsonScalar, int]:
        """Return the offset to begin at in each partition where that is not the log's start.

        Args:
            topic: The topic.
            start: Beginning of a name that has not read the topic before.

        The first time that a name reads a topic from elsewhere than its start, these offsets are
        committed: a partition without a committed offset is then known to be a later one.
        """
        began = time.monotonic()
        committed = self._committed(topic)
        self.read_at = began
        if not committed and start != "earliest":
            committed = self._calls.resolve_offsets(topic, start)
            self._send(Uncommitted(_of_topic(topic, committed), self._losses))
        self._known |= _of_topic(topic, committed)
        return committed

    def deliver(self, topic: Topic, taken: Consumed) -> None:
        """Record that a batch of a topic was delivered."""
        offsets = _of_topic(topic, reached(taken.ranges))
        with self._lock:
            self._last_at = time.monotonic()
            if not self._last and not self._uncommitted:
                self._oldest_at = self._last_at
            self._last.update(offsets)
            self._delivered.update(offsets)

    def is_astride(self, moment: float) -> bool:
        """Return whether a part of what is not committed was delivered before, a part after."""
        with self._lock:
            return bool(self.unfinished) and self._oldest_at < moment < self._last_at

    def processed(self) -> None:
        """Record that the caller has processed the last batch delivered."""
        with self._lock:
            self._uncommitted |= self._last
            self._last = {}

    def commit(self) -> None:
        """Commit what was processed; retries a lost connection up to `Retry.reconnect_seconds`.

        Raises:
            WingsError: The server's refusal; `Unavailable` where it could not be reached again.
        """
        with self._committing:
            with self._lock:
                taken = Uncommitted(dict(self._uncommitted), self._losses)
            if not taken.offsets:
                return
            self._look_for_others(taken.offsets)
            try:
                self._send(taken)
            except WingsError:
                self._looks_at = math.inf  # It is not known what the server has.
                raise
            self.committed(taken.offsets)

    def uncommitted(self) -> Uncommitted:
        """Return what is to be committed of all that was delivered, the last batch included.

        Raises:
            FencedMember: See `check_lost`.
        """
        with self._lock:
            self.check_lost()
            return Uncommitted(self._uncommitted | self._last, self._losses)

    def check_lost(self) -> None:
        """Check that nothing that was delivered was forgotten before it was committed.

        Raises:
            FencedMember: It was, as the session of this member of a group ended.
        """
        if self.lost:
            raise _fenced()

    def fence_of(self, taken: Uncommitted) -> MemberEpoch | None:
        """Return the member that commits some offsets; None: this consumer is no member.

        Raises:
            FencedMember: The member has joined anew since the offsets were taken.
            InvalidArgument: The consumer was rewound since.
        """
        fence = self.fence()
        with self._lock:
            if taken.losses != self._losses and fence is None:
                raise InvalidArgument(f"consumer {self.name!r} was rewound since")
            if taken.losses != self._losses:
                raise _fenced()
        return fence

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Record that offsets were committed."""
        self._committed_at = time.monotonic()
        with self._lock:
            self._known.update(offsets)
            for waiting in (self._uncommitted, self._last):
                for partition, offset in offsets.items():
                    if waiting.get(partition) == offset:
                        del waiting[partition]

    def _look_for_others(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Warn, once, where another consumer of this name has committed; asks the server.

        Args:
            offsets: The next commit.
        """
        if time.monotonic() < self._looks_at or self.fence() is not None:
            return
        self._looks_at = time.monotonic() + LOOK_SECONDS
        for topic in self.topics:
            try:
                found = self._committed(topic)
            except WingsError:
                return
            for partition, offset in found.items():
                place = topic.name, partition
                if place in offsets and offset != self._known.get(place):
                    self._looks_at = math.inf
                    _logger.warning(
                        "consumer %r: its offset of partition %r of %s was moved to %d elsewhere: "
                        "of two consumers of one name each reads everything; with group=True they "
                        "share the partitions",
                        self.name,
                        partition,
                        topic.id,
                        offset,
                    )
                    return

    def _committed(self, topic: Topic) -> dict[JsonScalar, int]:
        found = self._calls.committed_offsets(self.name, topic)
        return {each.partition: each.offset for each in found}

    def _send(self, taken: Uncommitted) -> None:
        for topic in self.topics:
            entries = [
                (partition, offset)
                for (name, partition), offset in taken.offsets.items()
                if name == topic.name
            ]
            for first in range(0, len(entries), OFFSETS_MAX):
                part: dict[PartitionValue, int] = dict(entries[first : first + OFFSETS_MAX])
                patiently(
                    self._transport,
                    lambda topic=topic, part=part: self._commit_part(topic, part, taken),
                )

    def _commit_part(
        self, topic: Topic, part: Mapping[PartitionValue, int], taken: Uncommitted
    ) -> None:
        fence = self.fence_of(taken)
        if fence is None:
            self._calls.commit_offsets(self.name, topic, part)
        else:
            self._calls.commit_offsets(self.name, topic, part, fence.member, fence.epoch)


def _of_topic(topic: Topic, offsets: Mapping[JsonScalar, int]) -> dict[TopicPartition, int]:
    return dict(zip(zip(repeat(topic.name), offsets), offsets.values(), strict=True))


def _fenced() -> FencedMember:
    return FencedMember(
        "the session of this member ended before its last batches were committed: this member or "
        "another reads them again"
    )


def patiently(transport: Transport, call: Callable[[], T]) -> T:
    """Make a repeatable call; retries a lost connection up to `Retry.reconnect_seconds`.

    A cancelled call is not repeated: another consumer of the same name may have committed since.
    """
    backoff = Backoff(transport.retry)
    failing = Deadline.after(transport.retry.reconnect_seconds)
    cancellation = current_cancellation()
    ended = transport.closed if cancellation is None else cancellation.event
    if cancellation is not None and cancellation.cancelled:
        raise client_closed(transport.endpoint)
    while True:
        try:
            return call()
        except WingsError as error:
            if not is_passing(error, repeatable=True) or failing.passed:
                raise
            if ended.wait(backoff.next_delay()):
                raise
