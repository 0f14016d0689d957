"""Stubs of the services: callables of a channel, named as the service's methods."""

from typing import TYPE_CHECKING, ClassVar

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from wings_core.protocol.v1 import admin_pb2 as admin
from wings_core.protocol.v1 import copies_pb2 as copies
from wings_core.protocol.v1 import groups_pb2 as groups
from wings_core.protocol.v1 import maintenance_pb2 as maintenance
from wings_core.protocol.v1 import offset_registry_pb2 as registry
from wings_core.protocol.v1 import shards_pb2 as shards
from wings_core.protocol.v1 import tables_pb2 as tables
from wings_core.protocol.v1 import tokens_pb2 as tokens

if TYPE_CHECKING:
    Unary = grpc.UnaryUnaryMultiCallable
    Streaming = grpc.UnaryStreamMultiCallable


class Stub:
    """A stub of a service's methods, except those that take a stream.

    Args:
        channel: Channel to the service.
    """

    service: ClassVar[ServiceDescriptor]

    def __init__(self, channel: grpc.Channel) -> None:
        for method in self.service.methods:
            if not method.client_streaming:
                kind = channel.unary_stream if method.server_streaming else channel.unary_unary
                call = kind(
                    f"/{self.service.full_name}/{method.name}",
                    GetMessageClass(method.input_type).SerializeToString,
                    GetMessageClass(method.output_type).FromString,
                )
                setattr(self, method.name, call)


class AdminServiceStub(Stub):
    """See `wings.v1.AdminService`."""

    service = admin.DESCRIPTOR.services_by_name["AdminService"]
    GetStore: "Unary[admin.GetStoreRequest, admin.Store]"
    GetTenant: "Unary[admin.GetTenantRequest, admin.Tenant]"
    CreateNamespace: "Unary[admin.CreateNamespaceRequest, admin.Namespace]"
    GetNamespace: "Unary[admin.GetNamespaceRequest, admin.Namespace]"
    ListNamespaces: "Unary[admin.ListNamespacesRequest, admin.ListNamespacesResponse]"
    DeleteNamespace: "Unary[admin.DeleteNamespaceRequest, admin.Namespace]"
    CreateTopic: "Unary[admin.CreateTopicRequest, admin.Topic]"
    GetTopic: "Unary[admin.GetTopicRequest, admin.Topic]"
    ListTopics: "Unary[admin.ListTopicsRequest, admin.ListTopicsResponse]"
    UpdateTopic: "Unary[admin.UpdateTopicRequest, admin.Topic]"
    AlterSchema: "Unary[admin.AlterSchemaRequest, admin.Topic]"
    DeleteTopic: "Unary[admin.DeleteTopicRequest, admin.Topic]"


class NodeServiceStub(Stub):
    """See `wings.v1.NodeService`."""

    service = admin.DESCRIPTOR.services_by_name["NodeService"]
    RenewNode: "Unary[admin.RenewNodeRequest, admin.RenewNodeResponse]"
    DeleteNode: "Unary[admin.DeleteNodeRequest, admin.DeleteNodeResponse]"
    ListNodes: "Unary[admin.ListNodesRequest, admin.ListNodesResponse]"


class CopyServiceStub(Stub):
    """See `wings.v1.CopyService`."""

    service = copies.DESCRIPTOR.services_by_name["CopyService"]
    BeginCopy: "Unary[copies.BeginCopyRequest, copies.BeginCopyResponse]"
    ReadCopy: "Unary[copies.ReadCopyRequest, copies.ReadCopyResponse]"
    EndCopy: "Unary[copies.EndCopyRequest, copies.EndCopyResponse]"


class GroupServiceStub(Stub):
    """See `wings.v1.GroupService`."""

    service = groups.DESCRIPTOR.services_by_name["GroupService"]
    CreateGroup: "Unary[groups.CreateGroupRequest, groups.Group]"
    GetGroup: "Unary[groups.GetGroupRequest, groups.Group]"
    ListGroups: "Unary[groups.ListGroupsRequest, groups.ListGroupsResponse]"
    UpdateGroup: "Unary[groups.UpdateGroupRequest, groups.Group]"
    RestartGroup: "Unary[groups.RestartGroupRequest, groups.Group]"
    DeleteGroup: "Unary[groups.DeleteGroupRequest, groups.Group]"


class MaintenanceServiceStub(Stub):
    """See `wings.v1.MaintenanceService`."""

    service = maintenance.DESCRIPTOR.services_by_name["MaintenanceService"]
    AcquireLease: "Unary[maintenance.AcquireLeaseRequest, maintenance.AcquireLeaseResponse]"
    ReleaseLease: "Unary[maintenance.ReleaseLeaseRequest, maintenance.ReleaseLeaseResponse]"
    ExpirePages: "Unary[maintenance.ExpirePagesRequest, maintenance.ExpirePagesResponse]"
    ReplacePages: "Unary[maintenance.ReplacePagesRequest, maintenance.ReplacePagesResponse]"
    ReplaceAllPages: (
        "Unary[maintenance.ReplaceAllPagesRequest, maintenance.ReplaceAllPagesResponse]"
    )
    GetInlineBacklog: "Unary[maintenance.GetInlineBacklogRequest, maintenance.InlineBacklog]"
    ListTierStates: "Unary[maintenance.ListTierStatesRequest, maintenance.ListTierStatesResponse]"
    GetTopicState: "Unary[maintenance.GetTopicStateRequest, maintenance.TopicState]"
    GetLargestTopics: "Unary[maintenance.GetLargestTopicsRequest, maintenance.LargestTopics]"


