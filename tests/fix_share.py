"""Share groups under test: coordinators over replicas with durable stores, and a clock to set."""

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
from fix_metadata import MetadataUnderTest, open_sqlite
from fix_postgres import PostgresServer

from wings_core.errors import Internal, WingsError
from wings_core.fetch.fetcher import Cancel
from wings_core.model import Topic
from wings_core.partitions import UNPARTITIONED, Partition
from wings_core.share.coordinator import Coordinator
from wings_core.share.interfaces import HoldReplica, ShareCoordinator
from wings_core.share.links import LocalLink, ReplicaLink
from wings_core.share.model import (
    Acknowledgement,
    AcknowledgeType,
    DeadLetter,
    LeasedRange,
    ShareConfig,
    ShareGroup,
    dead_letter_id,
)
from wings_core.share.postgres_store import PostgresHoldStore
from wings_core.share.remote.link import RemoteLink
from wings_core.share.replica import Replica
from wings_core.share.store import SqliteHoldStore
from wings_core.share.watching import FindGroup
from wings_core.times import Deadline
from wings_server.holds.handlers import hold_service
from wings_server.metadata.service import GrpcService
from wings_server.settings import Address

ROWS_MAX = 65_536


@dataclass
class HandClock:
    """A monotonic clock that a test moves, and a boot that it may end."""

    time: float = 1_000.0
    boot_id: str = "boot-1"

    def now(self) -> float:
        return self.time


class CurrentReplica:
    """The replica that stands behind a link at the time of each call."""

    def __init__(self, link: LocalLink) -> None:
        self._link = link

    def __getattr__(self, name: str) -> object:
        return getattr(self._link.replica, name)


@dataclass
class WrittenLetters:
    """Dead letters that are kept by id, as the real ones are."""

    letters: dict[str, tuple[int, DeadLetter]] = field(default_factory=dict)
    written: list[DeadLetter] = field(default_factory=list)
    fail: bool = False
    slow: Callable[[], None] = lambda: None
    """Called whenever some are written."""

    def begin(self, group: ShareGroup, letters: Sequence[DeadLetter]) -> "PendingLetters":
        return PendingLetters(self, group, letters)

    @property
    def offsets(self) -> list[int]:
        return sorted(offset for offset, _ in self.letters.values())


@dataclass
class PendingLetters:
    to: WrittenLetters
    group: ShareGroup
    letters: Sequence[DeadLetter]

    def finish(self) -> None:
        if self.to.fail:
            raise Internal("the dead letters' disk is broken")
        self.to.slow()
        for letter in self.letters:
            self.to.written.append(letter)
            for offset in range(letter.first, letter.last + 1):
                id = dead_letter_id(self.group.uuid, letter.partition, offset)  # noqa: A001
                self.to.letters.setdefault(id, (offset, letter))


@dataclass
class PostgresHolds:
    """A schema of PostgreSQL that a replica keeps its tombstones in."""

    url: str
    schema: str = "holds_of_tests"

    def open(
        self, *, url: str | None = None, claim_seconds: float = 0.0, lease_seconds: float = 600.0
    ) -> PostgresHoldStore:
        """Open it; a lease is long unless told otherwise, so that no renewal comes in between."""
        return PostgresHoldStore(
            url or self.url,
            self.schema,
            claim_seconds=claim_seconds,
            lease_seconds=lease_seconds,
        )

    def end_lease(self) -> None:
        """Let the lease of whoever has it be over, as time would."""
        self.run("UPDATE owner SET expires_at = '-infinity'")

    def lease_ends(self) -> object:
        """Return when the lease is over, by the server's clock."""
        with psycopg.connect(self.url, options=f"-c search_path={self.schema}") as connection:
            return connection.execute("SELECT expires_at FROM owner").fetchone()

    @contextmanager
    def commits_failing(self) -> Generator[None]:
        """Let every commit that changes a range fail, by a trigger that runs as it begins."""
        self.run(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'disk I/O error' USING ERRCODE = '58030'; END $$"
        )
        for table in ("finished", "counts", "partitions"):
            self.run(
                f"CREATE CONSTRAINT TRIGGER refuse AFTER INSERT OR UPDATE OR DELETE ON {table} "
                "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()"
            )
        try:
            yield
        finally:
            self.run("DROP FUNCTION refuse CASCADE")

    @contextmanager
    def reads_doing(self, statement: str) -> Generator[None]:
        """Let the server carry a statement out for each range read or deleted of `finished`."""
        self.run(
            "CREATE FUNCTION meanwhile() RETURNS boolean LANGUAGE plpgsql VOLATILE AS "
            f"$$ BEGIN {statement}; RETURN true; END $$",
            "ALTER TABLE finished RENAME TO stored",
            "CREATE VIEW finished AS SELECT * FROM stored WHERE meanwhile()",
        )
        try:
            yield
        finally:
            self.run("DROP FUNCTION meanwhile CASCADE", "ALTER TABLE stored RENAME TO finished")

    def run(self, *statements: str) -> None:
        with psycopg.connect(
            self.url, autocommit=True, options=f"-c search_path={self.schema}"
        ) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def empty(self) -> None:
        """Delete all that tests have left."""
        self.open().close()
        for table in ("partitions", "finished", "counts", "marks"):
            self.run(f"DELETE FROM {table}")


