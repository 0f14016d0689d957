"""The process that Wings runs in: optional libraries, hidden modules, and memory kept by glibc.

By default glibc maps memory for each large message and unmaps it afterwards, so that the kernel
clears every page again: a third of the time of a large push, and of receiving batches (measured).
A process can keep some freed memory instead.
"""

import ctypes
import importlib
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

from wings_core.errors import InvalidArgument

OBSTORE_NEEDED = "files in object stores need obstore"


def import_extra(
    module: str, needed: str, extra: str, error: type[Exception] = InvalidArgument
) -> Any:
    """Import a module of an extra.

    Args:
        module: Full name of the module.
        needed: Beginning of the message, which names the feature and the library.
        extra: The extra that installs the library.
        error: Class of the error if it is not installed; the message has the command to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise error(f"{needed}: pip install 'wings-flight[{extra}]'") from None


_hidden: set[str] = set()


class _Hiding:
    """A finder, first in `sys.meta_path`, for which the hidden modules do not exist."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name in _hidden:
            raise ModuleNotFoundError(name=name)


def hide_pandas() -> None:
    """Hide pandas from this process; only for processes that run nothing but Wings."""
    _hide("pandas")


def hide_numpy() -> None:
    """Hide numpy and pandas, unless pyarrow is loaded; for the same processes.

    Loading pyarrow loads numpy, if that is found, which takes longer than pyarrow itself. Arrow
    then cannot convert to numpy, nor from it.
    """
    if "pyarrow" not in sys.modules:
        _hide("numpy", "pandas")


@contextmanager
def hidden(module: str) -> Generator[None]:
    """Hide a module from the imports of the block, unless it is loaded."""
    _hide(module)
    try:
        yield
    finally:
        _hidden.discard(module)


def _hide(*modules: str) -> None:
    _hidden.update(modules)
    if _Hiding not in sys.meta_path:
        sys.meta_path.insert(0, _Hiding)


MAPPED_BYTES_MIN = 32 * 1024 * 1024
"""Size above which allocations are mapped individually; glibc's greatest value."""

FREE_BYTES_KEPT_MAX = 64 * 1024 * 1024
"""Freed memory that an arena keeps at its top."""

PURGED_BYTES = 1024 * 1024
"""Size of an allocation that makes Arrow's allocator release memory freed by other threads."""

# From malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8


def keep_freed_memory(arenas_max: int | None = None) -> bool:
    """Set the bounds for this process; returns False with another C library than glibc.

    Args:
        arenas_max: How many arenas threads share, if this is called before there are more; None:
            as many as glibc will.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    options = [(_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN), (_M_TRIM_THRESHOLD, FREE_BYTES_KEPT_MAX)]
    if arenas_max is not None:
        options.append((_M_ARENA_MAX, arenas_max))
    taken = [mallopt(option, value) == 1 for option, value in options]
    return all(taken)


def release_unused() -> None:
    """Return freed memory to the system; takes some milliseconds per gigabyte."""
    import pyarrow as pa  # Loaded once the server's bound on Arrow's memory is set.

    pool = pa.default_memory_pool()
    pa.allocate_buffer(PURGED_BYTES)
    pool.release_unused()
    with suppress(AttributeError, OSError, TypeError):  # Another C library than glibc.
        ctypes.CDLL(None).malloc_trim(0)
