"""Share groups on the wire: actions, acquired chunks, and the messages of the share stream."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from json.encoder import encode_basestring_ascii as quoted
from typing import Annotated, Any, Literal, NamedTuple, Self

import pyarrow as pa
from pydantic import Field, JsonValue, WrapValidator, model_validator

from wings_core.contracts.actions import ActionBody
from wings_core.contracts.chunks import EndReason
from wings_core.contracts.messages import (
    INT64_MAX,
    Identifier,
    MemberName,
    Message,
    OffsetNumber,
    dump,
    load_object,
    problem_of,
    shortened,
    to_bytes,
)
from wings_core.contracts.reads import Offset
from wings_core.errors import InvalidArgument, WingsError
from wings_core.model import (
    HeldRange,
    LeasedRange,
    Oldest,
    ShareConfig,
    ShareGroup,
    SharePartitionState,
)
from wings_core.partitions import JsonScalar, Partition, partition_value
from wings_core.times import format_timestamp

ACKNOWLEDGEMENTS_MAX = 10_000
"""Most entries of one `share-acknowledge`."""

DELAY_MS_MAX = 12 * 3_600_000
"""Greatest `delay_ms` of a release."""

REASON_CHARACTERS_MAX = 4_096
"""Longest `reason` of a reject or release."""

VALUES_MAX = 1_024
"""Most partition values whose JSON is cached."""

HOLDS_MAX = 1_000
"""Most held ranges that `share-members` lists individually."""

REDRIVE_MESSAGES_MAX = 10_000
"""Most dead letters that one `share-redrive` examines."""


class GroupBody(ActionBody):
    """The body of `share-describe` and `share-delete`."""

    group: Identifier
    topic: str


class CreateGroup(GroupBody):
    """The body of `share-create`."""

    config: ShareConfig = ShareConfig.model_construct()
    if_not_exists: bool = False


class AlterGroup(GroupBody):
    """The body of `share-alter`; keys absent from `config` do not change."""

    config: ShareConfig

    def to_bytes(self) -> bytes:
        """Return the message as JSON, with the keys that are set, including to their defaults."""
        return dump(self.model_dump(mode="json", by_alias=True, exclude_unset=True))

    @model_validator(mode="after")
    def _check_start(self) -> Self:
        if "start" in self.config.model_fields_set:
            raise problem_of(
                "key 'config': 'start' does not apply to an existing group; "
                "use share-seek to move it"
            )
        return self


class PartitionsOfGroup(GroupBody):
    """The body of `share-purge`."""

    partition: JsonValue = None
    """Partition value; all partitions if absent."""


def _from_end(value: object, handler: Callable[[object], object]) -> object:
    is_from_end = type(value) is int and -INT64_MAX <= value < 0
    return value if is_from_end else handler(value)


class SeekGroup(PartitionsOfGroup):
    """The body of `share-seek`."""

    to: Annotated[Offset, WrapValidator(_from_end)]
    """New position of the group; an offset needs a partition, -100 is before the last hundred."""


class ListGroups(ActionBody):
    """The body of `share-list`."""

    topic: str | None = None
    """Name of the topic; None for all topics of a namespace."""
    namespace: str | None = None
    """Full name of the namespace; None if absent."""

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if self.topic is not None and self.namespace is not None:
            raise problem_of("keys 'topic' and 'namespace' exclude each other")
        return self


class AcknowledgementEntry(Message):
    """A member's acknowledgement of messages `[first, last]` of a partition."""

    partition: JsonValue = None
    first: OffsetNumber
    last: OffsetNumber
    """Last offset, inclusive."""
    lease: Identifier
    type: Literal["accept", "release", "reject", "renew"]
    delay_ms: Annotated[int, Field(ge=0, le=DELAY_MS_MAX)] | None = None
    """Milliseconds until released messages are available again."""
    reason: Annotated[str, Field(max_length=REASON_CHARACTERS_MAX)] | None = None
    """Text for the dead letter, if there is one; for rejects and releases."""

    counts: bool | None = None
    """Whether the delivery of released messages counts; false if they were not processed."""

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if self.counts is not None and self.type != "release":
            raise problem_of(f"key 'counts' is not for type {self.type!r}")
        if self.last < self.first:
            raise problem_of(f"key 'last': must be at least first ({self.first}); got {self.last}")
        if self.delay_ms is not None and self.type != "release":
            raise problem_of(f"key 'delay_ms' is not for type {self.type!r}")
        if self.reason is not None and self.type not in {"reject", "release"}:
            raise problem_of(f"key 'reason' is not for type {self.type!r}")
        return self


