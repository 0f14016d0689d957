"""Share groups: the calls that manage them, and a member's acquires and acknowledgements."""

import os
import secrets
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from time import monotonic, sleep
from typing import Any, Literal, TypeVar

import pyarrow.flight as flight
from pydantic import ValidationError

from wings_client._admin import AdminCalls, TopicRef, name_of
from wings_client._arguments import OffsetValue, build, checked, wire_offset, wire_partition
from wings_client._cancellation import interruptible
from wings_client._errors import call_errors, client_closed, lost, typed_error
from wings_client._model import PartitionValue, parsed
from wings_client._results import ReadResult
from wings_client._share_model import Delivery, Redriven, ShareGroup, ShareMembers
from wings_client._sql import SqlRead
from wings_client._sql import ticket_of as ticket_of_sql
from wings_client._stream import (
    INTERRUPT_SECONDS,
    TIMEOUT_MS_MIN,
    Reading,
    StreamCancelled,
    milliseconds,
)
from wings_client._transport import Transport
from wings_core.contracts.messages import sentence, shortened
from wings_core.contracts.share import (
    CREDIT_MAX,
    Acknowledge,
    AcknowledgementEntry,
    AcquireEnd,
    AlterGroup,
    CreateGroup,
    GroupBody,
    ListGroups,
    PartitionsOfGroup,
    Redrive,
    SeekGroup,
    ShareCommand,
    parse_acquired_metadata,
)
from wings_core.contracts.tickets import AcquireTicket
from wings_core.errors import (
    GroupNotFound,
    InvalidArgument,
    InvalidTicket,
    WingsError,
    error_from_json,
)
from wings_core.model import ShareConfig
from wings_core.names import TopicName

DELIVERY_MESSAGES = 500
"""The most messages that a member acquires at once, by default."""

AckType = Literal["accept", "release", "reject", "renew"]


