"""Translates the errors of pyarrow into errors of Wings; the only place that does.

An error that a server raised carries JSON in `extra_info` and is rebuilt from it. A connection that
fails carries none, and becomes `Unavailable` with two facts: `endpoint`, and `connection`, which
says how it failed (see `Connection`). gRPC reports both a port without a server and a server that
dies during a call as "unavailable" (measured), so they are distinguished by its text.
"""

import json
import re
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from wings_core.errors import (
    Internal,
    InvalidArgument,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
    WingsError,
    error_from_json,
)


class Connection(StrEnum):
    """How a connection failed: the fact `connection` of an `Unavailable` of the client's own."""

    UNREACHABLE = "unreachable"
    """No server was reached; the call was never sent."""
    LOST = "lost"
    """The connection broke after the call was sent; the server may have carried it out."""
    TIMEOUT = "timeout"
    """No answer in time; the server may have carried the call out, or yet do so."""
    CLOSED = "closed"
    """The client was closed."""


_UNREACHABLE = re.compile(
    "failed to connect|connection refused|resolution fail|name resolution|errors resolving"
    "|no route to host|network is unreachable|empty address list",
    re.IGNORECASE,
)

_OTHER_PROTOCOL_TEXT = "trying to connect an http1.x server"
"""gRPC's text on an HTTP/1.1 response."""

_PROBLEMS = tuple(
    (why, re.compile(pattern, re.IGNORECASE))
    for why, pattern in (
        ("plain", "wrong.version.number"),
        ("name", "not in peer certificate|hostname mismatch|ip address mismatch"),
        ("expired", "certificate has expired|certificate is not yet valid"),
        ("certificate", r"certificate verify failed(?:: )?([^(]*)"),
        ("files", "empty address list"),
        ("closed", "failed to connect.*socket closed"),
        ("host", "resolving|resolution|name or service not known|nodename nor servname"),
    )
)
"""Texts of gRPC, and of Python's ssl and socket, for a connection that cannot be made."""

PROBE_SECONDS = 0.5
"""Longest wait for a connection to this machine."""

_CALL_ERRORS = (flight.FlightError, pa.ArrowException, OSError)
_NO_ERRORS: tuple[type[Exception], ...] = ()

_NOISE_BEFORE = "with message: "
_NOISE_AFTER = ". gRPC client debug context"


def call_errors() -> tuple[type[Exception], ...]:
    """Return the errors that pyarrow raises when a call fails, for an `except` to catch.

    None where the present one was raised elsewhere: a handler of a signal may raise any error where
    the main thread makes a call, and such a one, of a time-out say, is the program's own.
    """
    error = sys.exception()
    if isinstance(error, OSError):
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_next is not None:
            traceback = traceback.tb_next
        module = "" if traceback is None else traceback.tb_frame.f_globals.get("__name__", "")
        return _CALL_ERRORS if module.startswith("pyarrow.") else _NO_ERRORS
    return _CALL_ERRORS


@contextmanager
def ignored_call_errors() -> Generator[None]:
    """Ignore that a call fails in the block."""
    try:
        yield
    except call_errors():
        return


@contextmanager
def typed_errors(endpoint: str) -> Generator[None]:
    """Translate what pyarrow raises in the block into an error of Wings.

    Args:
        endpoint: The address that was called, for the facts of the error.
    """
    try:
        yield
    except call_errors() as error:
        raise typed_error(error, endpoint) from error


def typed_error(error: Exception, endpoint: str) -> WingsError:
    """Return the error of Wings that an error of pyarrow stands for."""
    raised = _server_error(error)
    if raised is not None:
        return raised
    text = _text(error)
    if isinstance(error, flight.FlightTimedOutError):
        return timed_out(f"no answer from {endpoint} in time", endpoint)
    if isinstance(error, (flight.FlightUnavailableError, flight.FlightCancelledError)):
        if _OTHER_PROTOCOL_TEXT in text.lower():
            return InvalidArgument(
                f"{endpoint} speaks HTTP, not Arrow Flight: give the server's other address",
                endpoint=endpoint,
            )
        if _UNREACHABLE.search(text) is not None:
            return unreachable(endpoint, text)
        return lost(f"the connection to {endpoint} was lost: {text}", endpoint)
    if isinstance(error, flight.FlightUnauthenticatedError):
        return Unauthenticated(text, endpoint=endpoint)
    if isinstance(error, flight.FlightUnauthorizedError):
        return PermissionDenied(text, endpoint=endpoint)
    return Internal(f"{endpoint}: {type(error).__name__}: {text}", endpoint=endpoint)


