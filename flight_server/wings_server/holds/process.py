"""A replica of holds as a process of its own."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

from wings_core.data_directory import DataDirectory
from wings_core.metadata.open import has_metadata, open_metadata
from wings_core.model import ShareGroup
from wings_core.share.open import all_groups, open_postgres_store
from wings_core.share.replica.copies import Rebuilt, rebuild_holds
from wings_core.share.replica.replica import Replica
from wings_core.share.replica.sqlite_store import SqliteHoldStore
from wings_core.share.replica.store import HoldStore
from wings_core.storage.disk import DiskGuard
from wings_server.exposure import service_security
from wings_server.holds.handlers import hold_service
from wings_server.metadata.service import GrpcService
from wings_server.settings import Address, HoldSettings
from wings_server.tls import Tls


class HoldServer:
    """A replica of holds over a data directory or PostgreSQL; `start`, then `stop`, once each.

    Attributes:
        settings: The settings.
        replica: The replica, after `start`.
        address: Address with the actual port, after `start`.
    """

    replica: Replica
    address: Address
    tls: Tls | None = None

    def __init__(self, settings: HoldSettings) -> None:
        self.settings = settings
        self._stop = ExitStack()

    def start(self) -> None:
        """Open the replica and serve it; on a failure, the parts already started are stopped.

        Raises:
            Unavailable: The data directory or the port is in use or unusable, PostgreSQL cannot be
                reached, or another process serves its replica.
            InvalidArgument: The path is not a data directory, or PostgreSQL is unsuitable.
            Internal: The holds cannot be opened.
        """
        settings = self.settings
        with ExitStack() as started:
            security = service_security(settings)
            replica = self.replica = Replica(_store_of(settings, started))
            started.enter_context(closing(replica))
            replica.open()
            service = GrpcService([hold_service(self.replica)], settings.listen, security)
            self.tls = security.tls
            service.start()
            started.callback(service.stop, settings.drain_seconds)
            self.address = service.address
            self._stop = started.pop_all()

    @property
    def ready_line(self) -> str:
        """Line printed on standard output when ready."""
        return f"wings holds ready grpc={self.address}"

    def reload(self) -> None:
        """Reload the certificate, if there is one."""
        if self.tls is not None:
            self.tls.reload()

    def stop(self) -> None:
        """Drain and stop."""
        self._stop.close()


def _store_of(settings: HoldSettings, started: ExitStack) -> Callable[[], HoldStore]:
    if settings.holds_url is not None:
        url = settings.holds_url.get_secret_value()
        return lambda: open_postgres_store(url, settings.holds_schema)
    directory = started.enter_context(DataDirectory.open(settings.data_dir, "metadata"))
    # For its reserve, so that acknowledgements work on a full disk.
    disk = DiskGuard(directory.path, settings.limits.disk_free_bytes_min, directory.reserve)
    started.callback(disk.close)
    return lambda: SqliteHoldStore(directory.holds)


def rebuild_directory(path: Path, metadata_url: str | None) -> Rebuilt:
    """Rebuild the holds of a data directory; see `rebuild_holds`.

    Raises:
        Unavailable: A server has the directory open.
        InvalidArgument: The path is not a data directory, or its metadata is elsewhere.
        AlreadyExists: The holds are sound.
        Internal: The metadata cannot be read.
    """
    DataDirectory.open_read_only(path).close()  # Raises instead of creating a directory.
    with DataDirectory.open(path, "metadata") as directory:
        groups: list[ShareGroup] = []
        if has_metadata(directory):
            with closing(open_metadata(directory, metadata_url, read_only=True)) as metadata:
                groups = all_groups(metadata.admin, metadata.groups)
        return rebuild_holds(directory.holds, groups)
