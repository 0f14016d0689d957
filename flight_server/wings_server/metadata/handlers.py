"""Handlers of the RPCs: decode the request, call one method of the metadata, encode the result.

Methods bear the names of the RPCs in snake case, and run on threads of the service. What an RPC
means is said in its `.proto` file.

Nodes read copies of the metadata, each a file as large as it.
"""

import secrets
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from wings_core.errors import InvalidArgument, NamespaceNotFound, ResourceExhausted
from wings_core.metadata.interfaces import Metadata
from wings_core.metadata.remote.admin import TOPICS_PAGE_SIZE_MAX, RemoteAdmin, RemoteGroups
from wings_core.metadata.remote.parts import (
    RemoteConsumerGroups,
    RemoteMaintenance,
    RemoteShards,
    RemoteStages,
    RemoteTables,
    RemoteTransactions,
)
from wings_core.metadata.remote.registry import RemoteRegistry
from wings_core.metadata.remote.rpc import BY_TEXT, RemotePart, Rpc, declared_rpcs
from wings_core.metadata.remote.store import RemoteNodes, RemoteTokens
from wings_core.names import NamespaceName, TopicName
from wings_core.protocol import messages
from wings_core.protocol.v1 import admin_pb2 as admin_pb
from wings_core.protocol.v1 import consumer_groups_pb2 as consumer_groups_pb
from wings_core.protocol.v1 import copies_pb2 as copies_pb
from wings_core.protocol.v1 import groups_pb2 as groups_pb
from wings_core.protocol.v1 import maintenance_pb2 as maintenance_pb
from wings_core.protocol.v1 import offset_registry_pb2 as pb
from wings_core.protocol.v1 import shards_pb2 as shards_pb
from wings_core.protocol.v1 import tables_pb2 as tables_pb
from wings_core.protocol.v1 import tokens_pb2 as tokens_pb
from wings_core.protocol.v1 import transactions_pb2 as transactions_pb
from wings_core.schemas import check_topic_schema
from wings_server.metadata.requests import TOPICS_BYTES_MAX, page, page_size_of, snake_case

COPIES_MAX = 4
"""Copies at a time; each is a file as large as the metadata."""

SILENT_SECONDS_MAX = 600.0
"""A copy of which nothing was read for so long is deleted: its node is gone."""

READ_BYTES_MAX = 8 * 1024 * 1024
"""The most bytes of one answer."""


def services(
    metadata: Metadata, store_id: str, refusal: Callable[[], str | None] = lambda: None
) -> list[tuple[ServiceDescriptor, object]]:
    """Return the services of metadata, each with what handles its methods.

    Args:
        metadata: The metadata served.
        store_id: Id of this metadata.
        refusal: Tells why nodes refuse pushes for now; None: they take them.
    """
    admin = admin_pb.DESCRIPTOR.services_by_name
    registry = pb.DESCRIPTOR.services_by_name
    maintenance = maintenance_pb.DESCRIPTOR.services_by_name
    groups = groups_pb.DESCRIPTOR.services_by_name
    shards = shards_pb.DESCRIPTOR.services_by_name
    return [
        (admin["AdminService"], _Admin(metadata, store_id)),
        (admin["NodeService"], _Nodes(metadata, refusal)),
        (registry["OffsetRegistryService"], _Registry(metadata)),
        (registry["StageService"], _Stages(metadata)),
        (
            transactions_pb.DESCRIPTOR.services_by_name["TransactionService"],
            _Declared(RemoteTransactions, metadata.transactions),
        ),
        (
            maintenance["MaintenanceService"],
            _Declared(RemoteMaintenance, metadata.maintenance),
        ),
        (groups["GroupService"], _Declared(RemoteGroups, metadata.groups)),
        (
            consumer_groups_pb.DESCRIPTOR.services_by_name["ConsumerGroupService"],
            _Declared(RemoteConsumerGroups, metadata.consumer_groups),
        ),
        (shards["ShardService"], _Declared(RemoteShards, metadata.shards)),
        (
            tables_pb.DESCRIPTOR.services_by_name["TableService"],
            _Declared(RemoteTables, metadata.tables),
        ),
        (copies_pb.DESCRIPTOR.services_by_name["CopyService"], _CopyHandlers(metadata)),
        (
            tokens_pb.DESCRIPTOR.services_by_name["TokenService"],
            _Declared(RemoteTokens, metadata.tokens),
        ),
    ]


