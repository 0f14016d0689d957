"""Share groups: configuration, state, leases and held ranges."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    ValidationError,
    WrapValidator,
)

from wings_core.contracts.messages import in_one_sentence, problem_of, sentence, shortened
from wings_core.contracts.reads import TimestampOffset
from wings_core.errors import InvalidArgument, WingsError
from wings_core.model.topics import Config, Topic
from wings_core.names import TopicName
from wings_core.partitions import Partition
from wings_core.times import format_timestamp

AcquireMode = Literal["record_limit", "batch_optimized"]
Ordering = Literal["none", "partition"]

_MEMBER_TAG_BYTES = 6
_MEMBER_TAGS_MAX = 1_024
"""Most cached tags: each lease and each acknowledgement needs one."""


def _start(value: object, handler: Callable[[object], object]) -> object:
    """Validate a start; times are converted to UTC."""
    if isinstance(value, dict):
        moment = TimestampOffset.model_validate(value).timestamp_us
        return TimestampOffset(timestamp=format_timestamp(moment))
    return in_one_sentence(value, handler, '"earliest", "latest" or {"timestamp": a time}')


def _full_name(text: str) -> str:
    """Return a topic's full name."""
    try:
        return str(TopicName.parse(text))
    except WingsError as error:
        raise problem_of(error.message) from None


Start = Annotated[Literal["latest", "earliest"] | TimestampOffset, WrapValidator(_start)]
"""Start of a group: an end of the log, or the first message at or after a time."""


class ShareConfig(Config):
    """A group's configuration, set at creation and later; changes apply from the next step on."""

    lock_duration_ms: int = Field(
        default=30_000,
        ge=1_000,
        le=12 * 3_600_000,
        description="How long a worker holds delivered messages; `renew` starts it again.",
    )
    delivery_limit: int = Field(
        default=5,
        ge=1,
        le=100,
        description="Deliveries of a message before it becomes a dead letter.",
    )
    in_flight_max: int = Field(
        default=2_000, ge=1, le=1_000_000, description="Most messages held of one partition."
    )
    start: Start = Field(
        default="latest",
        description="Where the group starts in partitions that exist when it is created; it starts "
        "at 0 in later ones. Changing it later has no effect.",
    )
    dlq_topic: Annotated[str, AfterValidator(_full_name)] | None = Field(
        default=None,
        description="Topic for dead letters; a bare id is one of the default namespace. Null: dead "
        "letters are dropped.",
    )
    dlq_copy_payload: bool = Field(
        default=True, description="Whether a dead letter carries the row itself."
    )
    acquire_mode: AcquireMode = Field(
        default="record_limit",
        description="`record_limit`: never more messages than requested. `batch_optimized`: whole "
        "batches as pushed, the last of which may exceed the requested number.",
    )
    ordering: Ordering = Field(
        default="none",
        description="`none`: messages of a partition are processed concurrently. `partition`: one "
        "lease of a partition at a time, in order of offset, so that a delayed or failing message "
        "blocks only its partition.",
    )

    deliver_at_column: str | None = Field(
        default=None,
        min_length=1,
        description="Timestamp column with the earliest delivery time of each message, in UTC if "
        "the column has no zone. Null: at once.",
    )

    @property
    def is_ordered(self) -> bool:
        """Whether each partition has one lease at a time, in order of offset."""
        return self.ordering == "partition"

    @property
    def window(self) -> int:
        """Messages in flight of a partition above which no more are leased."""
        return 1 if self.is_ordered else self.in_flight_max

    @property
    def dlq(self) -> TopicName | None:
        """Name of the topic for dead letters."""
        return None if self.dlq_topic is None else TopicName.parse(self.dlq_topic)

    def changed_by(self, changes: "ShareConfig") -> Self:
        """Return the configuration with the keys that are set in `changes` replaced."""
        given = {key: getattr(changes, key) for key in changes.model_fields_set}
        return self.model_copy(update=given)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse a stored configuration; unknown keys are ignored.

        Raises:
            InvalidArgument: The text is not a configuration.
        """
        try:
            return super().from_json(text)
        except ValidationError as problem:
            raise InvalidArgument(shortened(f"config: {sentence(problem)}")) from None


@dataclass(frozen=True, slots=True)
class ShareGroup:
    """A group of workers that share one topic; its UUID is unique."""

    name: str
    uuid: str
    topic: Topic
    config: ShareConfig


@dataclass(frozen=True, slots=True)
class SharePartitionState:
    """The progress of a group in one partition."""

    partition: Partition
    start_offset: int
    """Offset before which all messages are finished."""
    in_flight: int
    """Messages currently held by members."""
    lag: int
    """Unfinished messages, held ones included."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to acknowledge the messages leased with it, until it expires or is taken over.

    Attributes:
        coordinator: Unique id of one run of the coordinator that granted it.
        number: Increasing number within the coordinator.
        member_tag: Hash of the member's name, by which any node checks that an acknowledgement
            comes from the member.
    """

    coordinator: str
    number: int
    member_tag: str

    def __str__(self) -> str:
        """Return its text on the wire."""
        return f"{self.coordinator}.{self.number}.{self.member_tag}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text of a lease.

        Raises:
            InvalidArgument: The text is no lease.
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
    """Return the tag of a member in its leases."""
    return hashlib.blake2b(member.encode("utf-8"), digest_size=_MEMBER_TAG_BYTES).hexdigest()


@dataclass(frozen=True, slots=True)
class LeasedRange:
    """Messages `[start_offset, end_offset]` of a partition, leased to a member."""

    partition: Partition
    start_offset: int
    end_offset: int
    lease: str
    delivery_count: int
    """Number of deliveries, this one included; 1 for the first."""
    lock_duration_ms: int
    """Lock duration from the coordinator's request on; a little of it has passed on arrival."""
    in_order: bool = False
    """Whether no other lease of the partition is granted meanwhile."""

    @property
    def messages(self) -> int:
        """Number of messages."""
        return self.end_offset - self.start_offset + 1


@dataclass(frozen=True, slots=True)
class HeldRange:
    """A range that a member holds."""

    first: int
    last: int
    lease: Lease
    member: str
    """Name of the member; empty if the coordinator does not report it."""
    count: int
    """Number of deliveries, this one included."""
    held_ms: int
    """Milliseconds since it was leased."""
    left_ms: int
    """Milliseconds until its lock expires."""


@dataclass(frozen=True, slots=True)
class Oldest:
    """The oldest unfinished message of a group."""

    partition: Partition
    offset: int
    timestamp: int
    """Timestamp in microseconds since the epoch; that of the page's first row if they differ."""
