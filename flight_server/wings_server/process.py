"""The server as a whole: its parts started in order and stopped in order."""

import socket
import uuid
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import prometheus_client

from wings_core import tracing_setup
from wings_core.data_directory import DataDirectory
from wings_core.deployments import Deployment, OneDirectory, PostgresAndObjects
from wings_core.errors import InvalidArgument, Unavailable
from wings_core.metadata.open import open_postgres
from wings_core.model import Node
from wings_core.security.principal import Authenticator
from wings_core.share.open import open_remote
from wings_core.share.replica.copies import FileCopies, HoldsCopies
from wings_core.tables import Catalog, open_catalog
from wings_core.times import now_us
from wings_server import lifecycle
from wings_server.flight.service import FlightService
from wings_server.gate import Gate
from wings_server.http.app import create_app
from wings_server.http.listener import HttpListener, bind
from wings_server.http.service import HttpService
from wings_server.metrics import Metrics
from wings_server.nodes import GroupNode, Membership
from wings_server.resources import FreedMemory, keep_freed_memory
from wings_server.served_log import ServedLog
from wings_server.settings import Address, Settings
from wings_server.tls import TLS_MISSING, TOKENS_MISSING, Tls, check_exposure, peer_access

if TYPE_CHECKING:
    from wings_server.kafka.service import KafkaService
    from wings_server.processes.siblings import Siblings


class Server:
    """A server over one data directory; `start`, then `stop`, once each.

    Args:
        settings: The settings.
        http: Listening socket for HTTP connections; None to open one.
        siblings: The other processes of this server, or None.

    Attributes:
        settings: The settings.
        log: The log, after `start`.
        flight: Address of Flight with the actual port, after `start`.
        http: Address of HTTP with the actual port, after `start`.
        kafka: Address of Kafka's protocol with the actual port, after `start`; None if it is not
            served.
        service: The Flight service, after `start`.
        http_service: The HTTP service, after `start`.
        tls: The certificate of both listeners, after `start`; None without TLS.
    """

    log: ServedLog
    service: FlightService
    http_service: HttpService
    flight: Address
    http: Address
    kafka: Address | None = None
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
        self._kafka_service: KafkaService | None = None

    @property
    def flight_url(self) -> str:
        """Flight URL for clients."""
        return f"{'grpc' if self.tls is None else 'grpc+tls'}://{self.flight}"

    @property
    def http_url(self) -> str:
        """HTTP URL for clients."""
        return f"{'http' if self.tls is None else 'https'}://{self.http}"

    @property
    def ready(self) -> bool:
        """Whether requests are accepted: from the end of `start` to the beginning of `stop`."""
        return self._ready

    def start(self) -> None:
        """Open the log and serve it; returns when both listeners accept connections.

        On a failure, the parts already started are stopped.

        Raises:
            Unavailable: The data directory or a port is in use or unusable, or PostgreSQL or the
                object store cannot be reached.
            PermissionDenied: The object store rejects the credentials.
            InvalidArgument: The path is not a data directory, or belongs to other metadata.
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
        if settings.kafka is not None and settings.processes > 1:
            raise InvalidArgument("--kafka is for a server of one process")
        # Each part pushes its stop; unwinding runs them in the order of a drain.
        with ExitStack() as started:
            metrics = Metrics()
            log = _open_log(settings, started, metrics, self.tls)
            self.log = started.enter_context(closing(log))
            log.tls = self.tls
            metrics.observe(log)
            started.callback(log.history.close)
            log.history.start()
            if tracing_setup.is_wanted("metrics"):
                from wings_server.otlp_metrics import OtlpMetrics

                started.enter_context(closing(OtlpMetrics(metrics.families)))
            started.enter_context(closing(FreedMemory(log.memory)))
            gate = self._open_gate(log, started)
            self.http_service = started.enter_context(closing(HttpService(log, metrics, gate)))
            # Started before Flight, so that it stops after it, and `/readyz` reports the drain.
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
            if settings.kafka is not None:
                self.kafka = self._serve_kafka(log, metrics, gate, membership, started)
            self.flight = Address(settings.flight.host, self.service.port)
            own = self._as_node(settings)
            log.consumer_groups = GroupNode(log, own, peer_access(settings), self.tls is not None)
            started.callback(log.consumer_groups.close)
            if settings.is_node:
                started.callback(membership.leave)
                membership.join(own)
                log.membership = membership
            else:
                log.alone = own
            if self._siblings is not None:
                started.callback(self._siblings.close)
                self._siblings.start(lambda: self._ready, metrics.exposition)
                metrics.of_all = self._siblings.metrics
            started.callback(log.metadata.end_retries)
            self._stop = started.pop_all()
        self._ready = True

    def _open_gate(self, log: ServedLog, started: ExitStack) -> Gate:
        """Open the gate; rejects listeners beyond loopback without tokens or TLS."""
        settings = self.settings
        root = settings.root_token
        secret = None if root is None else root.get_secret_value()
        authenticator = started.enter_context(closing(Authenticator(log.tokens, secret)))
        missing = [TOKENS_MISSING] if authenticator.is_open else []
        if self.tls is None:
            missing.append(TLS_MISSING)
        listeners = [("Flight", settings.flight), ("HTTP", settings.http)]
        if settings.kafka is not None:
            listeners.append(("Kafka", settings.kafka))
        check_exposure(settings, listeners, missing)
        return Gate(log, authenticator)

    def _serve_kafka(
        self,
        log: ServedLog,
        metrics: Metrics,
        gate: Gate,
        membership: Membership,
        started: ExitStack,
    ) -> Address:
        """Serve Kafka's protocol; returns its address with the actual port."""
        settings = self.settings
        address = settings.kafka
        assert address is not None
        try:
            from wings_server.kafka.server import KafkaListener
            from wings_server.kafka.service import KafkaService
        except ModuleNotFoundError as error:
            raise InvalidArgument(
                f"--kafka needs {error.name}: install wings-flight[kafka]"
            ) from None
        service = self._kafka_service = started.enter_context(
            closing(KafkaService(log, metrics, gate, membership.nodes, settings.kafka_partitions))
        )
        advertised = settings.kafka_advertised or address
        if advertised.is_wildcard:
            flight = settings.advertise or settings.flight
            advertised = Address(flight.host, advertised.port)
        listener = KafkaListener(service, address, advertised, self.tls)
        started.callback(listener.stop)
        started.callback(listener.drain, settings.drain_seconds)
        started.callback(service.refuse)
        return listener.address

    def _as_node(self, settings: Settings) -> Node:
        """Return this process as a node, with its addresses for clients."""
        address = _advertised(settings, self.flight) if settings.is_node else self.flight
        host = settings.http.host
        if settings.http.is_wildcard:
            host = address.host
        http = f"{'http' if self.tls is None else 'https'}://{Address(host, self.http.port)}"
        kafka = "" if self._kafka_service is None else str(self._kafka_service.brokers.own)
        return Node(uuid.uuid4().hex, str(address), http, now_us(), kafka)

    def _all_ready(self) -> bool:
        """Return whether all processes of the server accept requests."""
        return self._ready and (self._siblings is None or self._siblings.all_ready)

    @property
    def ready_line(self) -> str:
        """Line printed on standard output when ready."""
        kafka = "" if self.kafka is None else f" kafka={self.kafka}"
        return f"wings ready flight={self.flight_url} http={self.http_url}{kafka}"

    def reload(self) -> None:
        """Reload the certificate, if there is one."""
        if self.tls is not None:
            self.tls.reload()

    def stop(self) -> None:
        """Drain and stop; blocks little longer than the drain's bound. Idempotent.

        First `/readyz` returns 503, and calls fail that find metadata out of reach. Then Flight and
        HTTP reject new calls, end waiting polls with UNAVAILABLE, and wait until received batches
        are committed and acknowledged. Then they stop, the log is closed and its directory
        unlocked.
        """
        self._ready = False
        self._stop.close()