class _Declared:
    """The handlers of a service's RPCs that the client's class declares.

    Args:
        remote: The client's class.
        part: The metadata's part with the methods of the same interface.
    """

    def __init__(self, remote: type[RemotePart], part: object) -> None:
        for declared in declared_rpcs(remote):
            name = snake_case(declared.method.name)
            if hasattr(self, name):
                continue  # It has a handler of its own.
            handled = partial(_answered, declared, part)
            setattr(self, name, handled)


def _answered(declared: Rpc, part: object, request: Any) -> Message:
    """Answer a request of a declared RPC, by the method that it calls."""
    function = getattr(part, declared.function.__name__)
    arguments = declared.arguments_of(request)
    paged = declared.paged
    if paged is None:
        return declared.response(function(**arguments))

    def find(after: object, items_max: int) -> list[Any]:
        found = function(**arguments, **declared.page_arguments(after, items_max))
        return sorted(found) if isinstance(found, set) else found

    found, token = page(request, paged.kind, find, paged.key, paged.size_max)
    response: Any = declared.response(found)
    response.next_page_token = token
    return response


class _Admin(_Declared):
    def __init__(self, metadata: Metadata, store_id: str) -> None:
        super().__init__(RemoteAdmin, metadata.admin)
        self._admin = metadata.admin
        self._store_id = store_id

    def get_store(self, _: admin_pb.GetStoreRequest) -> admin_pb.Store:
        return admin_pb.Store(
            id=self._store_id, keeps_slices=True, keeps_inline=True, keeps_tables=True
        )

    def get_tenant(self, request: admin_pb.GetTenantRequest) -> admin_pb.Tenant:
        tenants = {f"tenants/{found.name.tenant}" for found in self._admin.list_namespaces()}
        if request.name not in tenants:
            raise NamespaceNotFound(f"there is no namespace of {request.name[:80]!r}")
        return admin_pb.Tenant(name=request.name)

    def create_topic(self, request: admin_pb.CreateTopicRequest) -> admin_pb.Topic:
        schema = messages.schema_of(request.schema)
        partition_key = request.partition_key if request.HasField("partition_key") else None
        # Servers check it too, but any client may call.
        check_topic_schema(schema, partition_key)
        topic = self._admin.create_topic(
            TopicName.parse(request.name),
            schema,
            partition_key,
            messages.config_of(request.config) if request.config else None,
            if_not_exists=request.if_not_exists,
            uuid=request.uuid or None,
        )
        return messages.TOPIC.encode(topic)

    def list_topics(self, request: admin_pb.ListTopicsRequest) -> admin_pb.ListTopicsResponse:
        namespace = NamespaceName.parse(request.parent)
        found, token = page(
            request,
            BY_TEXT,
            lambda after, most: self._admin.list_topics(namespace, after=after, items_max=most),
            lambda topic: topic.name.topic,
            TOPICS_PAGE_SIZE_MAX,
        )
        response = admin_pb.ListTopicsResponse(next_page_token=token)
        room = TOPICS_BYTES_MAX
        for before, topic in zip([None, *found], found, strict=False):
            encoded = messages.TOPIC.encode(topic)
            room -= encoded.ByteSize()
            if before is not None and room < 0:
                response.next_page_token = BY_TEXT.token(before.name.topic)
                break
            response.topics.append(encoded)
        return response


class _Nodes(_Declared):
    def __init__(self, metadata: Metadata, refusal: Callable[[], str | None]) -> None:
        super().__init__(RemoteNodes, metadata.nodes)
        self._nodes = metadata.nodes
        self._refusal = refusal

    def renew_node(self, request: admin_pb.RenewNodeRequest) -> admin_pb.RenewNodeResponse:
        live = self._nodes.renew(messages.NODE.decode(request.node), request.seconds)
        return admin_pb.RenewNodeResponse(
            nodes=map(messages.NODE.fields, live), refusal=self._refusal() or ""
        )


