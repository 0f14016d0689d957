"""RemoteLink: a replica in another process."""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import grpc

from wings_core import tracing
from wings_core.errors import InvalidArgument, Unavailable, WingsError
from wings_core.metadata.remote.channel import ServiceChannel, error_of
from wings_core.protocol.v1 import holds_pb2
from wings_core.protocol.v1.stubs import Stub
from wings_core.security.peers import PeerAccess
from wings_core.share.remote.codec import decode_answer, encode_request
from wings_core.share.remote.session import Asked, Done, HoldSession
from wings_core.share.replica.requests import BATCH_MAX, Answer, ForgetRequest, Request


class _HoldServiceStub(Stub):
    service = holds_pb2.DESCRIPTOR.services_by_name["HoldService"]


class RemoteLink:
    """A replica over gRPC; it connects when it is first needed.

    Args:
        target: `HOST:PORT`.
        access: The credentials presented to it.
    """

    def __init__(self, target: str, access: PeerAccess | None = None) -> None:
        self._target = target
        self._channel = ServiceChannel(target, access)
        self._lock = threading.Lock()
        self._session: HoldSession | None = None
        self._open_session: Any = self._channel.channel.stream_stream(
            f"/{_HoldServiceStub.service.full_name}/Session"
        )
        self._stub = _HoldServiceStub(self._channel.channel)

    def begin_all(self, requests: Sequence[Request], seconds: float, done: Done) -> None:
        """Send requests over the session; see `ReplicaLink.begin_all`.

        Where the replica is silent, `done` is called at the next request.
        """
        # To forget takes long, and a call that is a part of a trace is a span of it.
        if isinstance(requests[0], ForgetRequest) or tracing.present() is not None:
            for number, request in enumerate(requests):
                self._call(request, seconds, partial(done, number))
            return
        for at in range(0, len(requests), BATCH_MAX):
            some = requests[at : at + BATCH_MAX]
            of_some = done if at == 0 else partial(_shifted, done, at)
            self._ask(Asked(some, time.monotonic() + seconds, of_some))

    def close(self) -> None:
        """Cancel the requests under way."""
        self._channel.close()

    def _call(self, request: Request, seconds: float, done: Callable[[Answer], None]) -> None:
        name, message = encode_request(request)
        try:
            future = getattr(self._stub, name).future(message, timeout=seconds)
        except ValueError:
            done(_closed())  # So gRPC says that the channel is closed.
            return

        def end(ended: object) -> None:
            done(self._answer(ended))

        future.add_done_callback(end)

    def _ask(self, asked: Asked) -> None:
        with self._lock:
            session = self._session
            if session is None or session.has_ended:
                try:
                    session = self._session = HoldSession(self._open_session, self._error_of)
                except ValueError:
                    session = None  # So gRPC says that the channel is closed.
        if session is None:
            asked.fail(_closed())
        elif not session.begin(asked):
            late = f"the replica of holds {self._target} does not answer in time"
            asked.fail(session.error or Unavailable(late))

    def _answer(self, ended: object) -> Answer:
        call = cast("grpc.Future[Any]", ended)
        try:
            return decode_answer(call.result())
        except grpc.RpcError as error:
            return self._error_of(error)
        except grpc.FutureCancelledError:
            return _closed()

    def _error_of(self, failed: grpc.RpcError) -> WingsError:
        """Return the error of a call; names the replica in an error of the connection."""
        if self._channel.closed:
            return _closed()
        if cast("grpc.Call", failed).code() is grpc.StatusCode.UNIMPLEMENTED:
            return Unavailable(
                f"no replica of holds is served at {self._target}: name those of this cluster "
                "with --hold-replicas"
            )
        error = error_of(failed, self._target)
        if not isinstance(error, Unavailable):
            return error
        return Unavailable(
            error.message.replace("the metadata service", "the replica of holds"), **error.facts
        )


def _shifted(done: Done, at: int, number: int, answer: Answer) -> None:
    """Pass the answer to a request of a later message on."""
    done(at + number, answer)


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
