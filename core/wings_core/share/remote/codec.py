"""Requests and answers of replicas as messages of `wings.v1.HoldService`, and back."""

import json
import operator
from collections.abc import Sequence
from typing import Any, cast

from google.protobuf.message import Message

from wings_core.errors import InvalidArgument, WingsError, error_from_json
from wings_core.model import HeldRange, Lease
from wings_core.protocol.codec import Codec, convert
from wings_core.protocol.v1 import holds_pb2 as pb
from wings_core.share.model import OffsetRange, ShareKey
from wings_core.share.replica.requests import (
    Answer,
    CountedRange,
    DelayedRange,
    ForgetRequest,
    HoldRequest,
    LeaseEntry,
    PartOutcome,
    RangeAnswer,
    ReadRequest,
    ReleaseEntry,
    ReleaseRequest,
    RenewRequest,
    ReplicaState,
    Request,
    TombstoneRequest,
)

_OUTCOMES = {
    PartOutcome.OK: pb.OUTCOME_OK,
    PartOutcome.NOK: pb.OUTCOME_NOK,
    PartOutcome.TOMB: pb.OUTCOME_TOMB,
}
_OUTCOMES_BACK = {number: outcome for outcome, number in _OUTCOMES.items()}

convert(PartOutcome, _OUTCOMES.__getitem__, _OUTCOMES_BACK.__getitem__)

SHARE_KEY = Codec(ShareKey, pb.ShareKey)
LEASE = Codec(Lease, pb.Lease)
OFFSET_RANGE = Codec(OffsetRange, pb.OffsetRange)
COUNTED_RANGE = Codec(CountedRange, pb.CountedRange)
LEASE_ENTRY = Codec(LeaseEntry, pb.LeaseEntry)
RELEASE_ENTRY = Codec(ReleaseEntry, pb.ReleaseEntry)
HELD_RANGE = Codec(HeldRange, pb.HeldRange)
DELAYED_RANGE = Codec(DelayedRange, pb.DelayedRange)
PART = Codec(RangeAnswer, pb.Part)
REPLICA_STATE = Codec(ReplicaState, pb.ReplicaState)

REQUESTS: dict[str, Codec[Any, Any]] = {
    "Hold": Codec(HoldRequest, pb.HoldRequest),
    "Renew": Codec(RenewRequest, pb.RenewRequest),
    "Release": Codec(ReleaseRequest, pb.ReleaseRequest),
    "Tombstone": Codec(TombstoneRequest, pb.TombstoneRequest),
    "Read": Codec(ReadRequest, pb.ReadRequest),
    "Forget": Codec(ForgetRequest, pb.ForgetRequest),
}
"""Types by the method that they are sent to."""

_BY_VALUE = {codec.value: (method, codec) for method, codec in REQUESTS.items()}
_BY_MESSAGE = {codec.message: codec for codec in REQUESTS.values()}


def encode_request(request: Request) -> tuple[str, Message]:
    """Return the name of the method, and its message."""
    method, codec = _BY_VALUE[type(request)]
    return method, codec.encode(request)


def encoded_requests(requests: Sequence[Request]) -> bytes:
    """Return the message of requests that are carried out together.

    The replicas of a group are asked for the same, so the last message is remembered.
    """
    global _last
    asked, message = _last
    if len(asked) == len(requests) and all(map(operator.is_, asked, requests)):
        return message
    many = pb.ManyRequest()
    for request in requests:
        method, encoded = encode_request(request)
        getattr(many.requests.add(), method.lower()).CopyFrom(encoded)
    message = many.SerializeToString()
    _last = (tuple(requests), message)
    return message


_last: tuple[Sequence[Request], bytes] = ((), b"")


def decode_requests(message: Message) -> list[Request]:
    """Return the requests of a message.

    Raises:
        InvalidArgument: One of them is of no kind that is known here.
    """
    requests: list[Request] = []
    for each in cast("pb.ManyRequest", message).requests:
        kind = each.WhichOneof("request")
        if kind is None:
            raise InvalidArgument("a request of no kind that this replica of holds knows")
        requests.append(decode_request(getattr(each, kind)))
    return requests


def encode_answers(requests: Sequence[Request], answers: Sequence[Answer]) -> Message:
    """Return the answers to requests that were carried out together."""
    many = pb.ManyResponse()
    for request, answer in zip(requests, answers, strict=True):
        response = many.responses.add()
        if isinstance(answer, WingsError):
            response.error = json.dumps(answer.to_json())
            continue
        message = encode_answer(request, answer)
        kind = response.read if isinstance(message, pb.ReadResponse) else response.hold
        kind.SetInParent()  # Also where it is empty.
        cast("Message", kind).CopyFrom(message)
    return many


def decode_answers(message: bytes) -> list[Answer]:
    """Return a replica's answers to requests that were carried out together."""
    answers: list[Answer] = []
    for response in pb.ManyResponse.FromString(message).responses:
        kind = response.WhichOneof("response")
        if kind == "error":
            answers.append(error_from_json(json.loads(response.error)))
        else:
            answers.append(decode_answer(getattr(response, kind or "hold")))
    return answers


def decode_request(message: Message) -> Request:
    """Return the request of a message."""
    return _BY_MESSAGE[type(message)].decode(message)


def encode_answer(request: Request, answer: Answer) -> Message:
    """Return an answer that is not an error as the message that belongs to its request."""
    match request:
        case ReadRequest():
            states = cast("Sequence[ReplicaState]", answer)
            return pb.ReadResponse(states=[REPLICA_STATE.fields(state) for state in states])
        case ForgetRequest():
            return pb.ForgetResponse()
        case _:
            parts = cast("Sequence[RangeAnswer]", answer)
            return pb.HoldResponse(parts=[PART.fields(part) for part in parts])


def decode_answer(message: Message) -> Answer:
    """Return a replica's answer."""
    match message:
        case pb.HoldResponse():
            return [PART.decode(part) for part in message.parts]
        case pb.ReadResponse():
            return [REPLICA_STATE.decode(state) for state in message.states]
        case _:
            return ()
