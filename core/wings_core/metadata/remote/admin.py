"""Namespaces, topics and share groups at a metadata service.

Look-ups share calls, and topics are cached.
"""

import threading
import time
from collections.abc import Callable, Hashable
from typing import TypeVar

import grpc
import pyarrow as pa

from wings_core.errors import Internal, NamespaceNotFound, NotFound, TopicNotFound, Unavailable
from wings_core.metadata.checks import chosen_uuid, no_group
from wings_core.metadata.interfaces import Admin, Groups
from wings_core.metadata.remote.channel import CALL_SECONDS, ServiceChannel, seconds_left
from wings_core.metadata.remote.deduplicate import CallOutcome, Deduplicate
from wings_core.metadata.remote.paging import BY_NAMESPACE, BY_TEXT, listed
from wings_core.model import Namespace, ShareConfig, ShareGroup, Topic, TopicConfig
from wings_core.names import NamespaceName, TopicName
from wings_core.protocol import messages
from wings_core.protocol.v1 import admin_pb2 as admin_pb
from wings_core.protocol.v1 import groups_pb2 as groups_pb
from wings_core.protocol.v1.stubs import AdminServiceStub, GroupServiceStub
from wings_core.schema_changes import SchemaChange
from wings_core.times import Deadline

TOPICS_CACHED_MAX = 4_096
"""How many topics a node remembers by name; then the one remembered longest is dropped."""

TOPIC_SECONDS = 1.0
"""How long a topic is answered from memory: what another node changes is seen after this at most. A
topic that was deleted is found out earlier, by its UUID, at the first look into its log."""

KeyT = TypeVar("KeyT", bound=Hashable)
RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")
Value = TypeVar("Value")


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


