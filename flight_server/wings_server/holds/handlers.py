"""What handles the methods of `wings.v1.HoldService`."""

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from wings_core.errors import InvalidArgument, WingsError
from wings_core.protocol.v1 import holds_pb2
from wings_core.share.interfaces import HoldReplica
from wings_core.share.remote.codec import decode_request, encode_answer
from wings_core.share.steps import (
    ForgetRequest,
    HoldRequest,
    ReadRequest,
    ReleaseRequest,
    RenewRequest,
    Request,
    TombstoneRequest,
    perform,
)

TTL_MS_MAX = 24 * 3_600_000
"""Longer than any group's lock: a mistake would keep a replica from granting anything."""


class HoldHandlers:
    """Hands each call to a replica."""

    def __init__(self, replica: HoldReplica) -> None:
        self._replica = replica

    def hold(self, request: Message) -> Message:
        """Hold ranges."""
        return self._perform(request)

    def renew(self, request: Message) -> Message:
        """Renew leases."""
        return self._perform(request)

    def release(self, request: Message) -> Message:
        """Release what leases hold."""
        return self._perform(request)

    def tombstone(self, request: Message) -> Message:
        """Finish what leases hold."""
        return self._perform(request)

    def read(self, request: Message) -> Message:
        """Tell what is known."""
        return self._perform(request)

    def forget(self, request: Message) -> Message:
        """Forget a group."""
        return self._perform(request)

    def _perform(self, message: Message) -> Message:
        request = decode_request(message)
        _check(request)
        answer = perform(self._replica, request)
        if isinstance(answer, WingsError):
            raise answer
        return encode_answer(request, answer)


def hold_service(replica: HoldReplica) -> tuple[ServiceDescriptor, object]:
    """Return the service of a replica with what handles its methods."""
    return holds_pb2.DESCRIPTOR.services_by_name["HoldService"], HoldHandlers(replica)


def _check(request: Request) -> None:
    """Refuse what would damage the replica's ranges.

    Raises:
        InvalidArgument: A range that is none, out of order or overlapping, or a TTL out of range.
    """
    match request:
        case HoldRequest(_, ranges, _, ttl_ms, _):
            _check_ranges([(wanted.first, wanted.last) for wanted in ranges])
            _check_ttl(ttl_ms)
        case RenewRequest(_, entries, ttl_ms):
            _check_ranges([(entry.first, entry.last) for entry in entries])
            _check_ttl(ttl_ms)
        case ReleaseRequest(_, entries):
            _check_ranges([(entry.first, entry.last) for entry in entries])
        case TombstoneRequest(_, entries, repair):
            _check_ranges([(entry.first, entry.last) for entry in entries])
            _check_ranges([(wanted.first, wanted.last) for wanted in repair])
        case ReadRequest() | ForgetRequest():
            pass


def _check_ranges(ranges: list[tuple[int, int]]) -> None:
    before = -1
    for first, last in ranges:
        if not before < first <= last:
            raise InvalidArgument(f"offsets {first} to {last} are no range, or not in order")
        before = last


def _check_ttl(ttl_ms: int) -> None:
    if not 1 <= ttl_ms <= TTL_MS_MAX:
        raise InvalidArgument(f"ttl_ms: expected 1 to {TTL_MS_MAX}, got {ttl_ms}")
