"""Counts of the requests to an object store, for metrics."""

import threading
from dataclasses import dataclass, replace
from typing import Literal

Operation = Literal["put", "read", "head", "list", "delete"]


@dataclass(slots=True)
class OperationCount:
    """Counts of one kind of request."""

    requests: int = 0
    """Attempts, repeated ones included."""
    failures: int = 0
    """Failed attempts; most are retried."""
    bytes: int = 0
    """Bytes stored or read."""
    seconds: float = 0.0
    """Total time of attempts, over all threads."""


class ObjectCounts:
    """Counts of the requests to one store. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Operation, OperationCount] = {}

    def add(self, operation: Operation, *, seconds: float, size: int = 0, failed: bool) -> None:
        """Count one attempt; `size` is in bytes."""
        with self._lock:
            count = self._counts.setdefault(operation, OperationCount())
            count.requests += 1
            count.failures += failed
            count.bytes += size
            count.seconds += seconds

    def snapshot(self) -> dict[Operation, OperationCount]:
        """Return the counts by operation, without operations never requested."""
        with self._lock:
            return {operation: replace(count) for operation, count in self._counts.items()}
