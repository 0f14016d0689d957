"""Handlers of `wings.v1.HoldService`: single requests, and sessions of coordinators.

the calls' coroutines ─▶ queue ─▶ one thread: all messages in one write ─▶ (loop) responses
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc.aio
import structlog
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError, Message

from wings_core.contracts.messages import MEMBER_CHARACTERS_MAX
from wings_core.errors import Internal, InvalidArgument, WingsError
from wings_core.partitions import canonical_partition
from wings_core.protocol.v1 import holds_pb2
from wings_core.share.model import OffsetRange
from wings_core.share.remote.codec import (
    decode_request,
    decode_requests,
    encode_answer,
    encode_answers,
)
from wings_core.share.replica.replica import Replica
from wings_core.share.replica.requests import (
    BATCH_MAX,
    ForgetRequest,
    HoldRequest,
    LeaseEntry,
    ReadRequest,
    ReleaseEntry,
    RenewRequest,
    Request,
    TombstoneRequest,
)
from wings_server.metadata.requests import check_request

TTL_MS_MAX = 24 * 3_600_000
"""Greatest TTL of a hold, longer than any group's lock; a mistaken one would block a replica."""

_logger = structlog.get_logger("wings.metadata")

CarryOut = Callable[[Sequence[bytes]], Sequence[bytes | WingsError]]
"""Executes messages together; returns the response to each, or the error that ends its session."""


class _HoldHandlers:
    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.session = Sessions(self._carry_out)

    def hold(self, message: Message) -> Message:
        request = decode_request(message)
        _check(request)
        (answer,) = self._replica.perform([request])
        if isinstance(answer, WingsError):
            raise answer
        return encode_answer(request, answer)

    def many(self, message: Message) -> Message:
        requests = _requests_of(message)
        return encode_answers(requests, self._replica.perform(requests) if requests else ())

    def _carry_out(self, messages: Sequence[bytes]) -> list[bytes | WingsError]:
        """Execute messages of sessions together; returns their responses or errors."""
        asked = [_parsed(message) for message in messages]
        possible = [requests for requests in asked if not isinstance(requests, WingsError)]
        together = [request for requests in possible for request in requests]
        answers = iter(self._replica.perform(together) if together else ())
        return [
            requests
            if isinstance(requests, WingsError)
            else encode_answers(requests, [next(answers) for _ in requests]).SerializeToString()
            for requests in asked
        ]

    # The type of the message determines the request.
    renew = release = tombstone = read = forget = hold


def hold_service(replica: Replica) -> tuple[ServiceDescriptor, object]:
    """Return the descriptor of a replica's service, and its handler."""
    return holds_pb2.DESCRIPTOR.services_by_name["HoldService"], _HoldHandlers(replica)


def _parsed(raw: bytes) -> list[Request] | WingsError:
    """Return the requests of a session's message, or the error that rejects it."""
    message = holds_pb2.ManyRequest()
    try:
        message.ParseFromString(raw)
        check_request(message)
        return _requests_of(message)
    except DecodeError as error:
        return InvalidArgument(f"not a message of a session: {error}")
    except WingsError as error:
        return error


def _requests_of(message: Message) -> list[Request]:
    requests = decode_requests(message)
    if len(requests) > BATCH_MAX:
        raise InvalidArgument(f"up to {BATCH_MAX} requests at once; got {len(requests)}")
    for request in requests:
        _check(request)
    return requests


def _check(request: Request) -> None:
    """Validate a request, which could otherwise corrupt the replica's ranges.

    Raises:
        InvalidArgument: A partition is not canonical JSON, a range is empty, ranges are out of
            order or overlap, or a TTL is out of range.
    """
    if isinstance(request, ForgetRequest):
        return
    if isinstance(request, ReadRequest):
        for partition in request.partitions:
            canonical_partition(partition)
        return
    canonical_partition(request.key.partition)
    _check_ranges(request.ranges if isinstance(request, HoldRequest) else request.entries)
    if isinstance(request, TombstoneRequest):
        _check_ranges(request.repair)
    if isinstance(request, HoldRequest) and len(request.member) > MEMBER_CHARACTERS_MAX:
        raise InvalidArgument(f"a member has up to {MEMBER_CHARACTERS_MAX} characters")
    if isinstance(request, HoldRequest | RenewRequest) and not 1 <= request.ttl_ms <= TTL_MS_MAX:
        raise InvalidArgument(f"ttl_ms: expected 1 to {TTL_MS_MAX}, got {request.ttl_ms}")


def _check_ranges(ranges: Sequence[OffsetRange | LeaseEntry | ReleaseEntry]) -> None:
    before = -1
    for each in ranges:
        if not before < each.first <= each.last:
            raise InvalidArgument(
                f"offsets {each.first} to {each.last} are not a range, or not in order"
            )
        before = each.last


@dataclass(frozen=True, slots=True)
class _Asked:
    message: bytes
    answer: "asyncio.Future[bytes]"


class Sessions:
    """The sessions of one service; `serve` and `stop` run on its event loop.

    Args:
        carry_out: Executes messages, on the thread; blocks for a sync of the disk.
    """

    def __init__(self, carry_out: CarryOut) -> None:
        self._carry_out = carry_out
        self._asked: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._idle: set[asyncio.Task[Any]] = set()
        """Tasks of calls that wait for a message."""
        self._is_stopped = False

    async def serve(self, _: object, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        """Answer the messages of a call until its client, or `stop`, ends it.

        Raises:
            WingsError: A message is rejected.
        """
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="wings-holds", daemon=True)
            self._thread.start()
        try:
            while not self._is_stopped:
                self._idle.add(task)
                message: Any = await context.read()
                self._idle.discard(task)
                if message is grpc.aio.EOF or self._is_stopped:
                    return
                answer: asyncio.Future[bytes] = loop.create_future()
                self._asked.put(_Asked(message, answer))
                await context.write(await answer)
        except asyncio.CancelledError:
            if not self._is_stopped:
                raise
            # The method must return, or gRPC would leave the call open.
        finally:
            self._idle.discard(task)

    def stop(self) -> None:
        """End the sessions, each after its pending response."""
        self._is_stopped = True
        for task in list(self._idle):
            task.cancel()
        self._asked.put(None)

    # Run on the thread.

    def _run(self) -> None:
        asked = self._asked.get()
        while asked is not None:
            batch = [asked]
            while not self._asked.empty() and (asked := self._asked.get()) is not None:
                batch.append(asked)
            answers: Sequence[bytes | WingsError]
            try:
                answers = self._carry_out([each.message for each in batch])
            except Exception:
                _logger.exception("sessions failed by a fault of the replica")
                answers = [Internal("a fault of the replica of holds") for _ in batch]
            loop = batch[0].answer.get_loop()
            loop.call_soon_threadsafe(_tell, [each.answer for each in batch], answers)
            if asked is not None:
                asked = self._asked.get()


def _tell(
    futures: "Sequence[asyncio.Future[bytes]]", answers: Sequence[bytes | WingsError]
) -> None:
    for future, answer in zip(futures, answers, strict=True):
        if future.done():
            continue  # The call has ended.
        if isinstance(answer, WingsError):
            future.set_exception(answer)
        else:
            future.set_result(answer)