@dataclass
class ShareUnderTest:
    """A topic, replicas that can be restarted, and coordinators over them."""

    metadata: MetadataUnderTest
    directory: Path
    replica_count: int
    clock: HandClock = field(default_factory=HandClock)
    dead_letters: WrittenLetters = field(default_factory=WrittenLetters)
    topic: Topic = field(init=False)
    coordinator: ShareCoordinator = field(init=False)
    replicas: list[Replica] = field(default_factory=list)
    opened: list[Coordinator] = field(default_factory=list)
    links: list[LocalLink] = field(default_factory=list)
    over_grpc: bool = False
    services: list[GrpcService | None] = field(default_factory=list)
    groups: "count[int]" = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        self.topic = self.metadata.create_topic()
        self.replicas = [self.open_replica(number) for number in range(self.replica_count)]
        self.links = [LocalLink(replica) for replica in self.replicas]
        if self.over_grpc:
            self.services = [None] * self.replica_count
            for number in range(self.replica_count):
                self.serve(number)
        self.coordinator = self.open_coordinator()

    def open_replica(self, number: int) -> Replica:
        return Replica(SqliteHoldStore(self.directory / f"holds-{number}.sqlite"), self.clock)

    def serve(self, number: int, port: int = 0) -> None:
        """Serve a replica over gRPC, whichever stands for it at the time."""
        replica = cast("HoldReplica", CurrentReplica(self.links[number]))
        service = GrpcService([hold_service(replica)], Address("127.0.0.1", port))
        service.start()
        self.services[number] = service

    def stop_serving(self, number: int) -> int:
        """Stop a replica's service; return its port."""
        service = self.services[number]
        assert service is not None
        service.stop(drain_seconds=0)
        self.services[number] = None
        return service.address.port

    def open_coordinator(self, find_group: FindGroup | None = None) -> Coordinator:
        links: list[ReplicaLink] = list(self.links)
        if self.over_grpc:
            links = [
                RemoteLink(str(service.address)) for service in self.services if service is not None
            ]
        coordinator = Coordinator(
            links,
            self.metadata.registry,
            self.dead_letters,
            local=self.replica_count == 1,
            clock=self.clock,
            find_group=find_group,
        )
        self.opened.append(coordinator)
        return coordinator

    def restart_replica(self, number: int, *, crash: bool = True) -> None:
        """Restart a replica; a crash forgets what it would write down when it is closed.

        A write that a call has begun ends first: its outcome is one that a crash may leave. Later
        writes of the old replica are refused with `Unavailable`.
        """
        old = self.replicas[number]
        if crash:
            old._store.close()  # pyright: ignore[reportPrivateUsage]
        else:
            old.close()
        self.replicas[number] = self.open_replica(number)
        self.links[number].replica = self.replicas[number]

    def group(self, *, topic: Topic | None = None, **config: object) -> ShareGroup:
        """Create a group that begins at the earliest message, unless told otherwise."""
        number = next(self.groups)
        group = ShareGroup(
            f"group-{number}",
            f"uuid-{number}",
            topic or self.topic,
            ShareConfig.model_validate({"start": "earliest", **config}),
        )
        self.coordinator.create(group)
        return group

    def acquire(
        self,
        group: ShareGroup,
        messages_max: int = 100,
        *,
        member: str = "me",
        partition: Partition | None = None,
        coordinator: ShareCoordinator | None = None,
        rows_max: int = ROWS_MAX,
    ) -> list[LeasedRange]:
        """Return what can be acquired now."""
        acquired = (coordinator or self.coordinator).acquire(
            group, member, partition, messages_max, rows_max, Deadline.after(-1), Cancel()
        )
        return list(acquired)

    def settle(
        self,
        group: ShareGroup,
        leased: LeasedRange,
        type: AcknowledgeType,  # noqa: A002
        *,
        member: str = "me",
        coordinator: ShareCoordinator | None = None,
        **facts: Any,
    ) -> WingsError | None:
        """Settle a leased range, or a part of it; return its error."""
        entry = entry_of(leased, type, **facts)
        (result,) = (coordinator or self.coordinator).acknowledge(group, member, [entry])
        assert result.acknowledgement == entry
        return result.error

    def wait_for_replicas(self, group: ShareGroup, held: int) -> None:
        """Wait until every replica holds so many messages of a group, also the late ones.

        A majority is enough for the coordinator; what it asked of the others arrives when it does,
        and by then a test may have moved the clock.
        """
        deadline = Deadline.after(10)
        pause = threading.Event()
        while any(
            sum(state.in_flight for state in replica.read(group.uuid, ())) != held
            for replica in self.replicas
        ):
            assert not deadline.passed, f"some replica does not hold {held} messages"
            pause.wait(0.002)

    def close(self) -> None:
        for coordinator in self.opened:
            coordinator.close()
        for service in self.services:
            if service is not None:
                service.stop(drain_seconds=0)
        for replica in self.replicas:
            replica.close()


