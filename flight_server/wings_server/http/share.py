"""`POST /v1/share/acquire`: take messages for a member of a share group, or wait for some.

    find the group ─▶ acquire what there is ─▶ nothing: wait once, by callback ─▶ … ─▶ answer

All but the wait runs on a few threads, which none holds while it waits.
"""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import replace

from wings_core.contracts.chunks import EndReason
from wings_core.contracts.share import acquired_metadata
from wings_core.fetch.fetcher import Cancel
from wings_core.json_rows import encode_rows_within
from wings_core.log import Log
from wings_core.share.delivery import Delivery
from wings_core.share.model import LeasedRange
from wings_core.times import Deadline
from wings_server.flight.acquire import wanted_partition
from wings_server.http.bodies import ShareAcquireBody

FRAME_BYTES = 100
"""What an answer has around its deliveries, at most."""

DELIVERY_BYTES = 500
"""What a delivery has around its messages, beside its partition, at most."""


class AcquirePoll:
    """One acquire. Its methods block for replicas and reads alone, on any thread, one at a time.

    Args:
        log: What is acquired from.
        body: What is asked for.
        deadline: The end of waiting.

    Raises:
        NotFound: The topic or the group does not exist.
        InvalidArgument: A partition value that the topic cannot have.
    """

    def __init__(self, log: Log, body: ShareAcquireBody, deadline: Deadline) -> None:
        self._shares = log.shares
        self._bytes_max = log.limits.http_bytes_max
        self._member = body.member
        self._messages_max = body.max_messages
        self._deadline = deadline
        self._group = log.shares.find(body.topic_name, body.group)
        self._partition = wanted_partition(
            self._group.topic, body.partition, anyone=body.any_partition
        )
        self._again_after: float | None = None
        self._delivered: list[LeasedRange] = []
        self.messages = 0
        """How many the answer has."""

    def watch(self, callback: Callable[[], None]) -> AbstractContextManager[object]:
        """Call back when there may be something; see `ShareCoordinator.watch`."""
        return self._shares.watch(self._group, self._partition, callback)

    @property
    def look_again(self) -> Deadline:
        """When to look again without a callback: the deadline at the latest."""
        remaining = self._deadline.remaining()
        if self._again_after is None or remaining is None:
            return self._deadline
        return Deadline.after(min(remaining, self._again_after))

    def advance(self) -> bytes | None:
        """Return the answer, or None where there is nothing yet and time is left."""
        acquired = self._shares.acquire_now(
            self._group, self._member, self._partition, self._messages_max
        )
        self._again_after = acquired.again_after_seconds
        if acquired.ranges:
            return self._answer(acquired.ranges)
        return _framed([], EndReason.DEADLINE) if self._deadline.passed else None

    def give_back(self) -> None:
        """Release what the answer has: nobody gets it."""
        self._shares.give_back(self._group, self._delivered)

    def _answer(self, leased: tuple[LeasedRange, ...]) -> bytes:
        """Return as many of the messages as one answer has room for; the others are given back."""
        texts: list[bytes] = []
        room = self._bytes_max - FRAME_BYTES
        with closing(
            self._shares.deliver(self._group, self._member, leased, Cancel())
        ) as deliveries:
            for delivery in deliveries:
                text = self._encoded(delivery, room)
                if text is not None:
                    texts.append(text)
                    room -= len(text)
                if text is None or self._delivered[-1] != delivery.range:
                    break  # There is no room for more.
        total = sum(each.messages for each in self._delivered)
        full = total >= self._messages_max
        return _framed(texts, EndReason.MAX_MESSAGES if full else EndReason.MIN_MESSAGES)

    def _encoded(self, delivery: Delivery, room: int) -> bytes | None:
        """Encode as much of a delivery as there is room for, and give back the rest of it."""
        leased = delivery.range
        frame = DELIVERY_BYTES + 4 * len(leased.partition)
        rows_min = 0 if self._delivered else 1  # The first message always fits.
        rows = encode_rows_within(delivery.batch, max(0, room - frame), rows_min=rows_min)
        if rows.rows < delivery.batch.num_rows:
            offsets = delivery.batch.column("__offset")
            first_left: int = offsets[rows.rows].as_py()
            self._shares.give_back(self._group, [replace(leased, start_offset=first_left)])
            if rows.rows == 0:
                return None
            leased = replace(leased, end_offset=first_left - 1)
        self._delivered.append(leased)
        self.messages += rows.rows
        return acquired_metadata(leased)[:-1] + b', "messages": [' + rows.text + b"]}"


def _framed(texts: list[bytes], end: EndReason) -> bytes:
    return b'{"deliveries": [' + b", ".join(texts) + b'], "end": ' + json.dumps(end).encode() + b"}"
