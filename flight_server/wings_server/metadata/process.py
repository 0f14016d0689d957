"""The metadata service as a process of its own."""

from contextlib import ExitStack, closing
from typing import NoReturn

from wings_core.data_directory import DataDirectory
from wings_core.metadata.interfaces import Metadata
from wings_core.metadata.open import open_postgres
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.share.open import open_standby
from wings_core.share.replica.interfaces import HoldReplica
from wings_core.share.replica.replica import Replica
from wings_core.share.replica.store import SqliteHoldStore
from wings_server import logs
from wings_server.metadata.service import MetadataService
from wings_server.process import run_until_signalled
from wings_server.settings import Address, MetadataSettings


class MetadataServer:
    """A metadata service, over a data directory or PostgreSQL; `start`, then `stop`, once each.

    Attributes:
        settings: What it was built with.
        service: The gRPC service, from `start` on.
        address: Where it is served, with the real port, from `start` on.
    """

    service: MetadataService
    address: Address

    def __init__(self, settings: MetadataSettings) -> None:
        self.settings = settings
        self._stop = ExitStack()

    def start(self) -> None:
        """Open the metadata and serve it; where a part fails, those before it are stopped again.

        Raises:
            Unavailable: The data directory or the port is in use, or cannot be used; or PostgreSQL
                cannot be reached.
            InvalidArgument: The directory is something else, or PostgreSQL's metadata is of an
                embedded server.
            Internal: The metadata cannot be opened.
        """
        settings = self.settings
        with ExitStack() as started:
            metadata, store_id, holds = _open(settings, started)
            waiting_max = settings.limits.calls_waiting_max
            self.service = MetadataService(metadata, store_id, settings.listen, waiting_max, holds)
            self.service.start()
            started.callback(self.service.stop, settings.drain_seconds)
            self.address = self.service.address
            self._stop = started.pop_all()

    def stop(self) -> None:
        """Drain and stop; a commit whose response was lost can be retried elsewhere."""
        self._stop.close()


def run(settings: MetadataSettings) -> NoReturn:
    """Serve until SIGTERM or SIGINT, then drain, and end the process with status 0.

    Prints one line on standard output when it serves: `wings metadata ready grpc=HOST:PORT`.

    Raises:
        WingsError: It could not start.
    """
    logs.configure(settings.log_level, settings.log_format)
    server = MetadataServer(settings)
    run_until_signalled(
        server.start, server.stop, lambda: f"wings metadata ready grpc={server.address}", settings
    )


def _open(settings: MetadataSettings, started: ExitStack) -> tuple[Metadata, str, HoldReplica]:
    """Open what is served, closed with `started`: metadata, its id, and a replica of holds."""
    if settings.metadata_url is not None:
        url = settings.metadata_url.get_secret_value()
        metadata = started.enter_context(closing(open_postgres(url)))
        store_id = metadata.claim_for_service()
        # Beside the metadata; where several services share that, one of them has it at a time.
        return metadata, store_id, started.enter_context(closing(open_standby(url)))
    directory = started.enter_context(DataDirectory.open(settings.data_dir, "metadata"))
    metadata = started.enter_context(SqliteMetadata(directory.metadata))
    # Nodes may be given this directory too, which may have been an embedded server's.
    directory.bind(metadata.store_id, own=True)
    replica = started.enter_context(closing(Replica(SqliteHoldStore(directory.holds))))
    return metadata, metadata.store_id, replica
