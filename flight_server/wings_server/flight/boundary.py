"""Translation of the core's errors to errors of Arrow Flight, only done here.

An error is one of pyarrow's Flight classes with the JSON of `WingsError.to_json` as its
`extra_info`. Both are bounded: gRPC silently drops a long `extra_info` (20 kB), and a long message
may change the class of the error (both measured). Other errors would reach the client with the
server's traceback, so none may leave a handler.
"""

from collections.abc import Callable, Generator
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


class ClientGone(Unavailable):
    """The client of a call has disconnected; this error is never sent."""


@contextmanager
def flight_errors(call: str, failed: Callable[[str], None]) -> Generator[None]:
    """Translate all errors of a handler to Flight errors.

    Args:
        call: Name of the handler, for the log of internal errors.
        failed: Called with the code of each error, to count it; not where the client is gone.
    """
    try:
        yield
    except flight.FlightError:
        raise
    except WingsError as error:
        if not isinstance(error, ClientGone):
            failed(error.code)
        if isinstance(error, (Internal, StorageCorrupt)):
            _logger.error("call failed", call=call, **error.to_json())
        raise flight_error(error) from None
    except MemoryError as error:
        failed(Internal.code)
        _logger.warning("call failed for want of memory", call=call, reason=str(error)[:200])
        raise flight_error(ResourceExhausted(f"no memory for it: {error!s:.200}")) from None
    except Exception as error:
        failed(Internal.code)
        _logger.exception("call failed by a fault of the server", call=call)
        summary = f"internal error in {call}: {type(error).__name__}"
        raise flight_error(Internal(summary)) from None


def flight_error(error: WingsError) -> flight.FlightError:
    """Translate an error, shortened to the limits of the transport."""
    message = shortened(error.message, MESSAGE_BYTES_MAX)
    extra_info = error.bounded_json(message, EXTRA_INFO_BYTES_MAX)
    found = (_CLASSES[cls] for cls in type(error).__mro__ if cls in _CLASSES)
    return next(found, flight.FlightServerError)(message, extra_info)