class OffsetRegistryServiceStub(Stub):
    """See `wings.v1.OffsetRegistryService`."""

    service = registry.DESCRIPTOR.services_by_name["OffsetRegistryService"]
    Commit: "Unary[registry.CommitRequest, registry.CommitResponse]"
    OffsetLocation: "Unary[registry.OffsetLocationRequest, registry.OffsetLocationResponse]"
    LocateMany: "Unary[registry.LocateManyRequest, registry.LocateManyResponse]"
    WatchTopic: "Streaming[registry.WatchTopicRequest, registry.TopicChange]"
    GetPartitionState: "Unary[registry.GetPartitionStateRequest, registry.PartitionState]"
    ListPartitionStates: (
        "Unary[registry.ListPartitionStatesRequest, registry.ListPartitionStatesResponse]"
    )
    OffsetForTimestamp: (
        "Unary[registry.OffsetForTimestampRequest, registry.OffsetForTimestampResponse]"
    )
    OffsetsForTimestamps: (
        "Unary[registry.OffsetsForTimestampsRequest, registry.OffsetsForTimestampsResponse]"
    )
    CommitOffsets: "Unary[registry.CommitOffsetsRequest, registry.CommitOffsetsResponse]"
    ListConsumerOffsets: (
        "Unary[registry.ListConsumerOffsetsRequest, registry.ListConsumerOffsetsResponse]"
    )
    ListConsumers: "Unary[registry.ListConsumersRequest, registry.ListConsumersResponse]"
    Purge: "Unary[registry.PurgeRequest, registry.PurgeResponse]"
    ListLiveFolios: "Unary[registry.ListLiveFoliosRequest, registry.ListLiveFoliosResponse]"
    ReadInlineFolio: "Unary[registry.ReadInlineFolioRequest, registry.ReadInlineFolioResponse]"
    RetireFolios: "Unary[registry.RetireFoliosRequest, registry.RetireFoliosResponse]"


class StageServiceStub(Stub):
    """See `wings.v1.StageService`."""

    service = registry.DESCRIPTOR.services_by_name["StageService"]
    PublishStages: "Unary[registry.PublishStagesRequest, registry.PublishStagesResponse]"
    BeginEpoch: "Unary[registry.BeginEpochRequest, registry.BeginEpochResponse]"
    AbortStages: "Unary[registry.AbortStagesRequest, registry.AbortStagesResponse]"
    SweepStages: "Unary[registry.SweepStagesRequest, registry.SweepStagesResponse]"
    ListStages: "Unary[registry.ListStagesRequest, registry.ListStagesResponse]"
    ListStagePages: "Unary[registry.ListStagePagesRequest, registry.ListStagePagesResponse]"
    ListTopicsOfStages: (
        "Unary[registry.ListTopicsOfStagesRequest, registry.ListTopicsOfStagesResponse]"
    )


class ShardServiceStub(Stub):
    """See `wings.v1.ShardService`."""

    service = shards.DESCRIPTOR.services_by_name["ShardService"]
    OpenShards: "Unary[shards.OpenShardsRequest, shards.ShardsResponse]"
    AcquireShards: "Unary[shards.AcquireShardsRequest, shards.ShardsResponse]"
    ResetShards: "Unary[shards.ResetShardsRequest, shards.ShardsResponse]"
    GetShards: "Unary[shards.GetShardsRequest, shards.ShardsResponse]"
    ListShards: "Unary[shards.ListShardsRequest, shards.ShardsResponse]"
    ListSources: "Unary[shards.ListSourcesRequest, shards.ListSourcesResponse]"
    CountShards: "Unary[shards.CountShardsRequest, shards.CountShardsResponse]"
    PruneShards: "Unary[shards.PruneShardsRequest, shards.PruneShardsResponse]"


class TableServiceStub(Stub):
    """See `wings.v1.TableService`."""

    service = tables.DESCRIPTOR.services_by_name["TableService"]
    ListTables: "Unary[tables.ListTablesRequest, tables.ListTablesResponse]"
    BeginTable: "Unary[tables.BeginTableRequest, tables.BeginTableResponse]"
    GetTableSegments: "Unary[tables.GetTableSegmentsRequest, tables.GetTableSegmentsResponse]"
    PlanTableCommit: "Unary[tables.PlanTableCommitRequest, tables.PlanTableCommitResponse]"
    ConfirmTableCommit: "Unary[tables.ConfirmTableCommitRequest, tables.ConfirmTableCommitResponse]"
    AdoptTable: "Unary[tables.AdoptTableRequest, tables.AdoptTableResponse]"
    ForgetTable: "Unary[tables.ForgetTableRequest, tables.ForgetTableResponse]"


class TokenServiceStub(Stub):
    """See `wings.v1.TokenService`."""

    service = tokens.DESCRIPTOR.services_by_name["TokenService"]
    CreateToken: "Unary[tokens.Token, tokens.Token]"
    DeleteToken: "Unary[tokens.DeleteTokenRequest, tokens.Token]"
    AlterToken: "Unary[tokens.AlterTokenRequest, tokens.Token]"
    ListTokens: "Unary[tokens.ListTokensRequest, tokens.ListTokensResponse]"
    CountTokenChanges: "Unary[tokens.CountTokenChangesRequest, tokens.CountTokenChangesResponse]"
