"""Commands of Wings that start at once, as the tests start hundreds of them.

Starting `wings` is mostly importing: two seconds of a busy core, of a server. So one process
imports everything once and forks the command, the real one with arguments, environment and streams
of its own, whenever a test starts it by `subprocess`.
"""

import importlib
import inspect
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from io import TextIOWrapper
from typing import Any

COMMAND = [sys.executable, "-m", "wings_client.cli"]
"""How the commands that are forked begin; all others are started as ever."""

MODULES = (
    "wings_client",
    "wings_client.cli.app",
    "wings_client.cli.bench",
    "wings_client.cli.consume",
    "wings_client.cli.fetch",
    "wings_client.cli.gather",
    "wings_client.cli.maintain",
    "wings_client.cli.push",
    "wings_client.cli.share",
    "wings_client.cli.tail",
    "wings_client.cli.topic",
    "wings_core.metadata.remote",
    "wings_core.share.remote.link",
    "wings_server.cli",
    "wings_server.holds.process",
    "wings_server.process",
)
"""What is imported beforehand: nothing that looks at the terminal when it is imported."""

FROM_THE_START = ("ARROW_", "GRPC_", "LANG", "LC_", "LD_", "MALLOC_", "PYTHON", "TYPER_", "TZ")
"""How variables begin that a process looks at when it starts, or when it imports something."""

ENVIRONMENT = dict(os.environ)
"""Of the process that forks: as it is when tests begin, which may change it later."""

REQUEST_BYTES_MAX = 128 * 1024
STATUS_BYTES = 8


class ForkingPopen(subprocess.Popen[Any]):
    """`subprocess.Popen`, but commands of Wings are forked from a process that is ready for them.

    It stands in the place of `subprocess.Popen` while tests run, so it overrides what that does to
    start a child, to look at it and to wait for it.
    """

    forker: "Forker | None" = None
    """Starts with the first command, and ends with this process."""

    _ended: int = -1
    """Where the status of a forked command is read from."""

    def _execute_child(self, args: Any, *others: Any) -> None:
        parent: Any = super()
        start: Any = parent._execute_child
        named = inspect.signature(start).bind(args, *others).arguments
        environment = dict(os.environ if named["env"] is None else named["env"])
        if not _can_be_forked(named, environment):
            start(args, *others)
            return
        if ForkingPopen.forker is None:
            ForkingPopen.forker = Forker()
        request = {
            "arguments": list(args[len(COMMAND) :]),
            "environment": environment,
            "new_session": bool(named["start_new_session"]),
        }
        streams = [named["p2cread"], named["c2pwrite"], named["errwrite"]]
        streams = [own if given == -1 else given for own, given in enumerate(streams)]
        self.pid, self._ended = ForkingPopen.forker.fork(request, streams)
        this: Any = self
        this._child_created = True
        names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        this._close_pipe_fds(*(named[name] for name in names))

    def _internal_poll(self, *args: Any, **others: Any) -> int | None:
        this: Any = self
        parent: Any = super()
        if self._ended == -1:
            return parent._internal_poll(*args, **others)
        with this._waitpid_lock:
            if self.returncode is None:
                pid, status = self._try_wait(os.WNOHANG)
                if pid == self.pid:
                    this._handle_exitstatus(status)
        return self.returncode

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        parent: Any = super()
        if self._ended == -1:
            return parent._try_wait(wait_flags)
        waiting = select.poll()
        waiting.register(self._ended, select.POLLIN)
        if not waiting.poll(0 if wait_flags & os.WNOHANG else None):
            return 0, 0
        status = os.read(self._ended, STATUS_BYTES)
        os.close(self._ended)
        assert len(status) == STATUS_BYTES, "the process that forks commands is gone"
        return self.pid, int.from_bytes(status, sys.byteorder)


def _can_be_forked(named: dict[str, Any], environment: dict[str, str]) -> bool:
    """Whether it is a command of Wings, and nothing is asked for that only a new program has."""
    args = named["args"]
    if sys.platform != "linux" or not isinstance(args, list) or args[: len(COMMAND)] != COMMAND:
        return False
    if any(named[name] for name in ("executable", "preexec_fn", "pass_fds", "shell", "cwd")):
        return False
    return all(
        environment.get(name) == ENVIRONMENT.get(name)
        for name in environment.keys() | ENVIRONMENT.keys()
        if name.startswith(FROM_THE_START)
    )


