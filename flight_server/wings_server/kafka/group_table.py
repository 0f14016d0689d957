"""The classic groups that this process coordinates, and their timers.

For the event loop alone, but for `get`.

Members are kept in memory, as long as this node has the group's lease; offsets and generations are
in metadata, those of a named consumer. So members join again after a restart or at another node,
and read on where they committed, and the next generation refuses the commits of those before.
"""

import asyncio
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from wings_server.kafka.errors import KafkaError
from wings_server.kafka.groups import Group

GROUPS_MAX = 10_000
"""Most groups with members."""


SUBSCRIPTIONS_MAX = 100_000
"""Most subscriptions that are kept; the oldest are forgotten."""


@dataclass(slots=True, eq=False)
class Subscription:
    """Subscription of a member of a group of KIP-848, by Kafka's names and a pattern."""

    names: frozenset[str] = frozenset()
    pattern: str = ""
    """Pattern of RE2 for whole names; empty for none."""
    topics: frozenset[str] = frozenset()
    """UUIDs of the topics that there were at `looked_at`."""
    looked_at: float = -math.inf
    """When they were looked for, on the monotonic clock."""


class GroupTable:
    """Groups by their ids; one without members is forgotten.

    Beside them it keeps what members of groups of KIP-848 subscribe to; the rest of those is the
    log's.
    """

    def __init__(self) -> None:
        self._subscriptions: OrderedDict[tuple[str, str], Subscription] = OrderedDict()
        self._groups: dict[str, Group] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._begun: dict[str, tuple[int, asyncio.Task[None]]] = {}
        """The generation of a group that is stored, or about to be."""

    def subscription(self, key: tuple[str, str]) -> Subscription | None:
        """Return the subscription of a member, named by its group and its id; None: not known."""
        return self._subscriptions.get(key)

    def subscribe(self, key: tuple[str, str], subscription: Subscription | None) -> None:
        """Keep the subscription of a member; None: forget it."""
        self._subscriptions.pop(key, None)
        if subscription is not None:
            self._subscriptions[key] = subscription
            if len(self._subscriptions) > SUBSCRIPTIONS_MAX:
                self._subscriptions.popitem(last=False)

    def __iter__(self) -> Iterator[Group]:
        """Yield the groups that have members, or are about to."""
        return iter(self._groups.values())

    def get(self, group_id: str) -> Group | None:
        """Return a group; None of one without members. For any thread."""
        return self._groups.get(group_id)

    @contextmanager
    def using(
        self, group_id: str, lease: int, generation: int = 0
    ) -> Generator[tuple[Group, float]]:
        """Yield a group and the time, for one request.

        Args:
            group_id: Its id.
            lease: Token of its lease; members under another one are forgotten.
            generation: The last one that was stored, for a group without members.

        Raises:
            KafkaError: There are too many groups.
        """
        self.drop(group_id, unless=lease)
        group = self._groups.get(group_id)
        if group is None:
            if len(self._groups) >= GROUPS_MAX:
                raise KafkaError(ErrorCode.coordinator_not_available, "too many groups")
            group = Group(group_id, generation=generation, lease=lease)
            self._groups[group_id] = group
        try:
            yield group, asyncio.get_running_loop().time()
        finally:
            self._schedule(group)

    def drop(self, group_id: str, *, unless: int | None = None) -> None:
        """Forget a group, whose members have to find its coordinator anew.

        Args:
            group_id: Its id.
            unless: Token of the lease under which it is kept; None: it is not.
        """
        group = self._groups.get(group_id)
        if group is not None and group.lease != unless:
            group.end(ErrorCode.not_coordinator)
            self._schedule(group)

    async def begin(
        self, group: Group, generation: int, save: Callable[[], Awaitable[None]]
    ) -> None:
        """Return once a generation is stored, which its members were not told of before.

        Args:
            group: The group, which is forgotten if that fails.
            generation: The generation.
            save: Stores it; called once for all of its members.
        """
        known = self._begun.get(group.id)
        if known is None or known[0] < generation:
            before = None if known is None else known[1]

            async def saved() -> None:
                if before is not None:
                    await asyncio.wait([before])
                await save()

            known = generation, asyncio.create_task(saved())
            if self._groups.get(group.id) is group:
                self._begun[group.id] = known
        try:
            await asyncio.shield(known[1])
        except Exception:
            if self._groups.get(group.id) is group:
                self.drop(group.id)
            raise

    def _schedule(self, group: Group) -> None:
        """Set the timer of a group to its next event, or forget the group."""
        due = group.next_tick()
        timer = self._timers.get(group.id)
        if due is None:
            if timer is not None:
                self._timers.pop(group.id).cancel()
            if group.is_forgettable:
                self._groups.pop(group.id, None)
                self._begun.pop(group.id, None)
            return
        # One that is early sets another when it fires: heartbeats need not move it.
        if timer is None or due < timer.when():
            if timer is not None:
                timer.cancel()
            loop = asyncio.get_running_loop()
            self._timers[group.id] = loop.call_at(due, self._fire, group)

    def _fire(self, group: Group) -> None:
        del self._timers[group.id]
        group.tick(asyncio.get_running_loop().time())
        self._schedule(group)
