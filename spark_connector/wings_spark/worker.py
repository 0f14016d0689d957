"""Spark's Python workers: what keeps them quick from one task to the next."""

import ctypes
import gc
import sys

_DAEMON = "pyspark.daemon"

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of mallopt, by the numbers that malloc.h gives them."""

FREED_BYTES_MAX = 64 << 20
"""How much memory that was freed a worker keeps for what it allocates next, in each arena."""

ALLOCATION_BYTES_MAX = 32 << 20
"""The largest piece of memory that is taken from there; glibc takes no more than this."""

_prepared = False
"""Whether this process has been prepared."""


def prepare_worker() -> None:
    """Prepare this process for many tasks, if it is a worker of Spark's, the first time.

    In the user's own processes nothing is done.
    """
    global _prepared
    if _prepared:
        return
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is not None and main.name == _DAEMON:
        _leave_out_what_is_loaded()
        _keep_freed_memory()
    _prepared = True


def _leave_out_what_is_loaded() -> None:
    """Leave what this worker has loaded out of all garbage collections to come.

    PySpark's daemon has a worker collect all garbage after each task and each step of planning.
    Looking through what Arrow, pydantic, PySpark and Wings have loaded takes 100 ms of a core,
    where the read of a small range takes 5. So it is done once for each worker, when all is there;
    what is made later is collected as ever.
    """
    gc.freeze()


def _keep_freed_memory() -> None:
    """Have the C library keep what is freed, up to a bound, instead of giving it back at once.

    gRPC allocates what it receives piece by piece, and each piece is freed as soon as its rows are
    handed on. By default glibc gives most of that back to the kernel, which clears each page before
    it is had again: a third of what it takes to receive. Other C libraries are left as they are.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_MMAP_THRESHOLD, ALLOCATION_BYTES_MAX)
    mallopt(_TRIM_THRESHOLD, FREED_BYTES_MAX)
