"""What each RPC does: parse, call one method of the metadata, translate.

Methods bear the names of the RPCs in snake case, and run on threads of the service.
"""

from collections.abc import Iterable

from wings_core.errors import InvalidArgument, NamespaceNotFound
from wings_core.metadata.interfaces import Metadata
from wings_core.metadata.remote import codec
from wings_core.metadata.remote.paging import key_of, offset_key
from wings_core.metadata.remote.shards import progress_of, shards_message, state_of, text_of
from wings_core.model import FlushId, ShardClaim, Topic, TopicConfig
from wings_core.names import NamespaceName, TopicName
from wings_core.partitions import Partition
from wings_core.protocol.v1 import admin_pb2 as admin_pb
from wings_core.protocol.v1 import groups_pb2 as groups_pb
from wings_core.protocol.v1 import offset_registry_pb2 as pb
from wings_core.protocol.v1 import shards_pb2 as shards_pb
from wings_core.schemas import check_topic_schema
from wings_core.share.model import ShareConfig
from wings_server.metadata.paging import TOPICS_PAGE_SIZE_MAX, page, page_size_of

STEP_MAX = 10_000
"""Pages purged, and stages swept, by one call: in one transaction, which others wait for."""


class AdminHandlers:
    """The RPCs of `wings.v1.AdminService`.

    Args:
        metadata: What is served.
        store_id: What tells it from any other metadata.
    """

    def __init__(self, metadata: Metadata, store_id: str) -> None:
        self._admin = metadata.admin
        self._store_id = store_id

    def get_store(self, request: admin_pb.GetStoreRequest) -> admin_pb.Store:
        """Answer which metadata this is."""
        del request
        return admin_pb.Store(id=self._store_id)

    def get_tenant(self, request: admin_pb.GetTenantRequest) -> admin_pb.Tenant:
        """Answer a tenant that has a namespace."""
        tenants = {f"tenants/{found.name.tenant}" for found in self._admin.list_namespaces()}
        if request.name not in tenants:
            raise NamespaceNotFound(f"there is no namespace of {request.name[:80]!r}")
        return admin_pb.Tenant(name=request.name)

    def create_namespace(self, request: admin_pb.CreateNamespaceRequest) -> admin_pb.Namespace:
        """Create a namespace."""
        name = NamespaceName.parse(request.name)
        return codec.namespace_message(self._admin.create_namespace(name, request.uuid or None))

    def get_namespace(self, request: admin_pb.GetNamespaceRequest) -> admin_pb.Namespace:
        """Answer a namespace."""
        name = NamespaceName.parse(request.name)
        return codec.namespace_message(self._admin.get_namespace(name))

    def delete_namespace(self, request: admin_pb.DeleteNamespaceRequest) -> admin_pb.Namespace:
        """Delete an empty namespace."""
        name = NamespaceName.parse(request.name)
        return codec.namespace_message(self._admin.delete_namespace(name, request.uuid or None))

    def list_namespaces(
        self, request: admin_pb.ListNamespacesRequest
    ) -> admin_pb.ListNamespacesResponse:
        """Answer a page of all namespaces."""
        size = page_size_of(request.page_size)
        key = key_of(request.page_token, 2)
        found, token = page(
            self._admin.list_namespaces(
                after=None if key is None else NamespaceName(*key), items_max=size + 1
            ),
            lambda namespace: (namespace.name.tenant, namespace.name.namespace),
            size,
        )
        return admin_pb.ListNamespacesResponse(
            namespaces=[codec.namespace_message(namespace) for namespace in found],
            next_page_token=token,
        )

    def create_topic(self, request: admin_pb.CreateTopicRequest) -> admin_pb.Topic:
        """Create a topic, its schema checked here too: any client may call."""
        schema = codec.schema_of(request.schema)
        partition_key = request.partition_key if request.HasField("partition_key") else None
        check_topic_schema(schema, partition_key)
        topic = self._admin.create_topic(
            TopicName.parse(request.name),
            schema,
            partition_key,
            codec.config_of(request.config) if request.config else None,
            if_not_exists=request.if_not_exists,
            uuid=request.uuid or None,
        )
        return codec.topic_message(topic)

    def get_topic(self, request: admin_pb.GetTopicRequest) -> admin_pb.Topic:
        """Answer a topic."""
        return codec.topic_message(self._admin.get_topic(TopicName.parse(request.name)))

    def list_topics(self, request: admin_pb.ListTopicsRequest) -> admin_pb.ListTopicsResponse:
        """Answer a page of a namespace's topics."""
        size = page_size_of(request.page_size, TOPICS_PAGE_SIZE_MAX)
        namespace = NamespaceName.parse(request.parent)
        after = _text_after(request.page_token)
        found, token = page(
            self._admin.list_topics(namespace, after=after, items_max=size + 1),
            lambda topic: (topic.name.topic,),
            size,
        )
        return admin_pb.ListTopicsResponse(
            topics=[codec.topic_message(topic) for topic in found], next_page_token=token
        )

    def update_topic(self, request: admin_pb.UpdateTopicRequest) -> admin_pb.Topic:
        """Replace a topic's configuration."""
        name = TopicName.parse(request.name)
        config = codec.config_of(request.config)
        topic = self._admin.alter_topic(name, config, request.uuid or None)
        return codec.topic_message(topic)

    def delete_topic(self, request: admin_pb.DeleteTopicRequest) -> admin_pb.Topic:
        """Delete a topic."""
        name = TopicName.parse(request.name)
        return codec.topic_message(self._admin.delete_topic(name, request.uuid or None))


