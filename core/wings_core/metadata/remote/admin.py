"""Namespaces, topics and share groups at a metadata service; topics and groups are cached."""

import threading
import time
from collections.abc import Callable

import pyarrow as pa

from wings_core.errors import Internal, NamespaceNotFound, NotFound, TopicNotFound, Unavailable
from wings_core.metadata.checks import chosen_uuid, no_group
from wings_core.metadata.interfaces import Admin, Groups
from wings_core.metadata.remote.channel import CALL_SECONDS, ServiceChannel, Stub, seconds_left
from wings_core.metadata.remote.deduplicate import CallOutcome, Deduplicate
from wings_core.metadata.remote.rpc import (
    BY_NAMESPACE,
    BY_TEXT,
    Calls,
    Field,
    Fields,
    Paged,
    RemotePart,
    Rpc,
    rpc,
)
from wings_core.model import NamespaceState, ShareConfig, ShareGroup, Topic, TopicConfig
from wings_core.names import NamespaceName, TopicName
from wings_core.protocol import messages
from wings_core.protocol.codec import Convert
from wings_core.protocol.v1 import admin_pb2 as admin_pb
from wings_core.protocol.v1 import groups_pb2 as groups_pb
from wings_core.schema_changes import SchemaChange
from wings_core.times import Deadline

TOPICS_CACHED_MAX = 4_096
"""How many topics a node remembers by name; then the one remembered longest is dropped."""

TOPIC_SECONDS = 1.0
"""How long a topic is answered from memory: what another node changes is seen after this at most. A
topic that was deleted is found out earlier, by its UUID, at the first look into its log."""


