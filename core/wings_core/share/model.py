"""The nouns of share groups: groups, ranges, leases, acknowledgements, dead letters.

Ranges of offsets are inclusive at both ends, `[first, last]`, as in all results. Times named
`_seconds` or `at` are on a monotonic clock, never on the wall's.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple, Self

import pyarrow as pa
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from wings_core.contracts.messages import problem_of, sentence, shortened, shown
from wings_core.contracts.offsets import TimestampOffset
from wings_core.errors import InvalidArgument, WingsError
from wings_core.model import Topic
from wings_core.names import TopicName
from wings_core.partitions import Partition
from wings_core.times import format_timestamp

AcquireMode = Literal["record_limit", "batch_optimized"]
Ordering = Literal["none", "partition"]
AcknowledgeType = Literal["accept", "release", "reject", "renew"]

ROWS_MAX = 100_000
"""The most messages that one acquire leases, whole batches among them."""

_MEMBER_TAG_BYTES = 6
_MEMBER_TAGS_MAX = 1_024
"""Tags that are remembered: one is asked for at each lease, and at each acknowledgement."""


def _start(value: object, handler: ValidatorFunctionWrapHandler) -> object:
    """Say in one sentence what is wrong, where pydantic would tell of each alternative.

    A time is kept in the form of all that is told, whatever its zone was.
    """
    if isinstance(value, dict):
        moment = TimestampOffset.model_validate(value).timestamp_us
        return TimestampOffset(timestamp=format_timestamp(moment))
    try:
        return handler(value)
    except ValidationError:
        raise problem_of(
            f'must be "earliest", "latest" or {{"timestamp": a time}}; got {shown(value)}'
        ) from None


def _full_name(text: str) -> str:
    """Return a topic's full name."""
    try:
        return str(TopicName.parse(text))
    except WingsError as error:
        raise problem_of(error.message) from None


Start = Annotated[Literal["latest", "earliest"] | TimestampOffset, WrapValidator(_start)]
"""Where a group begins: an end of the log, or the first message at or after a time."""


class ShareConfig(BaseModel):
    """What a group's owner may set, at creation and later; changes hold from the next step on."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    lock_duration_ms: int = Field(
        default=30_000,
        ge=1_000,
        le=12 * 3_600_000,
        description="How long a worker holds what it was given, and what `renew` begins anew.",
    )
    delivery_limit: int = Field(
        default=5,
        ge=1,
        le=100,
        description="How often a message is delivered before it becomes a dead letter.",
    )
    in_flight_max: int = Field(
        default=2_000, ge=1, le=1_000_000, description="Most messages held of one partition."
    )
    start: Start = Field(
        default="latest",
        description="Where the group begins in partitions that are there when it is created; it "
        "begins at 0 in those born later. A change later has no effect.",
    )
    dlq_topic: Annotated[str, AfterValidator(_full_name)] | None = Field(
        default=None,
        description="The topic of its dead letters, a bare id in the default namespace; null: they "
        "are dropped.",
    )
    dlq_copy_payload: bool = Field(
        default=True, description="Whether a dead letter carries the row itself."
    )
    acquire_mode: AcquireMode = Field(
        default="record_limit",
        description="`record_limit`: never more messages than asked for. `batch_optimized`: whole "
        "batches as they were pushed, the last of which may exceed what was asked for.",
    )
    ordering: Ordering = Field(
        default="none",
        description="`none`: messages of a partition are worked on side by side. `partition`: one "
        "lease of a partition at a time, in order of offset, so that a message that is delayed or "
        "fails holds back its partition alone.",
    )

    deliver_at_column: str | None = Field(
        default=None,
        min_length=1,
        description="A timestamp column of the topic: a message is not delivered before that time, "
        "which is UTC where the column has no zone; null: at once.",
    )

    @property
    def is_ordered(self) -> bool:
        """Whether a partition has one lease at a time, in order of offset."""
        return self.ordering == "partition"

    @property
    def window(self) -> int:
        """So many messages in flight let no other of the partition be leased."""
        return 1 if self.is_ordered else self.in_flight_max

    @property
    def dlq(self) -> TopicName | None:
        """The name of the topic of dead letters."""
        return None if self.dlq_topic is None else TopicName.parse(self.dlq_topic)

    def changed_by(self, changes: "ShareConfig") -> Self:
        """Return the configuration with those keys replaced that were given in `changes`."""
        given = {key: getattr(changes, key) for key in changes.model_fields_set}
        return self.model_copy(update=given)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return what was stored as JSON; keys that this version does not know are ignored.

        Raises:
            InvalidArgument: It is no configuration.
        """
        try:
            return cls.model_validate_json(text, extra="ignore")
        except ValidationError as problem:
            raise InvalidArgument(shortened(f"config: {sentence(problem)}")) from None


@dataclass(frozen=True, slots=True)
class ShareGroup:
    """A group of workers that share one topic. Its UUID tells it from one of the same name."""

    name: str
    uuid: str
    topic: Topic
    config: ShareConfig


