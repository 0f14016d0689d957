"""The parent of several processes that serve one log: starts them, watches them, stops them.

    parent ── metadata of the data directory, if any (a service on loopback)
       ├── process 0: Flight on the given port,      HTTP ┐
       ├── process 1: Flight on the next port,       HTTP ┴ from one socket
       ├── …
       └── a spare, with modules imported, to replace the first process that ends

Each process is a node, as in a cluster: it has all parts of a server, and clients find all nodes by
`GetFlightInfo`. A process that ends is restarted at its port.
"""

import json
import os
import pickle
import queue
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog
from pydantic import SecretStr

from wings_core.errors import InvalidArgument, Unavailable, WingsError, error_from_json
from wings_core.memory import machine_bytes
from wings_server.http.listener import bind
from wings_server.metadata.process import MetadataServer
from wings_server.processes.child import FAILED, Orders
from wings_server.processes.siblings import ALL_READY, YES, ask
from wings_server.resources import arrow_bounds
from wings_server.settings import Address, MetadataSettings, Settings

READY_SECONDS_MAX = 60.0
"""Longest time for a process to become ready."""

READY_PAUSE_SECONDS = 0.05
"""Interval of checking whether all processes have seen that all are ready."""

RESTART_SECONDS = (0.1, 5.0)
"""Pause before a process is restarted: the least, which doubles while it ends at once, and the
greatest."""

STEADY_SECONDS = 10.0
"""Running time after which the pause is reset to the least."""

STOP_SECONDS_MAX = 15.0
"""Longest time for a process to end after its drain, before it is killed."""

SOCKET_DIRECTORY_MAX = 80
"""Longest path of the directory of sockets, whose own paths have up to 107 characters."""

_LOOPBACK = Address("127.0.0.1", 0)

_logger = structlog.get_logger("wings.processes")


class Processes:
    """The processes of one server; `start`, then `stop`, once each.

    Args:
        settings: Settings of the server, with the number of processes.

    Attributes:
        settings: The settings.
        flight: Flight address of each process, with the actual ports, after `start`.
        http: HTTP address of all processes, with the actual port, after `start`.
    """

    flight: list[str]
    http: str

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._processes: list[ServedProcess] = []
        self._stop = ExitStack()

    def start(self) -> None:
        """Start all processes; returns when all are ready.

        Raises:
            InvalidArgument: The settings do not suit several processes.
            WingsError: A process could not start.
        """
        settings = self.settings
        _check(settings)
        with ExitStack() as started:
            listening = started.enter_context(bind(_http(settings)))
            sockets = Path(started.enter_context(_sockets()))
            common = _common(settings, started)
            spare = Spare(listening.fileno(), settings.processes)
            started.callback(spare.close)
            watched = [
                ServedProcess(
                    spare,
                    Orders(
                        common.model_copy(update=_own(settings, index)),
                        listening.fileno(),
                        sockets,
                        index,
                        settings.processes,
                    ),
                )
                for index in range(settings.processes)
            ]
            started.callback(_stop_all, watched, settings.drain_seconds)
            for each in watched:
                each.begin()
            words = [each.ready() for each in watched]
            spare.prepare()
            for each in watched:
                each.watch()
            _wait_until_ready(sockets, settings.processes)
            self.flight = [each["flight"] for each in words]
            self.http = words[0]["http"]
            self._processes = watched
            self._stop = started.pop_all()

    @property
    def ready_line(self) -> str:
        """Line printed on standard output when all are ready."""
        flight = self.flight
        return f"wings ready flight={flight[0]} http={self.http} processes={len(flight)}"

    def stop(self) -> None:
        """Drain and stop all processes concurrently, then the metadata."""
        self._stop.close()

    def reload(self) -> None:
        """Have all processes reload their certificates."""
        for each in self._processes:
            each.send(signal.SIGHUP)