class NodeHandlers:
    """The RPCs of `wings.v1.NodeService`.

    Args:
        metadata: What is served.
    """

    def __init__(self, metadata: Metadata) -> None:
        self._nodes = metadata.nodes

    def renew_node(self, request: admin_pb.RenewNodeRequest) -> admin_pb.RenewNodeResponse:
        """Register a node, or renew its lease."""
        live = self._nodes.renew(codec.node_of(request.node), request.seconds)
        return admin_pb.RenewNodeResponse(nodes=[codec.node_message(node) for node in live])

    def delete_node(self, request: admin_pb.DeleteNodeRequest) -> admin_pb.DeleteNodeResponse:
        """Take a node out."""
        self._nodes.leave(request.id)
        return admin_pb.DeleteNodeResponse()

    def list_nodes(self, request: admin_pb.ListNodesRequest) -> admin_pb.ListNodesResponse:
        """Answer the nodes that are there."""
        del request
        return admin_pb.ListNodesResponse(
            nodes=[codec.node_message(node) for node in self._nodes.live()]
        )


class RegistryHandlers:
    """The RPCs of `wings.v1.OffsetRegistryService`, but for `OffsetLocation`.

    Args:
        metadata: What is served.
    """

    def __init__(self, metadata: Metadata) -> None:
        self._registry = metadata.registry

    def commit(self, request: pb.CommitRequest) -> pb.CommitResponse:
        """Commit a flush."""
        flush_id = None
        if request.HasField("flush_id"):
            flush_id = FlushId(request.flush_id.writer, request.flush_id.number)
            if not flush_id.writer:
                raise InvalidArgument("a flush_id names its writer")
        batches = [codec.batch_of(batch) for batch in request.batches]
        results = self._registry.commit(batches, flush_id)
        return pb.CommitResponse(results=[codec.result_message(result) for result in results])

    def get_partition_state(self, request: pb.GetPartitionStateRequest) -> pb.PartitionState:
        """Answer where a partition stands."""
        partition = Partition(request.partition)
        return codec.state_message(self._registry.partition_state(request.topic_uuid, partition))

    def list_partition_states(
        self, request: pb.ListPartitionStatesRequest
    ) -> pb.ListPartitionStatesResponse:
        """Answer a page of where a topic's partitions stand."""
        size = page_size_of(request.page_size)
        after = partition_after(request.page_token)
        found, token = page(
            self._registry.partition_states(request.topic_uuid, after=after, items_max=size + 1),
            lambda state: (state.partition,),
            size,
        )
        return pb.ListPartitionStatesResponse(
            partition_states=[codec.state_message(state) for state in found], next_page_token=token
        )

    def offset_for_timestamp(
        self, request: pb.OffsetForTimestampRequest
    ) -> pb.OffsetForTimestampResponse:
        """Answer the first offset at or after a time."""
        offset = self._registry.offset_for_timestamp(
            request.topic_uuid, Partition(request.partition), request.timestamp_us
        )
        return pb.OffsetForTimestampResponse(offset=offset)

    def commit_offsets(self, request: pb.CommitOffsetsRequest) -> pb.CommitOffsetsResponse:
        """Remember where a consumer reads on."""
        entries = self._registry.commit_offsets(
            request.consumer,
            [
                (_named(entry.topic, entry.topic_uuid), Partition(entry.partition), entry.offset)
                for entry in request.offsets
            ],
        )
        return pb.CommitOffsetsResponse(
            offsets=[codec.consumer_offset_message(entry) for entry in entries]
        )

    def list_consumer_offsets(
        self, request: pb.ListConsumerOffsetsRequest
    ) -> pb.ListConsumerOffsetsResponse:
        """Answer a page of where a consumer reads on."""
        topic_uuid = request.topic_uuid if request.HasField("topic_uuid") else None
        size = page_size_of(request.page_size)
        after = None
        if (key := key_of(request.page_token, 4)) is not None:
            tenant, namespace, topic, partition = key
            after = (NamespaceName(tenant, namespace).topic(topic), Partition(partition))
        found, token = page(
            self._registry.get_offsets(
                request.consumer, topic_uuid, after=after, items_max=size + 1
            ),
            lambda entry: offset_key(entry.topic, entry.partition),
            size,
        )
        return pb.ListConsumerOffsetsResponse(
            offsets=[codec.consumer_offset_message(entry) for entry in found],
            next_page_token=token,
        )

    def list_consumers(self, request: pb.ListConsumersRequest) -> pb.ListConsumersResponse:
        """Answer a page of the named consumers."""
        size = page_size_of(request.page_size)
        after = _text_after(request.page_token)
        found, token = page(
            self._registry.list_consumers(size + 1, after=after), lambda consumer: (consumer,), size
        )
        return pb.ListConsumersResponse(consumers=found, next_page_token=token)

    def purge(self, request: pb.PurgeRequest) -> pb.PurgeResponse:
        """Forget some of what was deleted."""
        more = self._registry.purge(step("pages_max", request.pages_max))
        return pb.PurgeResponse(more=more)

    def list_live_folios(self, request: pb.ListLiveFoliosRequest) -> pb.ListLiveFoliosResponse:
        """Answer a page of the folios that are referred to."""
        size = page_size_of(request.page_size)
        after = _text_after(request.page_token)
        found, token = page(
            sorted(self._registry.live_folios(after=after, items_max=size + 1)),
            lambda folio: (folio,),
            size,
        )
        return pb.ListLiveFoliosResponse(folios=found, next_page_token=token)

    def retire_folios(self, request: pb.RetireFoliosRequest) -> pb.RetireFoliosResponse:
        """Let nothing refer to folios ever again."""
        return pb.RetireFoliosResponse(folios=self._registry.retire(list(request.folios)))


