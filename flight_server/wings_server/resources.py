"""Resources of a server's process: file descriptors, its allocators, and budgets of memory.

glibc's allocator shares freed memory between threads, and keeps it for a while.

Arrow decompresses a message while reading it, before our code can check the size, and 33 kB of zstd
may become 1 GB. With a bound on its allocator, mimalloc, only that read fails, before a byte is
decompressed. mimalloc reads its variables once, when pyarrow is first loaded, so this module and
its importers must not load pyarrow earlier.
"""

import os
import resource
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

from wings_core import runtime
from wings_core.errors import ResourceExhausted
from wings_core.memory import MemoryBudget, machine_bytes, own_bytes

OPEN_MAX = 65_536
"""Value to raise the soft limit to, if the hard limit allows; more is never needed."""

HTTP_SHARE = 4
"""Divisor of the limit for HTTP's connections."""

RPC_SHARE = 2
"""Divisor of the limit for the connections of Flight, or of a gRPC service."""

LOOK_SECONDS = 2.0
"""Interval of checking the process's memory."""

CHANGE_BYTES_MIN = 64 * 1024 * 1024
"""Change of memory after which unused memory is returned to the system."""

LOOKS = 5
"""Repetitions after a change, once little incoming data is in memory."""

_RESERVE = "MIMALLOC_RESERVE_OS_MEMORY"

_DISALLOW = "MIMALLOC_DISALLOW_OS_ALLOC"

_HUGE_PAGES = "MIMALLOC_ALLOW_THP"

_KIB_MIN = 64 * 1024
"""Least share: with less than 32 MiB the allocator cannot allocate."""

_OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")

_NEVER = "2"


def raise_limit() -> None:
    """Raise the soft limit of open files to the hard one, at most `OPEN_MAX`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_MAX if hard == resource.RLIM_INFINITY else min(OPEN_MAX, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connections_max(setting: int, share: int) -> int:
    """Return the most connections of a listener: its setting, or its share if less.

    Args:
        setting: Configured maximum.
        share: `HTTP_SHARE` or `RPC_SHARE`.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return setting if soft == resource.RLIM_INFINITY else max(1, min(setting, soft // share))


def keep_freed_memory() -> bool:
    """Set glibc's bounds before the process starts threads; returns whether they were set.

    They are not set with another C library, or if the environment has a `MALLOC_…` variable.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return False
    # With an arena per thread, each would keep memory of its own.
    return runtime.keep_freed_memory(arenas_max=max(2, os.cpu_count() or 2))


class FreedMemory:
    """A thread that returns unused memory to the system, until `close`.

    Args:
        budget: The memory budget of incoming data.
    """

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wings-freed-memory", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        last = own_bytes()
        left = 0
        while not self._closing.wait(LOOK_SECONDS):
            held = self._budget.held
            grown = own_bytes() - last
            # After shrinking, the allocators hold more freed memory.
            if grown > max(CHANGE_BYTES_MIN, 2 * held) or grown < -CHANGE_BYTES_MIN:
                left = LOOKS
            elif left and held < CHANGE_BYTES_MIN:  # Memory in use at that time is free by now.
                left -= 1
            else:
                continue
            runtime.release_unused()
            last = own_bytes()


def arrow_bounds(processes: int = 1) -> dict[str, str]:
    """Return the variables that give each process its share of half of the memory.

    Half of the memory is twice the default budget of incoming data. Only addresses are reserved;
    memory is taken when used. Returns an empty mapping if the environment has a variable of the
    allocator, or addresses are limited.
    """
    if any(name.startswith("MIMALLOC_") for name in os.environ) or _addresses_are_bounded():
        return {}
    share = max(_KIB_MIN, machine_bytes() // 2 // processes // 1024)
    # With huge pages, of 2 MiB, half of the resident memory was unused.
    return {_RESERVE: f"{share}KiB", _DISALLOW: "1", _HUGE_PAGES: "0"}


def load_bounded() -> bool:
    """Load pyarrow with these bounds; returns False if it was loaded already."""
    bounds = {} if "pyarrow" in sys.modules else arrow_bounds()
    os.environ.update(bounds)
    try:
        import_module("pyarrow")
    finally:
        for name in bounds:  # Not for child processes.
            del os.environ[name]
    return bool(bounds)


def _addresses_are_bounded() -> bool:
    limits = resource.RLIMIT_AS, resource.RLIMIT_DATA  # Reserved memory counts for both.
    if sys.platform != "linux" or any(
        resource.getrlimit(limit)[0] != resource.RLIM_INFINITY for limit in limits
    ):
        return True
    with suppress(OSError):
        return _OVERCOMMIT.read_text(encoding="ascii").strip() == _NEVER
    return False


class Budget:
    """A count of bytes of requests or responses in memory; only for the event loop.

    Args:
        bytes_max: Most bytes; a single one may exceed it.
        memory: Memory budget that they also count against, or None.
    """

    def __init__(self, bytes_max: int, memory: MemoryBudget | None = None) -> None:
        self._bytes_max = bytes_max
        self._memory = memory
        if memory is not None:
            memory.count(lambda: self._held)
        self._held = 0

    @property
    def held(self) -> int:
        """Bytes currently held."""
        return self._held

    def take(self, size: int) -> None:
        """Count bytes as held until `release`.

        Raises:
            ResourceExhausted: The bytes would exceed the budget.
        """
        if self._held and self._held + size > self._bytes_max:
            raise self._exhausted()
        if self._memory is not None and not self._memory.make_room(size):
            raise ResourceExhausted(
                f"{self._memory.held} bytes are being read or waiting to be committed, the limit "
                f"is {self._memory.bytes_max}"
            )
        self._held += size

    def check_room(self) -> None:
        """Check that the budget is not exhausted.

        Raises:
            ResourceExhausted: The budget is exhausted.
        """
        if self._held >= self._bytes_max:
            raise self._exhausted()

    def hold(self, size: int) -> None:
        """Count bytes as held until `release`, even beyond the budget."""
        self._held += size

    def release(self, size: int) -> None:
        """Release held bytes."""
        self._held -= size
        if self._memory is not None:
            self._memory.came_free()

    def _exhausted(self) -> ResourceExhausted:
        return ResourceExhausted(
            f"{self._held} bytes are held already, the limit is {self._bytes_max}"
        )


class WorkRoom:
    """Room in the memory budget that threads take while they work. Thread-safe.

    Args:
        memory: The budget.
    """

    def __init__(self, memory: MemoryBudget) -> None:
        self._memory = memory
        self._lock = threading.Lock()
        self._held = 0
        memory.count(lambda: self._held)

    @contextmanager
    def taking(self) -> Generator[Callable[[int], None]]:
        """Yield a function that takes bytes until the end of the block.

        It raises `ResourceExhausted` if they would exceed the budget.
        """
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            with self._lock:
                if not self._memory.make_room(size):
                    raise ResourceExhausted(f"no room in memory to unfold {size} bytes")
                self._held += size
            taken += size

        try:
            yield take
        finally:
            with self._lock:
                self._held -= taken
            self._memory.came_free()
