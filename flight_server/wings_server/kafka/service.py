"""Shared state of all connections: the log, threads, waits, groups, budgets, brokers and batches.

A broker is a live node that serves Kafka's protocol. Any of them serves any partition and any
transaction, so a leader only gathers a partition's batches; a group has one coordinator, the node
with its lease, as a consumer group of Wings has.

Batches are kept for consumers at the end of a log. Encoding what was just produced anew from the
log's rows would be most of the work, once for each consumer. The log stays the truth: where a batch
begins at the offset that a consumer asks for, and the log still has that offset, its bytes are sent
on.
"""

import asyncio
import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import NamedTuple, TypeVar

import structlog
from xxhash import xxh3_64_intdigest

from wings_core import tracing
from wings_core.errors import Internal, StorageCorrupt, Unavailable, WingsError
from wings_core.fetch.fetcher import Fetcher
from wings_core.limits import MIB
from wings_core.model import Node
from wings_core.names import DEFAULT_NAMESPACE, NamespaceName
from wings_core.partitions import Partition
from wings_server.gate import Gate
from wings_server.kafka.errors import KafkaError
from wings_server.kafka.group_table import GroupTable
from wings_server.kafka.record_types import ZSTD, compression_of, placed_at
from wings_server.kafka.topics import KafkaTopics
from wings_server.kafka.wire import Wire
from wings_server.metrics import Metrics
from wings_server.resources import HTTP_SHARE, Budget, WorkRoom, connections_max
from wings_server.served_log import ServedLog
from wings_server.settings import Address
from wings_server.shared_reads import Waiting

_logger = structlog.get_logger("wings.kafka")

READERS = 4
"""Threads that read and encode, never waiting for messages."""

PRODUCERS = 32
"""Threads that submit batches and wait for their flush."""

WRITERS = 8
"""Threads that change anything else, so that groups and topics never wait behind batches."""

DECODERS = 2
"""Most of them that decode at a time, so that the event loop gets its turn."""

CHUNK_BYTES_MAX = 2 * MIB
"""Size in which the log is read: twice what most clients take of a partition at a time, so that its
records, which are smaller when encoded, are one batch."""

FRAME_BYTES_MORE = MIB
"""Bytes of a frame beyond those of its largest batch."""

CLUSTER_ID = "wings"

KEPT_SHARE = 16
"""The part of the budget of memory, one in so many, that kept batches take at most."""

Result = TypeVar("Result")

IDS = 1 << 30
"""Brokers' numbers are less. Java's client names the connections to coordinators by the others."""

LEADERS_KEPT = 4_096
"""Topics whose leaders are remembered."""

KEPT_BYTES_MAX = 32 * MIB
"""Most bytes of all batches; the oldest are dropped."""

BEHIND_MAX = 65_536
"""Most records between what is encoded and the end of its log, for a batch that is kept."""

_ENTRY_BYTES = 512
"""About the memory of a batch beside its bytes."""

_Place = tuple[str, Partition, int]


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


