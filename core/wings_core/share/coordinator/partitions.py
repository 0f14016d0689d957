"""The partitions of groups: which may have messages for a member, and what is known of each here.

    commits ─▶ ┌─────────┐ ─▶ as many waiting members as there is work for
    releases ─▶│  ready  │
    times ────▶└─────────┘ ◀─ acquires, which take out what turns out to be empty

`ReadyPartitions` is the index of one group, by which neither a push nor an idle member costs what
there are of partitions or of members. A partition is taken out only as of a generation, so that
what comes meanwhile is not missed; and a member that got something wakes the next one while more is
ready.

`PartitionTable` has what this node knows of partitions from the replicas. One lock guards the state
of all of them, and is never held while an effect is under way.
"""

import heapq
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import count, islice

from wings_core.errors import GroupNotFound, WingsError
from wings_core.model import Lease, PartitionState, ShareGroup, member_tag
from wings_core.partitions import Partition
from wings_core.share.model import Clock, ShareKey
from wings_core.share.quorum.quorum import HoldQuorum
from wings_core.share.quorum.votes import learn
from wings_core.share.replica.requests import Procedure
from wings_core.share.state.partition import MessageState, MessageStates
from wings_core.storage.lru import Lru

READ_PARTITIONS_MAX = 256
"""Partitions whose state is read at a time."""

READ_AGAIN_SECONDS = (1.0, 16.0)
"""How often a partition whose window is full is read, for what was acknowledged by others: at
first, and later where the window is one lease."""

REREAD_SECONDS_MIN = 0.01
"""Until a partition that is to be read is looked at."""

DELETED_MAX = 10_000
"""Deleted groups that are remembered, so that nothing of them is begun again."""

LISTED_SECONDS = 0.5
"""How long it is believed where partitions stand."""

STALE_MAX = 1_024
"""Times that were overtaken are forgotten when they are more than so many, and than the others."""


