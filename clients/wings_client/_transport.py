"""The transport: Flight connections, shared by all threads, with deadlines and typed errors.

There is one for each address that is used. Of several nodes a client uses one until a call
finds it unreachable: the next attempt goes to another. Scans read from all of them.

gRPC connects when the first call needs it, and again by itself when a connection broke. A call in
pyarrow can be cancelled only while it is read (a DoGet), not while a DoPut is open (measured:
neither dropping nor closing its client frees a thread that waits for an answer). So every call has
a gRPC deadline, and longer streams are resumed by a new one.
"""

import json
import random
import threading
import time
import weakref
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, cast

import pyarrow as pa
import pyarrow.flight as flight

from wings_client._access import Access
from wings_client._cancellation import current_cancellation
from wings_client._errors import (
    Connection,
    call_errors,
    client_closed,
    ignored_call_errors,
    lost,
    typed_error,
    typed_errors,
)
from wings_client._forks import inherited_error, keep, living, register, starting_grpc
from wings_client._model import Topic
from wings_client._retry import Retry, repeat_call
from wings_core import tracing
from wings_core.contracts.messages import dump
from wings_core.contracts.put import TOPIC_HEADER
from wings_core.errors import InvalidArgument, Unavailable, WingsError
from wings_core.times import Deadline

if TYPE_CHECKING:
    from wings_core.contracts.actions import ActionBody
    from wings_core.contracts.info import InfoCommand
    from wings_core.contracts.put import PutCommand
    from wings_core.contracts.share import ShareCommand

T = TypeVar("T")

TIMEOUT_SECONDS = 30.0
"""A client's timeout by default."""

TIMEOUT_SECONDS_MIN = 0.001
"""gRPC takes a deadline of 0 or less as none."""

RECONNECT_OPTIONS: list[tuple[str, int | str]] = [
    # gRPC's default would make a client wait a second, later minutes, for a restarted server.
    ("grpc.initial_reconnect_backoff_ms", 50),
    # With its jitter of a fifth less than the pauses of a default `Retry` at their shortest: a call
    # after the server's start reaches it, also where others of this client tried in vain before.
    ("grpc.max_reconnect_backoff_ms", 200),
    # Else clients of one address would share a connection and its reconnect pauses.
    ("grpc.use_local_subchannel_pool", 1),
]

CONNECT_SECONDS = (1.0, 20.0)
"""How long connecting may take within the client's timeout: at least, and gRPC's default. A stream
without a deadline waits for it."""

_TLS = "grpc+tls://"

DISCOVERY_SECONDS_MAX = 2.0
"""How long the first stream waits for the other nodes of the log to be found."""

PROOF_SECONDS_MAX = 1.0
"""How long one of them may take to answer."""

CONNECTIONS_MAX = 64
"""Connections kept, of a cluster whose nodes come and go; the one unused for longest goes first."""

ADDRESSES_MAX = 100
"""The most addresses of one client."""

AVOIDED_SECONDS = 5.0
"""How long reads are not spread to an address that failed."""


class Closable(Protocol):
    """Something open on a transport, such as a follow or a producer."""

    def close(self) -> None:
        """Close it; idempotent."""
        ...


class Closing:
    """A context manager that its block closes; an error of the block precedes one of `close`."""

    @abstractmethod
    def close(self) -> None:
        """Close it."""

    def __enter__(self) -> Self:
        """Return the object itself."""
        return self

    def __exit__(self, error_type: object, error: BaseException | None, *_: object) -> None:
        """Close it; an error raised in the block takes precedence over one of `close`."""
        try:
            self.close()
        except WingsError:
            if error is None:
                raise


class AsyncClosing:
    """A `Closing` whose `close` is awaited."""

    @abstractmethod
    async def close(self) -> None:
        """Close it."""

    async def __aenter__(self) -> Self:
        """Return the object itself."""
        return self

    async def __aexit__(self, error_type: object, error: BaseException | None, *_: object) -> None:
        """Close it; an error raised in the block takes precedence over one of `close`."""
        try:
            await self.close()
        except WingsError:
            if error is None:
                raise