class KafkaService:
    """Shared state of all connections to a namespace, on one event loop.

    It is made for the default namespace; see `within`.

    Args:
        log: The log; its owner closes it after `close`.
        metrics: The metrics.
        gate: Authorizes callers.
        nodes: Returns the live nodes of the log.
        new_partitions: Partitions of a new topic where the client states none.

    Attributes:
        new_partitions: The same.
        brokers: The live nodes as brokers; set once the listener has a port.
        topics: The topics of the namespace that is served.
        fetcher: Reads the log in chunks of `CHUNK_BYTES_MAX`.
        waiting: The waiting fetches.
        kept: Batches that were produced last.
        groups: The classic groups; for the event loop alone.
        producers: Threads that submit batches and wait for their flush.
        unfolding: Room in memory for what requests to produce unfold to.
        decoding: Held while requests to produce are decoded.
        wire: Budgets and buffers of the connections.
    """

    brokers: Brokers

    def __init__(
        self,
        log: ServedLog,
        metrics: Metrics,
        gate: Gate,
        nodes: Callable[[], Sequence[Node]],
        new_partitions: int = 1,
    ) -> None:
        self.log = log
        self.metrics = metrics
        self.gate = gate
        self.nodes = nodes
        self.new_partitions = new_partitions
        limits = log.limits
        self.topics = KafkaTopics(log, DEFAULT_NAMESPACE)
        chunk_bytes_max = min(limits.wire_bytes_max, CHUNK_BYTES_MAX)
        self.fetcher = Fetcher(
            log.store,
            log.registry,
            limits.model_copy(update={"wire_bytes_max": chunk_bytes_max}),
            log.versions,
        )
        self.waiting = Waiting(log.fetcher.waits)
        self.kept = KeptBatches(min(KEPT_BYTES_MAX, log.memory.bytes_max // KEPT_SHARE))
        self.groups = GroupTable()
        self.wire = Wire(
            Budget(limits.pending_bytes_max, log.memory),
            Budget(limits.http_pending_bytes_max),
            limits.batch_bytes_max + FRAME_BYTES_MORE,
            connections_max(limits.http_connections_max, HTTP_SHARE),
        )
        self.unfolding = WorkRoom(log.memory)
        self.decoding = threading.BoundedSemaphore(DECODERS)
        self.readers = ThreadPoolExecutor(READERS, "wings-kafka-read")
        self.producers = ThreadPoolExecutor(PRODUCERS, "wings-kafka-produce")
        self.writers = ThreadPoolExecutor(WRITERS, "wings-kafka-write")
        self._within = {DEFAULT_NAMESPACE: self}

    def within(self, namespace: NamespaceName) -> "KafkaService":
        """Return the state for a namespace that exists, with topics and groups of its own."""
        found = self._within.get(namespace)
        if found is None:
            found = self._within[namespace] = copy.copy(self)
            found.topics, found.groups = KafkaTopics(self.log, namespace), GroupTable()
        return found

    @property
    def spaces(self) -> Sequence["KafkaService"]:
        """The state for each namespace that was asked for."""
        return list(self._within.values())

    def consumer_of(self, group_id: str) -> str:
        """Return the name of the consumer that has a group's members and offsets.

        It is `kafka:GROUP`, of other namespaces than the default `kafka/TENANT/NAMESPACE:GROUP`.
        """
        namespace = self.topics.namespace
        if namespace == DEFAULT_NAMESPACE:
            return f"kafka:{group_id}"
        return f"kafka/{namespace.tenant}/{namespace.namespace}:{group_id}"

    def failed(self, error: Exception) -> None:
        """Count an error of a request, or of a part of one; a fault of the server is logged."""
        match error:
            case KafkaError():
                code = error.code.name
            case Internal() | StorageCorrupt():
                code = error.code
                _logger.error("a request failed", **error.to_json())
            case WingsError():
                code = error.code
            case _:
                code = Internal.code
                _logger.error("a request failed by a fault of the server", exc_info=error)
        self.metrics.failed("kafka", code)

    async def read(self, work: Callable[[], Result]) -> Result:
        """Run `work`, which never waits for a commit, on a reader's thread."""
        return await asyncio.get_running_loop().run_in_executor(self.readers, tracing.bound(work))

    async def write(self, work: Callable[[], Result]) -> Result:
        """Run `work`, which may wait for a commit, on a writer's thread."""
        return await asyncio.get_running_loop().run_in_executor(self.writers, tracing.bound(work))

    def refuse(self) -> None:
        """End waiting fetches; returns at once."""
        self.waiting.stop(Unavailable("the server is stopping"))

    def close(self) -> None:
        """End the threads; waits for their current work."""
        for threads in (self.readers, self.producers, self.writers):
            threads.shutdown()


class KeptBatch(NamedTuple):
    """A batch at its place in the log.

    Attributes:
        data: The batch, with its offset.
        rows: Number of its records.
    """

    data: bytes
    rows: int

    @property
    def is_zstd(self) -> bool:
        """Whether its records are compressed by Zstandard, which not all clients know."""
        return compression_of(self.data) == ZSTD


class KeptBatches:
    """The batches that were written last; all methods from any thread.

    Args:
        bytes_max: Most bytes of all of them.
    """

    def __init__(self, bytes_max: int) -> None:
        self._lock = threading.Lock()
        self._bytes_max = bytes_max
        self._bytes = 0
        self._batches: OrderedDict[_Place, KeptBatch] = OrderedDict()

    def keep(
        self, topic_uuid: str, partition: Partition, offset: int, data: bytes | bytearray, rows: int
    ) -> None:
        """Keep a batch that was committed.

        Args:
            topic_uuid: Identity of its topic, whose values are bytes.
            partition: Its partition.
            offset: Offset of its first record.
            data: The batch, at any offset; it is copied.
            rows: Number of its records.
        """
        place, batch = (topic_uuid, partition, offset), KeptBatch(placed_at(offset, data), rows)
        with self._lock:
            if place in self._batches:
                return
            self._batches[place] = batch
            self._bytes += _ENTRY_BYTES + len(data)
            while self._bytes > self._bytes_max:
                _, dropped = self._batches.popitem(last=False)
                self._bytes -= _ENTRY_BYTES + len(dropped.data)

    def at(self, topic_uuid: str, partition: Partition, offset: int) -> KeptBatch | None:
        """Return the batch that begins at an offset; None where none is kept."""
        return self._batches.get((topic_uuid, partition, offset))
