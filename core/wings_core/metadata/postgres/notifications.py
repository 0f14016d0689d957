"""Notifications as payloads of NOTIFY, which each transaction sends to all nodes.

A payload is JSON of bounded length. Where the partitions written to do not fit, it names their
topics; where these do not fit, it names nothing, and all waiters look again.
"""

import json
from typing import Any

from wings_core.metadata.store.notifications import Notification
from wings_core.partitions import Partition

PAYLOAD_BYTES_MAX = 7_900
"""PostgreSQL refuses payloads of 8,000 bytes."""

PARTITIONS_MAX = 1_000
"""Partitions that one payload may name: more would not fit."""


def encode_notification(notification: Notification, node: str, transaction: str) -> str:
    """Return the payload for a transaction of a node."""
    origin = {"node": node, "transaction": transaction}
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
        payload = json.dumps({**origin, "ends": {}, "topics": list(topics)})
        if len(payload) <= PAYLOAD_BYTES_MAX:
            return payload
    return json.dumps({**origin, "everything": True})


def decode_notification(payload: str) -> tuple[str, str, Notification]:
    """Return node, transaction and notification; one that cannot be read concerns all waiters."""
    try:
        told: dict[str, Any] = json.loads(payload)
        ends = {
            (str(topic_uuid), Partition(partition)): int(next_offset)
            for topic_uuid, partitions in told.get("ends", {}).items()
            for partition, next_offset in partitions.items()
        }
        topics = tuple(str(topic_uuid) for topic_uuid in told.get("topics", ()))
        notification = Notification(ends, topics, everything=bool(told.get("everything")))
        return str(told["node"]), str(told["transaction"]), notification
    except (ValueError, LookupError, TypeError, AttributeError):
        # Of a later version, or another program's: a look that finds nothing does no harm.
        return "", "", Notification(everything=True)
