"""Push: data in, offsets out, over a producer that lives for one call."""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from wings_client._batches import Data
from wings_client._messages import TimeValue
from wings_client._model import PushResult, Topic
from wings_client._producer import Producer
from wings_client._progress import counted, in_notebook, rows_known
from wings_client._transport import Transport
from wings_core import tracing
from wings_core.errors import WingsError

TOPICS_MAX = 1_000
"""Topics for which identities are kept; the one pushed to longest ago goes first."""

IDENTITIES_MAX = 16
"""Identities kept for each topic; further concurrent pushes use fresh ones."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A producer id and its next sequence."""

    producer_id: str
    sequence: int


class Identities:
    """Producer ids to push under, used again by later pushes.

    A server remembers each producer id for days, so a fresh one for each push would leave many
    behind. The id of a failed push is dropped: its next sequence is unknown.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: OrderedDict[str, list[Identity]] = OrderedDict()

    def take(self, topic_uuid: str) -> Identity:
        """Return an identity for exclusive use until it is released."""
        with self._lock:
            free = self._free.get(topic_uuid)
            return free.pop() if free else Identity(uuid4().hex, 0)

    def release(self, topic_uuid: str, identity: Identity) -> None:
        """Make an identity available to later pushes."""
        with self._lock:
            free = self._free.setdefault(topic_uuid, [])
            self._free.move_to_end(topic_uuid)
            if len(free) < IDENTITIES_MAX:
                free.append(identity)
            if len(self._free) > TOPICS_MAX:
                self._free.popitem(last=False)


def push(
    transport: Transport,
    identities: Identities,
    topic: Topic,
    data: Data,
    *,
    timestamp: TimeValue | None,
    expected_offset: int | None,
    **options: Any,
) -> PushResult:
    """Push and wait until everything is durable; see `Client.push`."""
    about = {"messaging.destination.name": topic.name}
    with tracing.client_span("push", about, "producer"):
        identity = identities.take(topic.uuid)
        producer = Producer(
            transport,
            topic,
            producer_id=identity.producer_id,
            sequence=identity.sequence,
            **options,
        )
        transport.add_stream(producer)
        try:
            with producer:
                if in_notebook():
                    data = counted(producer.batches(data), f"push to {topic.id}", rows_known(data))
                sent = producer.send(data, timestamp=timestamp, expected_offset=expected_offset)
                try:
                    committed = sent.result()
                except WingsError:
                    raise
                except BaseException:  # Of a signal's handler, which ends the wait.
                    producer.cancel()
                    raise
        except WingsError as error:
            # Complete only now that every batch has a response.
            error.facts.update(
                rows_committed=producer.rows_committed, batches_committed=producer.batches_committed
            )
            raise
        identities.release(topic.uuid, Identity(identity.producer_id, committed.next_sequence))
        return PushResult(committed.committed, committed.rows, committed.batches)
