"""RemoteLink: a replica in another process."""

from collections.abc import Callable
from typing import Any, cast

import grpc
from google.protobuf.message_factory import GetMessageClass

from wings_core.errors import InvalidArgument, Unavailable, WingsError
from wings_core.metadata.remote.channel import ServiceChannel
from wings_core.metadata.remote.errors import error_of
from wings_core.protocol.v1 import holds_pb2
from wings_core.security.peers import PeerAccess
from wings_core.share.remote.codec import decode_answer, encode_request
from wings_core.share.replica.requests import Answer, Request

_SERVICE = holds_pb2.DESCRIPTOR.services_by_name["HoldService"]


class RemoteLink:
    """A replica that is reached over gRPC; it connects when it is first needed.

    Args:
        target: `HOST:PORT`.
        access: What is presented to it.
    """

    def __init__(self, target: str, access: PeerAccess | None = None) -> None:
        self._target = target
        self._channel = ServiceChannel(target, access)
        self._methods: dict[str, Any] = {
            method.name: self._channel.channel.unary_unary(
                f"/{_SERVICE.full_name}/{method.name}",
                request_serializer=GetMessageClass(method.input_type).SerializeToString,
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            for method in _SERVICE.methods
        }

    def begin(self, request: Request, seconds: float, done: Callable[[Answer], None]) -> None:
        """Send a request; `done` is called on the channel's thread."""
        name, message = encode_request(request)
        try:
            future = self._methods[name].future(message, timeout=seconds)
        except ValueError:
            done(_closed())  # So gRPC says that the channel is closed.
            return

        def end(ended: object) -> None:
            done(self._answer(ended))

        future.add_done_callback(end)

    def close(self) -> None:
        """Cancel what is under way."""
        self._channel.close()

    def _answer(self, ended: object) -> Answer:
        call = cast("grpc.Future[Any]", ended)
        try:
            return decode_answer(call.result())
        except grpc.RpcError as error:
            if cast("grpc.Call", error).code() is grpc.StatusCode.UNIMPLEMENTED:
                return Unavailable(
                    f"no replica of holds is served at {self._target}: name those of this cluster "
                    "with --hold-replicas"
                )
            return self._error(error_of(error, self._target))
        except grpc.FutureCancelledError:
            return _closed()

    def _error(self, error: WingsError) -> WingsError:
        """Name the replica in what the connection says."""
        if not isinstance(error, Unavailable):
            return error
        return Unavailable(
            error.message.replace("the metadata service", "the replica of holds"), **error.facts
        )


def parse_targets(text: str) -> list[str]:
    """Parse the addresses of replicas, separated by commas.

    Raises:
        InvalidArgument: There is none, or one is named twice or is no address.
    """
    targets = [target.strip() for target in text.split(",") if target.strip()]
    if not targets or len(set(targets)) < len(targets):
        raise InvalidArgument(f"replicas of holds: expected addresses, each once; got {text!r}")
    for target in targets:
        host, _, port = target.rpartition(":")
        if not host or not port.isdigit():
            raise InvalidArgument(f"replicas of holds: {target!r} is not HOST:PORT")
    return targets


def _closed() -> Unavailable:
    return Unavailable("the coordinator of share groups is closed")
