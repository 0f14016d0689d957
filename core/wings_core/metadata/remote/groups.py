"""Share groups at a metadata service; those looked up lately are remembered for a moment."""

import threading
import time

from wings_core.errors import NotFound
from wings_core.metadata.grouping import no_group
from wings_core.metadata.interfaces import Groups
from wings_core.metadata.remote.channel import ServiceChannel
from wings_core.metadata.remote.paging import BY_TEXT, listed
from wings_core.model import ShareConfig, ShareGroup, Topic
from wings_core.protocol import messages
from wings_core.protocol.v1 import groups_pb2 as pb
from wings_core.protocol.v1.stubs import GroupServiceStub

GROUPS_CACHED_MAX = 4_096
"""How many groups a node remembers; then the one remembered longest is dropped."""

GROUP_SECONDS = 1.0
"""How long a group is answered from memory: what another node changes is seen after this."""


class RemoteGroups(Groups):
    """See `Groups`.

    Args:
        channel: To the service.
    """

    def __init__(self, channel: ServiceChannel) -> None:
        self._channel = channel
        self._stub = GroupServiceStub(channel.channel)
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], tuple[ShareGroup, float]] = {}
        self._generation = 0

    def create(self, group: ShareGroup, *, if_not_exists: bool = False) -> ShareGroup:
        """Make a group known; see `Groups.create`.

        Made again where the answer was lost; see `RemoteAdmin`.
        """
        messages.text("the group's name", group.name)
        request = pb.CreateGroupRequest(
            topic=str(group.topic.name),
            topic_uuid=group.topic.uuid,
            group=messages.group_message(group),
            if_not_exists=if_not_exists,
        )
        created = self._channel.call_repeatedly(self._stub.CreateGroup, request)
        return self._changed(group.topic, created)

    def get(self, topic: Topic, name: str) -> ShareGroup:
        """Return a group, as it was within `GROUP_SECONDS`; see `Groups.get`."""
        key = (topic.uuid, name)
        known = self._known.get(key)
        now = time.monotonic()
        if known is not None and now - known[1] < GROUP_SECONDS:
            return known[0]
        generation = self._generation
        try:
            found = self._ask(topic, name)
        except NotFound:
            self._forget(key)
            raise
        with self._lock:
            if generation == self._generation:
                self._known.pop(key, None)
                if len(self._known) >= GROUPS_CACHED_MAX:
                    del self._known[next(iter(self._known))]
                self._known[key] = (found, now)
        return found

    def of_topic(
        self, topic: Topic, *, after: str | None = None, items_max: int | None = None
    ) -> list[ShareGroup]:
        """Return a topic's groups, by name; see `Groups.of_topic`."""
        return listed(
            self._channel,
            self._stub.ListGroups,
            pb.ListGroupsRequest(topic=str(topic.name), topic_uuid=topic.uuid),
            lambda page: [messages.group_of(topic, each) for each in page.groups],
            BY_TEXT,
            after,
            items_max,
        )

    def alter(self, topic: Topic, name: str, changes: ShareConfig) -> ShareGroup:
        """Change a group's configuration; see `Groups.alter`."""
        request = pb.UpdateGroupRequest(
            topic=str(topic.name),
            topic_uuid=topic.uuid,
            name=messages.text("the group's name", name),
            config=changes.model_dump_json(exclude_unset=True),
        )
        return self._changed(topic, self._channel.call(self._stub.UpdateGroup, request))

    def restart(self, group: ShareGroup, uuid: str) -> ShareGroup:
        """Give a group another UUID; see `Groups.restart`.

        Made again where the answer was lost.
        """
        request = pb.RestartGroupRequest(
            topic=str(group.topic.name),
            topic_uuid=group.topic.uuid,
            name=messages.text("the group's name", group.name),
            uuid=group.uuid,
            new_uuid=uuid,
        )
        restarted = self._channel.call_repeatedly(self._stub.RestartGroup, request)
        return self._changed(group.topic, restarted)

    def delete(self, topic: Topic, name: str, uuid: str | None = None) -> ShareGroup:
        """Forget a group; see `Groups.delete`.

        Made again where the answer was lost; see `RemoteAdmin`.
        """
        group = self._ask(topic, name)
        if uuid not in {None, group.uuid}:
            raise no_group(topic, name)
        request = pb.DeleteGroupRequest(
            topic=str(topic.name), topic_uuid=topic.uuid, name=name, uuid=group.uuid
        )
        gone = messages.group_message(group)
        deleted = self._channel.call_repeatedly(self._stub.DeleteGroup, request, gone)
        return self._changed(topic, deleted)

    def _ask(self, topic: Topic, name: str) -> ShareGroup:
        """Return a group as it is now."""
        request = pb.GetGroupRequest(
            topic=str(topic.name),
            topic_uuid=topic.uuid,
            name=messages.text("the group's name", name),
        )
        return messages.group_of(topic, self._channel.look(self._stub.GetGroup, request))

    def _changed(self, topic: Topic, message: pb.Group) -> ShareGroup:
        self._forget((topic.uuid, message.name))
        return messages.group_of(topic, message)

    def _forget(self, key: tuple[str, str]) -> None:
        with self._lock:
            self._generation += 1
            self._known.pop(key, None)
