"""The classic groups that this process coordinates, and their timers.

For the event loop alone, but for `get`.

Groups are kept in memory, and their offsets as those of a named consumer in metadata. So members
join again after a restart, and read on where they committed.
"""

import asyncio
import math
from collections import OrderedDict
from collections.abc import Generator, Iterator
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
    def using(self, group_id: str) -> Generator[tuple[Group, float]]:
        """Yield a group and the time, for one request.

        Raises:
            KafkaError: The id is empty, or there are too many groups.
        """
        if not group_id:
            raise KafkaError(ErrorCode.invalid_group_id)
        group = self._groups.get(group_id)
        if group is None:
            if len(self._groups) >= GROUPS_MAX:
                raise KafkaError(ErrorCode.coordinator_not_available, "too many groups")
            group = self._groups[group_id] = Group(group_id)
        try:
            yield group, asyncio.get_running_loop().time()
        finally:
            self._schedule(group)

    def _schedule(self, group: Group) -> None:
        """Set the timer of a group to its next event, or forget the group."""
        due = group.next_tick()
        timer = self._timers.get(group.id)
        if due is None:
            if timer is not None:
                self._timers.pop(group.id).cancel()
            if group.is_forgettable:
                self._groups.pop(group.id, None)
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