class Forker:
    """The process that has everything imported, seen from the tests."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=ENVIRONMENT,
                pass_fds=[theirs.fileno()],
            )
        self._lock = threading.Lock()

    def fork(self, request: dict[str, Any], streams: list[int]) -> tuple[int, int]:
        """Start a command.

        Args:
            request: Its arguments, its environment, and whether it gets a session of its own.
            streams: Its standard input, output and error.

        Returns:
            Its process id, and where its status can be read once it has ended: as many bytes as
            `STATUS_BYTES`, of a number as `os.waitpid` returns it.
        """
        ended, theirs = os.pipe()
        message = json.dumps(request).encode()
        assert len(message) <= REQUEST_BYTES_MAX
        try:
            with self._lock:
                socket.send_fds(self._requests, [message], [*streams, theirs])
                pid = int(self._requests.recv(64))
        finally:
            os.close(theirs)
        return pid, ended

    def end(self) -> None:
        """End the process; what it forked and still runs goes on."""
        self._requests.close()
        self._process.wait()


class Forking:
    """The process that has everything imported, from within."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._selector = selectors.DefaultSelector()
        self._selector.register(requests, selectors.EVENT_READ)
        self._running: dict[int, tuple[int, int]] = {}
        """Of what was forked, by its descriptor: its process id, and where its status goes."""

    def serve(self) -> dict[str, Any] | None:
        """Fork for each request, until there are no more; return a request in what was forked."""
        while True:
            for key, _ in self._selector.select():
                if key.fd in self._running:
                    self._tell_end(key.fd)
                    continue
                message, given, _, _ = socket.recv_fds(self._requests, REQUEST_BYTES_MAX, 4)
                if not message:
                    return None
                *streams, ended = given
                pid = os.fork()
                if pid == 0:
                    self._leave(streams, ended)
                    return json.loads(message)
                for stream in streams:
                    os.close(stream)
                child = os.pidfd_open(pid)
                self._selector.register(child, selectors.EVENT_READ)
                self._running[child] = pid, ended
                self._requests.send(str(pid).encode())

    def _tell_end(self, child: int) -> None:
        pid, ended = self._running.pop(child)
        self._selector.unregister(child)
        os.close(child)
        _, status = os.waitpid(pid, 0)
        with suppress(BrokenPipeError):  # Nobody asks any more.
            os.write(ended, status.to_bytes(STATUS_BYTES, sys.byteorder))
        os.close(ended)

    def _leave(self, streams: list[int], ended: int) -> None:
        """Keep nothing open but the streams, as a new program would."""
        self._requests.close()
        self._selector.close()
        for child, (_, other_ended) in self._running.items():
            os.close(child)
            os.close(other_ended)
        os.close(ended)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        for stream in streams:
            os.close(stream)


def main() -> None:
    """Fork commands until there are no more requests; be the command in what was forked."""
    for module in MODULES:
        importlib.import_module(module)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests and the commands.
    requests = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(requests.fileno(), False)
    request = Forking(requests).serve()
    if request is None:
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["new_session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["", *request["arguments"]]
    _open_streams()
    runpy.run_module(COMMAND[-1], run_name="__main__", alter_sys=True)


def _open_streams() -> None:
    """Open the standard streams as the interpreter does when it starts."""

    def written(stream: TextIOWrapper, *, by_line: bool) -> TextIOWrapper:
        raw = open(stream.fileno(), "wb", closefd=False)  # noqa: SIM115 - open until the end.
        return TextIOWrapper(raw, stream.encoding, stream.errors, line_buffering=by_line)

    now: Any = sys
    now.stdin = now.__stdin__ = open(0, encoding=sys.stdin.encoding, closefd=False)  # noqa: SIM115
    now.stdout = now.__stdout__ = written(now.stdout, by_line=os.isatty(1))
    now.stderr = now.__stderr__ = written(now.stderr, by_line=True)


if __name__ == "__main__":
    main()