@dataclass(eq=False, slots=True)
class WaitingMember:
    """A member that waits until it is closed; a block closes it at its end."""

    index: "ReadyPartitions"
    callback: Callable[[], None]
    partition: Partition | None
    messages: int
    is_called: bool = False
    """Set when the member was chosen to be woken; the call itself may be on its way."""

    def close(self) -> None:
        """Wait no longer; one that was chosen may be called a moment later still."""
        self.index.leave(self)

    def __enter__(self) -> None:
        """Do nothing: it waits already."""

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Wait no longer; one that was chosen has been called then, which may be twice."""
        self.close()
        if self.is_called:  # The thread that chose it may not have come to call it yet.
            self.callback()
        if error is not None:
            self.index.wake_next()


class ReadyPartitions:
    """The index of one group on this node; all methods from any thread.

    Args:
        clock: The coordinator's, in seconds.
        listed: Returns all partitions of the topic.
        watched: Watches the topic with a callback; see `OffsetRegistry.watch_topic`.
        sooner: Called when `wake_due` is to be called earlier than it was told last.
        look: Returns in how many seconds a partition that ends at an offset may have messages; 0:
            now, None: only after a change that is heard of. None: a member is to look when a
            partition is due.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        listed: Callable[[], Iterable[PartitionState]],
        watched: Callable[
            [Callable[[Mapping[Partition, int] | None], None]], AbstractContextManager[None]
        ],
        sooner: Callable[[], None],
        look: Callable[[Partition, int], float | None] | None = None,
    ) -> None:
        self._look = look
        self._clock = clock
        self._listed = listed
        self._sooner = sooner
        self._lock = threading.Lock()
        self._ready: OrderedDict[Partition, int] = OrderedDict()
        """The generation of each."""
        self._generation = 0
        self._ends: dict[Partition, int] = {}
        """The next offset of each, as last told."""
        self._states: dict[Partition, PartitionState] = {}
        """Where partitions stood when they were listed or acquired from, kept for a moment."""
        self._states_until = self._listed_until = 0.0
        self._due: list[tuple[float, Partition]] = []
        """When partitions may be ready, a heap; those that were overtaken are still there."""
        self._due_at: dict[Partition, float] = {}
        self._looked_at_due: dict[Partition, None] = {}
        """Due partitions that `wake_due` looks at, unless a member looks before."""
        self._next_at: float | None = None
        """The first of those times, which is read without the lock; None: there is none."""
        self._waiting: OrderedDict[WaitingMember, None] = OrderedDict()
        self._listings, self._listings_due = 0, 1
        """Number of listings made, and number to be made."""
        self._failures = 0
        self._failure: WingsError | None = None
        """Error of the last listing that failed, shared by all who waited for it."""
        self._is_stale = True
        """Whether all partitions are to be looked at again."""
        self._listing = threading.Lock()
        self._is_closed = False
        self.used_at = clock()
        self._watch = watched(self._hear)
        self._watch.__enter__()

    @property
    def is_idle(self) -> bool:
        """Whether no member waits."""
        return not self._waiting

    @property
    def has_ready(self) -> bool:
        """Whether a partition may have messages, as far as was told, or none has looked yet."""
        next_at = self._next_at
        return (
            bool(self._ready)
            or bool(self._looked_at_due)
            or self._listings != self._listings_due
            or (next_at is not None and next_at <= self._clock())
        )

    def close(self) -> None:
        """Hear of commits no more, and wake all that wait, or come to wait later."""
        self._watch.__exit__(None, None, None)
        with self._lock:
            self._is_closed = True
        self.wake_all()

    def look(self) -> None:
        """List the partitions, where that is due; blocks for metadata then.

        Raises:
            TopicNotFound: The topic was deleted.
        """
        self.used_at = self._clock()
        if self._listings == self._listings_due:
            return
        failures = self._failures
        # Who comes meanwhile waits: before the partitions are known, nothing seems to be ready.
        with self._listing:
            due = self._listings_due
            if self._listings == due:
                return
            if self._failures != failures and self._failure is not None:
                raise type(self._failure)(self._failure.message, **self._failure.facts)
            try:
                states = {state.partition: state for state in self._listed()}
            except WingsError as error:
                self._failures, self._failure = self._failures + 1, error
                raise
            with self._lock:
                self._states = states
                self._states_until = self._listed_until = self._clock() + LISTED_SECONDS
                for partition, state in states.items():
                    # More may have been told of since it was listed.
                    end = self._ends.get(partition, 0)
                    if state.next_offset > end or (self._is_stale and state.next_offset):
                        self._ends[partition] = max(end, state.next_offset)
                        self._mark(partition)
                self._is_stale = False
                self._listings = due  # What was committed since is told of.

    def look_again(self) -> None:
        """List the partitions again, if that was not done just now; blocks for metadata then."""
        if self._clock() >= self._listed_until:
            with self._lock:
                self._listings_due += 1
            self.look()

    def note(self, state: PartitionState) -> None:
        """Learn where a partition stands, which may not have been told of yet."""
        with self._lock:
            if state.next_offset > self._ends.get(state.partition, 0):
                self._ends[state.partition] = state.next_offset
                self._mark(state.partition)
            if self._clock() >= self._states_until:
                self._states, self._states_until = {}, self._clock() + LISTED_SECONDS
            self._states[state.partition] = state

    def peek(
        self, partition: Partition | None, most: int, besides: Container[Partition] = ()
    ) -> list[tuple[Partition, int]]:
        """Return partitions that may have messages, with their generation; others come next time.

        Wakes members for what has become due and is not returned.

        Args:
            partition: This one alone; None: any.
            most: So many at most.
            besides: Not these, so that a look at all ends however often some become ready anew.
        """
        with self._lock:
            came = self._expire()
            if partition is not None:
                found = None if partition in besides else self._ready.get(partition)
                some = [] if found is None else [(partition, found)]
            else:
                left = (item for item in self._ready.items() if item[0] not in besides)
                some = list(islice(left, most))
                for each, _ in some:
                    self._ready.move_to_end(each)
            shown = dict(some)
            left_out = [each for each in came if each not in shown]
            woken = [member for each in left_out for member in self._next(each, 1)]
        _call(woken)
        return some

    def known_state(self, partition: Partition) -> PartitionState | None:
        """Return where a partition stands by what was noted a moment ago, and was told since.

        Retention may have moved it, and its bytes are of then.
        """
        if self._clock() >= self._states_until:
            self._states = {}
        state, end = self._states.get(partition), self._ends.get(partition, 0)
        return state._replace(next_offset=end) if state and end > state.next_offset else state

    def looked_at(
        self, partition: Partition, generation: int, end: int, again_seconds: float | None
    ) -> None:
        """Take a partition out that has nothing, unless something came since it was peeked at.

        Args:
            partition: Which.
            generation: Its generation when it was peeked at.
            end: Its next offset, as it was looked at: maybe before a commit that was told of since,
                and before it was peeked at.
            again_seconds: When it may have something without being told; 0: it has some, which
                another member may not have seen; None: not before.
        """
        with self._lock:
            if again_seconds == 0:
                if partition not in self._ready:
                    self._mark(partition)
                return
            if self._ready.get(partition) == generation and self._ends.get(partition, 0) <= end:
                del self._ready[partition]
            if again_seconds is None:
                return
            is_next = self._remember(self._clock() + again_seconds, partition)
        if is_next:
            self._sooner()

    def changed(self, partition: Partition) -> None:
        """Hear that something may have become available, and wake a member."""
        with self._lock:
            self._mark(partition)
            woken = self._next(partition, 1)
        _call(woken)

    def wake_next(self, besides: Partition | None = None) -> None:
        """Wake the next member, where one waits and more is ready than in one partition.

        For one that got some, will look no more, or found none in the one partition it may have.
        """
        if self._waiting and self._ready:
            with self._lock:
                left = len(self._ready) - (besides in self._ready)
                woken = self._next(None, 1, besides) if left else ()
            _call(woken)

    def wake_due(self) -> float | None:
        """Wake members for what has become due; returns in how many seconds something will be."""
        # Of many groups, most have nothing each time: who adds a time meanwhile calls `sooner`.
        next_at = self._next_at
        if next_at is not None and next_at <= self._clock():
            with self._lock:
                due = self._take_due()
                self._looked_at_due |= dict.fromkeys(due)
            # Of most that was locked nothing is left by then, so no member looks in vain.
            for partition in due:
                end = self._ends.get(partition, 0)
                again = 0.0 if self._look is None else self._look(partition, end)
                woken: Sequence[WaitingMember] = ()
                with self._lock:
                    if partition not in self._looked_at_due:
                        continue  # It is ready already, for a member that looked meanwhile.
                    del self._looked_at_due[partition]
                    if again == 0:
                        self._mark(partition)
                        woken = self._next(partition, 1)
                    elif again is not None:
                        self._remember(self._clock() + again, partition)
                _call(woken)
            next_at = self._next_at
        return None if next_at is None else next_at - self._clock()

    def wake_all(self) -> None:
        """Let all members look again, at all partitions."""
        with self._lock:
            self._listings_due += 1
            self._is_stale = True
            woken = list(self._waiting)
        _call(woken)

    def waiting(
        self, partition: Partition | None, messages: int, callback: Callable[[], None]
    ) -> WaitingMember:
        """Call back when there may be something for a member, until what is returned is closed.

        Args:
            partition: The only partition of interest; None: any.
            messages: How many it takes at once, about.
            callback: Quick, and does not raise; from any thread.
        """
        waiting = WaitingMember(self, callback, partition, messages)
        with self._lock:
            self._waiting[waiting] = None
            is_closed = self._is_closed
        if is_closed:  # Another index has taken its place, or the group is gone: it is to look.
            callback()
        return waiting

    def leave(self, waiting: WaitingMember) -> None:
        """Call a member no more; see `WaitingMember.close`."""
        with self._lock:
            self._waiting.pop(waiting, None)
        self.used_at = self._clock()

    # Inside; the lock is held.

    def _hear(self, ends: Mapping[Partition, int] | None) -> None:
        if ends is None:
            self.wake_all()
            return
        woken: dict[WaitingMember, None] = {}
        with self._lock:
            for partition, end in ends.items():
                messages = end - self._ends.get(partition, 0)
                self._ends[partition] = max(end, self._ends.get(partition, 0))
                self._mark(partition)
                if len(woken) < len(self._waiting):
                    woken |= dict.fromkeys(self._next(partition, max(1, messages)))
        _call(woken)

    def _mark(self, partition: Partition) -> None:
        self._generation += 1
        self._ready[partition] = self._generation

    def _next(
        self, partition: Partition | None, messages: int, besides: Partition | None = None
    ) -> list[WaitingMember]:
        """Return as many of those that wait as there are messages for, the longest first.

        Args:
            partition: Where the messages are; None: in some that is ready.
            messages: How many.
            besides: Not those that wait for this one alone.
        """
        woken: list[WaitingMember] = []
        for waiting in self._waiting:
            if messages <= 0:
                break
            wanted = waiting.partition
            if wanted is None or (
                wanted in self._ready if partition is None else wanted == partition
            ):
                if wanted is not None and wanted == besides:
                    continue
                woken.append(waiting)
                messages -= waiting.messages
        for waiting in woken:
            waiting.is_called = True
            self._waiting.move_to_end(waiting)
        return woken

    def _remember(self, at: float, partition: Partition) -> bool:
        """Note when a partition may be ready; returns whether it is the next, unlike before."""
        if at >= self._due_at.get(partition, math.inf):
            return False
        self._due_at[partition] = at
        heapq.heappush(self._due, (at, partition))
        if len(self._due) > 2 * len(self._due_at) + STALE_MAX:
            self._due = [(due_at, each) for each, due_at in self._due_at.items()]
            heapq.heapify(self._due)
        self._next_at = self._due[0][0]
        return self._next_at == at

    def _expire(self) -> list[Partition]:
        """Make ready what is due, and return it."""
        came = [*self._take_due(), *self._looked_at_due]
        self._looked_at_due.clear()
        for partition in came:
            self._mark(partition)
        return came

    def _take_due(self) -> list[Partition]:
        """Return what is due, which is not from then on."""
        now, came = self._clock(), list[Partition]()
        while self._due and self._due[0][0] <= now:
            at, partition = heapq.heappop(self._due)
            if self._due_at.get(partition) == at:
                del self._due_at[partition]
                came.append(partition)
            self._next_at = self._due[0][0] if self._due else None
        return came