class StageHandlers:
    """The RPCs of `wings.v1.StageService`.

    Args:
        metadata: What is served.
    """

    def __init__(self, metadata: Metadata) -> None:
        self._stages = metadata.stages

    def publish_stages(self, request: pb.PublishStagesRequest) -> pb.PublishStagesResponse:
        """Make stages visible."""
        shards = [progress_of(progress) for progress in request.shards]
        published = self._stages.publish(
            request.writer, request.batch, list(request.stages), shards
        )
        return codec.published_message(published)

    def abort_stages(self, request: pb.AbortStagesRequest) -> pb.AbortStagesResponse:
        """Delete stages."""
        batch = request.batch if request.HasField("batch") else None
        prefix = request.prefix if request.HasField("prefix") else None
        aborted = self._stages.abort(request.writer, list(request.stages), batch, prefix)
        return pb.AbortStagesResponse(stages=aborted.stages, published=aborted.published)

    def sweep_stages(self, request: pb.SweepStagesRequest) -> pb.SweepStagesResponse:
        """Delete stages that were left alone."""
        stages_max = step("stages_max", request.stages_max)
        return pb.SweepStagesResponse(swept=self._stages.sweep(request.seconds, stages_max))

    def list_stages(self, request: pb.ListStagesRequest) -> pb.ListStagesResponse:
        """Answer a page of a topic's stages."""
        size = page_size_of(request.page_size)
        after = _text_after(request.page_token)
        found, token = page(
            self._stages.of_topic(request.topic_uuid, after=after, items_max=size + 1),
            lambda stage: (stage.stage,),
            size,
        )
        return pb.ListStagesResponse(
            stages=[codec.stage_message(stage) for stage in found], next_page_token=token
        )

    def list_stage_pages(self, request: pb.ListStagePagesRequest) -> pb.ListStagePagesResponse:
        """Answer some pages of a stage."""
        size = page_size_of(request.page_size)
        token = request.page_token or "0"
        if not (token.isascii() and token.isdigit()):
            raise InvalidArgument(f"{token[:80]!r} is not a page token")
        first = codec.int64(int(token[:20]))
        found = self._stages.pages(request.stage, first, size)
        return pb.ListStagePagesResponse(
            pages=codec.pages_message(found),
            next_page_token=str(first + size) if len(found) == size else "",
        )


