"""An archive of Spark's classes, which Java maps at its start instead of loading each.

Finding, parsing and linking classes takes two fifths of Java's work up to the first message. A run
without an archive lists the classes that it loads; once it has read files, a process of the lowest
priority writes the archive of that list beside the checkpoint. Java ignores an archive that does
not match its version, options or class path.
"""

import hashlib
import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEAP_MEGABYTES = 256
"""Heap of Java while it writes an archive."""

LOWEST_PRIORITY = 19


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