class RemoteAdmin(Admin):
    """See `Admin`. Concurrent look-ups of one name share one call.

    What is created gets its UUID here, and what is changed is named by its own. So a call whose
    answer was lost is made again, for up to `channel.DOUBT_SECONDS_MAX`; then `Unavailable` is
    raised with the fact `in_doubt`.

    Args:
        channel: To the service.
        topics: Topics looked up lately.
    """

    def __init__(self, channel: ServiceChannel, topics: RemoteTopicCache) -> None:
        self._channel = channel
        self._stub = AdminServiceStub(channel.channel)
        self._cache = topics
        self._tenants = self._looking_up(
            self._stub.GetTenant,
            lambda tenant: admin_pb.GetTenantRequest(name=f"tenants/{tenant}"),
            lambda found: found.name,
        )
        self._namespaces = self._looking_up(
            self._stub.GetNamespace,
            lambda name: admin_pb.GetNamespaceRequest(name=str(name)),
            messages.NAMESPACE.decode,
        )
        self._topics: Deduplicate[tuple[TopicName, int, bool], Topic] = self._looking_up(
            self._stub.GetTopic,
            lambda key: admin_pb.GetTopicRequest(name=str(key[0]), fresh=key[2]),
            messages.TOPIC.decode,
        )
        """By name, the cache's generation, and whether it is to be fresh."""

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

    def get_tenant(self, tenant: str) -> str:
        """Return the full name of a tenant, which is there while one of its namespaces is.

        Raises:
            NamespaceNotFound: It has none.
        """
        return self._answer(self._tenants.get(tenant, Deadline.after(CALL_SECONDS)))

    def create_namespace(self, name: NamespaceName, uuid: str | None = None) -> Namespace:
        """Create a namespace; see `Admin.create_namespace`.

        Where the response was lost and another client deleted the namespace meanwhile, it may be
        there again, empty.
        """
        request = admin_pb.CreateNamespaceRequest(name=str(name), uuid=chosen_uuid(uuid))
        created = self._channel.call_repeatedly(self._stub.CreateNamespace, request)
        return messages.NAMESPACE.decode(created)

    def get_namespace(self, name: NamespaceName) -> Namespace:
        """Return a namespace; see `Admin.get_namespace`."""
        return self._answer(self._namespaces.get(name, Deadline.after(CALL_SECONDS)))

    def delete_namespace(self, name: NamespaceName, uuid: str | None = None) -> Namespace:
        """Delete an empty namespace; see `Admin.delete_namespace`."""
        namespace = self.get_namespace(name)
        if uuid not in {None, namespace.uuid}:
            raise NamespaceNotFound(f"the namespace {name} was deleted")
        deleted = self._channel.call_repeatedly(
            self._stub.DeleteNamespace,
            admin_pb.DeleteNamespaceRequest(name=str(name), uuid=namespace.uuid),
            gone=messages.NAMESPACE.encode(namespace),
        )
        return messages.NAMESPACE.decode(deleted)

    def list_namespaces(
        self, *, after: NamespaceName | None = None, items_max: int | None = None
    ) -> list[Namespace]:
        """Return namespaces, by name; see `Admin.list_namespaces`."""
        return listed(
            self._channel,
            self._stub.ListNamespaces,
            admin_pb.ListNamespacesRequest(),
            lambda page: map(messages.NAMESPACE.decode, page.namespaces),
            BY_NAMESPACE,
            after,
            items_max,
        )

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
        request = admin_pb.CreateTopicRequest(
            name=str(name),
            schema=messages.schema_bytes(schema),
            partition_key=partition_key,
            config="" if config is None else config.model_dump_json(),
            if_not_exists=if_not_exists,
            uuid=chosen_uuid(uuid),
        )
        created = self._channel.call_repeatedly(self._stub.CreateTopic, request)
        self._cache.forget(name)
        return messages.TOPIC.decode(created)

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
            topic = self._answer(self._topics.get(key, Deadline.after(CALL_SECONDS)))
        except Unavailable:
            known = self._cache.get(name, stale=True)
            if known is None or self._channel.closed:
                raise
            return known
        except Exception:
            self._cache.forget(name)
            raise
        return self._cache.remember(topic, generation, asked_at)

    def list_topics(
        self, namespace: NamespaceName, *, after: str | None = None, items_max: int | None = None
    ) -> list[Topic]:
        """Return the topics of a namespace, by name; see `Admin.list_topics`."""
        return listed(
            self._channel,
            self._stub.ListTopics,
            admin_pb.ListTopicsRequest(parent=str(namespace)),
            lambda page: map(messages.TOPIC.decode, page.topics),
            BY_TEXT,
            after,
            items_max,
        )

    def alter_topic(self, name: TopicName, config: TopicConfig, uuid: str | None = None) -> Topic:
        """Change keys of a topic's configuration; see `Admin.alter_topic`."""
        request = admin_pb.UpdateTopicRequest(
            name=str(name),
            config=config.model_dump_json(exclude_unset=True),
            uuid=self._ask(name, uuid).uuid,
        )
        try:
            altered = self._channel.call_repeatedly(self._stub.UpdateTopic, request)
        finally:
            self._cache.forget(name)
        return messages.TOPIC.decode(altered)

    def alter_schema(self, name: TopicName, change: SchemaChange, uuid: str | None = None) -> Topic:
        """Change a topic's schema; see `Admin.alter_schema`.

        Where the response was lost and another client widened an added column meanwhile, it may be
        refused, though it was done.
        """
        request = admin_pb.AlterSchemaRequest(
            name=str(name),
            uuid=self._ask(name, uuid).uuid,
            change=messages.SCHEMA_CHANGE.fields(change),
        )
        try:
            altered = self._channel.call_repeatedly(self._stub.AlterSchema, request)
        finally:
            self._cache.forget(name)
        return messages.TOPIC.decode(altered)

    def delete_topic(self, name: TopicName, uuid: str | None = None) -> Topic:
        """Delete a topic; see `Admin.delete_topic`."""
        topic = self._ask(name, uuid)
        request = admin_pb.DeleteTopicRequest(name=str(name), uuid=topic.uuid)
        gone = messages.TOPIC.encode(topic)
        try:
            deleted = self._channel.call_repeatedly(self._stub.DeleteTopic, request, gone)
        finally:
            self._cache.forget(name)
        return messages.TOPIC.decode(deleted)

    def _ask(self, name: TopicName, uuid: str | None) -> Topic:
        """Return a topic as it is now: what is cached may be another one by now."""
        self._cache.forget(name)
        topic = self.get_topic(name)
        if uuid not in {None, topic.uuid}:
            raise TopicNotFound(f"the topic {name} was deleted")
        return topic

    def _looking_up(
        self,
        method: "grpc.UnaryUnaryMultiCallable[RequestT, ResponseT]",
        request_of: Callable[[KeyT], RequestT],
        convert: Callable[[ResponseT], Value],
    ) -> Deduplicate[KeyT, Value]:
        """Return what shares calls of a method that looks one thing up by a key."""

        def begin(
            key: KeyT, deadline: Deadline, done: Callable[[CallOutcome[Value]], None]
        ) -> Callable[[], None]:
            seconds = seconds_left(deadline, CALL_SECONDS)
            return self._channel.begin(method, request_of(key), seconds, convert, done)

        return Deduplicate(begin)

    def _answer(self, value: Value | None) -> Value:
        if value is None:
            raise Unavailable(f"metadata did not answer in {CALL_SECONDS:g} s")
        return value


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
        request = groups_pb.CreateGroupRequest(
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
            groups_pb.ListGroupsRequest(topic=str(topic.name), topic_uuid=topic.uuid),
            lambda page: [messages.group_of(topic, each) for each in page.groups],
            BY_TEXT,
            after,
            items_max,
        )

    def alter(self, topic: Topic, name: str, changes: ShareConfig) -> ShareGroup:
        """Change a group's configuration; see `Groups.alter`."""
        request = groups_pb.UpdateGroupRequest(
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
        request = groups_pb.RestartGroupRequest(
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
        request = groups_pb.DeleteGroupRequest(
            topic=str(topic.name), topic_uuid=topic.uuid, name=name, uuid=group.uuid
        )
        gone = messages.group_message(group)
        deleted = self._channel.call_repeatedly(self._stub.DeleteGroup, request, gone)
        return self._changed(topic, deleted)

    def _ask(self, topic: Topic, name: str) -> ShareGroup:
        """Return a group as it is now."""
        request = groups_pb.GetGroupRequest(
            topic=str(topic.name),
            topic_uuid=topic.uuid,
            name=messages.text("the group's name", name),
        )
        return messages.group_of(topic, self._channel.look(self._stub.GetGroup, request))

    def _changed(self, topic: Topic, message: groups_pb.Group) -> ShareGroup:
        self._forget((topic.uuid, message.name))
        return messages.group_of(topic, message)

    def _forget(self, key: tuple[str, str]) -> None:
        with self._lock:
            self._generation += 1
            self._known.pop(key, None)
