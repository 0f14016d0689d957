"""The server as a whole: its parts started in order and stopped in order, and its process."""

import gc
import logging
import os
import signal
import socket
import sys
import threading
import uuid
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import prometheus_client
import structlog

from wings_core.data_directory import DataDirectory
from wings_core.deployments import Deployment, OneDirectory, PostgresAndObjects
from wings_core.errors import InvalidArgument, Unavailable
from wings_core.metadata.open import open_postgres
from wings_core.model import Node
from wings_core.security.authenticator import Authenticator
from wings_core.share.open import open_remote
from wings_core.share.remote.link import parse_targets
from wings_core.share.replica.copies import FileCopies, HoldsCopies
from wings_core.tables import Catalog, open_catalog
from wings_core.times import now_us
from wings_core.tracing import setup as traces
from wings_server import logs
from wings_server.allocator import FreedMemory, keep_freed_memory
from wings_server.descriptors import raise_limit
from wings_server.exposure import TLS_MISSING, TOKENS_MISSING, check_exposure
from wings_server.flight.service import FlightService
from wings_server.gate import Gate
from wings_server.holds.shared import serve_holds
from wings_server.http.app import create_app
from wings_server.http.listener import HttpListener, bind
from wings_server.http.service import HttpService
from wings_server.membership import Membership
from wings_server.metrics import Metrics
from wings_server.served_log import ServedLog
from wings_server.settings import Address, Settings
from wings_server.tls import Tls, peer_access

if TYPE_CHECKING:
    from wings_server.processes.siblings import Siblings

STOP_SECONDS_MAX = 10.0
"""How long a stop may take beyond the drain, disk included, before the process is ended."""

COLLECTED_OBJECTS = 100_000
"""Objects that are made before cycles among the young are looked for. Python's own 700 are those of
a few pushes. One to 10,000 partitions makes some 80,000, all of which are freed without: looked at
meanwhile, they take it a tenth longer."""

_logger = structlog.get_logger("wings.server")


class Server:
    """A server over one data directory; `start`, then `stop`, once each.

    Args:
        settings: Its own.
        http: The socket to accept HTTP connections from, which listens; None: it opens one.
        siblings: The other processes of this server; None: there are none.

    Attributes:
        settings: What it was built with.
        log: The log that it serves, from `start` on.
        flight: Where Flight is served, with the real port, from `start` on.
        http: Where HTTP is served, with the real port, from `start` on.
        service: The Flight service, from `start` on.
        http_service: The HTTP service, from `start` on.
        tls: The certificate of both listeners, from `start` on; None: they have none.
    """

    log: ServedLog
    service: FlightService
    http_service: HttpService
    flight: Address
    http: Address
    tls: Tls | None = None

    def __init__(
        self,
        settings: Settings,
        *,
        http: socket.socket | None = None,
        siblings: "Siblings | None" = None,
    ) -> None:
        self.settings = settings
        self._http = http
        self._siblings = siblings
        self._ready = False
        self._stop = ExitStack()

    @property
    def flight_url(self) -> str:
        """The endpoint of Flight for clients."""
        return f"{'grpc' if self.tls is None else 'grpc+tls'}://{self.flight}"

    @property
    def http_url(self) -> str:
        """The address of HTTP for clients."""
        return f"{'http' if self.tls is None else 'https'}://{self.http}"

    @property
    def ready(self) -> bool:
        """Whether requests are taken: from the end of `start` to the beginning of `stop`."""
        return self._ready

    def start(self) -> None:
        """Open the data directory and serve it; returns when both listeners take connections.

        Where a part fails, those before it are stopped again.

        Raises:
            Unavailable: The data directory or a port is in use, or cannot be used; or PostgreSQL
                or the object store cannot be reached.
            PermissionDenied: The object store does not take the credentials.
            InvalidArgument: The directory is something else, or of other metadata.
        """
        settings = self.settings
        self.tls = Tls.of(settings)
        if settings.is_node:
            _advertised(settings, settings.flight)  # Raises before anything is opened.
        elif settings.advertise is not None:
            raise InvalidArgument(
                "--advertise is for nodes: give --metadata, or --metadata-url with --hot and "
                "without --data-dir"
            )
        # Every part pushes how it is stopped; unwound backwards, that is the order of a drain.
        with ExitStack() as started:
            metrics = Metrics()
            log = _open_log(settings, started, metrics, self.tls)
            self.log = started.enter_context(closing(log))
            metrics.observe(log)
            if traces.is_wanted("metrics"):
                from wings_server.otlp_metrics import OtlpMetrics

                started.enter_context(closing(OtlpMetrics(metrics.families)))
            started.enter_context(closing(FreedMemory(log.memory)))
            root = settings.root_token
            secret = None if root is None else root.get_secret_value()
            authenticator = started.enter_context(closing(Authenticator(log.tokens, secret)))
            gate = Gate(log, authenticator)
            missing = [TOKENS_MISSING] if authenticator.is_open else []
            if self.tls is None:
                missing.append(TLS_MISSING)
            listeners = [("Flight", settings.flight), ("HTTP", settings.http)]
            check_exposure(settings, listeners, missing)
            self.http_service = started.enter_context(closing(HttpService(log, metrics, gate)))
            # Started before Flight so that it is stopped after it, and `/readyz` reports the drain.
            hosts = set(settings.allowed_host)
            hosts |= {found.host.lower() for found in (settings.advertise, settings.http) if found}
            app = create_app(self._all_ready, self.http_service, hosts)
            connections = settings.limits.http_connections_max
            listener = HttpListener(app, settings.http, self.tls, connections, self._http)
            started.callback(listener.stop)
            started.callback(self.http_service.drain, settings.drain_seconds)
            membership = Membership(log.nodes, settings.node_lease_seconds)
            self.service = _serve_flight(log, gate, settings.flight, metrics, membership, self.tls)
            started.callback(self.service.stop, settings.drain_seconds)
            started.callback(self.http_service.refuse)
            self.http = listener.address
            self.flight = Address(settings.flight.host, self.service.port)
            own = self._as_node(settings)
            if settings.is_node:
                started.callback(membership.leave)
                membership.join(own)
            else:
                log.alone = own
            if self._siblings is not None:
                started.callback(self._siblings.close)
                self._siblings.start(lambda: self._ready, metrics.exposition)
                metrics.of_all = self._siblings.metrics
            self._stop = started.pop_all()
        self._ready = True

    def _as_node(self, settings: Settings) -> Node:
        """Return where clients reach this process."""
        address = _advertised(settings, self.flight) if settings.is_node else self.flight
        host = settings.http.host
        if settings.http.is_wildcard:
            host = address.host
        http = f"{'http' if self.tls is None else 'https'}://{Address(host, self.http.port)}"
        return Node(uuid.uuid4().hex, str(address), http, now_us())

    def _all_ready(self) -> bool:
        """Tell whether requests are taken, by all processes of the server."""
        return self._ready and (self._siblings is None or self._siblings.all_ready)

    def stop(self) -> None:
        """Drain and stop; blocks for the drain's bound and a little more; a second call returns.

        First `/readyz` turns to 503. Then Flight and HTTP refuse new calls, end waiting polls with
        UNAVAILABLE, and wait for what was received to be committed and acknowledged. Then they
        stop, and the log is closed and its directory unlocked.
        """
        self._ready = False
        self._stop.close()


