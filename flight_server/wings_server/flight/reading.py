"""Admit the calls that send streams before their first message is read.

pyarrow reads the first message of a DoPut or DoExchange before its handler runs, and a middleware
runs before that.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pyarrow.flight as flight

from wings_core.errors import WingsError
from wings_core.memory import MemoryBudget, ReadRoom
from wings_server.flight.boundary import flight_errors

MIDDLEWARE = "wings-reading"

_METHODS = (flight.FlightMethod.DO_PUT, flight.FlightMethod.DO_EXCHANGE)


class Admitted(flight.ServerMiddleware):
    """The room of one call, given back at its end."""

    def __init__(self, room: ReadRoom) -> None:
        self.room = room

    def call_completed(self, exception: BaseException | None) -> None:
        """Give back the room."""
        del exception
        self.room.close()


class Reading(flight.ServerMiddlewareFactory):
    """Takes room for the first message of each call that sends a stream.

    Args:
        memory: Where from.
        failed: Told the code of each refusal.
    """

    def __init__(self, memory: MemoryBudget, failed: Callable[[str], None]) -> None:
        self._memory = memory
        self._failed = failed

    def start_call(  # pyright: ignore[reportIncompatibleMethodOverride] - the stubs want a dict
        self, info: flight.CallInfo, headers: Mapping[str, Sequence[Any]]
    ) -> Admitted | None:
        """Wait for room, where the call sends a stream.

        Raises:
            FlightUnavailableError: There is none; `RESOURCE_EXHAUSTED`.
        """
        del headers
        if info.method not in _METHODS:
            return None
        room = self._memory.room()
        with flight_errors("admission"):
            try:
                room.begin()
            except WingsError as error:
                self._failed(error.code)
                raise
        return Admitted(room)


def room_of(context: flight.ServerCallContext) -> ReadRoom:
    """Return the room of a call that sends a stream."""
    return cast("Admitted", context.get_middleware(MIDDLEWARE)).room
