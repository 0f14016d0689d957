"""The addresses of one cluster's nodes, and which of them is in use."""

import random
import threading
import time
from collections.abc import Sequence

from wings_client._errors import Connection
from wings_core.errors import InvalidArgument, Unavailable, WingsError

ADDRESSES_MAX = 100
"""The most addresses of one client."""

AVOIDED_SECONDS = 5.0
"""How long reads are not spread to an address that failed."""


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
