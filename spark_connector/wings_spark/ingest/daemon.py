"""Spark's daemon of Python workers, which imports the pipeline before it forks any.

A worker ends with each commit of a batch, and its imports take most of a second of a core.
"""

import gc
import importlib
import sys

from pyspark.daemon import manager

MODULES = ("wings_spark.ingest.data_source", "wings_spark.ingest.writer")

MANY = ("pyspark.worker", "pyspark.sql.worker.python_streaming_sink_runner")
"""Workers of tasks, and of commits; a daemon of others forks but once."""


def main() -> None:
    """Import, and serve as PySpark's daemon does."""
    worker = sys.argv[1] if len(sys.argv) > 1 else MANY[0]
    if worker in MANY:
        for name in (worker, *MODULES):
            importlib.import_module(name)
        gc.freeze()  # Workers share what is loaded with the daemon, and never collect it.
    manager()


if __name__ == "__main__":
    main()
