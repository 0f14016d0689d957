"""Notices: what a transaction changed, told to all nodes by NOTIFY in the transaction itself.

A payload is JSON of bounded length. Where the partitions written to do not fit, their topics are
named; where these do not fit, nothing is, and everybody looks again.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wings_core.metadata.waiters import Waiters
from wings_core.partitions import Partition

PAYLOAD_BYTES_MAX = 7_900
"""PostgreSQL refuses payloads of 8,000 bytes."""

PARTITIONS_MAX = 1_000
"""Partitions that one notice may name: more would not fit anyhow."""


@dataclass(frozen=True, slots=True)
class Notice:
    """What may be worth a look."""

    ends: Mapping[tuple[str, Partition], int] = field(
        default_factory=dict[tuple[str, Partition], int]
    )
    """The next offset of partitions written to, by topic UUID and partition."""
    topics: tuple[str, ...] = ()
    """UUIDs of topics that were deleted, or of which any partition was written to."""
    everything: bool = False
    """Whether any partition of any topic may have been written to."""

    def wake(self, waiters: Waiters) -> None:
        """Wake whoever waits for any of it."""
        if self.everything:
            waiters.notify_all()
        if self.ends:
            waiters.notify(self.ends)
        for topic_uuid in self.topics:
            waiters.notify_deleted(topic_uuid)


def encode_notice(notice: Notice, node: str, transaction: str) -> str:
    """Return the payload that tells of a transaction of a node."""
    origin = {"node": node, "transaction": transaction}
    if not notice.everything and len(notice.ends) <= PARTITIONS_MAX:
        ends: dict[str, dict[str, int]] = {}
        for (topic_uuid, partition), next_offset in notice.ends.items():
            ends.setdefault(topic_uuid, {})[partition] = next_offset
        payload = json.dumps({**origin, "ends": ends, "topics": notice.topics})
        if len(payload) <= PAYLOAD_BYTES_MAX:  # It is ASCII.
            return payload
    if not notice.everything:
        topics = dict.fromkeys([*notice.topics, *(topic_uuid for topic_uuid, _ in notice.ends)])
        payload = json.dumps({**origin, "ends": {}, "topics": list(topics)})
        if len(payload) <= PAYLOAD_BYTES_MAX:
            return payload
    return json.dumps({**origin, "everything": True})


def decode_notice(payload: str) -> tuple[str, str, Notice]:
    """Return node, transaction and notice; what cannot be read means that everybody looks again."""
    try:
        told: dict[str, Any] = json.loads(payload)
        ends = {
            (str(topic_uuid), Partition(partition)): int(next_offset)
            for topic_uuid, partitions in told.get("ends", {}).items()
            for partition, next_offset in partitions.items()
        }
        topics = tuple(str(topic_uuid) for topic_uuid in told.get("topics", ()))
        notice = Notice(ends, topics, everything=bool(told.get("everything")))
        return str(told["node"]), str(told["transaction"]), notice
    except (ValueError, LookupError, TypeError, AttributeError):
        # Of a later version, or of somebody else: looking for nothing does no harm.
        return "", "", Notice(everything=True)
