"""`POST /v1/share/acquire`: acquires messages for a member of a share group, or waits for some.

    find the group ─▶ acquire available messages ─▶ none: wait once, by callback ─▶ … ─▶ respond

All but the wait runs on a few threads; a waiting call holds none of them.
"""

import json
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace

from wings_core.contracts.chunks import EndReason
from wings_core.contracts.share import acquired_metadata
from wings_core.errors import SchemaMismatch
from wings_core.fetch.fetcher import Cancel
from wings_core.json_rows import encode_rows_within
from wings_core.log import Log
from wings_core.model import LeasedRange
from wings_core.share.delivery.delivery import DeliveredBatch
from wings_core.share.model import AcquireRequest
from wings_core.times import Deadline
from wings_server.group_actions import wanted_partition
from wings_server.http.bodies import ShareAcquireBody

FRAME_BYTES = 100
"""Most bytes of a response without its deliveries."""

DELIVERY_BYTES = 500
"""Most bytes of a delivery without its messages and its partition."""


class AcquirePoll:
    """One acquire. Methods block only for replicas and reads, on any thread, one at a time.

    Args:
        log: The group's log.
        body: The request.
        deadline: Deadline of an acquire without messages.

    Raises:
        NotFound: The topic or the group does not exist.
        InvalidArgument: The partition value is invalid for the topic.
    """

    def __init__(self, log: Log, body: ShareAcquireBody, deadline: Deadline) -> None:
        self._shares = log.shares
        self._coordinator = log.shares.coordinator
        self._pushed_in = log.pushed_in
        self._bytes_max = log.limits.http_bytes_max
        self.deadline = deadline
        """Deadline of an acquire without messages."""
        group = log.shares.find(body.topic_name, body.group)
        partition = wanted_partition(group.topic, body)
        self._request = AcquireRequest(group, body.member, partition, body.max_messages)
        self._delivered: list[LeasedRange] = []
        self.messages = 0
        """Number of messages in the response."""

    @contextmanager
    def watch(self, callback: Callable[[], None]) -> Generator[None]:
        """Call back when messages may be available; see `Coordinator.watch`."""
        with self._coordinator.following(self._request.group, callback):
            with self._coordinator.watch(self._request, callback):
                yield
            # The callback may have been called after the last attempt.
            self._coordinator.wake_another(self._request.group)

    def advance(self) -> bytes | None:
        """Acquire available messages; returns the response, or None if the caller must wait."""
        try:
            return self._advance()
        except SchemaMismatch:
            # The messages were released; read them again with the newer schema.
            group = self._request.group
            group = self._shares.find(group.topic.name, group.name)
            self._request = replace(self._request, group=group)
            return self._advance()

    def _advance(self) -> bytes | None:
        acquired = self._coordinator.acquire_now(self._request)
        if acquired:
            return self._answer(acquired)
        return _framed([], EndReason.DEADLINE) if self.deadline.passed else None

    def release(self) -> None:
        """Release the messages of a response that cannot be sent."""
        self._coordinator.release_undelivered(self._request.group, self._delivered)

    def _answer(self, leased: Sequence[LeasedRange]) -> bytes:
        """Encode as many messages as fit in a response; release the others."""
        texts: list[bytes] = []
        room = self._bytes_max - FRAME_BYTES
        with closing(
            self._shares.deliver(self._request.group, self._request.member, leased, Cancel())
        ) as deliveries:
            for delivery in deliveries:
                text = self._encoded(delivery, room)
                if text is not None:
                    texts.append(text)
                    room -= len(text)
                if text is None or self._delivered[-1] != delivery.range:
                    break  # The response is full.
        total = sum(each.messages for each in self._delivered)
        full = total >= self._request.messages_max
        return _framed(texts, EndReason.MAX_MESSAGES if full else EndReason.MIN_MESSAGES)

    def _encoded(self, delivery: DeliveredBatch, room: int) -> bytes | None:
        """Encode the rows of a delivery that fit in `room` bytes; release the others."""
        leased = delivery.range
        frame = DELIVERY_BYTES + 4 * len(leased.partition)
        rows_min = 0 if self._delivered else 1  # The first message always fits.
        rows = encode_rows_within(delivery.batch, max(0, room - frame), rows_min=rows_min)
        if rows.rows < delivery.batch.num_rows:
            offsets = delivery.batch.column("__offset")
            first_left: int = offsets[rows.rows].as_py()
            self._coordinator.release_undelivered(
                self._request.group, [replace(leased, start_offset=first_left)]
            )
            if rows.rows == 0:
                return None
            leased = replace(leased, end_offset=first_left - 1)
        self._delivered.append(leased)
        self.messages += rows.rows
        traces = self._pushed_in(
            self._request.group.topic, leased.partition, leased.start_offset, leased.end_offset
        )
        return acquired_metadata(leased, traces)[:-1] + b', "messages": [' + rows.text + b"]}"


def _framed(texts: list[bytes], end: EndReason) -> bytes:
    return b'{"deliveries": [' + b", ".join(texts) + b'], "end": ' + json.dumps(end).encode() + b"}"