def _open_log(
    settings: Settings, started: ExitStack, metrics: Metrics, tls: Tls | None
) -> ServedLog:
    """Open the log of a server that is alone, or of a node.

    Args:
        settings: The settings of the server.
        started: Ends the parts that are begun beside the log.
        metrics: Counts flushes.
        tls: The server's certificate.
    """
    replicas = [] if settings.hold_replicas is None else parse_targets(settings.hold_replicas)
    if settings.is_node and settings.metadata is not None:
        replicas = replicas or [str(settings.metadata)]  # The service has one beside the metadata.
    coordinator = partial(open_remote, replicas, peer_access(settings)) if replicas else None
    hot, remote = settings.hot, settings.remote
    url = settings.metadata_url
    postgres = None if url is None else url.get_secret_value()
    holds: HoldsCopies | None = None
    directory: DataDirectory | None = None
    deployment: Deployment
    if not settings.is_node:
        directory = started.enter_context(DataDirectory.open(settings.data_dir))
        deployment = OneDirectory(directory, postgres, hot, remote, coordinator)
        holds = None if replicas else FileCopies(directory.holds)
    elif settings.metadata is not None:
        if postgres is not None:
            raise InvalidArgument("metadata is at a service or in PostgreSQL: give one of the two")
        from wings_core.metadata.remote import RemoteMetadata

        directory = started.enter_context(DataDirectory.open(settings.data_dir, "pages"))
        service = RemoteMetadata(str(settings.metadata), access=peer_access(settings))
        started.enter_context(closing(service))
        deployment = OneDirectory(directory, service, hot, remote, coordinator)
    else:
        assert postgres is not None
        # Closed with the log, and here where that is not opened.
        metadata = started.enter_context(closing(open_postgres(postgres)))
        store_id = metadata.claim_for_nodes()  # Before anything is written to it.
        if coordinator is None:
            token = metadata.node_token()
            coordinator, holds = serve_holds(settings, started, postgres, token, tls)
        deployment = PostgresAndObjects(metadata, store_id, hot, remote, coordinator)
    parts = deployment.open(settings.limits)
    catalog: Catalog | None = None
    # With an object store, the directories of a service's nodes may be each their own.
    if settings.metadata is None or settings.iceberg_catalog or "hot" not in parts.storage.objects:
        catalog = open_catalog(
            parts.storage.remote.objects.url,
            sqlite=None if directory is None else directory.iceberg,
            postgres=postgres,
            rest=settings.iceberg_catalog,
        )
    scratch = None if settings.is_node or directory is None else directory.path
    return ServedLog(parts, settings.limits, metrics.flushed, catalog, holds, scratch)


