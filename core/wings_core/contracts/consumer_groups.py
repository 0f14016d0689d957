"""Consumer groups on the wire: bodies and responses of actions."""

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    JsonValue,
    TypeAdapter,
    WrapValidator,
    model_validator,
)

from wings_core.contracts.actions import OFFSETS_MAX, ActionBody, Part
from wings_core.contracts.messages import Identifier, Message, OffsetNumber, problem_of
from wings_core.contracts.reads import SlotNumbers, TimestampOffset, check_partitions_distinct
from wings_core.model import GroupMember
from wings_core.partitions import Partition, partition_value, slots_in

TOPICS_MAX = 1_000
"""Most topics of a member."""

SESSION_MS = 45_000
SESSION_MS_MIN, SESSION_MS_MAX = 6_000, 600_000

DESCRIBED_MAX = 1_000
"""Most partitions of one `group-describe`."""

LISTED_MAX = 1_000
"""Most groups of one `group-list`."""


def _distinct_topics(topics: tuple["TopicSlotNumbers", ...]) -> tuple["TopicSlotNumbers", ...]:
    if len({each.topic for each in topics}) < len(topics):
        raise problem_of("contains a topic twice")
    return topics


class TopicSlotNumbers(Message):
    """Slots of a topic."""

    topic: str
    slots: SlotNumbers


class GroupHeartbeat(ActionBody):
    """The body of `group-heartbeat`."""

    consumer: Identifier
    member: Identifier
    member_epoch: Annotated[int, Field(ge=-1)]
    """0 to join, -1 to leave, else the epoch last answered."""
    topics: Annotated[tuple[str, ...], Field(strict=False, min_length=1, max_length=TOPICS_MAX)] | (
        None
    ) = None
    """Topics that the member reads; None: as last said."""
    instance: Identifier | None = None
    """Name of the member that survives its restarts."""
    session_ms: Annotated[int, Field(ge=SESSION_MS_MIN, le=SESSION_MS_MAX)] = SESSION_MS
    """Milliseconds without a heartbeat after which the member leaves."""
    owned: (
        Annotated[
            tuple[TopicSlotNumbers, ...],
            Field(strict=False, max_length=TOPICS_MAX),
            AfterValidator(_distinct_topics),
        ]
        | None
    ) = None
    """Slots that the member holds; None: as last said."""

    @model_validator(mode="after")
    def _check_join(self) -> Self:
        if self.member_epoch == 0 and self.topics is None:
            raise problem_of("key 'topics' is required to join")
        return self


class DescribeGroup(ActionBody):
    """The body of `group-describe`."""

    consumer: Identifier
    after: str | None = None
    """The `next` of the page before; None for the first page."""


class ListConsumerGroups(ActionBody):
    """The body of `group-list`."""

    contains: Part = ""
    """Select groups whose name contains this."""
    after: str | None = None
    """Only groups whose name is greater; None for all."""
    limit: Annotated[int, Field(ge=1, le=LISTED_MAX)] = LISTED_MAX


class ResetEntry(Message):
    """The offset at which a group reads on in a partition."""

    partition: JsonValue = None
    offset: OffsetNumber


def _distinct_partitions(entries: tuple[ResetEntry, ...]) -> tuple[ResetEntry, ...]:
    check_partitions_distinct(each.partition for each in entries)
    return entries


_ENTRIES: TypeAdapter[tuple[ResetEntry, ...]] = TypeAdapter(
    Annotated[
        tuple[ResetEntry, ...],
        Field(strict=False, min_length=1, max_length=OFFSETS_MAX),
        AfterValidator(_distinct_partitions),
    ],
    config=ConfigDict(defer_build=True),
)


def _place(value: object, handler: Callable[[object], object]) -> object:
    """Validate a place, with the errors of the kind that it looks like alone."""
    if isinstance(value, dict):
        return TimestampOffset.model_validate(value)
    if isinstance(value, list | tuple):
        return _ENTRIES.validate_python(value)
    try:
        return handler(value)
    except ValueError:
        raise problem_of(
            'must be "earliest", "latest", {"timestamp": a time} or a list of offsets by partition'
        ) from None


class ResetGroup(ActionBody):
    """The body of `group-reset`."""

    consumer: Identifier
    topic: str
    to: Annotated[
        Literal["earliest", "latest"] | TimestampOffset | tuple[ResetEntry, ...],
        WrapValidator(_place),
    ]
    """Where the group reads on: in every partition of the topic, or in those of a list."""


def describe_heartbeat(
    epoch: int, heartbeat_ms: int, assignment: Mapping[str, int] | None
) -> dict[str, Any]:
    """Return the response to `group-heartbeat`.

    Args:
        epoch: The member's epoch.
        heartbeat_ms: When the next heartbeat is due.
        assignment: Slots by full topic name, as masks; None: as last said.
    """
    return {
        "member_epoch": epoch,
        "heartbeat_ms": heartbeat_ms,
        "assignment": None if assignment is None else describe_assignment(assignment),
    }


def describe_assignment(assignment: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return slots by full topic name, as masks, in their wire form."""
    return [{"topic": topic, "slots": slots_in(mask)} for topic, mask in sorted(assignment.items())]


def describe_member(member: GroupMember, names: Mapping[str, str]) -> dict[str, Any]:
    """Return a member in a group's description.

    Args:
        member: The member.
        names: Full names of topics by UUID; topics without one are left out.
    """
    assigned = {names[uuid]: mask for uuid, mask in member.assigned.items() if uuid in names}
    return {
        "member": member.member,
        "instance": member.instance,
        "member_epoch": member.epoch,
        "assignment": describe_assignment(assigned),
    }


def describe_committed(
    consumer: str, topic: str, offsets: Iterable[tuple[Partition, int]]
) -> dict[str, Any]:
    """Return the response to `group-reset`."""
    return {
        "consumer": consumer,
        "offsets": [
            {"topic": topic, "partition": partition_value(partition), "offset": offset}
            for partition, offset in offsets
        ],
    }
