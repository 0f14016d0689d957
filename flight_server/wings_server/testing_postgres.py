"""A real PostgreSQL for tests and examples, which can be killed and started again.

Its programs are those of the package `pgserver`, or of the system.
"""

import base64
import contextlib
import hashlib
import hmac
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg
from psycopg import sql

START_SECONDS_MAX = 60.0
"""How long the server may take to start."""

STOP_SECONDS_MAX = 10.0
"""How long it may take to stop before it is killed."""

PASSWORD = "not-to-be-shown"
"""The password of the user `wings`, in every address; tests look that nothing prints it."""

_MEMORY = Path("/dev/shm")

_numbers = count()


def _programs() -> Path | None:
    """Return the directory of PostgreSQL's programs: of the package for tests, or of the system."""
    package = importlib.util.find_spec("pgserver")
    if package is not None and package.origin is not None:
        # Its programs are all that is wanted of it: servers are killed here, and started again.
        return Path(package.origin).parent / "pginstall" / "bin"
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        found = subprocess.run(
            ["pg_config", "--bindir"], capture_output=True, text=True, check=True, timeout=10
        )
        return Path(found.stdout.strip())
    return None


def _copy(programs: Path, target: Path) -> Path:
    """Copy the programs of the package with their libraries; return their new directory."""
    if programs.parent.name != "pginstall":
        return programs
    # They find their libraries by their own place.
    packages = programs.parents[2]
    for part in ("pgserver/pginstall", "pgserver.libs"):
        if (packages / part).exists():
            shutil.copytree(packages / part, target / part)
    return target / "pgserver" / "pginstall" / "bin"


def _verifier(password: str) -> str:
    """Return what PostgreSQL keeps of a password (RFC 5803), of one iteration.

    With its own 4,096, both sides take ten milliseconds of a core for each connection.
    """
    salt = os.urandom(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations=1)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    written = [base64.b64encode(each).decode() for each in (salt, stored, server)]
    return "SCRAM-SHA-256$1:{}${}:{}".format(*written)


