"""The share stream on the wire: its descriptor, what a client sends, what the server answers."""

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

CREDIT_MAX = 10_000
"""The most messages that a stream holds at once."""

ALIVE = b'{"alive": true}'
"""A client's message, sent where it has sent nothing else for a third of a lock."""

_LOCK_KEY = b"lock_duration_ms"


class ShareCommand(Message):
    """The descriptor's command: which messages, for which member."""

    kind: Literal["share"]
    group: Identifier
    topic: str
    member: MemberName
    credit: Annotated[int, Field(ge=1, le=CREDIT_MAX)]
    """How many messages the stream holds at once, until the client sends another number."""
    max_messages: Annotated[int, Field(ge=1, le=CREDIT_MAX)] = CREDIT_MAX
    """The most of one delivery."""
    partition: JsonValue = None

    @property
    def any_partition(self) -> bool:
        """Whether no partition is named: messages of any are delivered."""
        return "partition" not in self.model_fields_set


class CreditMessage(Message):
    """A client's message that sets the credit anew; 0 pauses deliveries."""

    credit: Annotated[int, Field(ge=0, le=CREDIT_MAX)]


class AliveMessage(Message):
    """A client's message that says nothing else than that its process runs."""

    alive: Literal[True]


class AcknowledgeMessage(Message):
    """A client's message that acknowledges messages; as `share-acknowledge`.

    A release sets the credit to 0: nothing is delivered before the next `CreditMessage`.
    """

    request: Annotated[int, Field(ge=1)]
    """Counts up from 1 over the stream."""
    acks: Annotated[
        tuple[AcknowledgementEntry, ...], Field(strict=False, max_length=ACKNOWLEDGEMENTS_MAX)
    ]

    @property
    def releases(self) -> bool:
        """Whether it releases something."""
        return any(entry.type == "release" for entry in self.acks)


ClientMessage = CreditMessage | AliveMessage | AcknowledgeMessage


@dataclass(frozen=True, slots=True)
class ShareAnswer:
    """A server's answer to an acknowledgement, once that is durable."""

    request: int
    results: Sequence[dict[str, Any]]
    """As of `share-acknowledge`."""


@dataclass(frozen=True, slots=True)
class ShareEnd:
    """The server's last message: nothing follows, and what the stream held is released."""

    code: str | None
    """The error's; None where the server stops in order."""
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


def stream_schema(schema: pa.Schema, lock_duration_ms: int) -> pa.Schema:
    """Return the schema that a stream begins with, which tells the group's lock in its metadata."""
    return schema.with_metadata({_LOCK_KEY: str(lock_duration_ms)})


def lock_seconds_of(schema: pa.Schema) -> float | None:
    """Return the lock that the schema of a stream tells; None: the server knows no `ALIVE`."""
    told = (schema.metadata or {}).get(_LOCK_KEY)
    return None if told is None else int(told) / 1_000


def credit_metadata(credit: int) -> bytes:
    """Return a client's message that sets the credit."""
    return b'{"credit": %d}' % credit


def acknowledge_metadata(request: int, entries: Sequence[AcknowledgementEntry]) -> bytes:
    """Return a client's message that acknowledges messages.

    Raises:
        InvalidArgument: A text in it is not valid Unicode.
    """
    if all(
        entry.delay_ms is None and entry.reason is None and entry.counts is None
        for entry in entries
    ):
        # One a message in the worst case, so it is formatted.
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
    """Return the app_metadata of the answer to an acknowledgement."""
    if not any(errors):
        # Of each message a worker that takes one at a time gets such an answer.
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
    """Read the app_metadata of a batch, as a server wrote it."""
    found = json.loads(to_bytes(raw))
    if "request" in found:
        return ShareAnswer(found["request"], found["results"])
    if "end" in found:
        return ShareEnd(found["end"], found["message"])
    return parse_acquired(found)
