"""Share groups: the calls of those who manage them, and of members that take messages."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pyarrow.flight as flight
from pydantic import ValidationError

from wings_client._admin import AdminCalls, TopicRef, name_of
from wings_client._errors import CALL_ERRORS, lost, typed_error
from wings_client._interrupt import interruptible
from wings_client._messages import build, wire_partition
from wings_client._model import PartitionValue
from wings_client._share_model import Delivery, Redriven, ShareGroup
from wings_client._stream import (
    GRACE_SECONDS,
    INTERRUPT_SECONDS,
    Reading,
    StreamCancelled,
    milliseconds,
)
from wings_client._transport import Transport
from wings_core.contracts.messages import sentence, shortened
from wings_core.contracts.share import (
    Acknowledge,
    AcknowledgementEntry,
    AcquireEnd,
    AlterGroup,
    CreateGroup,
    GroupBody,
    ListGroups,
    Redrive,
    parse_acquired_metadata,
)
from wings_core.contracts.tickets import AcquireTicket
from wings_core.errors import InvalidArgument, InvalidTicket, WingsError, error_from_json
from wings_core.share.model import ShareConfig

AckType = Literal["accept", "release", "reject", "renew"]


class ShareCalls(AdminCalls):
    """The part of `Client` that manages share groups."""

    def create_share_group(
        self,
        group: str,
        topic: TopicRef,
        config: Mapping[str, Any] | None = None,
        *,
        if_not_exists: bool = False,
    ) -> ShareGroup:
        """Create a share group of a topic, and its topic of dead letters where there is none.

        Args:
            group: Its name.
            topic: Whose messages it shares.
            config: Such as `{"lock_duration_ms": 60_000, "delivery_limit": 3, "start": "earliest",
                "dlq_topic": "orders-dead"}`.
            if_not_exists: Return the group where there is one of this name already.

        Raises:
            TopicNotFound: There is no such topic.
            AlreadyExists: It has a group of this name.
            SchemaMismatch: `dlq_topic` is there, and no topic of dead letters.
        """
        body = build(
            CreateGroup,
            InvalidArgument,
            "create_share_group",
            group=group,
            topic=name_of(topic),
            config=_config(config or {}),
            if_not_exists=if_not_exists,
        )
        return ShareGroup.from_json(self._act("share-create", body, repeatable=if_not_exists))

    def alter_share_group(
        self, group: str, topic: TopicRef, config: Mapping[str, Any]
    ) -> ShareGroup:
        """Change a group's configuration; keys that are absent stay as they are.

        Raises:
            TopicNotFound: There is no such topic.
            GroupNotFound: It has no such group.
        """
        body = build(
            AlterGroup,
            InvalidArgument,
            "alter_share_group",
            group=group,
            topic=name_of(topic),
            config=_config(config),
        )
        return ShareGroup.from_json(self._act("share-alter", body))

    def share_group(self, group: str, topic: TopicRef) -> ShareGroup:
        """Return what the server says of a group: configuration, lag and messages in flight.

        Raises:
            TopicNotFound: There is no such topic.
            GroupNotFound: It has no such group.
        """
        body = build(GroupBody, InvalidArgument, "share_group", group=group, topic=name_of(topic))
        return ShareGroup.from_json(self._act("share-describe", body))

    def share_groups(
        self, topic: TopicRef | None = None, *, namespace: str | None = None
    ) -> list[ShareGroup]:
        """Return the groups of a topic, or of all topics of a namespace, by topic and name.

        Raises:
            TopicNotFound: There is no such topic.
            NamespaceNotFound: There is no such namespace.
        """
        body = build(
            ListGroups,
            InvalidArgument,
            "share_groups",
            topic=None if topic is None else name_of(topic),
            namespace=namespace,
        )
        return [ShareGroup.from_json(found) for found in self._act("share-list", body)]

    def delete_share_group(self, group: str, topic: TopicRef) -> ShareGroup:
        """Delete a group with all that is known of its messages, and return what it was.

        Raises:
            TopicNotFound: There is no such topic.
            GroupNotFound: It has no such group.
        """
        body = build(
            GroupBody, InvalidArgument, "delete_share_group", group=group, topic=name_of(topic)
        )
        return ShareGroup.from_json(self._act("share-delete", body, repeatable=False))

    def redrive(
        self,
        dlq_topic: TopicRef,
        *,
        filter: str | None = None,  # noqa: A002 - the contract's word.
        max_messages: int | None = None,
    ) -> Redriven:
        """Send dead letters back to the topics that they came from, each at most once, ever.

        Args:
            dlq_topic: The topic of dead letters; those that are there now are looked at.
            filter: A SQL predicate over its columns, such as `reason = 'rejected'`.
            max_messages: Look at no more than so many; None: at all.

        Raises:
            TopicNotFound: There is no such topic.
            SchemaMismatch: It is no topic of dead letters.
            InvalidFilter: Not one boolean expression over its columns.
        """
        counts = Counter[str]()
        failures: list[str] = []
        offset, end, left = 0, None, max_messages
        while left is None or left > 0:
            body = build(
                Redrive,
                InvalidArgument,
                "redrive",
                dlq_topic=name_of(dlq_topic),
                filter=filter,
                offset=offset,
                max_messages=None if left is None else min(left, REDRIVE_STEP),
            )
            found = self._act("share-redrive", body)
            counts.update({key: found[key] for key in _COUNTS})
            failures += found["failures"]
            end = found["log_end_offset"] if end is None else end
            if left is not None:
                left -= REDRIVE_STEP
            offset = found["next_offset"]
            if offset >= end:
                break
        return Redriven(
            counts["redriven"],
            counts["already_redriven"],
            counts["without_payload"],
            counts["failed"],
            tuple(failures),
        )


REDRIVE_STEP = 1_000
"""Dead letters looked at by one call, so that none takes long."""

_COUNTS = ("redriven", "already_redriven", "without_payload", "failed")


def acquire(
    transport: Transport, ticket: AcquireTicket, wait: float, reading: Reading
) -> list[Delivery]:
    """Take messages for a member; blocks until there are some, at most `wait` seconds. Tries once.

    Where the stream breaks midway, what came of it is returned.

    Args:
        transport: To the server.
        ticket: Without an end of the wait.
        wait: Seconds.
        reading: Of this call alone.

    Raises:
        StreamCancelled: `Reading.cancel` was called.
        WingsError: The server's refusal, or `Unavailable`.
    """
    asked = ticket.model_copy(update={"timeout_ms": milliseconds(wait)})
    stream = reading.open(asked.to_bytes(), wait + GRACE_SECONDS + transport.timeout)
    found: list[Delivery] = []
    try:
        _read(stream.reader, found, wait, transport.endpoint)
    except CALL_ERRORS as error:
        if reading.is_cancelled:
            raise StreamCancelled from None
        if not found:
            raise typed_error(error, transport.endpoint) from error
    finally:
        reading.done()
    return found


def _read(
    reader: flight.FlightStreamReader, found: list[Delivery], wait: float, endpoint: str
) -> None:
    with interruptible(reader.read_chunk, waits_long=wait > INTERRUPT_SECONDS) as read_chunk:
        while True:
            try:
                batch, metadata = read_chunk()
            except StopIteration:
                if not found:
                    raise lost("a stream ended before its end chunk", endpoint) from None
                return
            described = parse_acquired_metadata(metadata)
            if isinstance(described, AcquireEnd):
                return
            found.append(
                Delivery(
                    batch,
                    described.partition,
                    described.start_offset,
                    described.end_offset,
                    described.lease,
                    described.delivery_count,
                    described.lock_duration_ms / 1000,
                )
            )


def acknowledge(
    transport: Transport,
    group: str,
    topic: str,
    member: str,
    entries: Sequence[AcknowledgementEntry],
    *,
    repeatable: bool = False,
) -> list[WingsError | None]:
    """Settle messages; return for each entry, in order, its error or None.

    Raises:
        WingsError: Of the call as a whole; then it is unknown what was settled.
    """
    body = build(
        Acknowledge,
        InvalidArgument,
        "acknowledge",
        group=group,
        topic=topic,
        member=member,
        acks=tuple(entries),
    )
    answer = transport.act("share-acknowledge", body, repeatable=repeatable)
    return [None if each["code"] is None else error_from_json(each) for each in answer["results"]]


def ticket_of(
    group: str, topic: str, member: str, partition: PartitionValue, max_messages: int
) -> AcquireTicket:
    """Return the ticket of a member's acquires; no partition means any."""
    return build(
        AcquireTicket,
        InvalidTicket,
        "share_consumer",
        group=group,
        topic=topic,
        member=member,
        partition=wire_partition(partition),
        max_messages=max_messages,
    )


def _config(config: Mapping[str, Any]) -> ShareConfig:
    try:
        return ShareConfig(**config)
    except ValidationError as problem:
        raise InvalidArgument(shortened(f"config: {sentence(problem)}")) from None