@checked
class ShareCalls(AdminCalls):
    """The calls of `Client` on share groups."""

    def create_share_group(
        self,
        group: str,
        topic: TopicRef,
        config: Mapping[str, Any] | None = None,
        *,
        if_not_exists: bool = False,
    ) -> ShareGroup:
        """Create a share group of a topic, and its topic of dead letters if it does not exist.

        Args:
            group: The group's name.
            topic: The topic of the group.
            config: Such as `{"lock_duration_ms": 60_000, "delivery_limit": 3, "start": "earliest",
                "dlq_topic": "orders-dead"}`.
            if_not_exists: Return the existing group of this name as it is, whatever `config` says;
                `alter_share_group` changes it.

        Raises:
            TopicNotFound: There is no such topic.
            AlreadyExists: The topic has a group of this name.
            SchemaMismatch: `dlq_topic` exists, and is no topic of dead letters.
        """
        keys = {"config": _config(config or {}), "if_not_exists": if_not_exists}
        body = _body(CreateGroup, "create_share_group", group, topic, **keys)
        return parsed(ShareGroup, self._act("share-create", body, repeatable=if_not_exists))

    def alter_share_group(
        self, group: str, topic: TopicRef, config: Mapping[str, Any]
    ) -> ShareGroup:
        """Change a group's configuration; keys that are absent stay as they are.

        `start` cannot be given: `seek_share_group` moves a group.

        Raises:
            TopicNotFound: There is no such topic.
            GroupNotFound: The topic has no such group.
        """
        body = _body(AlterGroup, "alter_share_group", group, topic, config=_config(config))
        return parsed(ShareGroup, self._act("share-alter", body))

    def seek_share_group(
        self,
        group: str,
        topic: TopicRef,
        to: OffsetValue,
        *,
        partition: PartitionValue = None,
    ) -> ShareGroup:
        """Move a group to a position, forwards or backwards; returns its description.

        What its members hold is delivered again from there, and their acknowledgements of it are
        refused; consumers go on by themselves. Delivery counts begin anew.

        Args:
            group: The group's name.
            topic: The topic of the group.
            to: `"earliest"`, `"latest"`, a time, an offset of the partition, or -100 for the last
                hundred messages of each partition.
            partition: Move it in this partition alone; None: in all.

        Raises:
            InvalidArgument: An offset without a partition, or one of which nothing was written.
            OffsetOutOfRange: The log has no such offset.
            TopicNotFound: There is no such topic.
            GroupNotFound: The topic has no such group.
        """
        keys = {"to": wire_offset(to), **_partition(partition)}
        body = _body(SeekGroup, "seek_share_group", group, topic, **keys)
        return parsed(ShareGroup, self._act("share-seek", body))

    def purge_share_group(
        self, group: str, topic: TopicRef, *, partition: PartitionValue = None
    ) -> int:
        """Drop all messages that a group has not finished, without dead letters.

        Args:
            group: The group's name.
            topic: The topic of the group.
            partition: Partition to look at alone; None: of all.

        Returns:
            How many messages they were, about.

        Raises:
            TopicNotFound: There is no such topic.
            GroupNotFound: The topic has no such group.
        """
        keys = _partition(partition)
        body = _body(PartitionsOfGroup, "purge_share_group", group, topic, **keys)
        return self._act("share-purge", body, repeatable=False)["purged"]

    def share_group(self, group: str, topic: TopicRef) -> ShareGroup:
        """Return a group's description: configuration, lag and messages in flight.

        Raises:
            TopicNotFound: There is no such topic.
            GroupNotFound: The topic has no such group.
        """
        body = _body(GroupBody, "share_group", group, topic)
        return parsed(ShareGroup, self._act("share-describe", body))

    def share_members(self, group: str, topic: TopicRef) -> ShareMembers:
        """Return who holds what of a group and since when, and its oldest unfinished message.

        Raises:
            TopicNotFound: There is no such topic.
            GroupNotFound: The topic has no such group.
        """
        body = _body(GroupBody, "share_members", group, topic)
        return parsed(ShareMembers, self._act("share-members", body))

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
            "share_groups",
            topic=None if topic is None else name_of(topic),
            namespace=namespace,
        )
        return [parsed(ShareGroup, found) for found in self._act("share-list", body)]

    def dead_letters(self, group: str, topic: TopicRef | None = None) -> ReadResult:
        """Return the dead letters of a share group, with the messages that they hold.

        A row has the letter's `topic` and `offset`, its columns (`source_partition`,
        `source_offset`, `delivery_count`, `reason`, `error`, …), and then those of the message in
        its topic's schema, null where the group keeps no messages: one of a name that the letter
        has too is called `payload_NAME`.

        Args:
            group: The group's name.
            topic: The topic of the group; None: the one in the default namespace that has a group
                of this name.

        Raises:
            GroupNotFound: There is no such group.
            InvalidArgument: Several topics have one, and none is given.
            TopicNotFound: There is no such topic.
        """
        if topic is not None:
            found = [self.share_group(group, topic)]
        else:
            found = [each for each in self.share_groups() if each.name == group]
        if not found:
            raise GroupNotFound(
                f"no topic of the default namespace that you have the right to share has a group "
                f"{group!r:.80}: give the topic, if it is in another or you may read alone"
            )
        if len(found) > 1:
            raise InvalidArgument(f"{len(found)} topics have a group {group!r:.80}: give the topic")
        name = TopicName.parse(found[0].topic)
        text = f'SELECT * FROM system."dead_letters/{name.topic}" WHERE share_group = ?'
        ticket = ticket_of_sql(text, [group], str(name.namespace), None)
        return ReadResult(SqlRead(self._transport, ticket))

    def delete_share_group(self, group: str, topic: TopicRef) -> ShareGroup:
        """Delete a group with all its delivery state; returns its last description.

        Raises:
            TopicNotFound: There is no such topic.
            GroupNotFound: The topic has no such group.
        """
        body = _body(GroupBody, "delete_share_group", group, topic)
        return parsed(ShareGroup, self._act("share-delete", body, repeatable=False))

    def acquire_messages(
        self,
        group: str,
        topic: TopicRef,
        member: str,
        partition: PartitionValue = None,
        *,
        max_messages: int = DELIVERY_MESSAGES,
        timeout: float = 0.0,
    ) -> list[Delivery]:
        """Acquire messages for a member of a share group, by one call that is not repeated.

        `share_consumer` makes this call, and renews and releases what it holds; here that is up to
        the caller. Acquired messages are locked for `Delivery.lock_seconds`.

        Args:
            group: The group's name.
            topic: The topic of the group.
            member: The member's name, to be passed to `acknowledge_messages`; any process may use
                it.
            partition: Acquire messages of this partition alone; None: of any.
            max_messages: Acquire at most this many.
            timeout: Seconds to wait where there are none, up to 300; less than 0.002 counts as
                that.

        Returns:
            The deliveries; empty on time-out. If the connection breaks, those received before.

        Raises:
            InvalidTicket: A name or number is out of range.
            TopicNotFound: There is no such topic.
            GroupNotFound: The topic has no such group.
            Unavailable: The server cannot be reached, or the client was closed, by another thread
                too (fact `connection`: `closed`).
        """
        ticket = ticket_of(group, name_of(topic), member, partition, max_messages)
        wait = max(TIMEOUT_MS_MIN / 1000, timeout)
        try:
            return acquire(self._transport, ticket, wait, Reading(self._transport))
        except StreamCancelled:
            raise client_closed(self._transport.endpoint) from None

    def acknowledge_messages(
        self,
        group: str,
        topic: TopicRef,
        member: str,
        entries: Sequence[AcknowledgementEntry],
    ) -> list[WingsError | None]:
        """Accept, release, reject or renew messages that a member of a share group acquired.

        The call is retried if its connection breaks: an entry that was carried out before its
        response was lost may be answered with `InvalidRecordState`.

        Args:
            group: The group's name.
            topic: The topic of the group.
            member: The member that acquired them.
            entries: Ranges of offsets, each with the lease of its delivery, up to 10,000. Those of
                one partition succeed or fail together.

        Returns:
            For each entry, in order, its error or None.

        Raises:
            InvalidArgument: An entry is out of range.
            TopicNotFound: There is no such topic.
            GroupNotFound: The topic has no such group.
        """
        return acknowledge(self._transport, group, name_of(topic), member, entries, repeatable=True)

    def redrive(
        self,
        dlq_topic: TopicRef,
        *,
        filter: str | None = None,  # noqa: A002 - the contract's word.
        max_messages: int | None = None,
        to: TopicRef | None = None,
        rate: float | None = None,
    ) -> Redriven:
        """Republish dead letters, each at most once to a topic, ever.

        Args:
            dlq_topic: The topic of dead letters; reads up to its present end.
            filter: A SQL predicate over its columns, such as `reason = 'rejected'`.
            max_messages: Read at most this many dead letters; None: all.
            to: Republish them to this topic, which has the same columns; None: to their topics of
                origin.
            rate: Republish about so many a second, and sleep in between; None: as fast as it goes.

        Raises:
            InvalidArgument: The rate is not above 0.
            TopicNotFound: There is no such topic.
            SchemaMismatch: It is no topic of dead letters.
            InvalidFilter: Not one boolean expression over its columns.
        """
        if rate is not None and not rate > 0:
            raise InvalidArgument(f"redrive: rate must be above 0; got {rate!r}")
        step = REDRIVE_STEP if rate is None else max(1, min(REDRIVE_STEP, int(rate / 4)))
        begun = monotonic()
        counts = Counter[str]()
        failures: list[str] = []
        offset, end, left = 0, None, max_messages
        while left is None or left > 0:
            body = build(
                Redrive,
                "redrive",
                dlq_topic=name_of(dlq_topic),
                filter=filter,
                offset=offset,
                max_messages=_step(left, step, rate),
                to=None if to is None else name_of(to),
            )
            found = self._act("share-redrive", body)
            counts.update({key: found[key] for key in _COUNTS})
            failures += found["failures"]
            end = found["log_end_offset"] if end is None else end
            if left is not None:
                left -= step
            offset = found["next_offset"]
            if offset >= end:
                break
            if rate is not None:
                sleep(max(0.0, begun + counts["redriven"] / rate - monotonic()))
        return Redriven(**{key: counts[key] for key in _COUNTS}, failures=tuple(failures))


