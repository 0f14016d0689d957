"""Tokens, and plain clients that present them."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow.flight as flight
from flight_calls import act

ROOT = "root-" + "r" * 40
"""A root token for tests."""


class _Header(flight.ClientMiddleware):
    def __init__(self, value: str) -> None:
        self._value = value

    def sending_headers(self) -> dict[str, str]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return {"authorization": self._value}


class Presenting(flight.ClientMiddlewareFactory):
    """Sends one value of the header `authorization` with each call."""

    def __init__(self, value: str) -> None:
        self._value = value

    def start_call(self, info: Any) -> _Header:
        del info
        return _Header(self._value)


def client_of(url: str, token: str | None, **options: Any) -> flight.FlightClient:
    """Return a Flight client that presents a token."""
    middleware: list[flight.ClientMiddlewareFactory] = (
        [] if token is None else [Presenting(f"Bearer {token}")]
    )
    return flight.FlightClient(url, middleware=middleware, **options)


def new_token(root: flight.FlightClient, name: str, *grants: str, **keys: Any) -> str:
    """Create a token and return its text."""
    return act(root, "token-create", name=name, grants=list(grants), **keys)["token"]


def bearer(token: str | None) -> Mapping[str, str]:
    """Return the headers of an HTTP request that presents a token."""
    return {} if token is None else {"authorization": f"Bearer {token}"}


def names_of(listed: Sequence[Mapping[str, Any]], key: str) -> list[str]:
    """Return one key of each entry of a list."""
    return [each[key] for each in listed]
