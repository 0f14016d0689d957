"""The transport: one Flight connection, shared by all threads, with deadlines and typed errors.

gRPC connects when the first call needs it, and again by itself when a connection broke. A call in
pyarrow can be cancelled only while it is read (a DoGet), not while a DoPut is open (measured:
neither dropping nor closing its client frees a thread that waits for an answer). So every call has
a gRPC deadline, and streams that live longer are opened anew where they stopped.
"""

import json
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

import pyarrow as pa
import pyarrow.flight as flight

from wings_client._cancellation import current_cancellation
from wings_client._errors import client_closed, lost, typed_errors
from wings_client._retry import Retry, repeat_call
from wings_core.contracts.actions import ActionBody
from wings_core.contracts.info import InfoCommand
from wings_core.contracts.put import PutCommand
from wings_core.errors import InvalidArgument, WingsError

T = TypeVar("T")

TIMEOUT_SECONDS_MIN = 0.001
"""gRPC takes a deadline of 0 or less as none."""

RECONNECT_OPTIONS: list[tuple[str, int | str]] = [
    # gRPC's own would have a client wait a second, and later minutes, for a server that is back.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Else clients of one address would share a connection, and the pauses before the next.
    ("grpc.use_local_subchannel_pool", 1),
]


class Closable(Protocol):
    """Something open on a transport, such as a follow or a producer."""

    def close(self) -> None:
        """Close it; again does nothing."""
        ...


class Cancellable(Protocol):
    """A stream that is read."""

    def cancel(self) -> None:
        """End it; again does nothing."""
        ...


class Transport:
    """A connection to one server, opened by the first call.

    Args:
        endpoint: Like `grpc://host:7777`.
        timeout: Seconds that a call may take, its retries included, and that a stream may stand
            still.
        retry: What is tried again.
    """

    def __init__(self, endpoint: str, timeout: float, retry: Retry) -> None:
        if not timeout > 0:
            raise InvalidArgument(f"the timeout must be positive; got {timeout}")
        self.endpoint = endpoint
        self.timeout = timeout
        self.retry = retry
        self.closed = threading.Event()
        """Set once the client is closed; ends every pause."""
        self.is_prompt = False
        """Whether the last first reply of a gather came promptly."""
        # Guards what is below; held for no longer than it takes to look.
        self._lock = threading.Lock()
        self._client: flight.FlightClient | None = None
        self._open: weakref.WeakSet[Closable] = weakref.WeakSet()
        self._streams: weakref.WeakSet[Cancellable] = weakref.WeakSet()

    def add(self, opened: Closable) -> None:
        """Close this with the client, while its connection is still there."""
        with self._lock:
            if self.closed.is_set():
                raise client_closed(self.endpoint)
            self._open.add(opened)

    def add_stream(self, stream: Cancellable) -> None:
        """Cancel this with the client, once everything is closed, and with the present call."""
        with self._lock:
            if self.closed.is_set():
                raise client_closed(self.endpoint)
            self._streams.add(stream)
        cancellation = current_cancellation()
        if cancellation is not None:
            cancellation.add(stream.cancel)

    def close(self) -> None:
        """Close everything that was opened; calls under way fail, later ones are refused.

        Raises:
            WingsError: The first of those that closing raised.
        """
        with self._lock:
            opened = list(self._open)
            self._open.clear()
        errors: list[WingsError] = []
        for each in opened:
            try:
                each.close()
            except WingsError as error:
                errors.append(error)
        with self._lock:
            self.closed.set()
            streams = list(self._streams)
            client, self._client = self._client, None
        for stream in streams:
            stream.cancel()
        if client is not None:
            client.close()
        if errors:
            raise errors[0]

    def act(
        self, action: str, body: ActionBody, *, repeatable: bool, timeout: float | None = None
    ) -> Any:
        """Call an action and return the JSON of its one result.

        Args:
            action: Its name.
            body: What it takes.
            repeatable: Whether it may be carried out twice.
            timeout: Seconds; None for the client's.

        Raises:
            WingsError: The server's refusal, or `Unavailable`.
        """

        def call(seconds: float) -> Any:
            request = flight.Action(action, body.to_bytes())
            with typed_errors(self.endpoint):
                results = list(self._connected().do_action(request, options_of(seconds)))
            if len(results) != 1:
                raise lost(f"{action}: {len(results)} results instead of one", self.endpoint)
            return json.loads(results[0].body.to_pybytes())

        return self.repeat(call, repeatable=repeatable, timeout=timeout)

    def info(self, command: InfoCommand) -> flight.FlightInfo:
        """Ask for the tickets that read a topic."""
        descriptor = flight.FlightDescriptor.for_command(command.to_bytes())

        def call(seconds: float) -> flight.FlightInfo:
            with typed_errors(self.endpoint):
                return self._connected().get_flight_info(descriptor, options_of(seconds))

        return self.repeat(call, repeatable=True)

    def get(self, ticket: bytes, seconds: float) -> flight.FlightStreamReader:
        """Open a DoGet stream; blocks until its schema is there. Tries once.

        Args:
            ticket: As JSON.
            seconds: After which the stream ends with an error, wherever it is.
        """
        with typed_errors(self.endpoint):
            return self._connected().do_get(flight.Ticket(ticket), options_of(seconds))

    def put(
        self, command: PutCommand, schema: pa.Schema, seconds: float
    ) -> tuple[flight.FlightStreamWriter, flight.FlightMetadataReader]:
        """Open a DoPut stream; blocks for as long as connecting takes. Tries once.

        Args:
            command: The descriptor.
            schema: Of the batches to come.
            seconds: After which the stream ends with an error, wherever it is.
        """
        descriptor = flight.FlightDescriptor.for_command(command.to_bytes())
        with typed_errors(self.endpoint):
            opened = self._connected().do_put(descriptor, schema, options_of(seconds))
        # pyarrow's stubs take the answers' reader for one of batches.
        return cast("tuple[flight.FlightStreamWriter, flight.FlightMetadataReader]", opened)

    def repeat(
        self, call: Callable[[float], T], *, repeatable: bool, timeout: float | None = None
    ) -> T:
        """Make a call, and again where it failed in a way that may pass.

        Args:
            call: Takes the seconds that are left.
            repeatable: Whether it may be carried out twice.
            timeout: Seconds for all of it; None for the client's.
        """
        cancellation = current_cancellation()
        return repeat_call(
            call,
            self.retry,
            self.timeout if timeout is None else timeout,
            self.closed if cancellation is None else cancellation.event,
            repeatable=repeatable,
        )

    def _connected(self) -> flight.FlightClient:
        with self._lock:
            if self.closed.is_set():
                raise client_closed(self.endpoint)
            if self._client is None:
                try:
                    self._client = flight.FlightClient(
                        self.endpoint, generic_options=RECONNECT_OPTIONS
                    )
                except (pa.ArrowException, ValueError) as error:
                    raise InvalidArgument(
                        f"{self.endpoint!r:.200} is not an endpoint like grpc://host:7777: {error}"
                    ) from error
            return self._client


def options_of(seconds: float) -> flight.FlightCallOptions:
    """Return call options with a gRPC deadline."""
    return flight.FlightCallOptions(timeout=max(TIMEOUT_SECONDS_MIN, seconds))
