"""Notifications as payloads of NOTIFY, which each node sends to all for what it committed.

A payload is JSON of bounded length. Where the partitions written to do not fit, it names their
topics; where these do not fit, it names nothing, and all waiters look again.
"""

import json
import threading
from typing import Any

from wings_core.metadata.store.database import Notification
from wings_core.partitions import Partition

PAYLOAD_BYTES_MAX = 7_900
"""PostgreSQL refuses payloads of 8,000 bytes."""

PARTITIONS_MAX = 1_000
"""Partitions that one payload may name: more would not fit."""

TRANSACTIONS_MAX = 64
"""Transactions that one payload names; further ones are named by further payloads."""

PENDING_MAX = 4_096
"""Partitions, and transactions, that wait to be told of. Beyond it, what is told is that anything
may have changed, and transactions are not named, so that other nodes miss them, and look."""


class Outbox:
    """What a node committed and has not told the others of yet. Its lock is a leaf."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._transactions: list[str] = []
        self._ends: dict[tuple[str, Partition], int] = {}
        self._topics: dict[str, None] = {}
        self._everything = False
        self._awaited = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to tell."""
        return not self._transactions

    def add(self, notification: Notification, transaction: str) -> bool:
        """Add what a transaction changed; return whether the taker awaits it; see `await_next`."""
        with self._lock:
            if len(self._transactions) < PENDING_MAX:
                self._transactions.append(transaction)
            for place, next_offset in notification.ends.items():
                self._ends[place] = max(next_offset, self._ends.get(place, 0))
            if notification.topics:
                self._topics.update(dict.fromkeys(notification.topics))
            self._everything |= notification.everything
            if len(self._ends) > PENDING_MAX or len(self._topics) > PENDING_MAX:
                self._everything = True
                self._ends, self._topics = {}, {}
            awaited, self._awaited = self._awaited, False
            return awaited

    def await_next(self) -> bool:
        """Have the next `add` tell that it is awaited, if there is nothing; return whether so."""
        with self._lock:
            self._awaited = self.is_empty
            return self._awaited

    def take(self) -> tuple[Notification, list[str]]:
        """Return all that was changed, by which transactions, and leave nothing."""
        with self._lock:
            taken = Notification(self._ends, tuple(self._topics), everything=self._everything)
            transactions = self._transactions
            self._transactions, self._ends, self._topics = [], {}, {}
            self._everything = False
        return taken, transactions


def encode_notification(
    notification: Notification, node: str, transactions: list[str]
) -> list[str]:
    """Return the payloads for what transactions of a node changed; the first says what."""
    first, *further = [
        {"node": node, "transactions": transactions[start : start + TRANSACTIONS_MAX]}
        for start in range(0, max(len(transactions), 1), TRANSACTIONS_MAX)
    ]
    return [_encode(notification, first), *[json.dumps(each) for each in further]]


def _encode(notification: Notification, origin: dict[str, Any]) -> str:
    if not notification.everything and len(notification.ends) <= PARTITIONS_MAX:
        ends: dict[str, dict[str, int]] = {}
        for (topic_uuid, partition), next_offset in notification.ends.items():
            ends.setdefault(topic_uuid, {})[partition] = next_offset
        payload = json.dumps({**origin, "ends": ends, "topics": notification.topics})
        if len(payload) <= PAYLOAD_BYTES_MAX:  # It is ASCII.
            return payload
    if not notification.everything:
        topics = dict.fromkeys(
            [*notification.topics, *(topic_uuid for topic_uuid, _ in notification.ends)]
        )
        payload = json.dumps({**origin, "topics": list(topics)})
        if len(payload) <= PAYLOAD_BYTES_MAX:
            return payload
    return json.dumps({**origin, "everything": True})


def is_of(payload: str, node: str) -> bool:
    """Tell whether a node sent a payload, as `encode_notification` wrote it."""
    return payload.startswith(f'{{"node": "{node}"')


def decode_notification(payload: str) -> tuple[str, list[str], Notification]:
    """Return node, transactions and notification; an unreadable one concerns all waiters."""
    try:
        told: dict[str, Any] = json.loads(payload)
        ends = {
            (str(topic_uuid), Partition(partition)): int(next_offset)
            for topic_uuid, partitions in told.get("ends", {}).items()
            for partition, next_offset in partitions.items()
        }
        topics = tuple(str(topic_uuid) for topic_uuid in told.get("topics", ()))
        notification = Notification(ends, topics, everything=bool(told.get("everything")))
        # A node of an earlier version names one, under another name, and needs not be looked after.
        transactions = [str(each) for each in told.get("transactions", ())]
        return str(told["node"]), transactions, notification
    except (ValueError, LookupError, TypeError, AttributeError):
        # Of a later version, or another program's: a look that finds nothing does no harm.
        return "", [], Notification(everything=True)
