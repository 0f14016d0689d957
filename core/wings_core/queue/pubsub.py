"""Subscriptions of Google's Pub/Sub, through google-cloud-pubsub (extra `pubsub`)."""

import importlib
import json
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from wings_core.errors import InvalidArgument, PermissionDenied, Unauthenticated, Unavailable
from wings_core.queue.interfaces import Queue, QueueMessage, Receipts
from wings_core.runtime import import_extra

CALL_MESSAGES_MAX = 1_000
"""Most messages of one call."""

VISIBILITY_SECONDS_MAX = 600
"""Greatest time for which a message is hidden at once."""

PULL_SECONDS_MIN = 1.0
"""Least wait of a call for messages: Pub/Sub may take that long to find some."""

CALL_SECONDS_MAX = 30.0
"""Timeout of a call, apart from waits."""

_END = " until "


class PubSubQueue(Queue):
    """See `Queue`. Google's libraries find the credentials, or `PUBSUB_EMULATOR_HOST`.

    A notification of Cloud Storage, which is in a message's attributes, is delivered as JSON:
    `{"attributes": {…}, "data": "…"}`.

    Pub/Sub does not report whether an extended message was delivered again, so its deadline is
    kept here, and in its receipt. `send` publishes to the subscription's topic, and so to its other
    subscriptions, too.

    Args:
        subscription: `projects/PROJECT/subscriptions/NAME`.
        receipts: Stores the deadlines of extended messages; without it, other processes do not
            extend these again.
        clock: Returns seconds since the epoch.

    Raises:
        InvalidArgument: google-cloud-pubsub is not installed.
        Unauthenticated: There are no credentials.
    """

    def __init__(
        self,
        subscription: str,
        *,
        receipts: Path | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._library: Any = import_extra(
            "google.cloud.pubsub_v1", "Pub/Sub needs google-cloud-pubsub", "pubsub"
        )
        self._subscription = subscription
        self._clock = clock
        self._receipts = Receipts(receipts)
        self._publisher: Any = None
        with self._translated_errors():
            self._client: Any = self._library.SubscriberClient()

    def visibility_seconds(self, asked: float) -> float:
        """Return the visibility that Pub/Sub applies, in seconds."""
        return float(_seconds(asked))

    def receive(
        self, messages_max: int, visibility_seconds: float, wait_seconds: float = 0.0
    ) -> list[QueueMessage]:
        """Receive messages; see `Queue.receive`. Waits at least a second for an empty subscription.

        Messages that arrive as the wait ends may be lost in transit; they are delivered again.
        """
        exceptions: Any = importlib.import_module("google.api_core.exceptions")
        with self._translated_errors():
            try:
                answer = self._client.pull(
                    subscription=self._subscription,
                    max_messages=min(CALL_MESSAGES_MAX, messages_max),
                    retry=None,
                    timeout=max(PULL_SECONDS_MIN, wait_seconds),
                )
            except exceptions.DeadlineExceeded:
                return []  # Timed out.
            found = list(answer.received_messages)
            if not found:
                return []
            began, seconds = self._clock(), _seconds(visibility_seconds)
            self._extend([each.ack_id for each in found], seconds)
        return [
            QueueMessage(
                each.message.message_id,
                f"{each.ack_id}{_END}{began + seconds}",
                _body(each.message),
                max(1, each.delivery_attempt),
                began + seconds,
            )
            for each in found
        ]

    def extend(self, receipt: str, visibility_seconds: float) -> float | None:
        """Hide a message for longer; see `Queue.extend`."""
        began, seconds = self._clock(), _seconds(visibility_seconds)
        if _deadline(self._receipts.get(receipt) or receipt) <= began:
            return None
        with self._translated_errors():
            self._extend([_ack_id(receipt)], seconds)
        self._receipts.put(receipt, f"{_END}{began + seconds}")
        return began + seconds

    def _extend(self, ack_ids: list[str], seconds: int) -> None:
        self._client.modify_ack_deadline(
            subscription=self._subscription,
            ack_ids=ack_ids,
            ack_deadline_seconds=seconds,
            timeout=CALL_SECONDS_MAX,
        )

    def acknowledge(self, receipts: Sequence[str]) -> None:
        """Delete messages; see `Queue.acknowledge`."""
        for first in range(0, len(receipts), CALL_MESSAGES_MAX):
            part = receipts[first : first + CALL_MESSAGES_MAX]
            with self._translated_errors():
                self._client.acknowledge(
                    subscription=self._subscription,
                    ack_ids=[_ack_id(receipt) for receipt in part],
                    timeout=CALL_SECONDS_MAX,
                )
            self._receipts.forget(part)

    def send(self, bodies: Iterable[str]) -> None:
        """Add messages to the subscription's topic; see `Queue.send`."""
        with self._translated_errors():
            if self._publisher is None:
                about = self._client.get_subscription(
                    subscription=self._subscription, timeout=CALL_SECONDS_MAX
                )
                self._topic: str = about.topic
                self._publisher = self._library.PublisherClient()
            sent = [
                self._publisher.publish(self._topic, body.encode("utf-8", "replace"))
                for body in bodies
            ]
            for each in sent:
                each.result(timeout=CALL_SECONDS_MAX)

    def pending(self) -> int | None:
        """Return None: Pub/Sub counts messages only for its monitoring."""
        return None

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._receipts.close()
        if self._publisher is not None:
            self._publisher.stop()
            self._publisher.transport.close()

    @contextmanager
    def _translated_errors(self) -> Generator[None]:
        exceptions: Any = importlib.import_module("google.api_core.exceptions")
        credentials: Any = importlib.import_module("google.auth.exceptions")
        what = f"the subscription {self._subscription}"
        try:
            yield
        except exceptions.NotFound:
            raise InvalidArgument(f"there is no subscription {self._subscription}") from None
        except exceptions.InvalidArgument as error:
            raise InvalidArgument(f"{what}: {error.message}") from None
        except (exceptions.Unauthenticated, credentials.DefaultCredentialsError) as error:
            raise Unauthenticated(f"{what}: {error!s:.300}") from None
        except exceptions.PermissionDenied as error:
            raise PermissionDenied(f"{what}: {error.message}") from None
        except (
            exceptions.GoogleAPIError,
            credentials.GoogleAuthError,
            TimeoutError,
        ) as error:
            raise Unavailable(f"{what}: {error!s:.300}") from None


def _body(message: Any) -> str:
    data = message.data.decode("utf-8", "replace")
    attributes = dict(message.attributes)
    if "eventType" in attributes and "bucketId" in attributes:
        return json.dumps({"attributes": attributes, "data": data})
    return data


def _ack_id(receipt: str) -> str:
    return receipt.rpartition(_END)[0]


def _deadline(receipt: str) -> float:
    try:
        return float(receipt.rpartition(_END)[2])
    except ValueError:
        return 0.0


def _seconds(seconds: float) -> int:
    return max(1, min(VISIBILITY_SECONDS_MAX, round(seconds)))
