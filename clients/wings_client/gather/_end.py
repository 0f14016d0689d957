"""The end of a gather, and the state of each of its sources."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from wings_client.gather._request import Request
from wings_core.errors import WingsError
from wings_core.partitions import JsonScalar


class GatherReason(StrEnum):
    """Why a gather ended."""

    COMPLETE = "complete"
    """Every source has ended."""
    TIMEOUT = "timeout"
    """The total time is up."""
    STALL = "stall"
    """No reply for as long as the stall timer."""
    MAX_MESSAGES = "max_messages"
    """The wanted number of replies was delivered."""
    SENTINEL = "sentinel"
    """A reply ended it."""
    CANCELLED = "cancelled"
    """`cancel` was called."""
    STOPPED = "stopped"
    """The caller left the loop, raised, or never read."""
    NO_RESPONDERS = "no_responders"
    """No server was reached."""
    SERVER_ERROR = "server_error"
    """A server refused a request."""
    DISCONNECTED = "disconnected"
    """A connection failed, while another server was reached."""


@dataclass(frozen=True, slots=True)
class SourceState:
    """The state of one source."""

    request: Request
    replies: int
    """Delivered."""
    rows: int
    """Delivered."""
    next_offset: int | None
    """The offset to resume at after what was delivered; None if unknown."""
    ended: bool
    """Whether its stream has ended, and all its replies were delivered."""
    error: WingsError | None
    next_offsets: Mapping[JsonScalar, int] = field(default_factory=dict[JsonScalar, int])
    """Offsets to resume at, of a source of many partitions, of those that are known."""


@dataclass(frozen=True, slots=True)
class GatherEnd:
    """How a gather ended."""

    reason: GatherReason
    error: BaseException | None
    """The first error, of a source or of the caller's own function."""
    replies: int
    """Delivered, of all sources."""
    rows: int
    """Delivered, of all sources."""
    elapsed: float
    """Seconds since the start."""
    sources: tuple[SourceState, ...]
    """In the order of the requests."""