def _open_log(
    settings: Settings, started: ExitStack, metrics: Metrics, tls: Tls | None
) -> ServedLog:
    """Open the log of a single server, or of a node.

    Args:
        settings: The settings of the server.
        started: Stack that stops the parts started beside the log.
        metrics: Counts flushes.
        tls: The server's certificate.
    """
    replicas: list[str] = []
    if settings.hold_replicas is not None:
        from wings_core.share.remote.link import parse_targets  # gRPC is for clusters alone.

        replicas = parse_targets(settings.hold_replicas)
    if settings.is_node and settings.metadata is not None:
        replicas = replicas or [str(settings.metadata)]  # The service has a replica.
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
        # Closed with the log, or here if the log does not open.
        metadata = started.enter_context(closing(open_postgres(postgres)))
        store_id = metadata.claim_for_nodes()  # Before anything is written.
        if coordinator is None:
            from wings_server.metadata.process import serve_holds

            token = metadata.node_token()
            coordinator, holds = serve_holds(settings, started, postgres, token, tls)
        deployment = PostgresAndObjects(metadata, store_id, hot, remote, coordinator)
    parts = deployment.open(settings.limits)
    catalog: Catalog | None = None
    # With an object store, each node of a service may have its own directory.
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
    """Return the address of a node for clients.

    Raises:
        InvalidArgument: The address is a wildcard, which no client can connect to.
    """
    given = settings.advertise or settings.flight
    if given.is_wildcard:
        raise InvalidArgument(
            f"clients cannot connect to {given}: give the address of this node for clients with "
            "--advertise"
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
    # gRPC hides the cause of a failed start, so the address is bound once beforehand.
    bind(address).close()
    try:
        return FlightService(
            log, gate, address.host, address.port, metrics, membership.addresses, tls
        )
    except Exception as error:
        raise Unavailable(f"cannot serve Flight on {address}: {error}") from error


def run(
    settings: Settings, http: socket.socket | None = None, siblings: "Siblings | None" = None
) -> NoReturn:
    """Run a server until it is signalled to stop; see `lifecycle.run`.

    Args:
        settings: The server's settings.
        http: See `Server`.
        siblings: See `Server`.

    Raises:
        WingsError: The server could not start.
    """
    keep_freed_memory()
    prometheus_client.disable_created_metrics()  # They would double the series.
    number = None if siblings is None else siblings.index
    lifecycle.run(Server(settings, http=http, siblings=siblings), number)