@dataclass(frozen=True, slots=True)
class ShareKey:
    """One partition as one group sees it, which is what replicas keep their state by."""

    group_uuid: str
    topic_uuid: str
    partition: Partition


class OffsetRange(NamedTuple):
    """The offsets `[first, last]`, at least one."""

    first: int
    last: int

    @property
    def messages(self) -> int:
        """How many offsets it has."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to acknowledge what was leased with it, until it expires or is taken over.

    Attributes:
        coordinator: Of whom handed it out; unique for each start of a coordinator.
        number: Counts up within the coordinator.
        member_tag: Stands for the member that it was handed to, so that any node can tell whether
            an acknowledgement is that member's.
    """

    coordinator: str
    number: int
    member_tag: str

    def __str__(self) -> str:
        """Return the text that goes over the wire."""
        return f"{self.coordinator}.{self.number}.{self.member_tag}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text of a lease.

        Raises:
            InvalidArgument: It never was a lease.
        """
        match text.split("."):
            case [coordinator, number, tag] if coordinator.isprintable() and number.isascii():
                if coordinator and number.isdigit() and len(number) <= len(str(1 << 63)):
                    return cls(coordinator, int(number), tag)
            case _:
                pass
        raise InvalidArgument(f"{text[:80]!r} is not a lease")


@lru_cache(_MEMBER_TAGS_MAX)
def member_tag(member: str) -> str:
    """Return what stands for a member in its leases."""
    return hashlib.blake2b(member.encode("utf-8"), digest_size=_MEMBER_TAG_BYTES).hexdigest()


@dataclass(frozen=True, slots=True)
class LeasedRange:
    """Messages `[start_offset, end_offset]` of a partition, handed to a member for a while."""

    partition: Partition
    start_offset: int
    end_offset: int
    lease: str
    delivery_count: int
    """Of deliveries, this one included: 1 at the first."""
    lock_duration_ms: int
    """From when the coordinator asked for them; a little of it is over when they arrive."""
    in_order: bool = False
    """Whether no other lease of the partition is given meanwhile."""

    @property
    def messages(self) -> int:
        """How many messages it has."""
        return self.end_offset - self.start_offset + 1


ReadTimes = Callable[[Topic, Partition, str, int, int], "pa.Int64Array"]
"""Returns the times of messages `[first, last]` by a column; see `delivery.times.LogTimes`."""


@dataclass(frozen=True, slots=True)
class AcquireRequest:
    """What a member asks of a group: some of the messages of any partition, or of one."""

    group: ShareGroup
    """With its configuration as it is now."""
    member: str
    """Its leases are good for it alone."""
    partition: Partition | None
    """None for any."""
    messages_max: int
    """At least 1. Never more in mode `record_limit`; in mode `batch_optimized` the last range goes
    on to the end of its batch."""
    rows_max: int = ROWS_MAX
    """At least 1. Never more in either mode."""
    archives: bool = True
    """Whether messages at the delivery limit are archived where there are no others, which may take
    long."""
    range_max: int = ROWS_MAX
    """At least 1. In a group that is ordered, no more of one partition, in either mode."""
    times: "ReadTimes | None" = None
    """Reads from when on messages are delivered, of a group that has a column for it; blocks for
    the reads. None: those whose time is not known yet are left for another request."""


@dataclass(frozen=True, slots=True)
class Acquired:
    """What `ShareCoordinator.acquire_now` found."""

    ranges: tuple[LeasedRange, ...]


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """What a member says of messages `[first, last]` that it holds."""

    partition: Partition
    first: int
    last: int
    lease: str
    type: AcknowledgeType
    delay_ms: int = 0
    """Of a release: how long they are not leased again."""
    reason: str | None = None
    """Of a reject, or of a release at the delivery limit: the error's text for the dead letter."""
    counts: bool = True
    """Of a release: whether this delivery counts; it does not where nothing was done with it."""


@dataclass(frozen=True, slots=True)
class AcknowledgementResult:
    """The outcome of one acknowledgement; `error` is None where it succeeded."""

    acknowledgement: Acknowledgement
    error: WingsError | None


@dataclass(frozen=True, slots=True)
class SharePartitionState:
    """Where a group stands in one partition."""

    partition: Partition
    start_offset: int
    """All messages before it are finished."""
    in_flight: int
    """Messages held now."""
    lag: int
    """Messages that are not finished, the held ones included."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Messages `[first, last]` of one partition that the group archives, for one reason."""

    topic: TopicName
    partition: Partition
    first: int
    last: int
    delivery_count: int
    """How often they were delivered."""
    cause: Literal["rejected", "delivery_limit"]
    reason: str | None
    """What the member that rejected or last released them said."""


def dead_letter_id(group_uuid: str, partition: Partition, offset: int) -> str:
    """Return the id of a message's dead letter: the same on every node and each time."""
    text = f"{group_uuid}\0{partition}\0{offset}"
    return hashlib.blake2b(text.encode("utf-8"), digest_size=16).hexdigest()
