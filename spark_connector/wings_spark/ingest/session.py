"""A Spark session for a run, with the output of Java and Python workers in a file."""

import os
import re
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from wings_core.errors import Unavailable
from wings_spark.ingest.class_archive import ClassArchive
from wings_spark.ingest.fork_server import fork_server
from wings_spark.ingest.settings import SourceSettings
from wings_spark.testing import QUICK_JAVA_OPTIONS, find_java, use_this_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_ATTEMPTS = 4
"""Attempts of a task on this machine: a cluster's default."""

LOG_BYTES_MAX = 16 * 1024 * 1024
"""Size above which a log is emptied."""

_LOCAL = re.compile(r"local(?:\[(\d+|\*)\])?")


_CONFIGURED = {"SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT"}
"""Environment variables that show that Spark is configured already."""

_JAVA_OPTIONS = ["-XX:+UseSerialGC", *QUICK_JAVA_OPTIONS.split()]

OWN = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings of a Spark that runs only on this machine and is not configured otherwise.

Its rows are a few texts for each batch: compiling would take longer than running.
"""


def is_local(master: str | None) -> bool:
    """Return whether a master is on this machine."""
    return master is None or _LOCAL.fullmatch(master) is not None


def log_path(settings: SourceSettings) -> Path:
    """Return the path of the file for the standard error of a run's Java and Python workers."""
    return settings.checkpoint / "spark.log"


def with_attempts(master: str) -> str:
    """Return a local master with `TASK_ATTEMPTS` attempts of a task; others unchanged."""
    local = _LOCAL.fullmatch(master)
    return master if local is None else f"local[{local[1] or 1},{TASK_ATTEMPTS}]"


@contextmanager
def session(
    settings: SourceSettings, master: str | None, archive: ClassArchive
) -> Generator["SparkSession"]:
    """Run a Spark session for a source.

    Args:
        settings: Settings of the source.
        archive: Class archive, used if Spark is not configured otherwise.
        master: Where Spark runs; None: as Spark is configured, else all cores of this machine.
            A local task has four attempts too, as on a cluster: the next attempt detects a file
            that ended the process that read it.

    Raises:
        RuntimeError: Java is not installed.
        Unavailable: Java did not start.
    """
    java = find_java()
    use_this_python()
    import pyspark
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(f"wings-ingest-{settings.name}")
    options = {"spark.speculation": "false", "spark.ui.showConsoleProgress": "false"}
    with ExitStack() as stack:
        if not _CONFIGURED & os.environ.keys() and is_local(master):
            options |= OWN
            kept = archive.options(java, pyspark.__version__, pyspark.__file__, *_JAVA_OPTIONS)
            options["spark.driver.extraJavaOptions"] = " ".join([*_JAVA_OPTIONS, kept])
            master = master or "local[*]"
            use_this_python(stack.enter_context(fork_server()))
        if master is not None:
            builder = builder.master(with_attempts(master))
        for name, value in options.items():
            builder = builder.config(name, value)
        log = log_path(settings)
        try:
            spark = builder.getOrCreate()
            found = spark.sparkContext.master or ""
            if with_attempts(found) != found:
                spark.stop()
                spark = builder.master(with_attempts(found)).getOrCreate()
        except PySparkException as error:
            told = _last_line(log) or error
            raise Unavailable(f"Spark did not start: {told}; see {log}") from None
        if spark.conf.get("spark.log.level", None) is None:
            # At WARN, a line is logged whenever a wait for files is longer than a trigger.
            spark.sparkContext.setLogLevel("ERROR")
        archive.started(spark, *_JAVA_OPTIONS)
        try:
            yield spark
        finally:
            with suppress(Exception):  # Java may be gone.
                spark.stop()


@contextmanager
def standard_error_in(path: Path) -> Generator[TextIO]:
    """Redirect standard error of this process, and of processes it starts meanwhile, to a file.

    Java and PySpark write pages whose last lines tell nothing.

    Returns:
        The original standard error.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    with os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace") as kept:
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        try:
            if os.fstat(log).st_size > LOG_BYTES_MAX:
                os.ftruncate(log, 0)
            os.dup2(log, 2)
            yield kept
        finally:
            os.close(log)
            sys.stderr.flush()
            os.dup2(kept.fileno(), 2)


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")[:300]
