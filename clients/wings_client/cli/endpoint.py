"""Where the server is, and what a person is told when it, or a topic, is not there."""

import difflib
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Self
from urllib.parse import urlsplit

import typer

from wings_client import Client, Connection, Retry
from wings_client._addresses import addresses_of
from wings_client._client import TIMEOUT_SECONDS
from wings_client._transport import Transport
from wings_core.errors import InvalidArgument, TopicNotFound, Unavailable, WingsError
from wings_core.names import DEFAULT_NAMESPACE, TopicName

DEFAULT = "grpc://127.0.0.1:7777"
"""Where `wings serve` listens unless it is told otherwise."""

NEAR_MAX = 3
"""Most names that are suggested for one that is not there."""

KEPT = "kept"
"""The fact that says, at the end of an error's message, what it left committed."""

FLIGHT_SCHEMES = ("grpc", "grpc+tcp", "grpc+tls")
HTTP_SCHEMES = ("http", "https")

_HELP = "Where the server is; of several nodes, some or all with commas between."

EndpointOption = Annotated[
    str,
    typer.Option("--endpoint", envvar="WINGS_ENDPOINT", metavar="grpc://HOST:PORT", help=_HELP),
]

AnyEndpointOption = Annotated[
    str,
    typer.Option(
        "--endpoint",
        envvar="WINGS_ENDPOINT",
        metavar="URL",
        help="Where the server is: grpc://HOST:PORT, or http://HOST:PORT.",
    ),
]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's address."""

    url: str
    scheme: str
    host: str
    port: int | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an address, or those of several nodes with commas between.

        Raises:
            typer.BadParameter: Not one, or of a protocol that is not spoken.
        """
        try:
            first, *others = addresses_of(text)
            if any(cls.parse(other).is_http for other in others):
                raise _not_an_endpoint(text)
            parts = urlsplit(first)
            host, port = parts.hostname, parts.port
        except (ValueError, InvalidArgument):
            raise _not_an_endpoint(text) from None
        if others and parts.scheme in HTTP_SCHEMES:
            raise _not_an_endpoint(text)
        if parts.scheme not in {*FLIGHT_SCHEMES, *HTTP_SCHEMES} or not host:
            raise _not_an_endpoint(text)
        if port is None and parts.scheme in FLIGHT_SCHEMES:
            raise _not_an_endpoint(text)
        return cls(text, parts.scheme, host, port)

    @property
    def is_http(self) -> bool:
        """Whether it is to be spoken to in HTTP rather than in Arrow Flight."""
        return self.scheme in HTTP_SCHEMES


@contextmanager
def connected(endpoint: str, topic: str = "", retry: Retry | None = None) -> Generator[Client]:
    """Connect to a server for Flight, and explain what goes wrong in the block.

    Args:
        endpoint: As it was given.
        topic: The one that is asked for; where it is not there, names like it are suggested.
        retry: What is tried again.

    Raises:
        typer.BadParameter: Not the address of a Flight server.
        WingsError: What the block raised, its message for a person at a terminal.
    """
    with connected_transport(endpoint, topic, retry) as (client, _):
        yield client


@contextmanager
def connected_transport(
    endpoint: str, topic: str = "", retry: Retry | None = None
) -> Generator[tuple[Client, Transport]]:
    """Connect as `connected` does, for what needs the connection under the client."""
    if Endpoint.parse(endpoint).is_http:
        raise typer.BadParameter(
            f"{endpoint} speaks HTTP, and this goes over Arrow Flight: give grpc://HOST:PORT",
            param_hint="--endpoint",
        )
    transport = Transport(endpoint, TIMEOUT_SECONDS, retry or Retry())
    with Client(transport) as client:
        try:
            yield client, transport
        except WingsError as error:
            raise explained(error, endpoint, topic, lambda: _names(client)) from error


def explained(
    error: WingsError, endpoint: str, topic: str, names: Callable[[], Iterable[str]]
) -> WingsError:
    """Return an error whose message says what to do about it, where that is known.

    Args:
        error: What a call ended with.
        endpoint: Who was called.
        topic: The one that was asked for, if any.
        names: Asks for those of all topics.
    """
    if isinstance(error, Unavailable) and error.facts.get("connection") == Connection.UNREACHABLE:
        kept = error.facts.get(KEPT)
        return Unavailable(
            f"nobody answers at {endpoint}: start a server with `wings serve`, or say where one is "
            "with --endpoint" + (f"; {kept}" if kept else ""),
            **error.facts,
        )
    if isinstance(error, TopicNotFound) and topic:
        try:
            near = nearest(topic, names())
        except WingsError:
            return error
        hint = f"did you mean {' or '.join(near)}?" if near else "`wings topic list` lists all"
        return TopicNotFound(f"{error.message}; {hint}", **error.facts)
    return error


def short_name(name: str) -> str:
    """Return how a person names a topic: by its id alone in the default namespace."""
    parsed = TopicName.parse(name)
    return parsed.topic if parsed.namespace == DEFAULT_NAMESPACE else name


def nearest(asked: str, names: Iterable[str]) -> list[str]:
    """Return the names most like one, the most alike first."""
    known = [short_name(name) for name in names]
    by_lower = {name.lower(): name for name in reversed(known)}
    wanted = asked.removeprefix(f"{DEFAULT_NAMESPACE}/topics/").lower()
    near = difflib.get_close_matches(wanted, by_lower, NEAR_MAX)
    return [by_lower[name] for name in near]


def _names(client: Client) -> list[str]:
    return [topic.name for topic in client.topics()]


def _not_an_endpoint(text: str) -> typer.BadParameter:
    return typer.BadParameter(
        f"{text!r:.200} is not an address: expected grpc://HOST:PORT or http://HOST:PORT",
        param_hint="--endpoint",
    )
