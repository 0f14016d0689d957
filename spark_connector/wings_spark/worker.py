"""Spark's Python workers: what keeps them quick from one task to the next."""

import gc
import sys

from wings_core.allocator import keep_freed_memory

_DAEMON = "pyspark.daemon"

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
        # gRPC allocates what it receives in pieces, freed as soon as their rows are handed on.
        keep_freed_memory()
    _prepared = True


def _leave_out_what_is_loaded() -> None:
    """Leave what this worker has loaded out of all garbage collections to come.

    PySpark's daemon has a worker collect all garbage after each task and each step of planning.
    Looking through what Arrow, pydantic, PySpark and Wings have loaded takes 100 ms of a core,
    where the read of a small range takes 5. So it is done once for each worker, when all is there;
    what is made later is collected as ever.
    """
    gc.freeze()