class Spare:
    """A process without orders, which has done most of the work of a start: seconds if busy.

    Args:
        http: Descriptor of the socket that all processes accept HTTP connections from.
        count: Number of processes that share the machine's memory.
    """

    def __init__(self, http: int, count: int) -> None:
        self._http = http
        self._count = count
        self._lock = threading.Lock()
        """Guards the fields below; a leaf lock."""
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def take(self) -> subprocess.Popen[bytes]:
        """Return the spare, or a new process without one."""
        with self._lock:
            process, self._process = self._process, None
        if process is None or process.poll() is not None:
            if process is not None:
                _close_pipes(process)
            process = self._start()
        return process

    def prepare(self) -> None:
        """Start a spare, unless there is one; if that fails, one is started on demand."""
        with self._lock, suppress(OSError):
            if self._process is None and not self._closed:
                self._process = self._start()

    def close(self) -> None:
        """End the spare."""
        with self._lock:
            process, self._process = self._process, None
            self._closed = True
        if process is not None:
            _end(process)

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "wings_server.processes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[self._http],
            env={**os.environ, **arrow_bounds(self._count)},
            start_new_session=True,  # Ctrl-C only signals the parent, which stops the processes.
        )


class ServedProcess:
    """One process, restarted if it ends unexpectedly."""

    def __init__(self, spare: Spare, orders: Orders) -> None:
        self._spare = spare
        self._orders = orders
        self._lock = threading.Lock()
        """Guards the process and the flag; a leaf lock."""
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._watcher = threading.Thread(target=self._watch, name="wings-watcher", daemon=True)

    def begin(self) -> None:
        """Start the process, unless all are stopping."""
        self._lines = lines = queue.SimpleQueue[str]()
        if self._stopping.is_set():
            return
        process = self._spare.take()
        with self._lock:
            stopping = self._stopping.is_set()
            if not stopping:
                self._process = process
        if stopping:
            _end(process)
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):  # It ended at once; `ready` reports it.
            pickle.dump(self._orders, process.stdin)
            process.stdin.flush()  # Stays open: its end signals that of the parent.
        threading.Thread(target=_read, args=(process, lines), daemon=True).start()

    def ready(self) -> dict[str, str]:
        """Wait until it is ready; returns the values of its ready line.

        Raises:
            WingsError: It could not start; it is ended then.
        """
        try:
            line = self._lines.get(timeout=READY_SECONDS_MAX)
        except queue.Empty:
            line = ""
        if line.startswith(FAILED):
            raise error_from_json(json.loads(line.removeprefix(FAILED)))
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if "flight" not in words:
            self.send(signal.SIGKILL)
            raise Unavailable(f"process {self._orders.index} of the server did not start")
        # A restarted process gets the same port.
        address = Address.parse(words["flight"].partition("://")[2])
        settings = self._orders.settings.model_copy(update={"flight": address})
        self._orders = replace(self._orders, settings=settings)
        return words

    def watch(self) -> None:
        """Restart it whenever it ends, from now on."""
        self._watcher.start()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it runs."""
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                self._process.send_signal(number)

    def tell_to_stop(self) -> None:
        """Have it drain and end, without a restart."""
        self._stopping.set()
        self.send(signal.SIGTERM)

    def wait(self, seconds: float) -> None:
        """Wait until it has ended; kills it after `seconds`."""
        process = self._process
        if process is None:
            return
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            _logger.error("a process took too long to stop", process=self._orders.index)
            process.kill()
            process.wait()

    def _watch(self) -> None:
        pause, longest = RESTART_SECONDS
        while not self._stopping.is_set():
            began = time.monotonic()
            assert self._process is not None
            status = self._process.wait()
            if self._stopping.is_set():
                return
            if time.monotonic() - began > STEADY_SECONDS:
                pause = RESTART_SECONDS[0]
            _logger.error(
                "a process ended, and is restarted",
                process=self._orders.index,
                pid=self._process.pid,
                status=status,
                pause=pause,
            )
            self._stopping.wait(pause)
            pause = min(2 * pause, longest)
            try:
                self.begin()
                if self._stopping.is_set():
                    return
                self.ready()
                self._spare.prepare()
            except (WingsError, OSError, RuntimeError) as error:
                _logger.error(
                    "a process is not ready", process=self._orders.index, reason=str(error)
                )


def _check(settings: Settings) -> None:
    """Check that several processes can share the settings.

    Raises:
        InvalidArgument: They cannot; the message says what to change.
    """
    is_embedded = settings.metadata is None and not settings.is_stateless
    if is_embedded and settings.metadata_url is not None:
        raise InvalidArgument(
            "several processes over PostgreSQL need an object store, which they share: give --hot, "
            "and no --data-dir"
        )
    if is_embedded and settings.hold_replicas is not None:
        raise InvalidArgument(
            "several processes over a data directory keep the state of share groups there: "
            "give no --hold-replicas"
        )
    for name, address in (("flight", settings.flight), ("advertise", settings.advertise)):
        if address is not None and address.port and address.port + settings.processes > 65_536:
            raise InvalidArgument(
                f"--{name} {address}: there are not {settings.processes} ports from there on"
            )


def _wait_until_ready(sockets: Path, count: int) -> None:
    """Wait until each process has seen that all are ready.

    Raises:
        Unavailable: The wait timed out.
    """
    until = time.monotonic() + READY_SECONDS_MAX
    while any(ask(sockets, index, ALL_READY) != YES for index in range(count)):
        if time.monotonic() > until:
            raise Unavailable("the processes of the server do not find each other")
        time.sleep(READY_PAUSE_SECONDS)


def _sockets() -> tempfile.TemporaryDirectory[str]:
    """Create a directory for sockets, with a short path."""
    usual = tempfile.gettempdir()
    where = usual if len(usual) <= SOCKET_DIRECTORY_MAX else "/tmp"
    return tempfile.TemporaryDirectory(prefix="wings-", dir=where)


def _http(settings: Settings) -> Address:
    """Return the address of HTTP; a default that is among Flight's ports moves after them.

    Raises:
        InvalidArgument: A given port is among Flight's.
    """
    flight, http = settings.flight, settings.http
    if not (flight.port and flight.port <= http.port < flight.port + settings.processes):
        return http
    if "http" in settings.model_fields_set and http.host == flight.host:
        raise InvalidArgument(
            f"--http {http} is among the ports of Flight, {flight.port} to "
            f"{flight.port + settings.processes - 1}: choose another"
        )
    return Address(http.host, flight.port + settings.processes)


def _common(settings: Settings, started: ExitStack) -> Settings:
    """Return the common settings of all processes; serves the metadata of a data directory."""
    limits = settings.limits
    memory = (limits.memory_bytes_max or machine_bytes() // 4) // settings.processes
    update: dict[str, Any] = {
        "processes": 1,
        "limits": limits.model_copy(update={"memory_bytes_max": max(1, memory)}),
    }
    if not settings.is_node:
        token = SecretStr(secrets.token_hex(32))
        metadata = MetadataServer(
            MetadataSettings(
                data_dir=settings.data_dir,
                listen=_LOOPBACK,
                cluster_token=token,
                drain_seconds=settings.drain_seconds,
                limits=limits,
            ),
            nodes_here=True,
        )
        metadata.start()
        started.callback(metadata.stop)
        # On loopback, with a private token: no TLS needed.
        update |= {"metadata": metadata.address, "cluster_token": token, "cluster_ca": None}
    return settings.model_copy(update=update)


def _own(settings: Settings, index: int) -> dict[str, Address | None]:
    """Return the addresses of one process: the given ports plus its index."""

    def shifted(address: Address | None) -> Address | None:
        if address is None or not address.port:
            return address
        return Address(address.host, address.port + index)

    return {
        "flight": shifted(settings.flight),
        "advertise": shifted(settings.advertise),
        "holds": shifted(settings.holds),
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process without orders."""
    process.kill()
    process.wait()
    _close_pipes(process)


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.stdout.close()


def _stop_all(processes: Sequence[ServedProcess], drain_seconds: float) -> None:
    for each in processes:
        each.tell_to_stop()
    until = time.monotonic() + drain_seconds + STOP_SECONDS_MAX
    for each in processes:
        each.wait(max(0.0, until - time.monotonic()))


def _read(process: subprocess.Popen[bytes], lines: queue.SimpleQueue[str]) -> None:
    """Queue the lines of a process's standard output, and an empty one at its end."""
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdout as output:
        for line in output:
            lines.put(line.decode("utf-8", "replace").rstrip("\n"))
    with suppress(OSError):  # The process ended before reading it.
        process.stdin.close()
    lines.put("")
