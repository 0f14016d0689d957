"""The one place where errors of the core become errors of Arrow Flight.

An error is one of pyarrow's Flight classes with the JSON of `WingsError.to_json` as its
`extra_info`. Both are bounded: gRPC drops a long `extra_info` (20 kB) without a word, and a long
message may change the class of the error (both measured). Anything that is not a Flight error
would reach the client with the server's traceback, so nothing else may leave a handler.
"""

from collections.abc import Generator
from contextlib import contextmanager

import pyarrow.flight as flight
import structlog

from wings_core.contracts.messages import shortened
from wings_core.errors import (
    Internal,
    PermissionDenied,
    ResourceExhausted,
    StorageCorrupt,
    Unauthenticated,
    Unavailable,
    WingsError,
)

MESSAGE_BYTES_MAX = 512
EXTRA_INFO_BYTES_MAX = 2048

_logger = structlog.get_logger("wings.flight")

_CLASSES: dict[type[WingsError], type[flight.FlightError]] = {
    Unauthenticated: flight.FlightUnauthenticatedError,
    PermissionDenied: flight.FlightUnauthorizedError,
    ResourceExhausted: flight.FlightUnavailableError,
    Unavailable: flight.FlightUnavailableError,
    StorageCorrupt: flight.FlightInternalError,
    Internal: flight.FlightInternalError,
}


@contextmanager
def flight_errors(call: str) -> Generator[None]:
    """Let only Flight errors out of a handler.

    Args:
        call: The handler's name, for the log of faults that are the server's own.
    """
    try:
        yield
    except flight.FlightError:
        raise
    except WingsError as error:
        if isinstance(error, (Internal, StorageCorrupt)):
            _logger.error("call failed", call=call, **error.to_json())
        raise flight_error(error) from None
    except MemoryError as error:
        _logger.warning("call failed for want of memory", call=call, reason=str(error)[:200])
        raise flight_error(ResourceExhausted(f"no memory for it: {error!s:.200}")) from None
    except Exception as error:
        _logger.exception("call failed by a fault of the server", call=call)
        summary = f"internal error in {call}: {type(error).__name__}"
        raise flight_error(Internal(summary)) from None


def flight_error(error: WingsError) -> flight.FlightError:
    """Translate an error, cut to what the transport carries."""
    message = shortened(error.message, MESSAGE_BYTES_MAX)
    extra_info = error.bounded_json(message, EXTRA_INFO_BYTES_MAX)
    found = (_CLASSES[cls] for cls in type(error).__mro__ if cls in _CLASSES)
    return next(found, flight.FlightServerError)(message, extra_info)
