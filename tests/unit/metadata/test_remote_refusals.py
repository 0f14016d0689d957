"""What the metadata service refuses of any client's requests before its store is asked."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from fix_metadata import Clock, RemoteOverSqlite
from tables import each

from wings_core.errors import InvalidArgument
from wings_core.metadata.remote.channel import (
    Stub,
    error_of,
)
from wings_core.metadata.remote.rpc import KeyKind
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.partitions import VALUE_BYTES_MAX
from wings_core.protocol.v1 import admin_pb2, maintenance_pb2
from wings_core.protocol.v1 import offset_registry_pb2 as pb
from wings_core.times import now_us

ADDRESS = pb.PageAddress(folio="folio", position=0, length=1)


class Service:
    """A service's stubs, and a topic of it."""

    def __init__(self, channel: grpc.Channel, remote: RemoteOverSqlite) -> None:
        schema = pa.schema([("n", pa.int64())])
        self.topic = remote.admin.create_topic(DEFAULT_NAMESPACE.topic("topic"), schema)
        self.admin = Stub(channel, "AdminService")
        self.registry = Stub(channel, "OffsetRegistryService")
        self.maintenance = Stub(channel, "MaintenanceService")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    path: Path = tmp_path_factory.mktemp("metadata") / "metadata.db"
    remote = RemoteOverSqlite(path, Clock(now_us()))
    with grpc.insecure_channel(str(remote.service.address)) as channel:
        yield Service(channel, remote)
    remote.close()


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error = error_of(caught.value, "here")
    assert isinstance(error, InvalidArgument), error
    return error.message


def lists(service: Service, tenant: str, partition: str) -> list[Callable[[], object]]:
    """Return a call of each list whose token holds a namespace or a partition."""
    uuid, registry = service.topic.uuid, service.registry
    texts: KeyKind[tuple[str, ...]] = KeyKind(0, lambda key: key, tuple)
    namespaces, partitions = texts.token((tenant, "n")), texts.token((partition,))
    offsets = texts.token((tenant, "n", "t", partition))
    return [
        lambda: service.admin.ListNamespaces(
            admin_pb2.ListNamespacesRequest(page_token=namespaces)
        ),
        lambda: registry.ListPartitionStates(
            pb.ListPartitionStatesRequest(topic_uuid=uuid, page_token=partitions)
        ),
        lambda: service.maintenance.ListTierStates(
            maintenance_pb2.ListTierStatesRequest(topic_uuid=uuid, page_token=partitions)
        ),
        lambda: registry.ListConsumerOffsets(
            pb.ListConsumerOffsetsRequest(consumer="consumer", page_token=offsets)
        ),
    ]


def test_a_token_of_a_namespace_or_a_partition_that_cannot_be_is_refused(service: Service) -> None:
    for call in lists(service, "tenant", "7"):
        call()
    for tenant, partition in (("a\0", "7\0"), ("A", "[]"), ("", ""), ("a/b", "1.0")):
        for call in lists(service, tenant, partition):
            assert "is not a page token" in refusal(call), (tenant, partition)


def of_partition(service: Service, partition: str) -> list[Callable[[], object]]:
    """Return a call of each RPC whose request names a partition."""
    registry, maintenance = service.registry, service.maintenance
    wanted: Any = {"topic_uuid": service.topic.uuid, "partition": partition}
    page = pb.StoredPage(partition=partition, rows=1, address=ADDRESS)
    expected = pb.ExpectedOffset(partition=partition, offset=0)

    def commit(**fields: Any) -> object:
        batch = pb.CommitBatch(topic_uuid=service.topic.uuid, **fields)
        return registry.Commit(pb.CommitRequest(batches=[batch]))

    return [
        lambda: commit(pages=[page]),
        lambda: commit(expected=expected),
        lambda: registry.OffsetLocation(pb.OffsetLocationRequest(**wanted, offset=0)),
        lambda: registry.GetPartitionState(pb.GetPartitionStateRequest(**wanted)),
        lambda: registry.OffsetForTimestamp(pb.OffsetForTimestampRequest(**wanted)),
        lambda: registry.OffsetsForTimestamps(
            pb.OffsetsForTimestampsRequest(
                topic_uuid=service.topic.uuid, partitions=[partition], timestamps_us=[0]
            )
        ),
        lambda: registry.CommitOffsets(
            pb.CommitOffsetsRequest(
                consumer="consumer",
                offsets=[pb.CommitOffsetsRequest.Entry(**wanted, topic=str(service.topic.name))],
            )
        ),
        lambda: maintenance.ExpirePages(maintenance_pb2.ExpirePagesRequest(**wanted, pages_max=1)),
        lambda: maintenance.ReplacePages(maintenance_pb2.ReplacePagesRequest(**wanted)),
    ]


@each("partition", ["", "a", '"\0"', '"\\u0041"', "1.0", "[]", "-0"])
def test_a_partition_that_is_not_canonical_is_refused_by_every_rpc(
    service: Service, partition: str
) -> None:
    for call in of_partition(service, partition):
        assert "is not the canonical JSON of a partition value" in refusal(call)


def test_a_partition_longer_than_any_may_be_is_refused_by_every_rpc(service: Service) -> None:
    longest = f'"{"x" * (VALUE_BYTES_MAX - 2)}"'
    for call in of_partition(service, longest)[2:6]:
        call()
    for call in of_partition(service, longest[:-1] + 'x"'):
        assert f"more than {VALUE_BYTES_MAX} bytes" in refusal(call)
