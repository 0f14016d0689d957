"""Enforcement of quotas: topics and partitions, counted in metadata, and the bytes of pushes.

A node counts by metadata, at most a second old, and its own admissions since. So several nodes, and
pushes of stages that are published later, may together exceed a quota by what they start
concurrently.
"""

import threading
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import pyarrow as pa

from wings_core.errors import NotFound
from wings_core.ingest.prepare import PreparedBatch
from wings_core.log import Log
from wings_core.model import Topic
from wings_core.partitions import Partition
from wings_core.security.principal import Principal
from wings_core.security.quotas import CallUsage, Usage, exhausted
from wings_core.security.rights import Right

LOOK_SECONDS = 1.0
"""Age of a count of partitions up to which it is used for decisions."""

LOOK_SHARE = 20
"""Alternative age limit, in multiples of the time of a count, to bound the load of metadata."""

_UNBOUNDED: AbstractContextManager[None] = nullcontext()


def using(principal: Principal) -> AbstractContextManager[CallUsage | None]:
    """Count a call of a principal for the block; yields None without quotas.

    Raises:
        ResourceExhausted: The quota of calls is reached.
    """
    return _UNBOUNDED if principal.usage is None else principal.usage.call()


def counted(
    chunks: Iterable[tuple[pa.RecordBatch, bytes]], usage: CallUsage, *, refuses: bool
) -> Iterator[tuple[pa.RecordBatch, bytes]]:
    """Yield chunks, each counted as in flight until the next is requested.

    Args:
        chunks: Chunks to send.
        usage: Usage of the call.
        refuses: Whether to raise beyond the quota; otherwise the chunk is counted and sent.

    Raises:
        ResourceExhausted: A chunk and the bytes in flight exceed the quota.
    """
    for batch, metadata in chunks:
        size = batch.nbytes
        if refuses:
            usage.take(size)
        else:
            usage.hold(size)
        yield batch, metadata
        usage.release(size)


@dataclass(slots=True)
class _Places:
    """The partitions counted for one principal, by topic UUID and partition."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while metadata is read, and while a topic is created."""
    found: set[tuple[str, Partition]] = field(default_factory=set)
    look_at: float = 0.0
    """Monotonic time from which they are counted again before a decision."""


class PlaceQuotas:
    """Counts topics and partitions of principals with such quotas.

    Args:
        log: The log.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._of: WeakKeyDictionary[Usage, _Places] = WeakKeyDictionary()

    @contextmanager
    def creating(self, principal: Principal, names: Iterable[str]) -> Generator[None]:
        """Enforce a principal's quota of topics for a block that creates topics.

        Args:
            principal: The principal.
            names: Full names of the topics to create; some may exist.

        Raises:
            ResourceExhausted: The quota would be exceeded.
        """
        usage = principal.usage
        assert usage is not None
        with self._places(usage).lock:
            most = usage.quotas.topics
            wanted = set(names)
            if most is not None and wanted:
                existing = {
                    str(topic.name) for topic in principal.topics(self._log.admin, Right.ADMIN)
                }
                new = wanted - existing
                if new and len(existing) + len(new) > most:
                    used = f"it may administer {len(existing)} already"
                    raise exhausted(principal.name, "topics", most, used)
            yield

    def admit(self, principal: Principal, topic: Topic, partitions: Iterable[Partition]) -> None:
        """Enforce a principal's quota of partitions.

        Blocks to count all its partitions, if one is new to this node.

        Raises:
            ResourceExhausted: The quota would be exceeded.
        """
        usage = principal.usage
        assert usage is not None
        most = usage.quotas.partitions
        if most is None or topic.partition_key is None:
            return
        wanted = {(topic.uuid, partition) for partition in partitions}
        places = self._places(usage)
        with places.lock:
            if not wanted <= places.found and time.monotonic() >= places.look_at:
                began = time.monotonic()
                places.found = self._partitions(principal)
                ended = time.monotonic()
                places.look_at = ended + max(LOOK_SECONDS, LOOK_SHARE * (ended - began))
            new = wanted - places.found
            if new and len(places.found) + len(new) > most:
                used = f"it may write to {len(places.found)} already, and {len(new)} are new"
                raise exhausted(principal.name, "partitions", most, used)
            places.found |= new

    def _places(self, usage: Usage) -> _Places:
        with self._lock:
            return self._of.setdefault(usage, _Places())

    def _partitions(self, principal: Principal) -> set[tuple[str, Partition]]:
        found: set[tuple[str, Partition]] = set()
        for topic in principal.topics(self._log.admin, Right.WRITE):
            if topic.partition_key is not None:
                with suppress(NotFound):
                    states = self._log.registry.partition_states(topic.uuid)
                    found.update((topic.uuid, state.partition) for state in states)
        return found


@dataclass(frozen=True, slots=True)
class PushQuotas:
    """The quotas of a principal, applied to one stream of pushes.

    Attributes:
        principal: The principal that pushes.
        usage: Usage of its call.
        places: Counts partitions.
    """

    principal: Principal
    usage: CallUsage
    places: PlaceQuotas

    def admit(self, batch: PreparedBatch) -> None:
        """Count the partitions of a batch, and its bytes until `release`.

        Blocks while earlier batches of the same call exhaust the quota of bytes.

        Raises:
            ResourceExhausted: A quota is exceeded.
        """
        self.admit_partitions(batch)
        self.usage.take(batch.bytes, waits=True)

    def admit_partitions(self, batch: PreparedBatch) -> None:
        """Count the partitions of a batch.

        Raises:
            ResourceExhausted: The quota is exceeded.
        """
        self.places.admit(self.principal, batch.topic, (run[0] for run in batch.runs))

    def release(self, batch: PreparedBatch) -> None:
        """Release the bytes of a batch, and of the batches joined with it."""
        self.usage.release(batch.bytes)