class Acknowledge(GroupBody):
    """The body of `share-acknowledge`."""

    member: MemberName
    acks: Annotated[
        tuple[AcknowledgementEntry, ...], Field(strict=False, max_length=ACKNOWLEDGEMENTS_MAX)
    ]


class Redrive(ActionBody):
    """The body of `share-redrive`."""

    dlq_topic: str
    """Topic of dead letters."""
    filter: str | None = None
    """SQL predicate over its columns."""
    offset: OffsetNumber = 0
    """First offset to examine."""
    max_messages: Annotated[int, Field(ge=1, le=REDRIVE_MESSAGES_MAX)] = REDRIVE_MESSAGES_MAX
    """Most dead letters to examine, whether or not they match the filter."""
    to: str | None = None
    """Topic to send them to, with the same columns; None for the topics they came from."""


def describe_group(
    group: ShareGroup, states: Iterable[SharePartitionState] | None = None
) -> dict[str, Any]:
    """Return a group's description; without `states`, the short form of lists."""
    described: dict[str, Any] = {
        "group": group.name,
        "topic": str(group.topic.name),
        "config": group.config.model_dump(mode="json"),
    }
    if states is not None:
        described["partitions"] = [
            {
                "partition": partition_value(state.partition),
                "start_offset": state.start_offset,
                "in_flight": state.in_flight,
                "lag": state.lag,
            }
            for state in states
        ]
    return described


