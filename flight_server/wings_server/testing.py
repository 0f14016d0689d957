"""A real Wings server for tests, in this process or as a child of it, always on free ports.

with running_server() as server:
    client = server.client()
    client.do_action(...)
"""

import atexit
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import IO, Literal

import pyarrow.flight as flight
import structlog
from pydantic import SecretStr

from wings_core.limits import Limits
from wings_core.times import moment_of, move_clocks, now_us
from wings_server import logs
from wings_server.process import Server
from wings_server.settings import Address, Settings, load

READY_SECONDS = 120.0
"""How long a child may take to say that it serves, on a busy machine."""

STOP_SECONDS = 90.0
"""How long a child may take to end after a signal, on a busy machine."""

CALLS_SECONDS = 60.0
"""How long `wait_for_calls` waits."""

STDERR_CHARACTERS_MAX = 20_000
"""The most characters of a child's standard error in an error message, from its end."""

_ANY_PORT = Address("127.0.0.1", 0)


class _Addresses:
    """The addresses of a server, and its Flight clients, which are closed with it."""

    def __init__(self, flight_url: str, http_url: str) -> None:
        self.flight = flight_url
        self.http = http_url
        self._clients = ExitStack()

    def client(self) -> flight.FlightClient:
        """Return a new Flight client of the server; it is closed at the end of the `with`."""
        return self._clients.enter_context(flight.FlightClient(self.flight))

    def close_clients(self) -> None:
        """Close the clients that `client` returned."""
        self._clients.close()


class RunningServer(_Addresses):
    """A server in this process.

    Attributes:
        flight: Its address for Flight clients, `grpc://127.0.0.1:PORT`.
        http: Its address for HTTP clients, `http://127.0.0.1:PORT`.
        kafka: Its address for Kafka's clients, `127.0.0.1:PORT`; `None` where it serves none.
        data_dir: Its data directory.
        server: The server itself, for what is not on the wire, such as `server.log`.
    """

    def __init__(self, server: Server) -> None:
        super().__init__(f"grpc://{server.flight}", f"http://{server.http}")
        self.server = server
        self.kafka = str(server.kafka)
        self.data_dir = server.settings.data_dir

    def advance(self, seconds: float) -> None:
        """Move the time of this process forward, and do what is due by then; blocks until done.

        Locks of share groups end, delayed messages are delivered again, retention and tiers take
        what is old enough, and tokens end. Timeouts of calls, heartbeats, the sessions of
        consumer groups and the `now()` of SQL stay real. Another server in this process moves too,
        but does only what it is asked for.

        Args:
            seconds: How far, at least 0. There is no way back.
        """
        move_clocks(seconds)
        log = self.server.log
        log.shares.coordinator.clock_moved()
        log.maintainer.run()

    def now(self) -> datetime:
        """Return the server's time, in UTC: the real one, and as much more as it was moved."""
        return moment_of(now_us())

    def wait_for_calls(self, calls: int) -> None:
        """Wait until exactly `calls` Flight calls are under way.

        Raises:
            TimeoutError: There is another number after `CALLS_SECONDS`.
        """
        end = time.monotonic() + CALLS_SECONDS
        while self.server.service.calls_running != calls:
            if time.monotonic() > end:
                raise TimeoutError(
                    f"{self.server.service.calls_running} calls are under way, not {calls}"
                )
            time.sleep(0.002)

    def wait_for_waiting(self, polls: int) -> None:
        """Wait until exactly so many polls wait for messages: a call that runs may not wait yet.

        Raises:
            TimeoutError: Another number waits after `CALLS_SECONDS`.
        """
        end = time.monotonic() + CALLS_SECONDS
        while (waiting := self.server.log.fetcher.waits.waiting) != polls:
            if time.monotonic() > end:
                raise TimeoutError(f"{waiting} polls wait, not {polls}")
            time.sleep(0.002)

    def stop(self) -> None:
        """Drain and stop the server now; the end of the `with` then finds it stopped."""
        self.server.stop()


