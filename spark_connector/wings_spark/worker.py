"""Set-up of Spark's Python workers, which run many tasks each."""

import gc
import sys

from wings_core.runtime import keep_freed_memory

_DAEMON = "pyspark.daemon"

_prepared = False
"""Whether this process has been prepared."""


def prepare_worker() -> None:
    """Tune garbage collection and allocation of this process, if it is a worker of Spark.

    Does nothing in the user's own processes, or when called again.
    """
    global _prepared
    if _prepared:
        return
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is not None and main.name == _DAEMON:
        _freeze_loaded_objects()
        # gRPC allocates received data in pieces, freed as soon as their rows are delivered.
        keep_freed_memory()
    _prepared = True


def _freeze_loaded_objects() -> None:
    """Exclude all objects loaded so far from garbage collection.

    PySpark's daemon makes a worker run a full collection after each task and each step of planning.
    Traversing the objects of Arrow, pydantic, PySpark and Wings takes 100 ms of a core, while the
    read of a small range takes 5. Objects made later are collected as usual.
    """
    gc.freeze()
