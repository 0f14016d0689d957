"""The process's budget of memory for what comes in, taken before it is read.

A stream takes room before each read, as much as its last batches needed, and gives it back when it
ends. What was read and is not durable yet counts by itself (`MemoryBudget.count`), and so do bodies
of HTTP. Nothing tells how large a message is before it has been read, so the room of a read is a
guess: of a first one it is generous, and what turns out larger than its guess is counted at once,
which holds up every other read until it is durable or refused.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from wings_core.errors import ResourceExhausted, WingsError
from wings_core.limits import MIB

WAIT_SECONDS_MAX = 30.0
"""How long a stream waits for room before it is refused."""

LOOK_SECONDS = 0.25
"""How often a waiting stream looks whether others are idle."""

IDLE_SECONDS = 1.0
"""A read that takes so long, while no other ends and nothing becomes durable, is idle: its room is
lent to those that wait."""

IDLE_SECONDS_MAX = 5.0
"""As long, whatever happens elsewhere."""

FIRST_BYTES = 8 * MIB
"""The size that the first batch of a stream is taken to have; with a large budget, a 64th of it."""

READ_BYTES_MIN = 128 * 1024
"""The size that later ones are taken to have at least."""

COPIES = 2
"""While a message is read it is in memory in pieces and as a whole."""

WAITING_BYTES = 16 * MIB
"""gRPC receives 4 MiB or more of a stream that is not read yet (measured), also of refused ones: as
many streams as the budget has of these may wait whatever they send."""

CROWD_MAX = 4_096
"""More may wait as long as the process has at most a quarter of the budget more than at first:
most producers send little, and what others send comes until they are refused."""

CROWD_LOOK_SECONDS = 0.05
"""How often that is looked at; those that wait are refused then, too."""

_STATM = Path("/proc/self/statm")
_CGROUPS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def machine_bytes() -> int:
    """Return the memory of the machine, or of the process's cgroup where that is less, in bytes."""
    found = [4096 * MIB]  # Where nothing can be told, such as not on Linux.
    try:
        words = Path("/proc/meminfo").read_text(encoding="ascii").split()
        found = [int(words[words.index("MemTotal:") + 1]) * 1024]
    except (OSError, ValueError):
        pass
    for path in _CGROUPS:
        try:
            found.append(int(path.read_text(encoding="ascii")))
        except (OSError, ValueError):  # There is none, or it has no bound: "max".
            continue
    return min(found)


def own_bytes() -> int:
    """Return the bytes that the process has for itself in memory; 0 where that cannot be told."""
    try:
        words = _STATM.read_text(encoding="ascii").split()
    except OSError:
        return 0
    return (int(words[1]) - int(words[2])) * os.sysconf("SC_PAGE_SIZE")


