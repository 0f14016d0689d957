"""A bound on what Arrow allocates in a server, by its allocator's own variables.

Arrow decompresses a message as it reads it, before any code of ours sees how much that makes, and
33 kB of zstd may make 1 GB. What its allocator, mimalloc, does not have it cannot take: the read
fails by itself, before a byte is decompressed, and all others go on. It looks at these variables
once, when pyarrow is first loaded, and so this module, and what imports it, load it no earlier.
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
"""The least share: of less than 32 MiB the allocator hands out nothing."""

_OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
_NEVER = "2"


def arrow_bounds(processes: int = 1) -> dict[str, str]:
    """Return the variables that let each of some processes have its share of half the memory.

    That is twice the budget of what comes in, by default. Addresses alone are reserved: memory is
    taken as it is used. Nothing is returned where the environment has a variable of the allocator,
    or addresses are bounded themselves.
    """
    if any(name.startswith("MIMALLOC_") for name in os.environ) or _addresses_are_bounded():
        return {}
    share = max(_KIB_MIN, machine_bytes() // 2 // processes // 1024)
    return {_RESERVE: f"{share}KiB", _DISALLOW: "1"}


def load_bounded() -> bool:
    """Load pyarrow with these bounds; return whether it has them: it may be loaded already."""
    bounds = {} if "pyarrow" in sys.modules else arrow_bounds()
    os.environ.update(bounds)
    try:
        import_module("pyarrow")
    finally:
        for name in bounds:  # They are not those of processes that this one starts.
            del os.environ[name]
    return bool(bounds)


def _addresses_are_bounded() -> bool:
    limits = resource.RLIMIT_AS, resource.RLIMIT_DATA  # What is reserved counts for both.
    if sys.platform != "linux" or any(
        resource.getrlimit(limit)[0] != resource.RLIM_INFINITY for limit in limits
    ):
        return True
    with suppress(OSError):
        return _OVERCOMMIT.read_text(encoding="ascii").strip() == _NEVER
    return False
