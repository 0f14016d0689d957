"""Python imports this at its start: a daemon of Spark's then forks workers that have all imports.

To import the connector takes most of a second, and a worker ends with each failed task, each
refused option and each commit of a stream. The workers run the same code either way.
"""

import importlib
import sys

MODULES = ("reader", "source", "stream", "stream_writer", "writer")

if "pyspark.daemon" in sys.orig_argv and "lookup_data_sources" not in sys.orig_argv[-1]:
    for module in MODULES:
        importlib.import_module(f"wings_spark.{module}")
