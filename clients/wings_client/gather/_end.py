"""How a gather ended, and how each of its sources stands."""

from dataclasses import dataclass
from enum import StrEnum

from wings_client.gather._request import Request
from wings_core.errors import WingsError


class GatherReason(StrEnum):
    """Why a gather ended."""

    COMPLETE = "complete"
    """Every source has ended."""
    TIMEOUT = "timeout"
    """The total time is up."""
    STALL = "stall"
    """No reply for as long as the stall timer."""
    MAX_MESSAGES = "max_messages"
    """As many replies came as were wanted."""
    SENTINEL = "sentinel"
    """A reply ended it."""
    CANCELLED = "cancelled"
    """`cancel` was called."""
    STOPPED = "stopped"
    """The caller left, or raised, or never read."""
    NO_RESPONDERS = "no_responders"
    """Nobody is there at all."""
    SERVER_ERROR = "server_error"
    """A server refused a request."""
    DISCONNECTED = "disconnected"
    """A connection failed, while somebody was there."""


@dataclass(frozen=True, slots=True)
class SourceState:
    """How one source stands."""

    request: Request
    replies: int
    """Handed on."""
    rows: int
    """Handed on."""
    next_offset: int | None
    """Where to read on after what was handed on; None where that is not known."""
    ended: bool
    """Whether it has nothing more to say, and all that it said was handed on."""
    error: WingsError | None


@dataclass(frozen=True, slots=True)
class GatherEnd:
    """How a gather ended."""

    reason: GatherReason
    error: BaseException | None
    """What went wrong first: a source, or the caller's own function."""
    replies: int
    """Handed on, of all sources."""
    rows: int
    """Handed on, of all sources."""
    elapsed: float
    """Seconds since the start."""
    sources: tuple[SourceState, ...]
    """In the order of the requests."""
