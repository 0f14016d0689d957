"""The share stream on the wire: its descriptor, the client's messages, the server's messages."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as quoted
from typing import Annotated, Any, Literal

import pyarrow as pa
from pydantic import Field, JsonValue

from wings_core.contracts.messages import (
    Identifier,
    MemberName,
    Message,
    dump,
    load_object,
    shortened,
    to_bytes,
)
from wings_core.contracts.share import (
    ACKNOWLEDGEMENTS_MAX,
    AcknowledgementEntry,
    AcquiredChunk,
    describe_results,
    parse_acquired,
)
from wings_core.errors import InvalidArgument, WingsError
from wings_core.model import ShareConfig

CREDIT_MAX = 10_000
"""Most messages that a stream holds at once."""

ALIVE = b'{"alive": true}'
"""Client's message, sent after a third of the lock duration without another."""

_LOCK_KEY = b"lock_duration_ms"
_LIMIT_KEY = b"delivery_limit"


class ShareCommand(Message):
    """The descriptor's command: the messages wanted, and the member."""

    kind: Literal["share"]
    group: Identifier
    topic: str
    member: MemberName
    credit: Annotated[int, Field(ge=1, le=CREDIT_MAX)]
    """Messages that the stream may hold at once, until the client changes it."""
    max_messages: Annotated[int, Field(ge=1, le=CREDIT_MAX)] = CREDIT_MAX
    """Most messages of one delivery."""
    partition: JsonValue = None

    @property
    def any_partition(self) -> bool:
        """Whether messages of any partition are delivered, as none is given."""
        return "partition" not in self.model_fields_set


class CreditMessage(Message):
    """Client's message that sets the credit; 0 pauses deliveries."""

    credit: Annotated[int, Field(ge=0, le=CREDIT_MAX)]


class AliveMessage(Message):
    """Client's message that shows that its process is alive."""

    alive: Literal[True]


class AcknowledgeMessage(Message):
    """Client's message that acknowledges messages, like `share-acknowledge`.

    A release sets the credit to 0, which pauses deliveries until the next `CreditMessage`.
    """

    request: Annotated[int, Field(ge=1)]
    """Number of the request, counting up from 1 in the stream."""
    acks: Annotated[
        tuple[AcknowledgementEntry, ...], Field(strict=False, max_length=ACKNOWLEDGEMENTS_MAX)
    ]

    @property
    def messages(self) -> int:
        """Number of messages that the entries name."""
        return sum(entry.last - entry.first + 1 for entry in self.acks)

    @property
    def releases(self) -> bool:
        """Whether any entry releases messages."""
        return any(entry.type == "release" for entry in self.acks)


ClientMessage = CreditMessage | AliveMessage | AcknowledgeMessage


@dataclass(frozen=True, slots=True)
class ShareAnswer:
    """Server's response to an acknowledgement, sent when it is durable."""

    request: int
    results: Sequence[dict[str, Any]]
    """Results as in `share-acknowledge`."""


@dataclass(frozen=True, slots=True)
class ShareEnd:
    """Server's last message; the messages held by the stream are released."""

    code: str | None
    """Code of the error; None for an orderly stop of the server."""
    message: str


def parse_share_command(raw: bytes) -> ShareCommand:
    """Parse a descriptor's command.

    Raises:
        InvalidArgument: The message names the key and the problem.
    """
    return ShareCommand.parse(raw, InvalidArgument, "descriptor")


def parse_client_message(raw: bytes) -> ClientMessage:
    """Parse a message of a client.

    Raises:
        InvalidArgument: The message names the key and the problem.
    """
    found = load_object(raw, InvalidArgument, "message")
    model = AliveMessage if "alive" in found else CreditMessage
    if "request" in found or "acks" in found:
        model = AcknowledgeMessage
    return model.parse_object(found, raw, InvalidArgument, "message")


def stream_schema(schema: pa.Schema, config: ShareConfig) -> pa.Schema:
    """Return the schema that a stream begins with; its metadata has the group's lock and limit."""
    found = {_LOCK_KEY: str(config.lock_duration_ms), _LIMIT_KEY: str(config.delivery_limit)}
    return schema.with_metadata(found)


def lock_seconds_of(schema: pa.Schema) -> float | None:
    """Return the lock duration in a stream's schema; None if the server lacks `ALIVE`."""
    told = (schema.metadata or {}).get(_LOCK_KEY)
    return None if told is None else int(told) / 1_000


def delivery_limit_of(schema: pa.Schema) -> int | None:
    """Return the delivery limit in a stream's schema; None from a server that sends none."""
    told = (schema.metadata or {}).get(_LIMIT_KEY)
    return None if told is None else int(told)


def credit_metadata(credit: int) -> bytes:
    """Return the client's message that sets the credit."""
    return b'{"credit": %d}' % credit


def acknowledge_metadata(request: int, entries: Sequence[AcknowledgementEntry]) -> bytes:
    """Return the client's message that acknowledges messages.

    Raises:
        InvalidArgument: A text is not valid Unicode.
    """
    if all(
        entry.delay_ms is None and entry.reason is None and entry.counts is None
        for entry in entries
    ):
        # Formatted by hand for speed, as there may be an acknowledgement for each message.
        acks = ", ".join(
            f'{{{_partition(entry)}"first": {entry.first}, "last": {entry.last}, '
            f'"lease": {quoted(entry.lease)}, "type": "{entry.type}"}}'
            for entry in entries
        )
        return f'{{"request": {request}, "acks": [{acks}]}}'.encode()
    found = [entry.model_dump(mode="json", exclude_none=True) for entry in entries]
    return dump({"request": request, "acks": found})


def answer_metadata(
    request: int, entries: Sequence[AcknowledgementEntry], errors: Sequence[WingsError | None]
) -> bytes:
    """Return the app_metadata of the response to an acknowledgement."""
    if not any(errors):
        # Formatted by hand for speed: a worker that takes one message at a time gets one for each.
        results = ", ".join(
            f'{{"partition": {_json(entry.partition)}, "first": {entry.first}, '
            f'"last": {entry.last}, "code": null}}'
            for entry in entries
        )
        return f'{{"request": {request}, "results": [{results}]}}'.encode()
    return dump({"request": request, **describe_results(entries, errors)})


def _partition(entry: AcknowledgementEntry) -> str:
    return "" if entry.partition is None else f'"partition": {_json(entry.partition)}, '


def _json(value: JsonValue) -> str:
    return "null" if value is None else dump(value).decode()


def end_metadata(end: ShareEnd) -> bytes:
    """Return the app_metadata of the server's last message."""
    said = {"end": end.code, "message": shortened(end.message)}
    return json.dumps(said, ensure_ascii=False).encode("utf-8", "replace")


def parse_server_message(raw: "bytes | pa.Buffer") -> AcquiredChunk | ShareAnswer | ShareEnd:
    """Parse the app_metadata of a batch."""
    found = json.loads(to_bytes(raw))
    if "request" in found:
        return ShareAnswer(found["request"], found["results"])
    if "end" in found:
        return ShareEnd(found["end"], found["message"])
    return parse_acquired(found)