def _advertised(settings: Settings, flight: Address) -> Address:
    """Return where clients reach a node.

    Raises:
        InvalidArgument: The address is a wildcard, which no client can connect to.
    """
    given = settings.advertise or settings.flight
    if given.is_wildcard:
        raise InvalidArgument(
            f"{given} is no address to connect to: say with --advertise where clients of this node "
            "reach it"
        )
    return Address(given.host, given.port or flight.port)


def _serve_flight(
    log: ServedLog,
    gate: Gate,
    address: Address,
    metrics: Metrics,
    membership: Membership,
    tls: Tls | None,
) -> FlightService:
    # gRPC hides why a start fails, so the address is bound once beforehand.
    bind(address).close()
    try:
        return FlightService(
            log, gate, address.host, address.port, metrics, membership.addresses, tls
        )
    except Exception as error:
        raise Unavailable(f"cannot serve Flight on {address}: {error}") from error


def run(settings: Settings) -> NoReturn:
    """Serve until SIGTERM or SIGINT, then drain, and end the process with status 0.

    Prints one line on standard output when it serves. A second signal ends the process at once;
    what was acknowledged is safe then as well.

    Raises:
        WingsError: It could not start.
    """
    keep_freed_memory()
    logs.configure(settings.log_level, settings.log_format)
    prometheus_client.disable_created_metrics()  # They would double the series, for little use.
    server = Server(settings)
    run_until_signalled(
        server.start,
        server.stop,
        lambda: ready_line(server),
        settings,
        lambda: reload(server.tls),
    )


def ready_line(server: Server) -> str:
    """Return what a server prints when it serves."""
    return f"wings ready flight={server.flight_url} http={server.http_url}"


def collect_rarely() -> None:
    """Have Python look for cycles among new objects alone, and among many of them at a time."""
    # What stands now stays for as long as the process: collections need not look at it again and
    # again, which takes as long as many small pushes each time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECTED_OBJECTS)


def run_until_signalled(
    start: Callable[[], None],
    stop: Callable[[], None],
    ready_line: Callable[[], str],
    settings: Settings,
    reload: Callable[[], None],
) -> NoReturn:
    """Start, print the ready line, wait for a signal, stop, and end the process; see `run`.

    On SIGHUP, `reload` is called.

    Raises:
        WingsError: It could not start.
    """
    signals = _Signals()
    raise_limit()
    traces.start("wings")
    start()
    signals.hung_up = reload
    collect_rarely()
    line = ready_line()
    with suppress(OSError):  # A closed standard output is no reason to stop.
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    where = {} if settings.is_stateless else {"data_dir": str(settings.data_dir)}
    _logger.info("serving", **where, **_addresses(line))

    _logger.info("stopping", signal=signals.wait().name)
    _end_in(settings.drain_seconds + STOP_SECONDS_MAX)
    stop()
    traces.stop()
    _logger.info("stopped")
    _exit(0)


def reload(tls: Tls | None) -> None:
    """Read a certificate again, where there is one."""
    if tls is not None:
        tls.reload()


def _addresses(line: str) -> dict[str, str]:
    words = [word.partition("=") for word in line.split()]
    return {name: value.rpartition("/")[2] for name, found, value in words if found}


class _Signals:
    """SIGTERM and SIGINT, caught from its making on: the first is waited for, a second ends all.

    Python's own handlers run on the main thread, once that comes back from where it waits. The
    kernel may hand a signal to any thread, and then nothing wakes the main one. What C writes to
    the wake-up socket comes in any case.
    """

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._seen = 0
        self.hung_up: Callable[[], None] = lambda: None
        """Called on SIGHUP, which ends nothing."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)
        signal.signal(signal.SIGHUP, lambda _, __: None)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)

    def wait(self) -> signal.Signals:
        """Return the first; blocks until it comes."""
        while (first := signal.Signals(self._reader.recv(1)[0])) is signal.SIGHUP:
            self.hung_up()
        threading.Thread(target=self._end_at_next, name="wings-signals", daemon=True).start()
        return first

    def _handle(self, number: int, _frame: object) -> None:
        self._seen += 1
        if self._seen > 1:
            os._exit(128 + number)

    def _end_at_next(self) -> None:
        while (number := self._reader.recv(1)[0]) == signal.SIGHUP:
            pass
        os._exit(128 + number)


def _end_in(seconds: float) -> None:
    """End the process after so long, whatever it is waiting for."""

    def end() -> None:
        _logger.error("the stop took too long; ending the process", seconds=seconds)
        _exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def _exit(status: int) -> NoReturn:
    """End the process without waiting for its other threads.

    pyarrow's Flight server cannot be shut down while a client keeps a DoPut stream open and idle
    (measured): its thread would keep the interpreter from ending. The log is closed by now.
    """
    logging.shutdown()
    os._exit(status)