class _Registry(_Declared):
    """All but `OffsetLocation` and `WatchTopic`, which `Locations` answers."""

    def __init__(self, metadata: Metadata) -> None:
        super().__init__(RemoteRegistry, metadata.registry)
        self._registry = metadata.registry

    def commit(self, request: pb.CommitRequest) -> pb.CommitResponse:
        flush_id = None
        if request.HasField("flush_id"):
            flush_id = messages.FLUSH_ID.decode(request.flush_id)
            if not flush_id.writer:
                raise InvalidArgument("a flush_id names its writer")
        batches = [messages.batch_of(batch) for batch in request.batches]
        inline = None
        if request.HasField("inline"):
            inline = messages.INLINE_FOLIO.decode(request.inline)
        results = self._registry.commit(batches, flush_id, inline)
        return pb.CommitResponse(results=map(messages.result_message, results))

    def read_inline_folio(self, request: pb.ReadInlineFolioRequest) -> pb.ReadInlineFolioResponse:
        found = self._registry.read_inline([request.folio, *request.others])
        first = found.pop(request.folio, None)
        others = [pb.InlineFolio(name=name, data=data) for name, data in found.items()]
        return pb.ReadInlineFolioResponse(data=first, others=others)


class _Stages(_Declared):
    def __init__(self, metadata: Metadata) -> None:
        super().__init__(RemoteStages, metadata.stages)
        self._stages = metadata.stages

    def list_stage_pages(self, request: pb.ListStagePagesRequest) -> pb.ListStagePagesResponse:
        size = page_size_of(request.page_size)
        token = request.page_token or "0"
        if not (token.isascii() and token.isdigit()):
            raise InvalidArgument(f"{token[:80]!r} is not a page token")
        first = messages.int64(int(token[:20]))
        found = self._stages.pages(request.stage, first, size)
        return pb.ListStagePagesResponse(
            pages=map(messages.STORED_PAGE.fields, found),
            next_page_token=str(first + size) if len(found) == size else "",
        )


@dataclass(slots=True)
class _OpenCopy:
    directory: "tempfile.TemporaryDirectory[str]"
    used_at: float

    @property
    def path(self) -> Path:
        return Path(self.directory.name) / "metadata.sqlite"


class _CopyHandlers:
    """Handles the methods of `wings.v1.CopyService`."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._lock = threading.Lock()
        """Guards the table; no other lock is taken under it."""
        self._copies: dict[str, _OpenCopy] = {}

    def begin_copy(self, _: copies_pb.BeginCopyRequest) -> copies_pb.BeginCopyResponse:
        self._end_silent()
        with self._lock:
            if len(self._copies) >= COPIES_MAX:
                raise ResourceExhausted(f"{COPIES_MAX} copies of the metadata are being read")
        copy_id = secrets.token_hex(16)
        copy = _OpenCopy(tempfile.TemporaryDirectory(prefix="wings-copy-"), time.monotonic())
        try:
            with self._metadata.copying() as write:
                write(copy.path)
        except BaseException:
            copy.directory.cleanup()
            raise
        with self._lock:
            copy.used_at = time.monotonic()
            self._copies[copy_id] = copy
        return copies_pb.BeginCopyResponse(copy_id=copy_id)

    def read_copy(self, request: copies_pb.ReadCopyRequest) -> copies_pb.ReadCopyResponse:
        with self._lock:
            copy = self._copies.get(request.copy_id)
            if copy is not None:
                copy.used_at = time.monotonic()
        try:
            if copy is not None:
                with copy.path.open("rb") as file:
                    file.seek(request.start)
                    return copies_pb.ReadCopyResponse(data=file.read(READ_BYTES_MAX))
        except FileNotFoundError:
            pass  # It was ended meanwhile.
        raise InvalidArgument("there is no such copy of the metadata, or not any more")

    def end_copy(self, request: copies_pb.EndCopyRequest) -> copies_pb.EndCopyResponse:
        with self._lock:
            copy = self._copies.pop(request.copy_id, None)
        if copy is not None:
            copy.directory.cleanup()
        return copies_pb.EndCopyResponse()

    def _end_silent(self) -> None:
        oldest = time.monotonic() - SILENT_SECONDS_MAX
        with self._lock:
            silent = [each for each, copy in self._copies.items() if copy.used_at < oldest]
            ended = [self._copies.pop(each) for each in silent]
        for copy in ended:
            copy.directory.cleanup()
