"""Quotas of calls: topics and partitions, counted in metadata, and the bytes of pushes.

A node counts by what metadata says, a second old at most, and what it has let through since. So
nodes, and pushes of stages that are published later, may together exceed a quota of these by what
they began at the same time.
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
"""How old a count of partitions may be before another one is refused or let through by it,"""

LOOK_SHARE = 20
"""or as many times as long as the look took: of many partitions, it takes no more of metadata."""

_UNBOUNDED: AbstractContextManager[None] = nullcontext()


def using(principal: Principal) -> AbstractContextManager[CallUsage | None]:
    """Count a call of a principal for the block; yields None where it has no quotas.

    Raises:
        ResourceExhausted: It has as many calls under way as it may.
    """
    return _UNBOUNDED if principal.usage is None else principal.usage.call()


def counted(
    chunks: Iterable[tuple[pa.RecordBatch, bytes]], usage: CallUsage, *, refuses: bool
) -> Iterator[tuple[pa.RecordBatch, bytes]]:
    """Yield chunks, each counted as in flight until the next is asked for.

    Args:
        chunks: What is sent.
        usage: Of the call that it is sent by.
        refuses: Whether more than the quota is an error; else it is counted and sent.

    Raises:
        ResourceExhausted: A chunk and what is in flight exceed the quota.
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
    """The partitions that count for one principal, by topic's UUID and partition."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while metadata is asked, and while a topic is created."""
    found: set[tuple[str, Partition]] = field(default_factory=set)
    look_at: float = 0.0
    """When they are looked up again before they decide, on the monotonic clock."""


class PlaceQuotas:
    """Counts topics and partitions for principals with quotas of them.

    Args:
        log: Where they are.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._of: WeakKeyDictionary[Usage, _Places] = WeakKeyDictionary()

    @contextmanager
    def creating(self, principal: Principal, names: Iterable[str]) -> Generator[None]:
        """Keep a principal to its quota of topics, for the block that creates some.

        Args:
            principal: Who has quotas.
            names: Full names of topics that it may administer; some may exist already.

        Raises:
            ResourceExhausted: There were more than it may have.
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
        """Keep a principal to its quota of partitions.

        Blocks for a look at all partitions that count, where one is new to this node.

        Raises:
            ResourceExhausted: There were more than it may have.
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
        principal: Who pushes.
        usage: Of its call.
        places: Count partitions.
    """

    principal: Principal
    usage: CallUsage
    places: PlaceQuotas

    def admit(self, batch: PreparedBatch) -> None:
        """Count the partitions of a batch, and its bytes, until `release`.

        Blocks until batches of the same call that fill the quota of bytes are released.

        Raises:
            ResourceExhausted: They exceed a quota.
        """
        self.admit_partitions(batch)
        self.usage.take(batch.bytes, waits=True)

    def admit_partitions(self, batch: PreparedBatch) -> None:
        """Count the partitions of a batch.

        Raises:
            ResourceExhausted: They exceed the quota.
        """
        self.places.admit(self.principal, batch.topic, (run[0] for run in batch.runs))

    def release(self, batch: PreparedBatch) -> None:
        """Count the bytes of a batch, and of all that were joined with it, no longer."""
        self.usage.release(batch.bytes)
