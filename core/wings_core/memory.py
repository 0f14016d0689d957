"""The process's memory budget for incoming data, reserved before it is read.

A stream reserves room before each read, as much as its last batches needed, and returns it at its
end. Data that was read and is not durable yet is counted separately (`MemoryBudget.count`), as are
HTTP bodies. The size of a message is unknown before it is read, so the room of a read is an
estimate, generous for the first one. A larger message is counted immediately, which blocks all
other reads until it is durable or rejected.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from wings_core.errors import ResourceExhausted, WingsError
from wings_core.limits import MIB

FIRST_BYTES = 8 * MIB
"""Estimated size of the first batch of a stream; with a large budget, a 64th of it."""

READ_BYTES_MIN = 128 * 1024
"""Least estimated size of later batches."""

COPIES = 2
"""Copies of a message during a read: in pieces, and as a whole."""

WAITING_BYTES = 16 * MIB
"""Budget per waiting stream, which bounds how many may always wait: gRPC receives 4 MiB or more
of a stream that is not read yet, or is rejected (measured)."""


@dataclass(frozen=True, slots=True)
class RoomWaits:
    """Bounds of the waits for room.

    Attributes:
        seconds_max: Longest time that a stream waits for room before it is rejected.
        look_seconds: Interval at which a waiting stream checks whether others are idle.
        idle_seconds: Duration after which a read is idle, if no other read ends and nothing becomes
            durable meanwhile; its room is then lent to waiting streams.
        idle_seconds_max: Duration after which a read is idle in any case.
        crowd_max: Most waiting streams. More than `WAITING_BYTES` allows may wait while the
            process's memory grew by at most a quarter of the budget: most producers send little.
        crowd_look_seconds: Interval of checks of the process's memory, which also reject waiting
            streams.
    """

    seconds_max: float = 30.0
    look_seconds: float = 0.25
    idle_seconds: float = 1.0
    idle_seconds_max: float = 5.0
    crowd_max: int = 4_096
    crowd_look_seconds: float = 0.05


_STATM = Path("/proc/self/statm")
_CGROUPS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def machine_bytes() -> int:
    """Return the memory of the machine, or of the process's cgroup if less, in bytes."""
    found = [4096 * MIB]  # If unknown, for example on other systems than Linux.
    try:
        words = Path("/proc/meminfo").read_text(encoding="ascii").split()
        found = [int(words[words.index("MemTotal:") + 1]) * 1024]
    except (OSError, ValueError):
        pass
    for path in _CGROUPS:
        try:
            found.append(int(path.read_text(encoding="ascii")))
        except (OSError, ValueError):  # No cgroup, or no bound: "max".
            continue
    return min(found)


def own_bytes() -> int:
    """Return the process's private memory in bytes; 0 if unknown."""
    try:
        words = _STATM.read_text(encoding="ascii").split()
    except OSError:
        return 0
    return (int(words[1]) - int(words[2])) * os.sysconf("SC_PAGE_SIZE")


