"""Shared state of all connections: the log, threads, waits, groups and budgets."""

import asyncio
import copy
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from wings_core import tracing
from wings_core.errors import Unavailable
from wings_core.fetch.fetcher import Fetcher
from wings_core.limits import MIB
from wings_core.model import Node
from wings_core.names import DEFAULT_NAMESPACE, NamespaceName
from wings_server.budget import Budget, WorkRoom
from wings_server.descriptors import HTTP_SHARE, connections_max
from wings_server.gate import Gate
from wings_server.kafka.brokers import Brokers
from wings_server.kafka.group_table import GroupTable
from wings_server.kafka.kept_batches import KEPT_BYTES_MAX, KeptBatches
from wings_server.kafka.topics import KafkaTopics
from wings_server.kafka.wire import Wire
from wings_server.metrics import Metrics
from wings_server.served_log import ServedLog
from wings_server.waiting import Waiting

READERS = 4
"""Threads that read and encode, never waiting for messages."""

PRODUCERS = 32
"""Threads that submit batches and wait for their flush."""

WRITERS = 8
"""Threads that change anything else, so that groups and topics never wait behind batches."""

DECODERS = 2
"""Most of them that decode at a time, so that the event loop gets its turn."""

CHUNK_BYTES_MAX = MIB
"""Size in which the log is read: what most clients take of a partition at a time."""

FRAME_BYTES_MORE = MIB
"""Bytes of a frame beyond those of its largest batch."""

CLUSTER_ID = "wings"

KEPT_SHARE = 16
"""The part of the budget of memory, one in so many, that kept batches take at most."""

Result = TypeVar("Result")


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
