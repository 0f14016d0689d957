"""A bound of Arrow's allocations in a server, by its allocator's environment variables.

Arrow decompresses a message while reading it, before our code can check the size, and 33 kB of zstd
may become 1 GB. With a bound on its allocator, mimalloc, only that read fails, before a byte is
decompressed. mimalloc reads its variables once, when pyarrow is first loaded, so this module and
its importers must not load pyarrow earlier.
"""

import os
import resource
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from wings_core.memory import machine_bytes

_RESERVE = "MIMALLOC_RESERVE_OS_MEMORY"
_DISALLOW = "MIMALLOC_DISALLOW_OS_ALLOC"

_KIB_MIN = 64 * 1024
"""Least share: with less than 32 MiB the allocator cannot allocate."""

_OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
_NEVER = "2"


def arrow_bounds(processes: int = 1) -> dict[str, str]:
    """Return the variables that give each process its share of half of the memory.

    Half of the memory is twice the default budget of incoming data. Only addresses are reserved;
    memory is taken when used. Returns an empty mapping if the environment has a variable of the
    allocator, or addresses are limited.
    """
    if any(name.startswith("MIMALLOC_") for name in os.environ) or _addresses_are_bounded():
        return {}
    share = max(_KIB_MIN, machine_bytes() // 2 // processes // 1024)
    return {_RESERVE: f"{share}KiB", _DISALLOW: "1"}


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
