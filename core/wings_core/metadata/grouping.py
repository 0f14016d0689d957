"""The rules of share groups, the same in every store."""

from wings_core.contracts.messages import shortened
from wings_core.errors import AlreadyExists, GroupNotFound, InvalidArgument, ResourceExhausted
from wings_core.metadata.interfaces import Groups
from wings_core.metadata.judge import check_id
from wings_core.model import ShareGroup, Topic

GROUPS_PER_TOPIC_MAX = 1_000
"""The most groups of one topic."""


def check_name(name: str) -> None:
    """Check the name of a group.

    Raises:
        InvalidArgument: It is empty, longer than 256 bytes or not text; see `check_id`.
    """
    if not name:
        raise InvalidArgument("the group's name must not be empty")
    check_id("the group's name", name)


def check_room(topic: Topic, groups: int) -> None:
    """Check that a topic with so many groups may have another.

    Raises:
        ResourceExhausted: It has `GROUPS_PER_TOPIC_MAX`.
    """
    if groups >= GROUPS_PER_TOPIC_MAX:
        raise ResourceExhausted(f"{topic.name} has {groups} groups, which is the most it may have")


def existing_group(group: ShareGroup, uuid: str | None, *, if_not_exists: bool) -> ShareGroup:
    """Return an existing group of the name to be created, where the request allows it.

    Args:
        group: The existing one.
        uuid: Of the group to be created: the same where the request is a retry.
        if_not_exists: Whether any group of the name will do.

    Raises:
        AlreadyExists: The UUIDs differ, and `if_not_exists` is false.
    """
    if not if_not_exists and group.uuid != uuid:
        raise AlreadyExists(
            shortened(f"there is a group {group.name!r:.80} of {group.topic.name} already")
        )
    return group


def no_group(topic: Topic, name: str) -> GroupNotFound:
    """Return the error of a group that does not exist."""
    return GroupNotFound(shortened(f"{topic.name} has no group {name!r:.80}"))


def current_group(groups: Groups, group: ShareGroup) -> ShareGroup:
    """Return a group with its present configuration.

    Raises:
        GroupNotFound: It was deleted, though there may be another of its name.
        TopicNotFound: Its topic was deleted.
    """
    found = groups.get(group.topic, group.name)
    if found.uuid != group.uuid:
        raise no_group(group.topic, group.name)
    return found
