"""Spark's Python workers: what keeps them quick from one task to the next."""

import gc
import sys

_DAEMON = "pyspark.daemon"

_frozen = False
"""Whether this process has left its objects out of garbage collection."""


def leave_out_what_is_loaded() -> None:
    """Leave what this worker has loaded out of all garbage collections to come.

    PySpark's daemon has a worker collect all garbage after each task and each step of planning.
    Looking through what Arrow, pydantic, PySpark and Wings have loaded takes 100 ms of a core,
    where the read of a small range takes 5. So it is done once for each worker, when all is there;
    what is made later is collected as ever. In the user's own processes nothing is done.
    """
    global _frozen
    if _frozen:
        return
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is not None and main.name == _DAEMON:
        gc.freeze()
    _frozen = True
