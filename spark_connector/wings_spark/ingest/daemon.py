"""Spark's daemon of Python workers, which imports the pipeline before it forks any.

A worker ends with each commit of a batch, and its imports take most of a second of a core.
"""

import gc
import importlib
import sys

from pyspark.daemon import manager

MODULES = ("wings_spark.ingest.data_source", "wings_spark.ingest.work", *sys.argv[1:2])


def main() -> None:
    """Import, and serve as PySpark's daemon does."""
    for name in MODULES:
        importlib.import_module(name)
    gc.freeze()  # Workers share what is loaded with the daemon, and never collect it.
    manager()


if __name__ == "__main__":
    main()
