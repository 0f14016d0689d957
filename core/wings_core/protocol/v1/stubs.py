"""Stubs of services: callables of a channel, named as the service's methods."""

from typing import TYPE_CHECKING, Any, ClassVar

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from wings_core.protocol.v1 import admin_pb2 as admin
from wings_core.protocol.v1 import maintenance_pb2 as maintenance
from wings_core.protocol.v1 import offset_registry_pb2 as registry


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

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return the callable of a method."""


class AdminServiceStub(Stub):
    """See `wings.v1.AdminService`."""

    service = admin.DESCRIPTOR.services_by_name["AdminService"]


class MaintenanceServiceStub(Stub):
    """See `wings.v1.MaintenanceService`."""

    service = maintenance.DESCRIPTOR.services_by_name["MaintenanceService"]


class OffsetRegistryServiceStub(Stub):
    """See `wings.v1.OffsetRegistryService`."""

    service = registry.DESCRIPTOR.services_by_name["OffsetRegistryService"]
