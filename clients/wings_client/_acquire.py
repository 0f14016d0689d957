"""Messages of share groups on the wire: a member's acquires and acknowledgements."""

import os
import secrets
import socket
from collections.abc import Sequence
from typing import Literal

import pyarrow.flight as flight

from wings_client._errors import call_errors, lost, typed_error
from wings_client._interrupt import interruptible
from wings_client._messages import build, wire_partition
from wings_client._model import PartitionValue
from wings_client._share_model import Delivery
from wings_client._stream import (
    INTERRUPT_SECONDS,
    Reading,
    StreamCancelled,
    milliseconds,
)
from wings_client._transport import Transport
from wings_core.contracts.share import (
    CREDIT_MAX,
    Acknowledge,
    AcknowledgementEntry,
    AcquireEnd,
    ShareCommand,
    parse_acquired_metadata,
)
from wings_core.contracts.tickets import AcquireTicket
from wings_core.errors import InvalidArgument, InvalidTicket, WingsError, error_from_json

AckType = Literal["accept", "release", "reject", "renew"]


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
        InvalidTicket,
        call,
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
    named = {} if ticket.any_partition else {"partition": ticket.partition}
    return ShareCommand(
        kind="share",
        group=ticket.group,
        topic=ticket.topic,
        member=ticket.member,
        credit=min(CREDIT_MAX, messages * (1 + prefetch)),
        max_messages=messages,
        **named,
    )
