import json
import socket
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from tables import each

from wings_client._errors import (
    Connection,
    copy_of,
    ignored_call_errors,
    is_passing,
    typed_error,
    typed_errors,
)
from wings_core.errors import (
    ERRORS_BY_CODE,
    Internal,
    OffsetOutOfRange,
    PermissionDenied,
    ResourceExhausted,
    TopicNotFound,
    Unauthenticated,
    Unavailable,
    WingsError,
)

server_error: Any = flight.FlightServerError
"""The stubs do not know of `extra_info`."""

ENDPOINT = "grpc://host:7777"


@each("code", ERRORS_BY_CODE)
def test_what_a_server_raised_is_raised_again_with_its_facts(code: str) -> None:
    extra_info = json.dumps({"code": code, "message": "why", "offset": 7}).encode()
    with pytest.raises(WingsError, match="why") as raised, typed_errors(ENDPOINT):
        raise server_error("something around it", extra_info=extra_info)
    assert type(raised.value) is ERRORS_BY_CODE[code]
    assert raised.value.facts == {"offset": 7}


def test_an_expired_certificate_is_called_that() -> None:
    text = (
        "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Ssl handshake "
        "failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:0A000086:SSL routines::certificate "
        "verify failed: certificate has expired"
    )
    expired = typed_error(flight.FlightUnavailableError(text), "grpc+tls://host:7777")
    assert expired.facts["why"] == "expired"
    assert expired.message == (
        "the certificate of the server at grpc+tls://host:7777 does not hold now: certificate has "
        "expired; have it replaced there, unless a clock is wrong"
    )


def test_of_several_addresses_the_one_where_a_server_listens_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "failed to connect to all addresses; last error: UNKNOWN: ipv6:[::1]: Connection refused"
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        look_up = socket.getaddrinfo

        def both(host: str, *args: Any, **options: Any) -> list[Any]:
            hosts = ("::1", "127.0.0.1") if host == "localhost" else (host,)
            return [found for each in hosts for found in look_up(each, *args, **options)]

        monkeypatch.setattr(socket, "getaddrinfo", both)
        refused = typed_error(flight.FlightUnavailableError(text), f"grpc+tls://localhost:{port}")
    assert refused.facts["why"] == "address"
    assert f"name it by grpc+tls://127.0.0.1:{port}, whose error says why" in refused.message


def test_nobody_there_is_told_from_a_connection_lost() -> None:
    nobody = typed_error(
        flight.FlightUnavailableError(
            "Flight returned unavailable error, with message: failed to connect to all addresses; "
            "last error: UNKNOWN: ipv4:127.0.0.1:1: Connection refused. gRPC client debug context: "
            "UNAVAILABLE:failed to connect"
        ),
        ENDPOINT,
    )
    assert isinstance(nobody, Unavailable)
    assert nobody.facts == {"endpoint": ENDPOINT, "connection": Connection.UNREACHABLE}
    assert "debug context" not in nobody.message
    lost = typed_error(
        flight.FlightUnavailableError("with message: Stream removed (Socket closed)"), ENDPOINT
    )
    assert lost.facts["connection"] == Connection.LOST
    cancelled = typed_error(flight.FlightCancelledError("CANCELLED"), ENDPOINT)
    assert cancelled.facts["connection"] == Connection.LOST
    late = typed_error(flight.FlightTimedOutError("Deadline Exceeded"), ENDPOINT)
    assert late.facts["connection"] == Connection.TIMEOUT


def test_an_error_that_pyarrow_did_not_raise_is_none_of_a_call() -> None:
    with pytest.raises(Internal), typed_errors(ENDPOINT):
        pa.memory_map("/nonexistent")  # One of the system's, raised by pyarrow.
    for error in (OSError("own"), TimeoutError("own"), ConnectionResetError("own")):
        with pytest.raises(OSError, match="own") as raised, typed_errors(ENDPOINT):
            raise error
        assert raised.value is error
        with pytest.raises(OSError, match="own"), ignored_call_errors():
            raise error


@each(
    ("raised", "expected"),
    [
        (flight.FlightUnauthenticatedError("who?"), Unauthenticated),
        (flight.FlightUnauthorizedError("no"), PermissionDenied),
        (flight.FlightInternalError("broken"), Internal),
        (server_error("x", extra_info=b"not json"), Internal),
        (server_error("y", extra_info=b"[]"), Internal),
        (pa.ArrowInvalid("no stream"), Internal),
        (OSError("broken pipe"), Internal),
    ],
)
def test_every_other_error_of_pyarrow_has_a_class_of_its_own(
    raised: Exception, expected: type[WingsError]
) -> None:
    assert type(typed_error(raised, ENDPOINT)) is expected


def test_only_what_may_pass_and_may_be_repeated_is_tried_again() -> None:
    def failed(how: Connection) -> WingsError:
        return Unavailable("x", connection=how.value)

    refused = Unavailable("the server is stopping")
    busy = ResourceExhausted("too many")
    for error in (refused, busy, failed(Connection.UNREACHABLE)):
        assert is_passing(error, repeatable=True)
        assert is_passing(error, repeatable=False)
    for error in (failed(Connection.LOST), failed(Connection.TIMEOUT)):
        assert is_passing(error, repeatable=True)
        assert not is_passing(error, repeatable=False)
    in_doubt = Unavailable("the server does not know either", in_doubt=True)
    assert is_passing(in_doubt, repeatable=True)
    assert not is_passing(in_doubt, repeatable=False)
    for error in (failed(Connection.CLOSED), TopicNotFound("x"), Internal("x")):
        assert not is_passing(error, repeatable=True)


def test_a_copy_has_its_own_facts() -> None:
    error = OffsetOutOfRange("x", log_start_offset=3)
    copy = copy_of(error)
    copy.facts["more"] = 1
    assert type(copy) is OffsetOutOfRange
    assert copy.log_start_offset == 3
    assert "more" not in error.facts
