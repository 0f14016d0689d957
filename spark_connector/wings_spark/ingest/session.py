"""A Spark session for a run, with the output of Java and Python workers in a file.

Java maps an archive of Spark's classes at its start instead of loading each: finding, parsing and
linking them takes two fifths of its work up to the first message. A run without an archive lists
the classes that it loads; once it has read files, a process of the lowest priority writes the
archive of that list beside the checkpoint. Java ignores an archive that does not match its version,
options or class path.
"""

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TextIO

from wings_core.errors import Unavailable
from wings_spark.ingest.fork_server import fork_server
from wings_spark.ingest.settings import SourceSettings
from wings_spark.testing import QUICK_JAVA_OPTIONS, find_java, use_this_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


TASK_ATTEMPTS = 4
"""Attempts of a task on this machine: a cluster's default."""

LOG_BYTES_MAX = 16 * 1024 * 1024
"""Size above which a log is emptied."""

HEAP_MEGABYTES = 256
"""Heap of Java while it writes an archive."""

LOWEST_PRIORITY = 19

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


class ClassArchive:
    """The archive of a checkpoint; used in a `with` statement, by one thread.

    Args:
        directory: Directory of the archive.
        wanted: Whether to use and write an archive; if not, all methods do nothing.
    """

    def __init__(self, directory: Path, *, wanted: bool) -> None:
        self._directory = directory
        self._wanted = wanted
        self._path = self._part = self._classes = self._listed = directory
        self._command: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None

    def options(self, java: Path, *what: str) -> str:
        """Return options for Java: those that map the archive, else those that list classes.

        Args:
            java: The executable.
            what: Further texts that the archive depends on.
        """
        name = hashlib.sha256("\n".join([str(java), *what]).encode())
        with suppress(OSError):
            name.update(str(java.stat().st_mtime_ns).encode())
        stem = f"spark-{name.hexdigest()[:16]}"
        self._path = self._directory / f"{stem}.jsa"
        self._part = self._path.with_suffix(".part")
        self._classes = self._path.with_suffix(".classes")
        self._listed = self._path.with_suffix(".list")
        if not self._wanted or len(str(self._directory).split()) != 1:
            return ""  # Java's options are separated by spaces.
        if self._path.exists():
            return f"-XX:SharedArchiveFile={self._path} -Xlog:disable -Xlog:all=warning:stderr"
        if self._part.exists():
            return ""  # An attempt to write it failed, or ended all that ran: there is no other.
        return f"-XX:DumpLoadedClassList={self._classes}"

    def started(self, spark: "SparkSession", *options: str) -> None:
        """Record how Java was started, so that `write` can write an archive for it.

        Args:
            spark: Session of that Java.
            options: Java options that the archive must be written with.
        """
        if not self._classes.is_file() or self._path.exists():
            return
        jvm: Any = spark.sparkContext._jvm  # pyright: ignore[reportPrivateUsage]
        home, classes = map(jvm.java.lang.System.getProperty, ("java.home", "java.class.path"))
        self._command = [
            str(Path(home) / "bin" / "java"),
            "-Xshare:dump",
            f"-Xmx{HEAP_MEGABYTES}m",
            *options,
            f"-XX:SharedClassListFile={self._listed}",
            f"-XX:SharedArchiveFile={self._part}",
            "-cp",
            classes,
        ]

    def write(self) -> None:
        """Start writing the archive, unless it exists; move it into place once written.

        Does not block. Called repeatedly, after Java has loaded the classes that a batch needs.
        """
        if self._process is None and self._command:
            self._part.touch()
            listed = self._classes.read_bytes()  # Java may be in the middle of a line.
            self._listed.write_bytes(listed[: listed.rfind(b"\n") + 1])
            null = subprocess.DEVNULL
            self._process = subprocess.Popen(self._command, stdin=null, stdout=null, stderr=null)
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self._process.pid, LOWEST_PRIORITY)
        if self._process is not None and self._process.poll() == 0:
            self._take()

    def _take(self) -> None:
        with suppress(OSError):
            for old in self._directory.glob("spark-*.jsa"):
                old.unlink()  # Of another Java, or another Spark.
            self._part.rename(self._path)
            self._listed.unlink()
            self._classes.unlink()
        self._command = []
        self._process = None

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop a process that writes an archive: the next run writes it."""
        self.write()
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
            for left in (self._part, self._listed):
                left.unlink(missing_ok=True)


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
