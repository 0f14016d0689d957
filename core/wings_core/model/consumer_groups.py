"""Members of consumer groups, as metadata keeps them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from pydantic import TypeAdapter, ValidationError

from wings_core.errors import InvalidArgument

Assignment = Mapping[str, int]
"""Slots by topic UUID, each a bit mask; topics without a slot are left out."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a consumer group."""

    member: str
    """The id that the member chose, unique in its group."""
    epoch: int
    """Epoch of the member's assignment; each change of that has a greater one."""
    previous_epoch: int | None = None
    """The epoch before, whose answer the member may still act on; None: it has just joined."""
    topics: frozenset[str] = frozenset()
    """UUIDs of the topics that it subscribes to."""
    instance: str | None = None
    """A name that survives restarts of the member."""
    session_ms: int = 45_000
    target: Assignment = field(default_factory=dict)
    """Slots that it should read once the group has settled."""
    assigned: Assignment = field(default_factory=dict)
    """Slots that it was told to read."""
    held: Assignment = field(default_factory=dict)
    """`assigned`, and what it was told to give up and has not said that it did."""

    def may_commit(self, epoch: int, topic: str, slot: int) -> bool:
        """Tell whether the member may commit for a slot of a topic, given by its UUID.

        Args:
            epoch: The epoch that the member states.
            topic: The topic's UUID.
            slot: The slot's number.
        """
        is_current = slot >= 0 and epoch in (self.epoch, self.previous_epoch)
        return is_current and bool(self.held.get(topic, 0) >> slot & 1)

    def to_json(self) -> str:
        """Return the member as JSON, the inverse of `from_json`."""
        return _member_adapter().dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> "GroupMember":
        """Parse a member that `to_json` wrote.

        Raises:
            InvalidArgument: The text is none.
        """
        try:
            return _member_adapter().validate_json(text)
        except ValidationError:
            raise InvalidArgument(f"{text[:80]!r} is no member of a consumer group") from None


@cache
def _member_adapter() -> TypeAdapter[GroupMember]:
    """Return the adapter, which clients never need."""
    return TypeAdapter(GroupMember)


@dataclass(frozen=True, slots=True)
class MemberEpoch:
    """Member and epoch that a commit states."""

    member: str
    """Empty: the epoch is the generation of a group whose members assign for themselves."""
    epoch: int


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A consumer group as metadata has it."""

    epoch: int = 0
    """The highest epoch that was given out."""
    members: tuple[GroupMember, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupChange:
    """Durable changes of a step, to be stored in one transaction before any answer."""

    epoch: int
    """The highest epoch that was given out."""
    changed: tuple[GroupMember, ...]
    """Members as they are now."""
    removed: tuple[str, ...]
    """Members that are gone, by id."""
