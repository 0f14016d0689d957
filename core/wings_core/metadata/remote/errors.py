"""Errors on gRPC: a status code for the class, and the error's JSON in the trailing metadata."""

import json
from collections.abc import Iterable, Mapping
from typing import cast

import grpc

from wings_core.errors import (
    AlreadyExists,
    BatchTooLarge,
    Conflict,
    Internal,
    InvalidArgument,
    NotFound,
    OffsetOutOfRange,
    PermissionDenied,
    ResourceExhausted,
    StorageCorrupt,
    Unauthenticated,
    Unavailable,
    WingsError,
    error_from_json,
)

ERROR_KEY = "wings-error-bin"
"""The trailing metadata that holds the error's JSON, in UTF-8."""

MESSAGE_CHARACTERS_MAX = 512
BODY_BYTES_MAX = 4_096
"""gRPC refuses metadata of more than 8 KiB."""

_STATUS: Mapping[type[WingsError], grpc.StatusCode] = {
    InvalidArgument: grpc.StatusCode.INVALID_ARGUMENT,
    NotFound: grpc.StatusCode.NOT_FOUND,
    AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    Conflict: grpc.StatusCode.FAILED_PRECONDITION,
    OffsetOutOfRange: grpc.StatusCode.OUT_OF_RANGE,
    BatchTooLarge: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    ResourceExhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
    StorageCorrupt: grpc.StatusCode.DATA_LOSS,
    Internal: grpc.StatusCode.INTERNAL,
}
"""By class, subclasses included."""


def status_of(error: WingsError) -> grpc.StatusCode:
    """Return the gRPC status that stands for an error."""
    found = (_STATUS[cls] for cls in type(error).__mro__ if cls in _STATUS)
    return next(found, grpc.StatusCode.INTERNAL)


def error_message(error: WingsError) -> str:
    """Return an error's message, cut to what a status carries."""
    message = error.message.encode("utf-8", "replace").decode("utf-8")
    if len(message) <= MESSAGE_CHARACTERS_MAX:
        return message
    return message[: MESSAGE_CHARACTERS_MAX - 3] + "..."


def error_body(error: WingsError) -> bytes:
    """Return an error's JSON; facts that would make it too long are left out."""
    return error.bounded_json(error_message(error), BODY_BYTES_MAX)


def error_of(error: grpc.RpcError, target: str, *, changes: bool = True) -> WingsError:
    """Return the error that a call ended with: the service's own, or `Unavailable`.

    Where it is unknown whether the service did what was asked, the fact `in_doubt` is true.

    Args:
        error: Of a call that ended.
        target: The service's address, for the message.
        changes: Whether the call may change anything; else there is nothing to be in doubt of.
    """
    assert isinstance(error, grpc.Call)
    trailing = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    for key, value in trailing:
        if key == ERROR_KEY and isinstance(value, bytes):
            found = error_from_json(json.loads(value))
            if isinstance(found, Unauthenticated):
                # It is this node that is refused, not its client.
                return Unavailable(f"the metadata service at {target}: {found.message}")
            return found
    code, details = error.code(), str(error.details())
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return Internal(f"the metadata service at {target} does not know this call: {details:.200}")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "RPC limit" in details:
        # So gRPC says before it hands a call on; of a message that is too large it says otherwise.
        return Unavailable(f"the metadata service at {target} has too many calls under way")
    if code is grpc.StatusCode.UNAVAILABLE and details.startswith("failed to connect"):
        # gRPC says so only of a call that no connection was found for.
        return Unavailable(f"the metadata service at {target} cannot be reached")
    message = f"the metadata service at {target} did not answer: {code.name}: {details:.200}"
    return Unavailable(message, in_doubt=True) if changes else Unavailable(message)
