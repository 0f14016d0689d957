"""Python imports this at its start: what Spark starts is forked from a process with all imports.

To import PySpark and the connector takes one and a half seconds, of each kind of worker and each
stream. The process runs the same code either way.
"""

import os
import runpy
import sys

_is_of_spark = sys.orig_argv[1:2] == ["-m"] and sys.orig_argv[2].startswith("pyspark.")
if _is_of_spark and (launch := os.environ.pop("WORKERS_LAUNCH", "")):
    sys.argv = sys.orig_argv
    runpy.run_path(launch)  # Without a fork server, this becomes a Python that goes on.
    os._exit(0)
