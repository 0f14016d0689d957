"""The parent of several processes that serve one log: starts them, watches them, stops them.

    parent ── metadata of the data directory, where it is there (a service on loopback)
       ├── process 0: Flight on the port named,      HTTP ┐
       ├── process 1: Flight on the port after that, HTTP ┴ from one socket
       ├── …
       └── a spare, which has imported what they need, and takes the place of the first that ends

Each process is a node, as of a cluster: it has all parts of a server, and clients find all of them
by `GetFlightInfo`. One that ends is started again at its port.
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
from wings_server.arrow_memory import arrow_bounds
from wings_server.http.listener import bind
from wings_server.metadata.process import MetadataServer
from wings_server.processes.child import FAILED, Orders
from wings_server.processes.siblings import ALL_READY, YES, ask
from wings_server.settings import Address, MetadataSettings, Settings

READY_SECONDS_MAX = 60.0
"""How long a process may take to serve."""

READY_PAUSE_SECONDS = 0.05
"""Between two looks at whether all processes found that all serve."""

RESTART_SECONDS = (0.1, 5.0)
"""The pause before a process that ended is started again, doubling while it ends at once."""

STEADY_SECONDS = 10.0
"""A process that served for so long begins with the shortest pause again."""

STOP_SECONDS_MAX = 15.0
"""How long a process may take to end beyond its drain before it is killed."""

SOCKET_DIRECTORY_MAX = 80
"""Characters of a directory for sockets, whose own names have up to 107."""

_LOOPBACK = Address("127.0.0.1", 0)

_logger = structlog.get_logger("wings.processes")


class Processes:
    """The processes of one server; `start`, then `stop`, once each.

    Args:
        settings: Of the server; `processes` of them are started.

    Attributes:
        settings: The settings that it was built with.
        flight: Where Flight is served by each process, with the real ports, from `start` on.
        http: Where HTTP is served by all, with the real port, from `start` on.
    """

    flight: list[str]
    http: str

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._processes: list[ServedProcess] = []
        self._stop = ExitStack()

    def start(self) -> None:
        """Start all of them; returns when all serve.

        Raises:
            InvalidArgument: The settings cannot be those of several processes.
            WingsError: What kept a process from serving.
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
        """The line on standard output when all serve."""
        flight = self.flight
        return f"wings ready flight={flight[0]} http={self.http} processes={len(flight)}"

    def stop(self) -> None:
        """Drain and stop all of them at once, and then the metadata."""
        self._stop.close()

    def reload(self) -> None:
        """Have all of them read their certificates again."""
        for each in self._processes:
            each.send(signal.SIGHUP)


class Spare:
    """A process without orders: what takes most of a start, on a busy machine seconds, it has done.

    Args:
        http: The descriptor of the socket that all processes accept HTTP connections from.
        count: Of the processes that divide the machine's memory.
    """

    def __init__(self, http: int, count: int) -> None:
        self._http = http
        self._count = count
        self._lock = threading.Lock()
        """Guards the fields below; nothing else is locked under it."""
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def take(self) -> subprocess.Popen[bytes]:
        """Return it for its orders, or a new process where there is none."""
        with self._lock:
            process, self._process = self._process, None
        if process is None or process.poll() is not None:
            if process is not None:
                _close_pipes(process)
            process = self._start()
        return process

    def prepare(self) -> None:
        """Start one, unless there is one; where that fails, one is started when it is wanted."""
        with self._lock, suppress(OSError):
            if self._process is None and not self._closed:
                self._process = self._start()

    def close(self) -> None:
        """End it."""
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
            start_new_session=True,  # Ctrl-C is for the parent, which tells them.
        )


