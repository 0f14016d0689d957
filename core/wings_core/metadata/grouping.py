"""What every store decides alike about share groups."""

from wings_core.contracts.messages import shortened
from wings_core.errors import AlreadyExists, GroupNotFound, InvalidArgument, ResourceExhausted
from wings_core.metadata.interfaces import Groups
from wings_core.metadata.judge import check_id
from wings_core.model import Topic
from wings_core.share.model import ShareGroup

GROUPS_PER_TOPIC_MAX = 1_000
"""The most groups of one topic."""


def check_name(name: str) -> None:
    """Make sure that a group may be called so.

    Raises:
        InvalidArgument: It may not.
    """
    if not name:
        raise InvalidArgument("the group's name must not be empty")
    check_id("the group's name", name)


def check_room(topic: Topic, groups: int) -> None:
    """Make sure that a topic with so many groups may have another.

    Raises:
        ResourceExhausted: It may not.
    """
    if groups >= GROUPS_PER_TOPIC_MAX:
        raise ResourceExhausted(f"{topic.name} has {groups} groups, which is the most it may have")


def existing_group(group: ShareGroup, uuid: str | None, *, if_not_exists: bool) -> ShareGroup:
    """Return a group that was to be created and is there, if that is what was asked for.

    Args:
        group: What is there.
        uuid: Of the group to be, where it has one: if it is the same, this is asked for again.
        if_not_exists: Whether any group of the name is welcome.

    Raises:
        AlreadyExists: It is not.
    """
    if not if_not_exists and group.uuid != uuid:
        raise AlreadyExists(
            shortened(f"there is a group {group.name!r:.80} of {group.topic.name} already")
        )
    return group


def no_group(topic: Topic, name: str) -> GroupNotFound:
    """Return the error of a group that is not there."""
    return GroupNotFound(shortened(f"{topic.name} has no group {name!r:.80}"))


def current_group(groups: Groups, group: ShareGroup) -> ShareGroup:
    """Return a group as it is now.

    Raises:
        GroupNotFound: It is not there any more, though there may be another of its name.
        TopicNotFound: Its topic was deleted.
    """
    found = groups.get(group.topic, group.name)
    if found.uuid != group.uuid:
        raise no_group(group.topic, group.name)
    return found