class MemoryBudget:
    """Room for what is read, lent to streams in the order in which they ask.

    Args:
        bytes_max: All of it, in bytes; 0: a quarter of the machine's memory. A stream that finds
            none lent may read all that it needs.
        batch_bytes_max: The largest batch that is taken.
    """

    def __init__(self, bytes_max: int, batch_bytes_max: int) -> None:
        self.bytes_max = bytes_max or machine_bytes() // 4
        first = max(FIRST_BYTES, self.bytes_max // 64)
        # At least two streams have room, also in a small budget.
        self.first_bytes = max(1, min(batch_bytes_max, first, self.bytes_max // (2 * COPIES)))
        self.waiting_max = max(1, self.bytes_max // WAITING_BYTES)
        self._counted: list[Callable[[], int]] = []
        self._lock = threading.Lock()
        self._lent = 0
        self._waiting: deque[_Waiter] = deque()
        self._lenders: dict[ReadRoom, None] = {}
        """Those that hold room."""
        self.progress_at = 0.0
        """When a read ended, or what is counted became less."""
        self._stopped: WingsError | None = None
        self._base = own_bytes()
        self._looked_at = 0.0
        self._full = False

    def count(self, used: Callable[[], int]) -> None:
        """Count what a part of the process holds: `used` returns its bytes, and takes no lock."""
        self._counted.append(used)

    @property
    def held(self) -> int:
        """The bytes that are lent, or counted, now."""
        return self._lent + sum(used() for used in self._counted)

    @property
    def waiting(self) -> int:
        """How many streams wait for room."""
        return len(self._waiting)

    def has_room(self, size: int) -> bool:
        """Tell whether so many bytes more are within the budget."""
        held = self.held
        return held == 0 or held + size <= self.bytes_max

    def make_room(self, size: int) -> bool:
        """Tell whether so many bytes more are within the budget, once idle streams lend theirs.

        For what does not wait in line: where no stream waits, none else takes room from idle ones.
        """
        if self.has_room(size):
            return True
        with self._lock:
            self._take_from_idle()
            return self.has_room(size)

    def room(self) -> "ReadRoom":
        """Return the room of one stream, which holds none yet."""
        return ReadRoom(self)

    def came_free(self) -> None:
        """Lend what is free to those that wait; called where what is counted became less."""
        self.progress_at = time.monotonic()
        if self._waiting:
            with self._lock:
                self._lend()

    def take(self, room: "ReadRoom", size: int) -> None:
        """Lend bytes to a stream; waits for them, at most `WAIT_SECONDS_MAX`.

        Raises:
            ResourceExhausted: None came free in time, or too many wait already.
            WingsError: The error that `stop` was called with.
        """
        with self._lock:
            if self._stopped is not None:
                raise self._stopped
            if not self._waiting and self.has_room(size):
                self._hand(room, size)
                return
            is_crowd = len(self._waiting) >= self.waiting_max
            if is_crowd and (len(self._waiting) >= CROWD_MAX or self._is_full()):
                raise self._exhausted(f"{len(self._waiting)} streams wait for room")
            waiter = _Waiter(room, size)
            self._waiting.append(waiter)
        end = time.monotonic() + WAIT_SECONDS_MAX
        while not waiter.served.wait(CROWD_LOOK_SECONDS if is_crowd else LOOK_SECONDS):
            with self._lock:
                self._take_from_idle()
                self._lend()
                if waiter.served.is_set():
                    return
                why = None
                if time.monotonic() > end:
                    why = f"no room came free in {WAIT_SECONDS_MAX:.0f} s"
                elif is_crowd:
                    is_crowd = len(self._waiting) > self.waiting_max
                    if is_crowd and self._is_full():
                        why = f"{len(self._waiting)} streams wait for room"
                if why is not None or self._stopped is not None:
                    self._waiting.remove(waiter)
                    raise self._stopped or self._exhausted(why or "")

    def add(self, room: "ReadRoom", size: int) -> None:
        """Lend bytes that are in memory already."""
        with self._lock:
            self._hand(room, size)

    def give(self, room: "ReadRoom", size: int) -> None:
        """Take back bytes of a stream, as far as it holds them, and lend them to others."""
        with self._lock:
            size = min(size, room.held)
            room.held -= size
            self._lent -= size
            if not room.held:
                self._lenders.pop(room, None)
            self.progress_at = time.monotonic()
            self._lend()

    def stop(self, error: WingsError) -> None:
        """Refuse all that wait, soon, and all that come, with an error."""
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

    def _take_from_idle(self) -> None:
        now = time.monotonic()
        stalled = now - self.progress_at >= IDLE_SECONDS
        patience = IDLE_SECONDS if stalled else IDLE_SECONDS_MAX
        for room in list(self._lenders):
            if room.reading_since is not None and now - room.reading_since >= patience:
                self._lent -= room.held
                room.held = 0
                self._lenders.pop(room)

    def _is_full(self) -> bool:
        """Tell whether the process has so much memory that no crowd may wait."""
        now = time.monotonic()
        if now - self._looked_at >= CROWD_LOOK_SECONDS:
            self._looked_at = now
            self._full = own_bytes() > self._base + self.bytes_max // 4
        return self._full

    def _exhausted(self, why: str) -> ResourceExhausted:
        return ResourceExhausted(
            f"{self.held} bytes are being read or wait to be committed, the limit is "
            f"{self.bytes_max}; {why}"
        )


class ReadRoom:
    """The room of one stream; used by its own thread, which reads one batch after another.

    Attributes:
        held: Bytes that are lent to it.
        reading_since: When the read under way began; None: none is.
    """

    __slots__ = ("_budget", "_wanted", "held", "reading_since")

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._wanted = COPIES * budget.first_bytes
        self.held = 0
        self.reading_since: float | None = None

    def begin(self) -> None:
        """Take the room of the next read, unless it is held already; may wait.

        Raises:
            ResourceExhausted: There is none.
        """
        if self.held < self._wanted:
            self._budget.take(self, self._wanted - self.held)
        self.reading_since = time.monotonic()

    def end(self, size: int) -> None:
        """Say how large what was read is, in bytes; later reads take room for as much."""
        self.reading_since = None
        self._budget.progress_at = time.monotonic()
        needed = COPIES * max(size, READ_BYTES_MIN)
        # Batches of a stream are of much the same size; one that is not is not soon forgotten.
        self._wanted = min(max(needed, self._wanted // 2), COPIES * self._budget.first_bytes)
        if size > self.held:
            self._budget.add(self, size - self.held)
        elif self.held > 2 * max(self._wanted, size):
            self._budget.give(self, self.held - max(self._wanted, size))

    def close(self) -> None:
        """Give back all; may be called again."""
        self.reading_since = None
        if self.held:
            self._budget.give(self, self.held)


class _Waiter:
    """A stream that waits for bytes."""

    __slots__ = ("room", "served", "size")

    def __init__(self, room: ReadRoom, size: int) -> None:
        self.room = room
        self.size = size
        self.served = threading.Event()