def _call(waiting: Iterable[WaitingMember]) -> None:
    for each in waiting:
        each.callback()


@dataclass(slots=True)
class TrackedPartition:
    """A partition of a group, as this coordinator sees it."""

    key: ShareKey
    state: MessageStates
    read_at: float
    """When the replicas were asked for its state, by the coordinator's clock."""
    read_again_seconds: float = READ_AGAIN_SECONDS[0]
    """How long after that it is worth asking again."""
    collisions: int = 0
    """How often in a row all that was asked for was held by others."""
    held_read_at: float = -math.inf
    """When the replicas were asked what others hold of it."""
    is_checking: bool = False
    """Whether the times of messages are being read."""
    is_seen_full: bool = False
    """Whether a member found no room in the window: who makes some tells of it."""


class PartitionTable:
    """The partitions that a coordinator knows, and the numbers of its leases.

    Args:
        quorum: The majority of the replicas.
        clock: The clock of leases.
        coordinator: In the leases.
        met_limit: Called, outside the lock, when messages are at the delivery limit.

    Attributes:
        lock: To be held while a partition's state is read or changed.
    """

    def __init__(
        self,
        quorum: HoldQuorum,
        clock: Clock,
        coordinator: str,
        met_limit: Callable[[], None] = lambda: None,
    ) -> None:
        self.met_limit = met_limit
        self.lock = threading.Lock()
        self._quorum = quorum
        self._clock = clock
        self._coordinator = coordinator
        self._leases = count(1)
        self._table: dict[str, dict[Partition, TrackedPartition]] = {}
        self._under_way: dict[str, dict[Partition, None]] = {}
        """The partitions of each group that keep ranges, among some that no longer do."""
        self._deleted: Lru[str, None] = Lru(DELETED_MAX)

    def load(self, group: ShareGroup, partitions: Sequence[Partition]) -> Procedure[None]:
        """Read the state of partitions that are not known yet.

        Raises:
            GroupNotFound: The group was deleted.
            Unavailable: No majority answered.
        """
        with self.lock:
            self.require(group)
            known = self._table.get(group.uuid, {})
            missing = [partition for partition in partitions if partition not in known]
        for at in range(0, len(missing), READ_PARTITIONS_MAX):
            some = missing[at : at + READ_PARTITIONS_MAX]
            read = yield from self._quorum.read(group.uuid, group.topic.uuid, some)
            with self.lock:
                self.require(group)  # It may have been deleted meanwhile.
                partitions_known = self._table.setdefault(group.uuid, {})
                under_way = self._under_way.setdefault(group.uuid, {})
                for partition in some:
                    if partition not in partitions_known:
                        state = MessageStates(
                            read[partition].start_offset, partial(under_way.setdefault, partition)
                        )
                        learn(state, read[partition])
                        key = ShareKey.of(group, partition)
                        partitions_known[partition] = TrackedPartition(
                            key, state, self._clock.now()
                        )

    def get(self, group: ShareGroup, partition: Partition) -> TrackedPartition:
        """Return a loaded partition.

        Raises:
            GroupNotFound: It is gone, with its group.
        """
        tracked = self.find(group, partition)
        if tracked is None:
            raise gone(group)
        return tracked

    def find(self, group: ShareGroup, partition: Partition) -> TrackedPartition | None:
        """Return a partition; None where it is not loaded, or gone with its group."""
        return self._table.get(group.uuid, {}).get(partition)

    def forget(self, group: ShareGroup) -> None:
        """Forget a group that was deleted; nothing of it is loaded again."""
        with self.lock:
            self._table.pop(group.uuid, None)
            self._under_way.pop(group.uuid, None)
            self._deleted.put(group.uuid, None)

    def look(
        self, group: ShareGroup, partition: Partition, log_start_offset: int, next_offset: int
    ) -> float | None:
        """Return in how many seconds a loaded partition may have available messages.

        0: now; None: only after a change that is heard of.
        """
        limit, ordered = group.config.delivery_limit, group.config.is_ordered
        with self.lock:
            tracked = self.find(group, partition)
            if tracked is None:
                return 0.0
            now = self._clock.now()
            tracked.state.deliver_by(group.config.deliver_at_column)
            wall_us = self._clock.wall_us() if tracked.state.is_scheduled else None
            tracked.state.advance(now, log_start_offset, wall_us)
            event = tracked.state.next_event(now, wall_us)
            if tracked.state.in_flight >= group.config.window:
                tracked.is_seen_full = True
                held = tracked.state.messages(MessageState.HELD)
                if self._quorum.is_local or held < group.config.window:
                    return event  # Who is asking for the rest tells of what it leaves.
                again = max(REREAD_SECONDS_MIN, tracked.read_at + tracked.read_again_seconds - now)
                return again if event is None else min(event, again)
            if tracked.state.has_available(next_offset, limit, ordered=ordered):
                return 0.0
            has_exhausted = tracked.state.has_exhausted(limit, ordered=ordered)
        if has_exhausted:
            self.met_limit()
        return event

    def exhausted(self, group: ShareGroup) -> list[Partition]:
        """Return the loaded partitions that may have messages at the delivery limit."""
        with self.lock:
            now, limit = self._clock.now(), group.config.delivery_limit
            ordered = group.config.is_ordered
            # Of most partitions nothing is under way, so not all are looked at each second.
            table, under_way = self._table.get(group.uuid, {}), self._under_way.get(group.uuid, {})
            found: list[Partition] = []
            for partition in list(under_way):
                state = table[partition].state
                if not state.ranges:
                    del under_way[partition]
                elif state.next_event(now) == 0 or state.has_exhausted(limit, ordered=ordered):
                    found.append(partition)
            return found

    def next_lease(self, member: str) -> Lease:
        """Return a lease that was never given before; the lock is held."""
        return Lease(self._coordinator, next(self._leases), member_tag(member))

    def require(self, group: ShareGroup) -> None:
        """Raise `GroupNotFound` where a group is known to be deleted."""
        if group.uuid in self._deleted:
            raise gone(group)


def gone(group: ShareGroup) -> GroupNotFound:
    """Return the error of what is asked of a deleted group."""
    return GroupNotFound(f"there is no group {group.name:.80} any more: it was deleted")