class Cancellable(Protocol):
    """An open stream of reads."""

    def cancel(self) -> None:
        """End it; idempotent."""
        ...


class Transport:
    """Connections to one server, or to the nodes of a cluster, each opened by its first call.

    Args:
        endpoint: Address like `grpc://host:7777`, or several; see `addresses_of`.
        timeout: Seconds that a call may take, its retries included, and that a stream may stand
            still.
        retry: The retry policy.
        access: Credentials presented to the servers, and how they are known; None: the token of the
            environment, if there is one.
        discover: Whether the other nodes that serve the log are found by asking for them.
    """

    def __init__(
        self,
        endpoint: str | Sequence[str],
        timeout: float,
        retry: Retry,
        access: Access | None = None,
        *,
        discover: bool = True,
    ) -> None:
        self._is_to_discover = discover
        self.access = access or Access.of()
        self._headers = self.access.headers
        if not timeout > 0:
            raise InvalidArgument(f"the timeout must be positive; got {timeout}")
        self.addresses = Addresses(addresses_of(endpoint))
        if self.access.connection and all(_TLS not in each for each in self.addresses.all):
            raise InvalidArgument(
                f"{self.addresses.all[0]:.200} does not use TLS, but certificates are given: "
                "name the server by grpc+tls://"
            )
        self.timeout = timeout
        # Each address is tried once at least, unless retries are off.
        attempts = len(self.addresses.all) if retry.attempts > 1 else 1
        self.retry = replace(retry, attempts=max(retry.attempts, attempts))
        self.closed = threading.Event()
        """Set once the client is closed; ends every pause."""
        self.is_inherited = False
        """Whether this process is a fork of the one that made it, which may not use it."""
        # Guards the fields below; never held across a blocking call.
        self._lock = threading.Lock()
        self._clients: OrderedDict[str, flight.FlightClient] = OrderedDict()
        self._open: weakref.WeakKeyDictionary[Closable, None] = weakref.WeakKeyDictionary()
        self._streams: weakref.WeakKeyDictionary[Cancellable, None] = weakref.WeakKeyDictionary()
        self._halves: weakref.WeakKeyDictionary[object, None] = weakref.WeakKeyDictionary()
        """Readers and writers of open streams."""
        register(self)

    @property
    def endpoint(self) -> str:
        """The address that calls go to now."""
        return self.addresses.current

    def add(self, opened: Closable) -> None:
        """Register an object to close with the client, before its connections."""
        self.check_process()
        with self._lock:
            if self.closed.is_set():
                raise client_closed(self.endpoint)
            self._open[opened] = None

    def add_stream(self, stream: Cancellable) -> None:
        """Register a stream to cancel with the present call, and with the client, after `close`."""
        self.check_process()
        with self._lock:
            if self.closed.is_set():
                raise client_closed(self.endpoint)
            self._streams[stream] = None
        cancellation = current_cancellation()
        if cancellation is not None:
            cancellation.add(stream.cancel)

    def check_process(self) -> None:
        """Refuse a call in a forked child; called before any lock is taken.

        Raises:
            InvalidArgument: This process is a fork of the one that made the client.
        """
        if self.is_inherited:
            raise inherited_error()

    def abandon(self) -> None:
        """Keep what is open from being closed in a forked child."""
        keep(*self._clients.values(), *living(self._halves))

    def close(self) -> None:
        """Close everything registered; calls under way fail, later ones are refused.

        In a forked child it does nothing: the connections are the parent's.

        Raises:
            WingsError: The first error that closing raised.
        """
        if self.is_inherited:
            return
        with self._lock:
            opened = living(self._open)
            self._open.clear()
        errors: list[WingsError] = []
        for each in opened:
            try:
                each.close()
            except WingsError as error:
                errors.append(error)
        with self._lock:
            self.closed.set()
            streams = living(self._streams)
            # Each ends with its last call: `close` beside one that begins crashes in Arrow's C++.
            self._clients.clear()
        for stream in streams:
            stream.cancel()
        if errors:
            raise errors[0]

    def act(
        self, action: str, body: "ActionBody", *, repeatable: bool, timeout: float | None = None
    ) -> Any:
        """Call an action and return the JSON of its one result; see `answer`."""
        return json.loads(self.answer(action, body, repeatable=repeatable, timeout=timeout))

    def answer(
        self, action: str, body: "ActionBody", *, repeatable: bool, timeout: float | None = None
    ) -> bytes:
        """Call an action and return its one result.

        Args:
            action: Its name.
            body: Its argument.
            repeatable: Whether the call may be carried out twice.
            timeout: Seconds; None for the client's.

        Raises:
            WingsError: The server's refusal, or `Unavailable`.
        """

        def call(seconds: float) -> bytes:
            request = flight.Action(action, body.to_bytes())
            with self._calling() as (client, endpoint):
                results = list(client.do_action(request, self.options(seconds)))
            if len(results) != 1:
                raise lost(f"{action}: {len(results)} results instead of one", endpoint)
            return results[0].body.to_pybytes()

        with tracing.client_span(action):
            return self.repeat(call, repeatable=repeatable, timeout=timeout)

    def info(self, command: "InfoCommand") -> flight.FlightInfo:
        """Return the FlightInfo of a command: the tickets that read a topic."""
        descriptor = flight.FlightDescriptor.for_command(command.to_bytes())

        def call(seconds: float) -> flight.FlightInfo:
            with self._calling() as (client, _):
                return client.get_flight_info(descriptor, self.options(seconds))

        info = self.repeat(call, repeatable=True)
        for endpoint in info.endpoints[:1]:
            self._discover([each.uri.decode() for each in endpoint.locations])
        return info

    def get(
        self,
        ticket: bytes,
        seconds: float,
        endpoint: str | None = None,
    ) -> tuple[flight.FlightStreamReader, str]:
        """Open a DoGet stream; blocks until its schema is there. Tries once.

        Args:
            ticket: Ticket, as JSON.
            seconds: The gRPC deadline: after so many the stream fails.
            endpoint: The node to ask; None: the one that calls go to now.

        Returns:
            The stream, and the address of its node.
        """
        self.check_process()
        # Not `_calling`: its two generators would cost a tenth of a small read.
        called = endpoint or self.endpoint
        try:
            client = self._connected(called)
            reader = client.do_get(flight.Ticket(ticket), self.options(seconds))
        except call_errors() as error:
            raise self.addresses.noted(typed_error(error, called), called) from error
        self._halves[reader] = None
        return reader, called

    def put(
        self, command: "PutCommand", topic: Topic, seconds: float
    ) -> tuple[flight.FlightStreamWriter, flight.FlightMetadataReader, str]:
        """Open a DoPut stream; blocks for as long as connecting takes. Tries once.

        Args:
            command: The descriptor.
            topic: Topic that it is meant for: the server refuses another of its name.
            seconds: The gRPC deadline: after so many the stream fails.

        Returns:
            The writer of batches, the reader of responses, and the address of their node.
        """
        self.check_process()
        descriptor = flight.FlightDescriptor.for_command(command.to_bytes())
        self._discover()
        with self._calling() as (client, endpoint):
            meant = (TOPIC_HEADER.encode(), topic.uuid.encode())
            options = self.options(seconds, [meant])
            writer, reader = client.do_put(descriptor, topic.schema, options)
        self._halves.update({writer: None, reader: None})
        # pyarrow's stubs type the metadata reader as one of batches.
        return writer, cast("flight.FlightMetadataReader", reader), endpoint

    def exchange(
        self, command: "ShareCommand"
    ) -> tuple[flight.FlightStreamWriter, flight.FlightStreamReader, str]:
        """Open a DoExchange stream without a deadline; the first message sends the descriptor.

        Returns:
            The writer, the reader, and the address of their node.
        """
        self.check_process()
        # With its kind, which is what tells it from other exchanges.
        descriptor = flight.FlightDescriptor.for_command(
            dump({**command.model_dump(mode="json", exclude_unset=True), "kind": "share"})
        )
        self._discover()
        with self._calling() as (client, endpoint):
            writer, reader = client.do_exchange(descriptor, self.options(None))
        self._halves.update({writer: None, reader: None})
        return writer, reader, endpoint

    def repeat(
        self, call: Callable[[float], T], *, repeatable: bool, timeout: float | None = None
    ) -> T:
        """Make a call, and retry it after transient failures.

        Args:
            call: Takes the seconds that are left.
            repeatable: Whether the call may be carried out twice.
            timeout: Seconds for all of it; None for the client's.
        """
        self.check_process()
        cancellation = current_cancellation()
        return repeat_call(
            call,
            self.retry,
            self.timeout if timeout is None else timeout,
            self.closed if cancellation is None else cancellation.event,
            repeatable=repeatable,
        )

    def options(
        self, seconds: float | None, more: Sequence[tuple[Any, Any]] = ()
    ) -> flight.FlightCallOptions:
        """Return call options with the token, and with a gRPC deadline if one is given.

        Args:
            seconds: Until the deadline; None: there is none.
            more: Further headers.
        """
        timeout = None if seconds is None else max(TIMEOUT_SECONDS_MIN, seconds)
        headers = [*self._headers, *more]
        if tracing.is_on():
            traced = tracing.headers()
            headers += [(name.encode(), value.encode()) for name, value in traced.items()]
        if not headers:
            return flight.FlightCallOptions(timeout=timeout)
        return flight.FlightCallOptions(timeout=timeout, headers=headers)

    def _discover(self, nodes: Sequence[str] | None = None) -> None:
        """Find the other nodes of the log, once, and spread over those that answer.

        A node may name itself by an address that is of no use from here: so each is tried.

        Args:
            nodes: Their addresses; None: they are asked for.
        """
        if not self._is_to_discover or (nodes is None and self._headers):
            return  # With tokens, only an operator may ask: others learn by `info`.
        self._is_to_discover = False
        deadline = Deadline.after(min(self.timeout, DISCOVERY_SECONDS_MAX))
        try:
            if nodes is None:
                nodes = [each["flight"] for each in self._ask("list-nodes", deadline)]
        except (WingsError, *call_errors(), ValueError, LookupError, TypeError):
            return  # An earlier version, or one that tells only its operator.
        others = [each for each in nodes if each not in self.addresses.all]
        if len(nodes) <= 1 or not others:
            return
        random.shuffle(others)
        answering: list[str] = []
        for address in others[:ADDRESSES_MAX]:
            if deadline.passed:
                break
            with suppress(WingsError), ignored_call_errors():
                seconds = min(PROOF_SECONDS_MAX, deadline.remaining() or 0.0)
                list(self._connected(address).list_actions(self.options(seconds)))
                answering.append(address)
        self.addresses.learn(answering)

    def _ask(self, action: str, deadline: Deadline) -> Any:
        client = self._connected(self.endpoint)
        options = self.options(deadline.remaining() or 0.0)
        (result,) = client.do_action(flight.Action(action, b"{}"), options)
        return json.loads(result.body.to_pybytes())

    @contextmanager
    def _calling(self) -> Generator[tuple[flight.FlightClient, str]]:
        """Yield the connection for one call, and record its failure."""
        called = self.endpoint
        try:
            with typed_errors(called):
                yield self._connected(called), called
        except WingsError as error:
            self.addresses.note(error, called)
            raise

    def _check_secrecy(self, endpoint: str) -> None:
        """Refuse to send the token in the clear, at the word of a server that was given by TLS."""
        if (
            self._headers
            and _TLS in self.addresses.all[0]
            and _TLS not in endpoint
            and endpoint not in self.addresses.all
        ):
            raise InvalidArgument(
                f"{endpoint:.200} does not use TLS, and the token is for servers with TLS"
            )

    def _connected(self, endpoint: str) -> flight.FlightClient:
        with self._lock:
            if self.closed.is_set():
                raise client_closed(endpoint)
            client = self._clients.get(endpoint)
            if client is None:
                try:
                    self._check_secrecy(endpoint)
                    least, most = CONNECT_SECONDS
                    connect_ms = round(1_000 * max(least, min(most, self.timeout)))
                    options = [*RECONNECT_OPTIONS, ("grpc.min_reconnect_backoff_ms", connect_ms)]
                    with starting_grpc():
                        client = flight.FlightClient(
                            endpoint, generic_options=options, **self.access.connection
                        )
                except (pa.ArrowException, ValueError) as error:
                    raise InvalidArgument(
                        f"{endpoint!r:.200} is not an endpoint like grpc://host:7777: {error}"
                    ) from error
                self._clients[endpoint] = client
                if len(self._clients) > CONNECTIONS_MAX:
                    # Not closed: its open streams continue.
                    self._clients.popitem(last=False)
            self._clients.move_to_end(endpoint)
            return client