class MemoryBudget:
    """Room for incoming data, lent to streams in the order of their requests.

    Args:
        bytes_max: Total in bytes; 0 for a quarter of the machine's memory. If nothing is lent, a
            stream may read as much as it needs.
        batch_bytes_max: Largest accepted batch in bytes.
        waits: Bounds of the waits for room.
        own: Returns the process's private memory in bytes.
    """

    def __init__(
        self,
        bytes_max: int,
        batch_bytes_max: int,
        waits: RoomWaits = RoomWaits(),
        own: Callable[[], int] = own_bytes,
    ) -> None:
        self.bytes_max = bytes_max or machine_bytes() // 4
        self.waits = waits
        self._own = own
        first = max(FIRST_BYTES, self.bytes_max // 64)
        # At least two streams fit, even in a small budget.
        self.first_bytes = max(1, min(batch_bytes_max, first, self.bytes_max // (2 * COPIES)))
        self.waiting_max = max(1, self.bytes_max // WAITING_BYTES)
        self._counted: list[Callable[[], int]] = []
        self._lock = threading.Lock()
        self._lent = 0
        self._waiting: deque[_Waiter] = deque()
        self._lenders: dict[ReadRoom, None] = {}
        """Streams that hold room."""
        self.progress_at = 0.0
        """Monotonic time of the last end of a read, or decrease of counted bytes."""
        self._stopped: WingsError | None = None
        self._base = own()
        self._looked_at = 0.0
        self._full = False

    def count(self, used: Callable[[], int]) -> None:
        """Count a part of the process; `used` returns its bytes without taking a lock."""
        self._counted.append(used)

    @property
    def held(self) -> int:
        """Bytes currently lent or counted."""
        return self._lent + sum(used() for used in self._counted)

    @property
    def in_use(self) -> int:
        """Bytes that others cannot get: those held, but for the room of idle streams."""
        with self._lock:
            return self.held - sum(room.held for room in self._idle())

    @property
    def waiting(self) -> int:
        """Number of streams that wait for room."""
        return len(self._waiting)

    def has_room(self, size: int) -> bool:
        """Return whether `size` more bytes are within the budget."""
        held = self.held
        return held == 0 or held + size <= self.bytes_max

    def make_room(self, size: int) -> bool:
        """Return whether `size` more bytes are within the budget, if idle streams lend theirs.

        For callers that do not wait in line: if no stream waits, nothing else reclaims idle room.
        """
        if self.has_room(size):
            return True
        with self._lock:
            self._take_from_idle()
            return self.has_room(size)

    def room(self) -> "ReadRoom":
        """Return an empty room for one stream."""
        return ReadRoom(self)

    def came_free(self) -> None:
        """Lend free room to waiting streams; called when counted bytes have decreased."""
        self.progress_at = time.monotonic()
        if self._waiting:
            with self._lock:
                self._lend()

    def take(self, room: "ReadRoom", size: int) -> None:
        """Lend bytes to a stream; blocks for at most `RoomWaits.seconds_max`.

        Raises:
            ResourceExhausted: No room became free in time, or too many streams wait.
            WingsError: The error that `stop` was called with.
        """
        with self._lock:
            if self._stopped is not None:
                raise self._stopped
            if not self._waiting and self.has_room(size):
                self._hand(room, size)
                return
            is_crowd = len(self._waiting) >= self.waiting_max
            if is_crowd and (len(self._waiting) >= self.waits.crowd_max or self._is_full()):
                raise self._exhausted(f"{len(self._waiting)} streams wait for room")
            waiter = _Waiter(room, size)
            self._waiting.append(waiter)
        waits = self.waits
        end = time.monotonic() + waits.seconds_max
        while not waiter.served.wait(waits.crowd_look_seconds if is_crowd else waits.look_seconds):
            with self._lock:
                self._take_from_idle()
                self._lend()
                if waiter.served.is_set():
                    return
                why = None
                if time.monotonic() > end:
                    why = f"no room became free in {waits.seconds_max:.0f} s"
                elif is_crowd:
                    is_crowd = len(self._waiting) > self.waiting_max
                    if is_crowd and self._is_full():
                        why = f"{len(self._waiting)} streams wait for room"
                if why is not None or self._stopped is not None:
                    self._waiting.remove(waiter)
                    raise self._stopped or self._exhausted(why or "")

    def add(self, room: "ReadRoom", size: int) -> None:
        """Record bytes that are in memory already as lent."""
        with self._lock:
            self._hand(room, size)

    def give(self, room: "ReadRoom", size: int) -> None:
        """Take back up to `size` bytes of a stream, and lend them to others."""
        with self._lock:
            size = min(size, room.held)
            room.held -= size
            self._lent -= size
            if not room.held:
                self._lenders.pop(room, None)
            self.progress_at = time.monotonic()
            self._lend()

    def stop(self, error: WingsError) -> None:
        """Reject all waiting and future requests with `error`."""
        self._stopped = error

    def _hand(self, room: "ReadRoom", size: int) -> None:
        room.held += size
        self._lent += size
        self._lenders[room] = None

    def _lend(self) -> None:
        while self._waiting and self.has_room(self._waiting[0].size):
            waiter = self._waiting.popleft()
            self._hand(waiter.room, waiter.size)
            waiter.served.set()

    def _idle(self) -> list["ReadRoom"]:
        """Return the streams that lend their room; called with the lock held."""
        now = time.monotonic()
        patience = self.waits.idle_seconds
        if now - self.progress_at < patience:
            patience = self.waits.idle_seconds_max
        return [
            room
            for room in self._lenders
            # Its thread may end the read meanwhile.
            if (since := room.reading_since) is not None and now - since >= patience
        ]

    def _take_from_idle(self) -> None:
        for room in self._idle():
            self._lent -= room.held
            room.held = 0
            self._lenders.pop(room)

    def _is_full(self) -> bool:
        """Return whether the process uses too much memory for a crowd to wait."""
        now = time.monotonic()
        if now - self._looked_at >= self.waits.crowd_look_seconds:
            self._looked_at = now
            self._full = self._own() > self._base + self.bytes_max // 4
        return self._full

    def _exhausted(self, why: str) -> ResourceExhausted:
        return ResourceExhausted(
            f"{self.held} bytes are being read or waiting to be committed, the limit is "
            f"{self.bytes_max}; {why}"
        )


class ReadRoom:
    """The room of one stream, for its reading thread.

    Attributes:
        held: Bytes lent to it.
        reading_since: Monotonic start of the current read; None without one.
    """

    __slots__ = ("_budget", "_wanted", "held", "reading_since")

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._wanted = COPIES * budget.first_bytes
        self.held = 0
        self.reading_since: float | None = None

    def begin(self) -> None:
        """Reserve the room of the next read, unless it is held already; may block.

        Raises:
            ResourceExhausted: There is no room.
        """
        if self.held < self._wanted:
            self._budget.take(self, self._wanted - self.held)
        self.reading_since = time.monotonic()

    def end(self, size: int) -> None:
        """Record the size of the batch read, in bytes; later reads reserve as much."""
        self.reading_since = None
        self._budget.progress_at = time.monotonic()
        needed = COPIES * max(size, READ_BYTES_MIN)
        # Batches of a stream have similar sizes; the effect of a large one decays slowly.
        self._wanted = min(max(needed, self._wanted // 2), COPIES * self._budget.first_bytes)
        if size > self.held:
            self._budget.add(self, size - self.held)
        elif self.held > 2 * max(self._wanted, size):
            self._budget.give(self, self.held - max(self._wanted, size))

    def close(self) -> None:
        """Return all room. Idempotent."""
        self.reading_since = None
        if self.held:
            self._budget.give(self, self.held)


class _Waiter:
    """A stream waiting for bytes."""

    __slots__ = ("room", "served", "size")

    def __init__(self, room: ReadRoom, size: int) -> None:
        self.room = room
        self.size = size
        self.served = threading.Event()