@contextmanager
def running_server(
    data_dir: Path | None = None,
    *,
    limits: Limits | None = None,
    drain_seconds: float = 10.0,
    hot: str | None = None,
    remote: str | None = None,
    root_token: str | None = None,
    kafka: bool = False,
) -> Generator[RunningServer]:
    """Run a server in this process, on free ports, for as long as the `with` lasts.

    Where the process ends before, the server is stopped too.

    Args:
        data_dir: Kept afterwards, so that another server can take it up. None: a temporary
            directory that is removed at the end.
        limits: The bounds in force; None: those of the environment, else the usual ones.
        drain_seconds: Longest wait for calls under way at the stop.
        hot: URL of the object store that new pages go to.
        remote: URL of the object store that old pages go to.
        root_token: An operator's token.
        kafka: True to serve Kafka's protocol.
    """
    if not structlog.is_configured():
        logs.route_to_logging()  # Unconfigured, structlog prints on standard output.
    with ExitStack() as stack:
        path = stack.enter_context(_directory(data_dir))
        settings = Settings(
            data_dir=path,
            flight=_ANY_PORT,
            http=_ANY_PORT,
            kafka=_ANY_PORT if kafka else None,
            drain_seconds=drain_seconds,
            hot=hot,
            remote=remote,
            root_token=None if root_token is None else SecretStr(root_token),
            limits=limits or load(flags={"data_dir": path}).limits,
        )
        server = Server(settings)
        server.start()
        stack.callback(server.stop)
        running = RunningServer(server)
        stack.callback(running.close_clients)
        # A generator that was left open is closed only when no thread can be started any more.
        close = atexit.register(stack.close)
        stack.callback(atexit.unregister, close)
        yield running


