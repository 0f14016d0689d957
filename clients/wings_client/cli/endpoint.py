"""The server's address, and messages for missing servers and topics."""

from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import typer

from wings_client import Connection, Retry
from wings_client._reads import ReadCalls
from wings_client._transport import TIMEOUT_SECONDS, Transport, addresses_of
from wings_client.cli.access import current_access
from wings_core.errors import InvalidArgument, TopicNotFound, Unavailable, WingsError
from wings_core.names import DEFAULT_NAMESPACE, NamespaceName, TopicName

if TYPE_CHECKING:
    from wings_client import Client
    from wings_core.contracts.actions import ActionBody

RETRY = Retry(reconnect_seconds=24 * 3600.0)
"""Retry policy of followers: reconnect for a day."""

KEPT = "kept"
"""Fact with the end of an error's message: the rows that stay committed."""

FLIGHT_SCHEMES = ("grpc", "grpc+tcp", "grpc+tls")
HTTP_SCHEMES = ("http", "https")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's address."""

    url: str
    scheme: str
    host: str
    port: int | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an address, or those of several nodes, separated by commas.

        Raises:
            typer.BadParameter: The text is not an address, or has another protocol.
        """
        try:
            parts = [urlsplit(address) for address in addresses_of(text)]
            for each in parts:
                is_flight = each.port is not None and each.scheme in FLIGHT_SCHEMES
                is_http = len(parts) == 1 and each.scheme in HTTP_SCHEMES
                if not each.hostname or not (is_flight or is_http):
                    raise ValueError(text)
        except (ValueError, InvalidArgument):
            raise typer.BadParameter(
                f"{text!r:.200} is not an address: expected grpc://HOST:PORT or http://HOST:PORT",
                param_hint="--endpoint",
            ) from None
        return cls(text, parts[0].scheme, parts[0].hostname or "", parts[0].port)

    @property
    def is_http(self) -> bool:
        """Whether the protocol is HTTP rather than Arrow Flight."""
        return self.scheme in HTTP_SCHEMES


@contextmanager
def connected(endpoint: str, topic: str = "", retry: Retry | None = None) -> "Generator[Client]":
    """Connect to a server over Flight; errors within the block get messages for a terminal.

    Args:
        endpoint: The address as given.
        topic: The topic in use; if it is not found, similar names are suggested.
        retry: The retry policy.

    Raises:
        typer.BadParameter: The address is not that of a Flight server.
        WingsError: The error within the block, with a message for a terminal.
    """
    with connected_transport(endpoint, topic, retry) as (client, _):
        yield client


@contextmanager
def connected_transport(
    endpoint: str, topic: str = "", retry: Retry | None = None
) -> "Generator[tuple[Client, Transport]]":
    """Connect like `connected`; also yields the client's transport."""
    from wings_client import Client  # Takes as long to import as what a read needs.

    transport = _transport(endpoint, retry)
    with Client(transport) as client, _explained(endpoint, topic):
        yield client, transport


@contextmanager
def connected_reader(endpoint: str, topic: str) -> Generator[ReadCalls]:
    """Connect like `connected`, for reads alone, which saves importing all other calls."""
    with closing(_transport(endpoint, None)) as transport:
        client = ReadCalls(transport)
        with _explained(endpoint, topic):
            yield client


def _transport(endpoint: str, retry: Retry | None) -> Transport:
    if Endpoint.parse(endpoint).is_http:
        raise typer.BadParameter(
            f"{endpoint} is HTTP, and this command uses Arrow Flight: give grpc://HOST:PORT",
            param_hint="--endpoint",
        )
    return Transport(endpoint, TIMEOUT_SECONDS, retry or Retry(), current_access())


@contextmanager
def _explained(endpoint: str, topic: str) -> Generator[None]:
    try:
        yield
    except WingsError as error:
        raise explained(error, endpoint, topic) from error


def act(endpoint: str, action: str, body: "ActionBody", *, repeatable: bool = True) -> Any:
    """Run an action that the client has no method for; returns its decoded result.

    Args:
        endpoint: The server's address.
        action: The action's name.
        body: The action's body.
        repeatable: True: the action may be sent again where its answer is lost.
    """
    with connected_transport(endpoint) as (_, transport):
        return transport.act(action, body, repeatable=repeatable)


def is_absent(error: WingsError) -> bool:
    """Return whether an error means that no server is running, as far as known."""
    facts = error.facts
    return facts.get("connection") == Connection.UNREACHABLE and "why" not in facts


def explained(error: WingsError, endpoint: str, topic: str) -> WingsError:
    """Return an error whose message suggests a remedy, if one is known.

    Args:
        error: The error of a call.
        endpoint: The address that was called.
        topic: The topic in use, if any.
    """
    if is_absent(error):
        kept = error.facts.get(KEPT)
        return Unavailable(
            f"no server answers at {endpoint}: start one with `wings serve`, or give its address "
            "with --endpoint" + (f"; {kept}" if kept else ""),
            **error.facts,
        )
    asked: str = error.facts.get("topic") or topic
    if isinstance(error, TopicNotFound) and asked and "did you mean" not in error.message:
        hint = "; `wings topic list` lists all"
        return TopicNotFound(f"{error.message}{hint}", **error.facts)
    return error


def short_name(name: str) -> str:
    """Return a topic's name for display: only its id in the default namespace."""
    parsed = TopicName.parse(name)
    return parsed.topic if parsed.namespace == DEFAULT_NAMESPACE else name


def short_namespace(name: str) -> str:
    """Return a namespace's name for display: only its id in the default tenant."""
    parsed = NamespaceName.parse(name)
    return parsed.namespace if parsed.tenant == DEFAULT_NAMESPACE.tenant else name