def unreachable(endpoint: str, text: str) -> WingsError:
    """Return the error of a connection that could not be made.

    Args:
        endpoint: The address, with its scheme.
        text: Text of gRPC, or of the system.

    Returns:
        With the fact `why` where it is none of the usual reasons: that no server is there, or that
        it is not reached.
    """
    facts: dict[str, Any] = {"endpoint": endpoint}
    why, found = next(
        ((why, found) for why, pattern in _PROBLEMS if (found := pattern.search(text))),
        (None, None),
    )
    if why == "plain":
        plain = endpoint.replace("grpc+tls://", "grpc://").replace("https://", "http://")
        return InvalidArgument(f"{endpoint} does not speak TLS: name it by {plain}", **facts)
    if why == "files":
        return InvalidArgument(
            f"{endpoint}: tls_ca, tls_cert or tls_key (--tls-ca, --tls-cert, --tls-key) cannot be "
            "used: each is PEM, and a key is that of its certificate",
            **facts,
        )
    if found is None or why is None:
        message = f"no server answers at {endpoint}: {text}"
        if (other := _answering(endpoint)) is not None:
            facts["why"] = "address"
            message = (
                f"{endpoint} has several addresses, and the connection fails also where a server "
                f"listens: name it by {other}, whose error says why"
            )
    else:
        facts["why"] = why
        message = _said(why, endpoint, found)
    return Unavailable(message, **facts, connection=Connection.UNREACHABLE.value)


def _answering(endpoint: str) -> str | None:
    """Return the endpoint of the one of a local host's addresses where a server listens, if any.

    gRPC has the error of one address alone, which need not be that one.
    """
    scheme, _, address = endpoint.partition("://")
    host, _, port = address.rpartition(":")
    if host != "localhost" or not scheme.endswith(("+tls", "s")) or not port.isdecimal():
        return None
    with suppress(OSError):
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for ip in [str(each[4][0]) for each in found] if len(found) > 1 else ():
            with suppress(OSError), socket.create_connection((ip, int(port)), PROBE_SECONDS):
                return f"{scheme}://{f'[{ip}]' if ':' in ip else ip}:{port}"
    return None


def _said(why: str, endpoint: str, found: "re.Match[str]") -> str:
    if why == "name":
        return (
            f"the certificate of the server at {endpoint} is for other names: call it by one of "
            "them"
        )
    if why == "expired":
        return (
            f"the certificate of the server at {endpoint} does not hold now: {found[0]}; have it "
            "replaced there, unless a clock is wrong"
        )
    if why == "certificate":
        return (
            f"the certificate of the server at {endpoint} is not trusted: "
            f"{found[1].strip() or 'it is not valid'}; give its authority as tls_ca, --tls-ca or "
            "WINGS_TLS_CA"
        )
    if why == "host":
        host = endpoint.partition("://")[2].rpartition(":")[0]
        return f"no address is known of host {host!r}, of the endpoint {endpoint}"
    wanted = "a client's certificate, give tls_cert and tls_key (--tls-cert, --tls-key)"
    if not endpoint.startswith("grpc+tls://"):
        wanted = "TLS, name it by grpc+tls://"
    return f"the server at {endpoint} closes the connection: if it wants {wanted}"


def lost(message: str, endpoint: str) -> Unavailable:
    """Return the error of a connection that broke midway."""
    return Unavailable(message, endpoint=endpoint, connection=Connection.LOST.value)


def timed_out(message: str, endpoint: str) -> Unavailable:
    """Return the error of a call or a wait that took too long."""
    return Unavailable(message, endpoint=endpoint, connection=Connection.TIMEOUT.value)


def client_closed(endpoint: str) -> Unavailable:
    """Return the error of a call on a client that was closed."""
    return Unavailable(
        "the client is closed", endpoint=endpoint, connection=Connection.CLOSED.value
    )


def is_timeout(error: BaseException) -> bool:
    """Return whether an error is that of a call or a wait that took too long."""
    return isinstance(error, WingsError) and error.facts.get("connection") == Connection.TIMEOUT


LASTING_QUOTAS = ("topics", "partitions")
"""Quotas that are not free again by themselves, as those of calls and bytes are."""


def is_passing(error: WingsError, *, repeatable: bool) -> bool:
    """Return whether the same call may succeed later, and may be sent again.

    Args:
        error: The error of the call.
        repeatable: Whether the call may be carried out twice: a read, or an idempotent write.
    """
    if not isinstance(error, (Unavailable, ResourceExhausted)):
        return False
    if error.facts.get("quota") in LASTING_QUOTAS:
        return False
    how = error.facts.get("connection")
    if how == Connection.CLOSED:
        return False
    if error.facts.get("in_doubt"):
        return repeatable  # Neither does the server know the outcome.
    # Without these facts, the server refused the call before any effect.
    return repeatable or how in {None, Connection.UNREACHABLE}


def copy_of(error: WingsError) -> WingsError:
    """Return an equal error without traceback, for one that is raised to several callers."""
    return type(error)(error.message, **error.facts)


def _server_error(error: Exception) -> WingsError | None:
    extra_info = getattr(error, "extra_info", None)
    if not extra_info:
        return None
    try:
        body = json.loads(bytes(extra_info))
    except ValueError:
        return None
    return error_from_json(body) if isinstance(body, dict) else None


def _text(error: Exception) -> str:
    """Return gRPC's own words, without what Flight puts around them."""
    text = str(error)
    text = text.partition(_NOISE_BEFORE)[2] or text
    text = text.partition(_NOISE_AFTER)[0]
    return " ".join(text.split())[:400]
