"""Requests and answers of replicas as messages of `wings.v1.HoldService`, and back."""

from collections.abc import Sequence
from typing import cast

from google.protobuf.message import Message

from wings_core.partitions import Partition
from wings_core.protocol.v1 import holds_pb2 as pb
from wings_core.share.interfaces import (
    CountedRange,
    LeaseEntry,
    Outcome,
    Part,
    ReleaseEntry,
    ReplicaState,
)
from wings_core.share.model import Lease, OffsetRange, ShareKey
from wings_core.share.steps import (
    Answer,
    ForgetRequest,
    HoldRequest,
    ReadRequest,
    ReleaseRequest,
    RenewRequest,
    Request,
    TombstoneRequest,
)

_OUTCOMES = {
    Outcome.OK: pb.OUTCOME_OK,
    Outcome.NOK: pb.OUTCOME_NOK,
    Outcome.TOMB: pb.OUTCOME_TOMB,
}
_OUTCOMES_BACK = {number: outcome for outcome, number in _OUTCOMES.items()}


def encode_request(request: Request) -> tuple[str, Message]:
    """Return the name of the method, and its message."""
    match request:
        case HoldRequest(key, ranges, lease, ttl_ms, in_flight_max):
            return "Hold", pb.HoldRequest(
                key=_key(key),
                ranges=[_range(wanted) for wanted in ranges],
                lease=_lease(lease),
                ttl_ms=ttl_ms,
                in_flight_max=in_flight_max,
            )
        case RenewRequest(key, entries, ttl_ms):
            return "Renew", pb.RenewRequest(
                key=_key(key), entries=[_entry(entry) for entry in entries], ttl_ms=ttl_ms
            )
        case ReleaseRequest(key, entries):
            releases = [
                pb.ReleaseEntry(
                    first=entry.first,
                    last=entry.last,
                    lease=_lease(entry.lease),
                    count=entry.count,
                    delay_ms=entry.delay_ms,
                )
                for entry in entries
            ]
            return "Release", pb.ReleaseRequest(key=_key(key), entries=releases)
        case TombstoneRequest(key, entries, repair):
            return "Tombstone", pb.TombstoneRequest(
                key=_key(key),
                entries=[_entry(entry) for entry in entries],
                repair=[_range(wanted) for wanted in repair],
            )
        case ReadRequest(group_uuid, partitions):
            return "Read", pb.ReadRequest(group_uuid=group_uuid, partitions=partitions)
        case ForgetRequest(group_uuid):
            return "Forget", pb.ForgetRequest(group_uuid=group_uuid)


def decode_request(message: Message) -> Request:
    """Return what a message asks for."""
    match message:
        case pb.HoldRequest():
            ranges = tuple(OffsetRange(wanted.first, wanted.last) for wanted in message.ranges)
            lease = _lease_back(message.lease)
            key = _key_back(message.key)
            return HoldRequest(key, ranges, lease, message.ttl_ms, message.in_flight_max)
        case pb.RenewRequest():
            entries = _entries_back(message.entries)
            return RenewRequest(_key_back(message.key), entries, message.ttl_ms)
        case pb.ReleaseRequest():
            releases = tuple(
                ReleaseEntry(
                    entry.first, entry.last, _lease_back(entry.lease), entry.count, entry.delay_ms
                )
                for entry in message.entries
            )
            return ReleaseRequest(_key_back(message.key), releases)
        case pb.TombstoneRequest():
            return TombstoneRequest(
                _key_back(message.key),
                _entries_back(message.entries),
                tuple(OffsetRange(wanted.first, wanted.last) for wanted in message.repair),
            )
        case pb.ReadRequest():
            partitions = tuple(Partition(partition) for partition in message.partitions)
            return ReadRequest(message.group_uuid, partitions)
        case pb.ForgetRequest():
            return ForgetRequest(message.group_uuid)
        case _:
            raise AssertionError(f"no request: {type(message)}")


def encode_answer(request: Request, answer: Answer) -> Message:
    """Return an answer that is no error as the message that belongs to its request."""
    match request:
        case ReadRequest():
            states = cast("Sequence[ReplicaState]", answer)
            return pb.ReadResponse(states=[_state(state) for state in states])
        case ForgetRequest():
            return pb.ForgetResponse()
        case _:
            parts = cast("Sequence[Part]", answer)
            return pb.HoldResponse(parts=[_part(part) for part in parts])


def decode_answer(message: Message) -> Answer:
    """Return what a replica answered."""
    match message:
        case pb.HoldResponse():
            return [
                Part(
                    part.first,
                    part.last,
                    _OUTCOMES_BACK[part.outcome],
                    part.count,
                    part.retry_ms,
                )
                for part in message.parts
            ]
        case pb.ReadResponse():
            return [
                ReplicaState(
                    Partition(state.partition),
                    state.start_offset,
                    tuple(OffsetRange(tomb.first, tomb.last) for tomb in state.finished),
                    tuple(
                        CountedRange(counted.first, counted.last, counted.count)
                        for counted in state.counts
                    ),
                    state.in_flight,
                )
                for state in message.states
            ]
        case _:
            return ()


def _key(key: ShareKey) -> pb.ShareKey:
    return pb.ShareKey(
        group_uuid=key.group_uuid, topic_uuid=key.topic_uuid, partition=key.partition
    )


def _key_back(key: pb.ShareKey) -> ShareKey:
    return ShareKey(key.group_uuid, key.topic_uuid, Partition(key.partition))


def _lease(lease: Lease) -> pb.Lease:
    return pb.Lease(coordinator=lease.coordinator, number=lease.number, member_tag=lease.member_tag)


def _lease_back(lease: pb.Lease) -> Lease:
    return Lease(lease.coordinator, lease.number, lease.member_tag)


def _range(wanted: OffsetRange) -> pb.OffsetRange:
    return pb.OffsetRange(first=wanted.first, last=wanted.last)


def _entry(entry: LeaseEntry) -> pb.LeaseEntry:
    return pb.LeaseEntry(
        first=entry.first, last=entry.last, lease=_lease(entry.lease), count=entry.count
    )


def _entries_back(entries: Sequence[pb.LeaseEntry]) -> tuple[LeaseEntry, ...]:
    return tuple(
        LeaseEntry(entry.first, entry.last, _lease_back(entry.lease), entry.count)
        for entry in entries
    )


def _part(part: Part) -> pb.Part:
    return pb.Part(
        first=part.first,
        last=part.last,
        outcome=_OUTCOMES[part.outcome],
        count=part.count,
        retry_ms=part.retry_ms,
    )


def _state(state: ReplicaState) -> pb.ReplicaState:
    return pb.ReplicaState(
        partition=state.partition,
        start_offset=state.start_offset,
        finished=[_range(tomb) for tomb in state.finished],
        counts=[
            pb.CountedRange(first=counted.first, last=counted.last, count=counted.count)
            for counted in state.counts
        ],
        in_flight=state.in_flight,
    )
