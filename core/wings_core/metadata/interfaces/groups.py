"""Share groups."""

from typing import Protocol

from wings_core.model import ShareConfig, ShareGroup, Topic


class Groups(Protocol):
    """Share groups of topics: their names and configurations.

    A group belongs to one topic, and is deleted with it.
    """

    def create(self, group: ShareGroup, *, if_not_exists: bool = False) -> ShareGroup:
        """Create a group and return it.

        Args:
            group: With a name of 1 to 256 bytes and a UUID that no other group has; where the topic
                has it already, it is returned as it is.
            if_not_exists: Return a group of this name as it is, whatever its configuration.

        Raises:
            TopicNotFound: The topic was deleted.
            AlreadyExists: The topic has a group of this name.
            ResourceExhausted: The topic has as many groups as it may have.
            InvalidArgument: A name that cannot be stored.
        """
        ...

    def get(self, topic: Topic, name: str) -> ShareGroup:
        """Return a group.

        Raises:
            TopicNotFound: The topic was deleted.
            GroupNotFound: It has none of this name.
        """
        ...

    def of_topic(
        self, topic: Topic, *, after: str | None = None, items_max: int | None = None
    ) -> list[ShareGroup]:
        """Return a topic's groups, by name.

        Args:
            topic: Theirs.
            after: Only those whose name is greater; None: all.
            items_max: The first so many of them; None: all.

        Raises:
            TopicNotFound: The topic was deleted.
        """
        ...

    def alter(self, topic: Topic, name: str, changes: ShareConfig) -> ShareGroup:
        """Replace the keys of a group's configuration that were given in `changes`.

        Raises:
            TopicNotFound: The topic was deleted.
            GroupNotFound: It has no group of this name.
        """
        ...

    def restart(self, group: ShareGroup, uuid: str) -> ShareGroup:
        """Give a group another UUID, in one step: all that is known by the old one is void.

        Args:
            group: As it is now. One that has the new UUID already is returned as it is.
            uuid: That no other group has.

        Raises:
            TopicNotFound: The topic was deleted.
            GroupNotFound: It has none of this name, or its UUID differs.
        """
        ...

    def delete(self, topic: Topic, name: str, uuid: str | None = None) -> ShareGroup:
        """Delete a group and return it as it was.

        Args:
            topic: The group's.
            name: Its name.
            uuid: Its UUID; None: whichever has the name.

        Raises:
            TopicNotFound: The topic was deleted.
            GroupNotFound: It has none of this name, or its UUID differs.
        """
        ...
