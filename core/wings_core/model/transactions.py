"""Transactions of producers that are known by a name."""

from dataclasses import dataclass
from enum import StrEnum


class TransactionState(StrEnum):
    """State of a name's last transaction."""

    NONE = "none"
    """There was none since the producer joined."""
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class ProducerEpoch:
    """One life of a transactional producer; its next life has a higher epoch, or another id."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Transaction:
    """Last transaction of a name."""

    name: str
    producer_id: int
    """The id of the producer that joined last."""
    epoch: int
    """Its epoch."""
    state: str
    """A `TransactionState`."""
    timeout_ms: int
    """Longest time that a transaction stays open."""
    deadline: int | None
    """When the open transaction is aborted, in microseconds since the epoch; None: none is open."""