class RemoteTopicCache:
    """Topics by name, as the service answered them; all methods from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._topics: dict[TopicName, tuple[Topic, float]] = {}
        self._names: dict[str, TopicName] = {}
        self._generation = 0

    @property
    def generation(self) -> int:
        """A number to take before the service is asked."""
        return self._generation

    def get(self, name: TopicName, *, stale: bool = False) -> Topic | None:
        """Return a cached topic: one received lately or, with `stale`, at any time."""
        found = self._topics.get(name)
        if found is None or (not stale and time.monotonic() - found[1] > TOPIC_SECONDS):
            return None
        return found[0]

    def remember(self, topic: Topic, generation: int, asked_at: float) -> Topic:
        """Keep an answer, unless something was forgotten since `generation` was taken.

        Returns:
            The topic; the object that is kept already where nothing of it changed, since much is
            cached by the identity of its schema.
        """
        with self._lock:
            known = self._topics.get(topic.name)
            if known is not None and known[0] == topic:
                topic = known[0]
            if generation == self._generation:
                self._drop(topic.name)
                if len(self._topics) >= TOPICS_CACHED_MAX:
                    self._drop(next(iter(self._topics)))
                self._topics[topic.name] = (topic, asked_at)
                self._names[topic.uuid] = topic.name
        return topic

    def forget(self, name: TopicName) -> None:
        """Drop a topic that was changed or is gone."""
        with self._lock:
            self._generation += 1
            self._drop(name)

    def forget_uuid(self, topic_uuid: str) -> None:
        """Drop a deleted topic; another of its name that was received since is kept."""
        with self._lock:
            self._generation += 1
            name = self._names.get(topic_uuid)
            if name is not None:
                self._drop(name)

    def _drop(self, name: TopicName) -> None:
        dropped = self._topics.pop(name, None)
        if dropped is not None:
            del self._names[dropped[0].uuid]


def _config_changes(config: TopicConfig | ShareConfig) -> str:
    return config.model_dump_json(exclude_unset=True)


_UUID = Fields(
    ("uuid",),
    lambda uuid: {"uuid": chosen_uuid(uuid)},
    lambda request: request.uuid or None,
)
"""The UUID of something new; the client chooses one, so that a repeated call creates one thing."""


TOPICS_PAGE_SIZE_MAX = 100
"""Topics in one response: each comes with its schema."""


class RemoteAdmin(RemotePart, Admin):
    """See `Admin`. Concurrent look-ups of one topic share one call.

    The client chooses the UUID of what it creates, and names what it changes by UUID. So a call
    whose response is lost is repeated, for up to `channel.DOUBT_SECONDS_MAX`; then `Unavailable` is
    raised with the fact `in_doubt`.

    Args:
        channel: To the service.
        topics: Topics looked up lately.
    """

    def __init__(self, channel: ServiceChannel, topics: RemoteTopicCache) -> None:
        super().__init__(channel)
        self._stub = Stub(channel.channel, "AdminService")
        self._cache = topics
        self._topics: Deduplicate[tuple[TopicName, int, bool], Topic] = Deduplicate(
            self._begin_topic
        )
        """Look-ups by name, the cache's generation, and whether the topic is to be fresh."""

    create_namespace = rpc(
        "AdminService.CreateNamespace", Admin.create_namespace, Calls.REPEAT, uuid=_UUID
    )
    get_namespace = rpc("AdminService.GetNamespace", Admin.get_namespace, Calls.LOOK)
    list_namespaces = rpc(
        "AdminService.ListNamespaces",
        Admin.list_namespaces,
        Calls.LOOK,
        paged=Paged(BY_NAMESPACE, lambda namespace: namespace.name),
    )
    list_topics = rpc(
        "AdminService.ListTopics",
        Admin.list_topics,
        Calls.LOOK,
        paged=Paged(BY_TEXT, lambda topic: topic.name.topic, TOPICS_PAGE_SIZE_MAX),
        namespace=Field("parent"),
    )
    _delete_namespace = Rpc("AdminService.DeleteNamespace", Admin.delete_namespace, Calls.REPEAT)
    _create_topic = Rpc(
        "AdminService.CreateTopic",
        Admin.create_topic,
        Calls.REPEAT,
        uuid=_UUID,
    )
    _get_topic = Rpc("AdminService.GetTopic", Admin.get_topic, Calls.LOOK)
    _alter_topic = Rpc(
        "AdminService.UpdateTopic",
        Admin.alter_topic,
        Calls.REPEAT,
        config=Field(None, _config_changes, messages.config_of),
    )
    _alter_schema = Rpc("AdminService.AlterSchema", Admin.alter_schema, Calls.REPEAT)
    _delete_topic = Rpc("AdminService.DeleteTopic", Admin.delete_topic, Calls.REPEAT)

    def get_store(self, seconds_max: float) -> str:
        """Return the store's id; see `RemoteMetadata.store_id`."""
        try:
            store = self._channel.call(
                self._stub.GetStore, admin_pb.GetStoreRequest(), seconds_max, wait_for_ready=True
            )
        except (Unavailable, Internal) as error:
            raise type(error)(
                f"no metadata service answers at {self._channel.target} within {seconds_max:g} s; "
                f"is the address right? ({error.message})"
            ) from error
        if not (store.keeps_slices and store.keeps_inline and store.keeps_tables):
            raise Internal(
                f"the metadata service at {self._channel.target} is of an earlier version of "
                "Wings: bring it up to date before its nodes"
            )
        return store.id

    def delete_namespace(self, name: NamespaceName, uuid: str | None = None) -> NamespaceState:
        """Delete an empty namespace; see `Admin.delete_namespace`."""
        namespace = self.get_namespace(name)
        if uuid not in {None, namespace.uuid}:
            raise NamespaceNotFound(f"the namespace {name} was deleted")
        given = (name, namespace.uuid)
        return self._delete_namespace.call(self._channel, given, {}, gone=namespace)

    def create_topic(
        self,
        name: TopicName,
        schema: pa.Schema,
        partition_key: str | None = None,
        config: TopicConfig | None = None,
        *,
        if_not_exists: bool = False,
        uuid: str | None = None,
    ) -> Topic:
        """Create a topic; see `Admin.create_topic`."""
        created = self._create_topic.call(
            self._channel,
            (name, schema, partition_key, config),
            {"if_not_exists": if_not_exists, "uuid": uuid},
        )
        self._cache.forget(name)
        return created

    def get_topic(self, name: TopicName, *, fresh: bool = False) -> Topic:
        """Return a topic; see `Admin.get_topic`.

        What another node did within `TOPIC_SECONDS` may be missed. Where the service cannot be
        reached, a topic that was looked up before is answered as it was then.
        """
        if fresh:
            self._cache.forget(name)
        cached = self._cache.get(name)
        if cached is not None:
            return cached
        generation = self._cache.generation
        asked_at = time.monotonic()
        try:
            # A look-up from before a change that this node knows of is not joined.
            key = (name, generation, fresh)
            topic = self._topics.get(key, Deadline.after(CALL_SECONDS))
            if topic is None:
                raise Unavailable(f"metadata did not answer in {CALL_SECONDS:g} s")
        except Unavailable:
            known = self._cache.get(name, stale=True)
            if known is None or self._channel.closed:
                raise
            return known
        except Exception:
            self._cache.forget(name)
            raise
        return self._cache.remember(topic, generation, asked_at)

    def alter_topic(self, name: TopicName, config: TopicConfig, uuid: str | None = None) -> Topic:
        """Change keys of a topic's configuration; see `Admin.alter_topic`."""
        return self._changed(self._alter_topic, name, config, self._ask(name, uuid).uuid)

    def alter_schema(self, name: TopicName, change: SchemaChange, uuid: str | None = None) -> Topic:
        """Change a topic's schema; see `Admin.alter_schema`.

        Where the response was lost and another client widened an added column meanwhile, the
        repeated call may be refused although the first one took effect.
        """
        return self._changed(self._alter_schema, name, change, self._ask(name, uuid).uuid)

    def delete_topic(self, name: TopicName, uuid: str | None = None) -> Topic:
        """Delete a topic; see `Admin.delete_topic`."""
        topic = self._ask(name, uuid)
        return self._changed(self._delete_topic, name, topic.uuid, gone=topic)

    def _changed(
        self, call: Rpc, name: TopicName, *arguments: object, gone: Topic | None = None
    ) -> Topic:
        """Change a topic; the cache forgets it."""
        try:
            return call.call(self._channel, (name, *arguments), {}, gone)
        finally:
            self._cache.forget(name)

    def _ask(self, name: TopicName, uuid: str | None) -> Topic:
        """Return a topic as it is now: what is cached may be another one by now."""
        self._cache.forget(name)
        topic = self.get_topic(name)
        if uuid not in {None, topic.uuid}:
            raise TopicNotFound(f"the topic {name} was deleted")
        return topic

    def _begin_topic(
        self,
        key: tuple[TopicName, int, bool],
        deadline: Deadline,
        done: Callable[[CallOutcome[Topic]], None],
    ) -> Callable[[], None]:
        request = admin_pb.GetTopicRequest(name=str(key[0]), fresh=key[2])
        seconds = seconds_left(deadline, CALL_SECONDS)
        return self._channel.begin(
            self._stub.GetTopic, request, seconds, messages.TOPIC.decode, done
        )