def entry_of(leased: LeasedRange, type: AcknowledgeType, **facts: Any) -> Acknowledgement:  # noqa: A002
    """Return an acknowledgement of a leased range, with some of it changed."""
    entry = Acknowledgement(
        leased.partition, leased.start_offset, leased.end_offset, leased.lease, type
    )
    return replace(entry, **facts)


def spans(ranges: Sequence[LeasedRange]) -> list[tuple[int, int, int]]:
    """Return first, last and delivery count of each."""
    return [(leased.start_offset, leased.end_offset, leased.delivery_count) for leased in ranges]


@contextmanager
def open_share(
    directory: Path, replica_count: int, *, over_grpc: bool = False
) -> Generator[ShareUnderTest]:
    with open_sqlite(directory) as metadata:
        under_test = ShareUnderTest(metadata, directory, replica_count, over_grpc=over_grpc)
        try:
            yield under_test
        finally:
            under_test.close()


@pytest.fixture(params=["embedded", "three-replicas", "three-over-grpc"])
def share(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[ShareUnderTest]:
    """A topic without a key, and groups over it, embedded and with three replicas."""
    over_grpc = request.param == "three-over-grpc"
    with open_share(
        tmp_path, 1 if request.param == "embedded" else 3, over_grpc=over_grpc
    ) as opened:
        yield opened


@pytest.fixture
def remote_share(tmp_path: Path) -> Generator[ShareUnderTest]:
    """The same with three replicas over gRPC alone."""
    with open_share(tmp_path, 3, over_grpc=True) as opened:
        yield opened


@pytest.fixture
def postgres_holds(postgres: PostgresServer) -> PostgresHolds:
    """An empty schema for a replica of holds."""
    holds = PostgresHolds(postgres.url)
    with suppress(psycopg.Error):
        holds.end_lease()  # Of a test that failed.
    holds.empty()
    return holds


__all__ = [
    "UNPARTITIONED",
    "PostgresHolds",
    "ShareUnderTest",
    "entry_of",
    "postgres_holds",
    "remote_share",
    "share",
    "spans",
]
