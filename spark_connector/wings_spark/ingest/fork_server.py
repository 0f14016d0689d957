"""Forking of Spark's Python workers from one process that has imported the pipeline.

Java starts a Python process for each kind of step, and waits ten seconds for some of them to
connect. The imports take a second of a core each, and longer while cores are busy. Instead of
Python, Java here starts a launcher, which passes its arguments, environment and standard streams to
the fork server, and runs as long as the forked process. If the server is gone, the launcher runs
Python itself.
"""

import atexit
import fcntl
import gc
import importlib
import marshal
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

MODULES = (
    "pyspark.daemon",
    "pyspark.worker",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark_wings",
    "wings_spark.ingest.connections",
    "wings_spark.ingest.data_source",
    "wings_spark.ingest.plan",
    "wings_spark.ingest.writer",
)
"""Modules that workers import."""

WAITING_MAX = 64
"""Most launchers that wait for a worker at a time."""

_LENGTH = 8

_LAUNCHER = """#!/bin/sh
exec {python} -I -S {launcher} "$@"
"""

_LAUNCH = """
import marshal, os, socket, sys

python, path, arguments = {python!r}, {path!r}, sys.argv[1:]
server = socket.socket(socket.AF_UNIX)
try:
    if arguments[0] != "-m":
        raise OSError
    server.connect(path)
    asked = marshal.dumps((arguments[1:], dict(os.environ), os.getcwd()))
    socket.send_fds(server, [len(asked).to_bytes({length})], [0, 1, 2])
    server.sendall(asked)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
except OSError:
    os.execv(python, [python, *arguments])
server.recv(1)  # Until the process ends.
"""


@contextmanager
def fork_server() -> Generator[Path]:
    """Run a fork server; yields the launcher to start workers with in place of Python.

    The server imports modules in the background.
    """
    with tempfile.TemporaryDirectory(prefix="wings-workers-") as directory:
        path, launch, launcher = (Path(directory) / name for name in ("socket", "launch", "python"))
        launch.write_text(
            _LAUNCH.format(python=sys.executable, path=str(path), length=_LENGTH), encoding="utf-8"
        )
        launcher.write_text(
            _LAUNCHER.format(python=sys.executable, launcher=launch), encoding="utf-8"
        )
        launcher.chmod(0o700)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            listening.listen(WAITING_MAX)
            fd = listening.fileno()
            server = subprocess.Popen(
                [sys.executable, "-m", "wings_spark.ingest.fork_server", str(fd)],
                stdin=subprocess.PIPE,  # The server ends with this process.
                stdout=subprocess.DEVNULL,
                pass_fds=(fd,),
            )
        try:
            yield launcher
        finally:
            server.terminate()
            server.communicate()


def main(fd: int) -> None:
    """Import, and fork a process for each launcher that connects, until standard input ends."""
    statuses: list[int] = []
    # Called last, as it is registered before the functions that imports register.
    atexit.register(_end, statuses)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, which ends the workers.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listening = socket.socket(fileno=fd)
    for name in MODULES:
        with suppress(ImportError):  # Other versions of Spark lack some.
            importlib.import_module(name)
    gc.freeze()  # Workers share what is loaded, and never collect it.
    while 0 not in (ready := select.select([0, listening], [], [])[0]):
        if listening in ready:
            connection, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                _become(connection, statuses)
                return
            connection.close()


def _become(connection: socket.socket, statuses: list[int]) -> None:
    """Run the module that a launcher asks for, with its streams, in this process.

    Its exit status is appended to `statuses`, unless it failed.
    """
    head, fds, _, _ = socket.recv_fds(connection, _LENGTH, 3)
    asked = connection.recv(int.from_bytes(head), socket.MSG_WAITALL)
    (module, *arguments), environment, directory = marshal.loads(asked)
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _end_with(connection)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in paths if path and path not in sys.path]
    sys.argv[1:] = arguments
    sys.modules.pop(module, None)  # It runs as `__main__`.
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if isinstance(status := ended.code or 0, int):
            statuses.append(status)
        raise
    statuses.append(0)


def _end(statuses: list[int]) -> None:
    """End a worker with its status, after its threads and `atexit` functions.

    The interpreter's own shutdown would copy the shared memory that it tears down.
    """
    if statuses:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(statuses[0] & 0xFF)


def _end_with(connection: socket.socket) -> None:
    """Terminate this process when its launcher is terminated: Java knows only the launcher."""
    with suppress(AttributeError):
        fcntl.fcntl(connection, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(connection, fcntl.F_GETFL)
    fcntl.fcntl(connection, fcntl.F_SETFL, flags | os.O_ASYNC)
    connection.setblocking(False)
    with suppress(BlockingIOError):
        connection.recv(1)
        sys.exit("the launcher ended")


if __name__ == "__main__":
    main(int(sys.argv[1]))