GROUPS_CACHED_MAX = 4_096
"""How many groups a node remembers; then the one remembered longest is dropped."""

GROUP_SECONDS = 1.0
"""How long a group is answered from memory: what another node changes is seen after this."""


_TOPIC = Fields(
    ("topic", "topic_uuid"),
    lambda topic: {"topic": str(topic.name), "topic_uuid": topic.uuid},
    lambda request: messages.named_topic(request.topic, request.topic_uuid),
)
_NEW_GROUP = Fields(
    ("topic", "topic_uuid", "group"),
    lambda group: {**_TOPIC.encode(group.topic), "group": messages.group_message(group)},
    lambda request: messages.group_of(_TOPIC.decode(request), request.group),
)
_OLD_GROUP = Fields(
    ("topic", "topic_uuid", "name", "uuid"),
    lambda group: {**_TOPIC.encode(group.topic), "name": group.name, "uuid": group.uuid},
    lambda request: ShareGroup(request.name, request.uuid, _TOPIC.decode(request), ShareConfig()),
)
_GROUP: Convert = Convert(messages.group_message, lambda message: message)
"""A group in a response, which does not name its topic; the client adds that."""


class RemoteGroups(RemotePart, Groups):
    """See `Groups`. Changes are repeated where their response is lost, configurations apart.

    Args:
        channel: To the service.
    """

    _create = Rpc(
        "GroupService.CreateGroup",
        Groups.create,
        Calls.REPEAT,
        answer=_GROUP,
        group=_NEW_GROUP,
    )
    _get = Rpc(
        "GroupService.GetGroup",
        Groups.get,
        Calls.LOOK,
        answer=_GROUP,
        topic=_TOPIC,
    )
    _of_topic = Rpc(
        "GroupService.ListGroups",
        Groups.of_topic,
        Calls.LOOK,
        paged=Paged(BY_TEXT, lambda group: group.name),
        answer=Convert(
            lambda found: groups_pb.ListGroupsResponse(groups=map(messages.group_message, found)),
            lambda page: page.groups,
        ),
        topic=_TOPIC,
    )
    _alter = Rpc(
        "GroupService.UpdateGroup",
        Groups.alter,
        Calls.ONCE,
        answer=_GROUP,
        topic=_TOPIC,
        changes=Field("config", _config_changes, ShareConfig.from_json),
    )
    _restart = Rpc(
        "GroupService.RestartGroup",
        Groups.restart,
        Calls.REPEAT,
        answer=_GROUP,
        group=_OLD_GROUP,
        uuid=Field("new_uuid"),
    )
    _delete = Rpc(
        "GroupService.DeleteGroup",
        Groups.delete,
        Calls.REPEAT,
        answer=_GROUP,
        topic=_TOPIC,
    )

    def __init__(self, channel: ServiceChannel) -> None:
        super().__init__(channel)
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], tuple[ShareGroup, float]] = {}
        self._generation = 0

    def create(self, group: ShareGroup, *, if_not_exists: bool = False) -> ShareGroup:
        """Create a group; see `Groups.create`."""
        named = {"if_not_exists": if_not_exists}
        created = self._create.call(self._channel, (group,), named)
        return self._changed(group.topic, created)

    def get(self, topic: Topic, name: str) -> ShareGroup:
        """Return a group, as it was within `GROUP_SECONDS`; see `Groups.get`."""
        key = (topic.uuid, name)
        known = self._known.get(key)
        now = time.monotonic()
        if (
            known is not None
            and now - known[1] < GROUP_SECONDS
            and known[0].topic.schema_version == topic.schema_version  # Else it has grown.
        ):
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
        named = {"after": after, "items_max": items_max}
        found = self._of_topic.call(self._channel, (topic,), named)
        return [messages.group_of(topic, each) for each in found]

    def alter(self, topic: Topic, name: str, changes: ShareConfig) -> ShareGroup:
        """Change a group's configuration; see `Groups.alter`."""
        return self._changed(topic, self._alter.call(self._channel, (topic, name, changes), {}))

    def restart(self, group: ShareGroup, uuid: str) -> ShareGroup:
        """Give a group another UUID; see `Groups.restart`."""
        return self._changed(group.topic, self._restart.call(self._channel, (group, uuid), {}))

    def delete(self, topic: Topic, name: str, uuid: str | None = None) -> ShareGroup:
        """Delete a group; see `Groups.delete`."""
        group = self._ask(topic, name)
        if uuid not in {None, group.uuid}:
            raise no_group(topic, name)
        deleted = self._delete.call(self._channel, (topic, name, group.uuid), {}, gone=group)
        return self._changed(topic, deleted)

    def _ask(self, topic: Topic, name: str) -> ShareGroup:
        """Return a group as it is now."""
        return messages.group_of(topic, self._get.call(self._channel, (topic, name), {}))

    def _changed(self, topic: Topic, message: groups_pb.Group) -> ShareGroup:
        self._forget((topic.uuid, message.name))
        return messages.group_of(topic, message)

    def _forget(self, key: tuple[str, str]) -> None:
        with self._lock:
            self._generation += 1
            self._known.pop(key, None)