REDRIVE_STEP = 1_000
"""Dead letters read by one call, to bound how long it takes."""


def _step(left: int | None, step: int, rate: float | None) -> int | None:
    """Return how many dead letters the next call reads; None: as many as the server likes."""
    if left is None and rate is None:
        return None
    return step if left is None else min(left, step)


_COUNTS = ("redriven", "already_redriven", "without_payload", "failed")


BodyT = TypeVar("BodyT", bound=GroupBody)


def _body(model: type[BodyT], call: str, group: str, topic: TopicRef, **keys: Any) -> BodyT:
    """Return the body of a call on a group; `call` names the caller's method in errors."""
    return build(model, call, group=group, topic=name_of(topic), **keys)


def _partition(partition: PartitionValue) -> dict[str, Any]:
    """Return the key that selects a partition; none for all."""
    return {} if partition is None else {"partition": wire_partition(partition)}


def _config(config: Mapping[str, Any]) -> ShareConfig:
    try:
        return ShareConfig(**config)
    except ValidationError as problem:
        raise InvalidArgument(shortened(f"config: {sentence(problem, ShareConfig)}")) from None


def acquire(
    transport: Transport, ticket: AcquireTicket, wait: float, reading: Reading
) -> list[Delivery]:
    """Acquire messages for a member; blocks at most `wait` seconds. Tries once.

    Where the stream breaks midway, returns what was received.

    Args:
        transport: To the server.
        ticket: Its wait is set here.
        wait: Most seconds to wait.
        reading: For this call alone; cancelling it ends the call.

    Raises:
        StreamCancelled: `Reading.cancel` was called.
        WingsError: The server's refusal, or `Unavailable`.
    """
    asked = ticket.model_copy(update={"timeout_ms": milliseconds(wait)})
    stream = reading.open(asked.to_bytes(), wait + transport.timeout)
    found: list[Delivery] = []
    try:
        _read(stream.reader, found, wait, transport.endpoint)
    except call_errors() as error:
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
    with interruptible(reader, waits_long=wait > INTERRUPT_SECONDS) as read_chunk:
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
            found.append(Delivery.of(batch, described))


