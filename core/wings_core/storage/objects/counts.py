"""What was asked of an object store, for metrics."""

import threading
from dataclasses import dataclass, replace
from typing import Literal

Operation = Literal["put", "read", "head", "list", "delete"]


@dataclass(slots=True)
class OperationCount:
    """Of one kind of request."""

    requests: int = 0
    """Attempts, repeated ones included."""
    failures: int = 0
    """Attempts that failed; most of them are tried again."""
    bytes: int = 0
    """Stored, or read."""
    seconds: float = 0.0
    """Spent on attempts, in sum over all threads."""


class ObjectCounts:
    """Counts the requests to one store; safe from many threads."""

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
        """Return what was counted so far, by operation; those never asked for are left out."""
        with self._lock:
            return {operation: replace(count) for operation, count in self._counts.items()}
