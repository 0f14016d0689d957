"""A share group of Wings as a queue: each message of a topic is held by one pipeline at a time."""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pyarrow as pa

from wings_client import Connection, Delivery
from wings_core.contracts.share import AcknowledgementEntry
from wings_core.errors import InvalidArgument, Unavailable, WingsError
from wings_core.queue.interfaces import Queue, QueueMessage
from wings_spark.connection import ServerAccess


class ShareQueue(Queue):
    """See `Queue`. The visibility of a message is the group's `lock_duration_ms`.

    Args:
        server: The server.
        topic: Topic of the messages.
        group: An existing share group of the topic.
        column: The string column with the messages' bodies.

    Raises:
        GroupNotFound: The group does not exist.
        InvalidArgument: The topic has no such column, or the group delivers messages only once.
        WingsError: The server cannot be reached, or the topic does not exist.
    """

    def __init__(
        self,
        server: ServerAccess,
        topic: str,
        group: str,
        column: str,
    ) -> None:
        self._client = server.connect()
        self._topic, self._group, self._column = topic, group, column
        self._member = f"ingest-{uuid4().hex}"
        try:
            found_topic = self._client.topic(topic)
            schema = found_topic.schema
            index = schema.get_field_index(column)
            found: Any = None if index < 0 else schema.field(index).type
            if found != pa.string():
                raise InvalidArgument(
                    f"topic {topic!r} needs a string column {column!r} for the messages' bodies"
                )
            config = self._client.share_group(group, topic).config
            if config["delivery_limit"] == 1:
                raise InvalidArgument(
                    f"group {group!r} of topic {topic!r} has a delivery_limit of 1: messages that "
                    "a pipeline held when it ended would never be delivered again"
                )
        except BaseException:
            self._client.close()
            raise
        self._topic_uuid = found_topic.uuid
        """UUID of the topic: a later topic of this name assigns the same offsets again."""
        self._set_lock_seconds(config)

    @property
    def drops_messages(self) -> bool:
        """True: the group archives a message at its delivery limit."""
        return True

    def visibility_seconds(self, asked: float) -> float:
        """Return the group's lock duration as last seen: users may change it."""
        del asked  # The group's own.
        return self._hold_seconds

    def receive(
        self, messages_max: int, visibility_seconds: float, wait_seconds: float = 0.0
    ) -> list[QueueMessage]:
        """Receive messages; see `Queue.receive`."""
        del visibility_seconds  # The group's own.
        began = time.time()
        try:
            deliveries = self._client.acquire_messages(
                self._group,
                self._topic,
                self._member,
                max_messages=messages_max,
                timeout=wait_seconds,
            )
        except Unavailable as error:
            if error.facts.get("connection") == Connection.CLOSED:
                return []
            raise
        if deliveries:
            self._hold_seconds = deliveries[-1].lock_seconds
        # The messages' locks began after the call did.
        return [
            message
            for each in deliveries
            for message in self._messages(each, began + each.lock_seconds)
        ]

    def extend(self, receipt: str, visibility_seconds: float) -> float | None:
        """Renew the lock of a message; see `Queue.extend`."""
        del visibility_seconds
        began = time.time()
        (error,) = self._acknowledge([receipt], "renew")
        return None if error is not None else began + self._hold_seconds

    def acknowledge(self, receipts: Sequence[str]) -> None:
        """Accept messages; see `Queue.acknowledge`."""
        errors = self._acknowledge(receipts, "accept")
        for receipt, error in zip(receipts, errors, strict=True):
            if error is not None and len(receipts) > 1:
                # A lost message makes others of its partition fail.
                self._acknowledge([receipt], "accept")

    def send(self, bodies: Iterable[str]) -> None:
        """Push messages; the topic's other columns must be nullable."""
        schema = self._client.topic(self._topic).schema
        texts = list(bodies)
        if texts:
            rows: dict[str, list[str | None]] = {
                name: [*texts] if name == self._column else [None] * len(texts)
                for name in schema.names
            }
            self._client.push(self._topic, rows)

    def pending(self) -> int:
        """Return the count of messages that are neither finished nor acquired."""
        group = self._client.share_group(self._group, self._topic)
        self._set_lock_seconds(group.config)
        return sum(max(0, each.lag - each.in_flight) for each in group.partitions)

    def close(self) -> None:
        """Close the connection; a wait ends."""
        self._client.close()

    def _set_lock_seconds(self, config: Mapping[str, Any]) -> None:
        self._hold_seconds = config["lock_duration_ms"] / 1_000

    def _messages(self, delivery: Delivery, deadline: float) -> list[QueueMessage]:
        bodies: Any = delivery.batch.column(delivery.batch.schema.get_field_index(self._column))
        found: list[QueueMessage] = []
        for offset, body in zip(delivery.offsets, bodies.to_pylist(), strict=True):
            # With the member: another process acknowledges.
            receipt = json.dumps([delivery.partition, offset, delivery.lease, self._member])
            message_id = json.dumps([self._topic_uuid, delivery.partition, offset])
            found.append(
                QueueMessage(message_id, receipt, body or "", delivery.delivery_count, deadline)
            )
        return found

    def _acknowledge(self, receipts: Sequence[str], kind: Any) -> list[WingsError | None]:
        """Acknowledge messages by type `kind`; returns for each its error or None."""
        results: list[WingsError | None] = [InvalidArgument("not a receipt")] * len(receipts)
        entries: dict[str, dict[int, AcknowledgementEntry]] = {}
        for place, receipt in enumerate(receipts):
            with suppress(ValueError, TypeError):
                partition, offset, lease, member = json.loads(receipt)
                entries.setdefault(str(member), {})[place] = AcknowledgementEntry(
                    partition=partition, first=offset, last=offset, lease=lease, type=kind
                )
        for member, of_member in entries.items():
            errors = self._client.acknowledge_messages(
                self._group, self._topic, member, tuple(of_member.values())
            )
            for place, error in zip(of_member, errors, strict=True):
                results[place] = error
        return results