def describe_members(
    group: ShareGroup,
    states: Sequence[SharePartitionState],
    held: Mapping[Partition, Sequence[HeldRange]],
    oldest: Oldest | None,
    now_us: int,
) -> dict[str, Any]:
    """Return the response to `share-members`; the longest held ranges come first.

    Args:
        group: The group.
        states: Its state in each partition.
        held: Ranges held by its members.
        oldest: Its oldest unfinished message.
        now_us: Current time in microseconds since the epoch.
    """
    holds = sorted(
        ((partition, each) for partition, found in held.items() for each in found),
        key=lambda pair: (-pair[1].held_ms, pair[0], pair[1].first),
    )
    members: dict[str, dict[str, Any]] = {}
    for _, each in holds:
        since = format_timestamp(now_us - each.held_ms * 1_000)
        member = members.setdefault(
            each.member, {"member": each.member, "messages": 0, "since": since}
        )
        member["messages"] += each.last - each.first + 1
    return {
        "group": group.name,
        "topic": str(group.topic.name),
        "lag": sum(state.lag for state in states),
        "in_flight": sum(state.in_flight for state in states),
        "oldest": None
        if oldest is None
        else {
            "partition": partition_value(oldest.partition),
            "offset": oldest.offset,
            "timestamp": format_timestamp(oldest.timestamp),
            "age_ms": max(0, (now_us - oldest.timestamp) // 1_000),
        },
        "members": list(members.values()),
        "holds": [
            {
                "partition": partition_value(partition),
                "first": each.first,
                "last": each.last,
                "member": each.member,
                "delivery_count": each.count,
                "since": format_timestamp(now_us - each.held_ms * 1_000),
                "until": format_timestamp(now_us + each.left_ms * 1_000),
            }
            for partition, each in holds[:HOLDS_MAX]
        ],
        "holds_left_out": max(0, len(holds) - HOLDS_MAX),
    }


def describe_results(
    entries: Sequence[AcknowledgementEntry], errors: Sequence[WingsError | None]
) -> dict[str, Any]:
    """Return the response to `share-acknowledge`, in the order of entries; None is success."""
    answers: list[dict[str, Any]] = []
    for entry, error in zip(entries, errors, strict=True):
        answer: dict[str, Any] = {
            "partition": entry.partition,
            "first": entry.first,
            "last": entry.last,
            "code": None,
        }
        if error is not None:
            answer |= {"code": error.code, "message": error.message}
        answers.append(answer)
    return {"results": answers}


@dataclass(frozen=True, slots=True)
class AcquiredChunk:
    """The app_metadata of a chunk of leased messages `[start_offset, end_offset]`.

    Messages deleted by retention are in the range, but not in the chunk.
    """

    partition: JsonScalar
    start_offset: int
    end_offset: int
    lease: str
    delivery_count: int
    lock_duration_ms: int
    in_order: bool = False
    """Whether no other lease of the partition is granted meanwhile."""
    traces: Sequence[Mapping[str, str]] = ()
    """W3C trace headers (`traceparent` and others) of the spans that pushed its messages, if the
    node knows them."""


@dataclass(frozen=True, slots=True)
class AcquireEnd:
    """The app_metadata of the last, empty chunk of an acquire."""

    end: EndReason
    """Reason: `max_messages` for as many messages as requested, `min_messages` for fewer,
    `deadline` for none."""
    next_offset: int | None
    """Offset after the last message delivered, in an acquire from one partition; not the group's
    position, which depends on leases."""
    log_end_offset: int | None
    """Next offset to be assigned, in an acquire from one partition."""


def acquired_metadata(found: LeasedRange, traces: Sequence[Mapping[str, str]] = ()) -> bytes:
    """Return the app_metadata of a chunk that covers a leased range.

    Args:
        found: The range.
        traces: See `AcquiredChunk.traces`.
    """
    return AcquiredWords.of(found).metadata(found.start_offset, found.end_offset, traces)


class AcquiredWords(NamedTuple):
    """The parts of the app_metadata that the chunks of a leased range share.

    Formatted by hand for speed, as there may be a chunk for each message.
    """

    before: str
    after: str

    @classmethod
    def of(cls, found: LeasedRange) -> Self:
        """Return the parts for a range."""
        return cls(
            f'{{"partition": {_value_words(found.partition)}, "start_offset": ',
            f', "lease": {quoted(found.lease)}, "delivery_count": {found.delivery_count}, '
            f'"lock_duration_ms": {found.lock_duration_ms}'
            + (', "ordering": "partition"' if found.in_order else ""),
        )

    def metadata(self, first: int, last: int, traces: Sequence[Mapping[str, str]]) -> bytes:
        """Return the app_metadata of the chunk of messages `[first, last]`."""
        end = f', "traces": {json.dumps(traces)}}}' if traces else "}"
        return f'{self.before}{first}, "end_offset": {last}{self.after}{end}'.encode()


@lru_cache(VALUES_MAX)
def _value_words(partition: Partition) -> str:
    """Return the JSON of a partition's value."""
    return _json(partition_value(partition))


def acquire_end_metadata(end: AcquireEnd) -> bytes:
    """Return the app_metadata of the last chunk."""
    return json.dumps(
        {
            "end": end.end.value,
            "next_offset": end.next_offset,
            "log_end_offset": end.log_end_offset,
        }
    ).encode()


def parse_acquired_metadata(raw: "bytes | pa.Buffer") -> AcquiredChunk | AcquireEnd:
    """Parse the app_metadata of a chunk of an acquire."""
    found = json.loads(to_bytes(raw))
    if "end" in found:
        return AcquireEnd(EndReason(found["end"]), found["next_offset"], found["log_end_offset"])
    return _parse_acquired(found)


def _parse_acquired(found: Mapping[str, Any]) -> AcquiredChunk:
    """Convert the parsed app_metadata of a chunk of leased messages."""
    return AcquiredChunk(
        partition=found["partition"],
        start_offset=found["start_offset"],
        end_offset=found["end_offset"],
        lease=found["lease"],
        delivery_count=found["delivery_count"],
        lock_duration_ms=found["lock_duration_ms"],
        in_order=found.get("ordering") == "partition",
        traces=tuple(found.get("traces", ())),
    )


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
    """Partition value; messages of any partition if absent."""


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
    return _parse_acquired(found)