def acknowledge(
    transport: Transport,
    group: str,
    topic: str,
    member: str,
    entries: Sequence[AcknowledgementEntry],
    *,
    repeatable: bool = False,
) -> list[WingsError | None]:
    """Acknowledge messages; returns the error of each entry, in order, or None.

    Raises:
        WingsError: The call as a whole failed; which entries were carried out is unknown.
    """
    body = build(
        Acknowledge, "acknowledge", group=group, topic=topic, member=member, acks=tuple(entries)
    )
    answer = transport.act("share-acknowledge", body, repeatable=repeatable)
    return [None if each["code"] is None else error_from_json(each) for each in answer["results"]]


def member_name() -> str:
    """Return a random name for a member, which says where it runs."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def ticket_of(
    group: str,
    topic: str,
    member: str,
    partition: PartitionValue,
    max_messages: int,
    call: str = "share_consumer",
) -> AcquireTicket:
    """Return the ticket of a member's acquires; without a partition, of any.

    Args:
        group: The group's name.
        topic: The topic of the group.
        member: The member's name.
        partition: The partition value, or None.
        max_messages: Most messages of a delivery.
        call: Call whose argument is at fault, for errors.
    """
    return build(
        AcquireTicket,
        call,
        error=InvalidTicket,
        group=group,
        topic=topic,
        member=member,
        partition=wire_partition(partition),
        max_messages=max_messages,
    )


def command_of(ticket: AcquireTicket, prefetch: int = 0) -> ShareCommand:
    """Return the descriptor of a share stream for what a ticket asks for.

    Args:
        ticket: Ticket of a member.
        prefetch: So many deliveries are sent ahead, within the bound of a stream's credit.
    """
    messages = min(CREDIT_MAX, ticket.max_messages)
    return ShareCommand(
        kind="share",
        group=ticket.group,
        topic=ticket.topic,
        member=ticket.member,
        credit=min(CREDIT_MAX, messages * (1 + prefetch)),
        max_messages=messages,
        **ticket.model_dump(include={"partition"}, exclude_unset=True),
    )