class ServedProcess:
    """One process: started, and started again where it ends without being told to."""

    def __init__(self, spare: Spare, orders: Orders) -> None:
        self._spare = spare
        self._orders = orders
        self._lock = threading.Lock()
        """Guards the process and the flag; nothing else is locked under it."""
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._watcher = threading.Thread(target=self._watch, name="wings-watcher", daemon=True)

    def begin(self) -> None:
        """Start it; unless all are to stop."""
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
        with suppress(OSError):  # It ended at once: `ready` tells.
            pickle.dump(self._orders, process.stdin)
            process.stdin.flush()  # It stays open: its end is that of the parent.
        threading.Thread(target=_read, args=(process, lines), daemon=True).start()

    def ready(self) -> dict[str, str]:
        """Wait until it serves; return the words of its ready line.

        Raises:
            WingsError: What keeps it from serving; it is ended then.
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
        # It is found again where it was.
        address = Address.parse(words["flight"].partition("://")[2])
        settings = self._orders.settings.model_copy(update={"flight": address})
        self._orders = replace(self._orders, settings=settings)
        return words

    def watch(self) -> None:
        """Start it again whenever it ends, from now on."""
        self._watcher.start()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it runs."""
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                self._process.send_signal(number)

    def tell_to_stop(self) -> None:
        """Have it drain and end; it is not started again."""
        self._stopping.set()
        self.send(signal.SIGTERM)

    def wait(self, seconds: float) -> None:
        """Wait until it has ended, and end it after so long."""
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
                "a process ended, and is started again",
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
                    "a process does not serve", process=self._orders.index, reason=str(error)
                )


def _check(settings: Settings) -> None:
    """Refuse what several processes cannot share.

    Raises:
        InvalidArgument: It says what, and what to do.
    """
    is_embedded = settings.metadata is None and not settings.is_stateless
    if is_embedded and settings.metadata_url is not None:
        raise InvalidArgument(
            "several processes over PostgreSQL need an object store, which they share: give --hot, "
            "and no --data-dir"
        )
    if is_embedded and settings.hold_replicas is not None:
        raise InvalidArgument(
            "several processes over a data directory keep their holds there: give no "
            "--hold-replicas"
        )
    for name, address in (("flight", settings.flight), ("advertise", settings.advertise)):
        if address is not None and address.port and address.port + settings.processes > 65_536:
            raise InvalidArgument(
                f"--{name} {address}: there are no {settings.processes} ports from there on"
            )


def _wait_until_ready(sockets: Path, count: int) -> None:
    """Wait until each process has seen that all take requests.

    Raises:
        Unavailable: That is not so in time.
    """
    until = time.monotonic() + READY_SECONDS_MAX
    while any(ask(sockets, index, ALL_READY) != YES for index in range(count)):
        if time.monotonic() > until:
            raise Unavailable("the processes of the server do not find each other")
        time.sleep(READY_PAUSE_SECONDS)


def _sockets() -> tempfile.TemporaryDirectory[str]:
    """Return a new directory for sockets, whose names may not be long."""
    usual = tempfile.gettempdir()
    where = usual if len(usual) <= SOCKET_DIRECTORY_MAX else "/tmp"
    return tempfile.TemporaryDirectory(prefix="wings-", dir=where)


def _http(settings: Settings) -> Address:
    """Return where HTTP is served: where it would be among Flight's ports by default, after them.

    Raises:
        InvalidArgument: It was named, and is among them.
    """
    flight, http = settings.flight, settings.http
    if not (flight.port and flight.port <= http.port < flight.port + settings.processes):
        return http
    if "http" in settings.model_fields_set and http.host == flight.host:
        raise InvalidArgument(
            f"--http {http} is among the ports of Flight, {flight.port} to "
            f"{flight.port + settings.processes - 1}: name another"
        )
    return Address(http.host, flight.port + settings.processes)


def _common(settings: Settings, started: ExitStack) -> Settings:
    """Return the settings of all processes, with the metadata of a data directory served here."""
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
        # On loopback, and with a token that no other process knows: without TLS.
        update |= {"metadata": metadata.address, "cluster_token": token, "cluster_ca": None}
    return settings.model_copy(update=update)


def _own(settings: Settings, index: int) -> dict[str, Address | None]:
    """Return the addresses of one process: the named ports and those after them."""

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
    """End a process that got no orders."""
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
    """Hand on the lines of a process's standard output, and its end as an empty one."""
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdout as output:
        for line in output:
            lines.put(line.decode("utf-8", "replace").rstrip("\n"))
    with suppress(OSError):  # Of a process that ended before it had read it.
        process.stdin.close()
    lines.put("")