def addresses_of(endpoint: str | Sequence[str]) -> tuple[str, ...]:
    """Split an endpoint into its addresses.

    Args:
        endpoint: `grpc://host:7777`, several of them with commas between (where those after the
            first may leave out the scheme), or a sequence of such.

    Raises:
        InvalidArgument: No address, an empty one, or more than `ADDRESSES_MAX`.
    """
    texts = [endpoint] if isinstance(endpoint, str) else list(endpoint)
    found: dict[str, None] = {}
    for text in texts:
        scheme = ""
        for part in text.split(","):
            address = part.strip()
            if not address:
                raise InvalidArgument(
                    f"{text!r:.200} is not an endpoint like grpc://host:7777, nor several with "
                    "commas between: there is an empty one"
                )
            if "://" in address:
                scheme = address.partition("://")[0]
            elif scheme:
                address = f"{scheme}://{address}"
            found[address] = None
    if not 1 <= len(found) <= ADDRESSES_MAX:
        raise InvalidArgument(f"a client takes 1 to {ADDRESSES_MAX} addresses; got {len(found)}")
    return tuple(found)


class Addresses:
    """The nodes of one cluster; all methods are safe from any thread.

    Calls go to one node until it fails, then to the next. The first one is random, so that clients
    with the same list spread over it.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self.all = tuple(addresses)
        self._lock = threading.Lock()
        self._index = random.randrange(len(self.all))
        self._failed: dict[str, float] = {}
        """When each address last failed, on the monotonic clock."""

    @property
    def current(self) -> str:
        """The address that calls go to."""
        return self.all[self._index]

    def learn(self, others: Sequence[str]) -> None:
        """Take further nodes, which answered; calls go to a random one of all from now on."""
        with self._lock:
            new = [each for each in dict.fromkeys(others) if each not in self.all]
            self.all = (*self.all, *new)[:ADDRESSES_MAX]
            self._index = random.randrange(len(self.all))

    def noted(self, error: WingsError, address: str) -> WingsError:
        """Return an error, once noted: in a variable it would keep the frame, and so the client."""
        self.note(error, address)
        return error

    def note(self, error: WingsError, address: str) -> None:
        """Send later calls to the next address if a call to `address` found no server there."""
        if len(self.all) == 1 or not isinstance(error, Unavailable):
            return
        if error.facts.get("connection") == Connection.CLOSED:
            return
        with self._lock:
            if address in self.all:
                self._failed[address] = time.monotonic()
            if address == self.all[self._index]:  # Else another thread has switched already.
                self._index = (self._index + 1) % len(self.all)

    def for_read(self, number: int) -> str:
        """Return the address for a read; consecutive numbers cycle through the answering nodes.

        Args:
            number: Index of the read, from 0.
        """
        if len(self.all) == 1:
            return self.all[0]
        since = time.monotonic() - AVOIDED_SECONDS
        with self._lock:
            start = self._index
            ordered = [*self.all[start:], *self.all[:start]]
            answering = [each for each in ordered if self._failed.get(each, since) <= since]
        return (answering or ordered)[number % len(answering or ordered)]