class GroupHandlers:
    """The RPCs of `wings.v1.GroupService`.

    Args:
        metadata: What is served.
    """

    def __init__(self, metadata: Metadata) -> None:
        self._groups = metadata.groups

    def create_group(self, request: groups_pb.CreateGroupRequest) -> groups_pb.Group:
        """Make a group known."""
        group = codec.group_of(_named(request.topic, request.topic_uuid), request.group)
        created = self._groups.create(group, if_not_exists=request.if_not_exists)
        return codec.group_message(created)

    def get_group(self, request: groups_pb.GetGroupRequest) -> groups_pb.Group:
        """Answer a group."""
        topic = _named(request.topic, request.topic_uuid)
        return codec.group_message(self._groups.get(topic, request.name))

    def list_groups(self, request: groups_pb.ListGroupsRequest) -> groups_pb.ListGroupsResponse:
        """Answer a page of a topic's groups."""
        size = page_size_of(request.page_size)
        after = _text_after(request.page_token)
        topic = _named(request.topic, request.topic_uuid)
        found, token = page(
            self._groups.of_topic(topic, after=after, items_max=size + 1),
            lambda group: (group.name,),
            size,
        )
        return groups_pb.ListGroupsResponse(
            groups=[codec.group_message(group) for group in found], next_page_token=token
        )

    def update_group(self, request: groups_pb.UpdateGroupRequest) -> groups_pb.Group:
        """Change a group's configuration."""
        topic = _named(request.topic, request.topic_uuid)
        changes = ShareConfig.from_json(request.config)
        return codec.group_message(self._groups.alter(topic, request.name, changes))

    def delete_group(self, request: groups_pb.DeleteGroupRequest) -> groups_pb.Group:
        """Forget a group, and answer what it was."""
        topic = _named(request.topic, request.topic_uuid)
        deleted = self._groups.delete(topic, request.name, request.uuid or None)
        return codec.group_message(deleted)


class ShardHandlers:
    """The RPCs of `wings.v1.ShardService`.

    Args:
        metadata: What is served.
    """

    def __init__(self, metadata: Metadata) -> None:
        self._shards = metadata.shards

    def open_shards(self, request: shards_pb.OpenShardsRequest) -> shards_pb.ShardsResponse:
        """Create shards that are not there."""
        return shards_message(
            self._shards.open(
                text_of(request.source), text_of(request.token), _texts(request.shards)
            )
        )

    def acquire_shards(self, request: shards_pb.AcquireShardsRequest) -> shards_pb.ShardsResponse:
        """Take over shards."""
        claims = [
            ShardClaim(text_of(claim.shard), text_of(claim.token)) for claim in request.claims
        ]
        return shards_message(
            self._shards.acquire(
                text_of(request.source), text_of(request.token), claims, request.stale_seconds
            )
        )

    def reset_shards(self, request: shards_pb.ResetShardsRequest) -> shards_pb.ShardsResponse:
        """Open dead shards again."""
        return shards_message(self._shards.reset(text_of(request.source), _texts(request.shards)))

    def get_shards(self, request: shards_pb.GetShardsRequest) -> shards_pb.ShardsResponse:
        """Answer shards by their ids."""
        return shards_message(self._shards.get(text_of(request.source), _texts(request.shards)))

    def list_shards(self, request: shards_pb.ListShardsRequest) -> shards_pb.ShardsResponse:
        """Answer shards of a source."""
        return shards_message(
            self._shards.of_source(
                text_of(request.source),
                state_of(request.state) if request.HasField("state") else None,
                text_of(request.after),
                request.shards_max,
            )
        )

    def count_shards(self, request: shards_pb.CountShardsRequest) -> shards_pb.CountShardsResponse:
        """Answer how many shards there are."""
        counts = self._shards.count(text_of(request.source))
        return shards_pb.CountShardsResponse(
            open=counts.open,
            finished=counts.finished,
            dead=counts.dead,
            position=counts.position,
        )

    def prune_shards(self, request: shards_pb.PruneShardsRequest) -> shards_pb.PruneShardsResponse:
        """Forget shards that ended long ago."""
        pruned = self._shards.prune(
            text_of(request.source),
            request.age_seconds,
            request.count_max if request.HasField("count_max") else None,
            request.interval_seconds,
        )
        return shards_pb.PruneShardsResponse(shards=pruned.shards, debounced=pruned.debounced)


def _texts(data: Iterable[bytes]) -> list[str]:
    return [text_of(each) for each in data]


def step(name: str, number: int) -> int:
    """Return how much one call does, at most `STEP_MAX`.

    Raises:
        InvalidArgument: Less than one was asked for.
    """
    if number < 1:
        raise InvalidArgument(f"{name} is {number}, expected 1 or more")
    return min(number, STEP_MAX)


def _named(name: str, topic_uuid: str) -> Topic:
    """Return as much of a topic as what belongs to it is kept by."""
    return Topic(TopicName.parse(name), topic_uuid, codec.NO_SCHEMA, None, TopicConfig(), 0)


def partition_after(token: str) -> Partition | None:
    """Return the partition that a page token is of; None: the page is the first.

    Raises:
        InvalidArgument: It is no such token.
    """
    text = _text_after(token)
    return None if text is None else Partition(text)


def _text_after(token: str) -> str | None:
    key = key_of(token, 1)
    return None if key is None else key[0]
