"""RemoteLink: a replica in another process."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import grpc
from google.protobuf.message_factory import GetMessageClass

from wings_core.errors import InvalidArgument, Unavailable, WingsError
from wings_core.metadata.remote.channel import ServiceChannel
from wings_core.metadata.remote.errors import error_of
from wings_core.protocol.v1 import holds_pb2
from wings_core.security.peers import PeerAccess
from wings_core.share.remote.codec import (
    decode_answer,
    decode_answers,
    encode_request,
    encode_requests,
)
from wings_core.share.replica.combiner import BATCH_MAX
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
        self._serves_many = True
        """Whether it carries out several requests together: one of an earlier version does not."""
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

    def begin_all(
        self, requests: Sequence[Request], seconds: float, done: Callable[[int, Answer], None]
    ) -> None:
        """Send requests in as few messages as they fit in; see `ReplicaLink.begin_all`."""
        for at in range(0, len(requests), BATCH_MAX):
            some = requests[at : at + BATCH_MAX]
            if len(some) == 1 or not self._serves_many:
                self._begin_each(some, at, seconds, done)
            else:
                self._begin_many(some, at, seconds, done)

    def _begin_each(
        self,
        requests: Sequence[Request],
        at: int,
        seconds: float,
        done: Callable[[int, Answer], None],
    ) -> None:
        for number, request in enumerate(requests, at):
            self.begin(request, seconds, partial(done, number))

    def _begin_many(
        self,
        requests: Sequence[Request],
        at: int,
        seconds: float,
        done: Callable[[int, Answer], None],
    ) -> None:
        try:
            future = self._methods["Many"].future(encode_requests(requests), timeout=seconds)
        except ValueError:
            for number in range(at, at + len(requests)):
                done(number, _closed())
            return

        def end(ended: object) -> None:
            call = cast("grpc.Future[Any]", ended)
            answers: Sequence[Answer] = ()
            try:
                answers = decode_answers(call.result())
            except grpc.RpcError as error:
                if cast("grpc.Call", error).code() is grpc.StatusCode.UNIMPLEMENTED:
                    # A replica of an earlier version; or none, which the next answer tells.
                    self._serves_many = False
                    self._begin_each(requests, at, seconds, done)
                    return
                failed = self._error(error_of(error, self._target))
            except grpc.FutureCancelledError:
                failed = _closed()
            else:
                failed = Unavailable(f"{self._target} answered {len(answers)} of the requests")
            if len(answers) != len(requests):
                answers = [type(failed)(failed.message, **failed.facts) for _ in requests]
            for number, answer in enumerate(answers, at):
                done(number, answer)

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
