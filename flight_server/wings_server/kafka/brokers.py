"""The nodes of a log as Kafka's brokers: their numbers, leaders and coordinators.

A broker is a live node that serves Kafka's protocol. Any of them serves any partition and any
transaction, so a leader only gathers a partition's batches; a group has one coordinator, the node
with its lease, as a consumer group of Wings has.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from xxhash import xxh3_64_intdigest

from wings_core.model import Node
from wings_server.settings import Address

IDS = 1 << 30
"""Brokers' numbers are less. Java's client names the connections to coordinators by the others."""

LEADERS_KEPT = 4_096
"""Topics whose leaders are remembered."""


class Brokers:
    """The live brokers, as the node's heartbeat read them last; for any thread.

    Args:
        nodes: Returns the live nodes.
        own: Address of this broker for clients.

    Attributes:
        own: The same.
    """

    def __init__(self, nodes: Callable[[], Sequence[Node]], own: Address) -> None:
        self._nodes = nodes
        self.own = own

    def live(self) -> dict[int, Address]:
        """Return the addresses of the live brokers by their numbers, this one's included."""
        addresses = [node.kafka for node in self._nodes() if node.kafka]
        return _numbered(frozenset([*addresses, str(self.own)]))

    def own_id(self) -> int:
        """Return the number of this broker."""
        return next(id_ for id_, address in self.live().items() if address == self.own)

    def leaders(self, topic_uuid: str, partitions: int) -> Sequence[int]:
        """Return the number of the leader of each partition of a topic."""
        return _leaders(topic_uuid, partitions, frozenset(self.live()))

    def named(self, key: str) -> int:
        """Return the number of the broker for a key, the same at all nodes."""
        return _first(key, self.live())

    def of_node(self, node_id: str) -> int | None:
        """Return the number of a node by its id; None if it is not live, or no broker."""
        for node in self._nodes():
            if node.id == node_id and node.kafka:
                address = Address.parse(node.kafka)
                return next(id_ for id_, each in self.live().items() if each == address)
        return None


@lru_cache(64)
def _numbered(addresses: frozenset[str]) -> dict[int, Address]:
    """Return addresses by numbers, which are made of them and so survive restarts."""
    found: dict[int, Address] = {}
    for address in sorted(addresses):
        number = xxh3_64_intdigest(address.encode()) % IDS
        while number in found:
            number = (number + 1) % IDS
        found[number] = Address.parse(address)
    return found


@lru_cache(LEADERS_KEPT)
def _leaders(topic_uuid: str, partitions: int, brokers: frozenset[int]) -> Sequence[int]:
    return [_first(f"{topic_uuid}/{number}", brokers) for number in range(partitions)]


def _first(key: str, brokers: Iterable[int]) -> int:
    """Return the broker of a key by rendezvous: only a lost broker's keys go to others."""
    return max(brokers, key=lambda broker: (xxh3_64_intdigest(f"{key}/{broker}".encode()), broker))