class ServerProcess(_Addresses):
    """A server in a child process, started by the real command.

    Attributes:
        flight: Its address for Flight clients.
        http: Its address for HTTP clients.
        kafka: Its address for Kafka's clients, `HOST:PORT`; empty where it serves none.
        data_dir: Its data directory, where it has one.
        pid: The process's id.
    """

    def __init__(self, child: "_Child", data_dir: Path) -> None:
        words = child.ready("wings ready", {"flight", "http"})
        super().__init__(words["flight"], words["http"])
        self.kafka = words.get("kafka", "")
        self._child = child
        self.data_dir = data_dir
        self.pid = child.process.pid

    def kill(self) -> None:
        """End the process by SIGKILL, as a crash would, and wait until it is gone."""
        self._child.process.kill()
        self._child.process.wait()

    def terminate(self) -> int:
        """Ask the process to drain and stop, wait until it is gone, and return its exit status."""
        return self.signal(signal.SIGTERM)

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._child.process.poll() is None

    def signal(self, number: signal.Signals) -> int:
        """Send a signal that ends the process, wait for its end, and return its exit status."""
        self._child.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait until the process is gone, and return its exit status.

        Raises:
            TimeoutError: It was not gone within `STOP_SECONDS`.
        """
        return self._child.wait()

    @property
    def stderr(self) -> str:
        """The end of what the process wrote on standard error so far."""
        return self._child.stderr


@contextmanager
def server_process(
    data_dir: Path | None = None,
    *,
    flags: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    ready_seconds: float = READY_SECONDS,
    open_files_max: int | None = None,
) -> Generator[ServerProcess]:
    """Run `wings serve` as a child process, on free ports, for as long as the `with` lasts.

    At the end the child is killed if it still runs; `terminate` before that tries its drain.

    Args:
        data_dir: Kept afterwards. None: a temporary directory that is removed at the end.
        flags: Further flags of the command; they win over the ports chosen here.
        environment: Variables added to those of this process.
        ready_seconds: How long the child may take to say that it serves.
        open_files_max: Files and connections that it may have open; None: as many as this process.

    Raises:
        RuntimeError: The child ended, or was not ready in time; shows its standard error.
    """
    with _directory(data_dir) as path:
        command = [sys.executable, "-m", "wings_client.cli", "serve", "--data-dir", str(path)]
        if open_files_max is not None:
            command = ["sh", "-c", 'ulimit -n "$0" && exec "$@"', str(open_files_max), *command]
        with _serving(command, flags, environment, ready_seconds, path) as running:
            yield running


@contextmanager
def node_process(
    metadata_url: str,
    hot: str,
    *,
    flags: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    ready_seconds: float = READY_SECONDS,
) -> Generator[ServerProcess]:
    """Run `wings serve` without a data directory; see `server_process`.

    Args:
        metadata_url: PostgreSQL's.
        hot: URL of the object store.
        flags: Further flags of the command; they win over the ports chosen here.
        environment: Variables added to those of this process.
        ready_seconds: How long the child may take to say that it serves.

    Raises:
        RuntimeError: The child ended, or was not ready in time; shows its standard error.
    """
    command = [sys.executable, "-m", "wings_client.cli", "serve", "--hot", hot]
    variables = {"WINGS_METADATA_URL": metadata_url, **(environment or {})}
    with _serving(command, flags, variables, ready_seconds, Path()) as running:
        yield running


@contextmanager
def _serving(
    command: Sequence[str],
    flags: Sequence[str],
    environment: Mapping[str, str] | None,
    ready_seconds: float,
    data_dir: Path,
) -> Generator[ServerProcess]:
    """Run a command of a server on free ports, unless its flags name others."""
    ports = ["--flight", str(_ANY_PORT), "--http", str(_ANY_PORT)]
    variables = {**os.environ, **(environment or {})}
    child = _Child([*command, *ports, *flags], variables, ready_seconds)
    running = None
    try:
        running = ServerProcess(child, data_dir)
        yield running
    finally:
        if running is not None:
            running.close_clients()
        child.end()


class MetadataProcess:
    """A metadata service, or a replica of holds, in a child process, started by the real command.

    Attributes:
        address: Its `HOST:PORT`.
        pid: The process's id.
    """

    def __init__(self, child: "_Child", beginning: str) -> None:
        self.address = child.ready(beginning, {"grpc"})["grpc"]
        self._child = child
        self.pid = child.process.pid

    def kill(self) -> None:
        """End the process by SIGKILL, as a crash would, and wait until it is gone."""
        self._child.process.kill()
        self._child.process.wait()

    @property
    def stderr(self) -> str:
        """The end of what the process wrote to its standard error."""
        return self._child.stderr

    def terminate(self) -> int:
        """Ask the process to drain and stop, wait until it is gone, and return its exit status."""
        self._child.process.send_signal(signal.SIGTERM)
        return self._child.wait()


@contextmanager
def service_process(
    service: Literal["metadata", "holds"],
    data_dir: Path,
    *,
    listen: str = str(_ANY_PORT),
    flags: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    ready_seconds: float = READY_SECONDS,
) -> Generator[MetadataProcess]:
    """Run `wings metadata serve`, or `wings holds serve`, for as long as the `with` lasts.

    Args:
        service: Which.
        data_dir: Kept afterwards.
        listen: Where; a free port of 127.0.0.1.
        flags: Further flags of the command.
        environment: Variables added to those of this process.
        ready_seconds: How long the child may take to say that it serves.

    Raises:
        RuntimeError: The child ended, or was not ready in time; shows its standard error.
    """
    command = [sys.executable, "-m", "wings_client.cli", service, "serve"]
    command += ["--data-dir", str(data_dir), "--listen", listen, *flags]
    child = _Child(command, {**os.environ, **(environment or {})}, ready_seconds)
    try:
        yield MetadataProcess(child, f"wings {service} ready")
    finally:
        child.end()


metadata_process = partial(service_process, "metadata")
hold_process = partial(service_process, "holds")


class _Child:
    """The process of a server, its ready line, and the end of its standard error."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], ready_seconds: float
    ) -> None:
        self._ready_seconds = ready_seconds
        self._log = tempfile.NamedTemporaryFile(prefix="wings-")  # noqa: SIM115
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            text=True,
        )
        assert self.process.stdout is not None
        self._stdout: IO[str] = self.process.stdout
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        # A thread, as reading a pipe has no time-out; it ends with the line or with the child.
        self._reader = threading.Thread(
            target=lambda: self._lines.put(self._stdout.readline()), daemon=True
        )
        self._reader.start()

    @property
    def stderr(self) -> str:
        text = Path(self._log.name).read_text(encoding="utf-8", errors="replace")
        return text[-STDERR_CHARACTERS_MAX:]

    def ready(self, beginning: str, names: set[str]) -> dict[str, str]:
        """Wait for the ready line and return the addresses in it, by name."""
        try:
            line = self._lines.get(timeout=self._ready_seconds)
        except queue.Empty:
            raise RuntimeError(
                f"the server was not ready in {self._ready_seconds} s:\n{self.stderr}"
            ) from None
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if not line.startswith(beginning) or not names <= words.keys():
            self.process.wait(self._ready_seconds)
            raise RuntimeError(
                f"the server ended with status {self.process.returncode}:\n{line}{self.stderr}"
            )
        return words

    def wait(self) -> int:
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise TimeoutError(
                f"the server did not end in {STOP_SECONDS} s:\n{self.stderr}"
            ) from None

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self._stdout.close()
        self._log.close()


@contextmanager
def _directory(data_dir: Path | None) -> Generator[Path]:
    if data_dir is not None:
        yield data_dir
        return
    with tempfile.TemporaryDirectory(prefix="wings-") as temporary:
        yield Path(temporary) / "data"