def _is_running(process: int) -> bool:
    """Tell whether a process, of another parent by now, has not ended yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def _signal(processes: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to those of some processes that have not ended."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


class PostgresServer:
    """A server on a directory of its own, which can be killed and started again.

    Args:
        directory: For its programs and its data.
        sync: Whether what it commits is synced to the disk, as it is in earnest.
        primary: A server that runs, as whose standby this one starts; None: of none.

    Raises:
        RuntimeError: There is no PostgreSQL on this machine.
    """

    def __init__(
        self, directory: Path, *, sync: bool, primary: "PostgresServer | None" = None
    ) -> None:
        programs = _programs()
        if programs is None:
            raise RuntimeError("there is no PostgreSQL: neither the package pgserver nor pg_config")
        # It refuses to run as root; the user that it runs as then may not read this directory.
        self._user = 65534 if os.getuid() == 0 else None
        if self._user is not None:
            programs = _copy(programs, directory / "programs")
            directory.chmod(0o711)
        self._programs = programs
        self._data = directory / "data"
        self._log = directory / "log"
        self._sync = sync
        # Bound until `close`, or its port might be another process's while it is down.
        self._holder = socket.socket()
        self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._holder.bind(("127.0.0.1", 0))
        self.port: int = self._holder.getsockname()[1]
        if sys.platform != "linux":
            self._holder.close()  # Elsewhere the server could not be bound to it, too.
        self._process: subprocess.Popen[bytes] | None = None
        if primary is not None:
            self.follow(primary)
            return
        password = directory / "password"
        password.write_text(_verifier(PASSWORD))
        if self._user is not None:
            os.chown(password, self._user, self._user)
        self._make_data(
            "initdb",
            "--username=wings",
            f"--pwfile={password}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
        )

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"postgresql://wings:{PASSWORD}@127.0.0.1:{self.port}/postgres"

    @property
    def pid(self) -> int:
        """Its first process, the parent of all others."""
        assert self._process is not None
        return self._process.pid

    def new_database(self) -> str:
        """Create an empty database under a name of its own, and return its address."""
        name = f"database_{next(_numbers)}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return f"{self.url.removesuffix('/postgres')}/{name}"

    @contextmanager
    def standby(self) -> Generator["PostgresServer"]:
        """Run a standby that has all that this one acknowledges, for as long as the `with` lasts.

        A commit waits for it: no commit ends before it is there, nor once it is gone.
        """
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")
        with tempfile.TemporaryDirectory(prefix="wings-postgres-") as directory:
            standby = PostgresServer(Path(directory), sync=True, primary=self)
            try:
                yield standby
            finally:
                standby.close()

    def follow(self, primary: "PostgresServer") -> None:
        """Start this stopped server as a standby of `primary`, whose data replaces its own."""
        # With what it needs to follow the primary, and to start as a standby.
        replicated = primary.url.removesuffix("/postgres")
        self._make_data(
            "pg_basebackup",
            f"--dbname={replicated}",
            "--write-recovery-conf",
            "--checkpoint=fast",
        )
        self.start()

    def promote(self) -> None:
        """Make a standby a primary; its commits wait until another server follows it."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self._data],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                user=self._user,
                cwd="/",
                start_new_session=True,
            )
        pause = threading.Event()
        for _ in range(int(START_SECONDS_MAX / 0.02)):
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.url, connect_timeout=2).close()
                return
            assert self._process.poll() is None, self._log.read_text()
            pause.wait(0.02)
        raise AssertionError(self._log.read_text())

    def stop(self) -> None:
        """Stop it at once; unlike one that was killed, it leaves no shared memory to the system."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGQUIT)
        try:
            self._process.wait(timeout=STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def close(self) -> None:
        """Stop it for good."""
        self.stop()
        self._holder.close()

    def kill(self) -> None:
        """Kill it with all its processes, as a power cut does; what the disk has stays."""
        if self._process is None:
            return
        children = self._pause()
        _signal((self._process.pid, *children), signal.SIGKILL)
        self._process.wait(timeout=START_SECONDS_MAX)
        self._process = None
        # While one of them has its shared memory still, the next server refuses to start.
        until = time.monotonic() + START_SECONDS_MAX
        pause = threading.Event()
        while any(_is_running(child) for child in children) and time.monotonic() < until:
            pause.wait(0.01)

    @contextmanager
    def paused(self) -> Generator[None]:
        """Pause all its processes for the block: it accepts bytes and answers none."""
        processes = (self.pid, *self._pause())
        _signal(processes, signal.SIGSTOP)
        try:
            yield
        finally:
            _signal(processes, signal.SIGCONT)

    def _pause(self) -> list[int]:
        """Pause its first process, so that it starts no other; return those that it started."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        listed = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return [int(each) for each in listed.read_text().split()] if listed.exists() else []

    def _make_data(self, program: str, *arguments: str) -> None:
        """Make its data anew by one of PostgreSQL's programs."""
        shutil.rmtree(self._data, ignore_errors=True)
        self._data.mkdir(mode=0o700)
        if self._user is not None:
            os.chown(self._data, self._user, self._user)
        subprocess.run(
            [self._programs / program, "-D", self._data, "--no-sync", *arguments],
            check=True,
            capture_output=True,
            timeout=120,
            user=self._user,
            cwd="/",
        )
        with (self._data / "postgresql.conf").open("a") as settings:
            settings.write(
                f"port = {self.port}\nlisten_addresses = '127.0.0.1'\n"
                "unix_socket_directories = ''\nmax_connections = 100\nshared_buffers = 32MB\n"
                "deadlock_timeout = 200ms\ndynamic_shared_memory_type = mmap\n"
                + ("" if self._sync else "fsync = off\nfull_page_writes = off\n")
            )


@contextmanager
def postgres_server(*, sync: bool) -> Generator[PostgresServer]:
    """Run a server for as long as the `with` lasts.

    Args:
        sync: Whether what it commits is synced to the disk, as it is in earnest.

    Raises:
        RuntimeError: There is no PostgreSQL on this machine.
    """
    # In memory where that can be had and durability is not tested: thousands of tables are
    # thousands of files.
    memory = None if sync or not os.access(_MEMORY, os.W_OK) else _MEMORY
    with tempfile.TemporaryDirectory(prefix="wings-postgres-", dir=memory) as directory:
        server = PostgresServer(Path(directory), sync=sync)
        server.start()
        try:
            yield server
        finally:
            server.close()
