"""A replica's tombstones in PostgreSQL: one process at a time, and answers that are lost."""

import errno
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest
import replica_calls
from fix_calls import Calls
from fix_postgres import PASSWORD, PostgresServer
from fix_share import HandClock, PostgresHolds
from postgres_proxy import CommitProxy, Cut, through
from pydantic import SecretStr

from wings_core.errors import Internal, InvalidArgument, Unavailable
from wings_core.model import Lease
from wings_core.partitions import UNPARTITIONED
from wings_core.share.model import OffsetRange, ShareKey
from wings_core.share.replica import postgres_lease, postgres_store
from wings_core.share.replica.postgres_store import PostgresHoldStore
from wings_core.share.replica.replica import Replica
from wings_core.share.replica.requests import LeaseEntry, PartOutcome
from wings_core.times import Deadline
from wings_server.metadata.process import HoldServer
from wings_server.settings import Address, HoldSettings, load

KEY = ShareKey("group", "topic", UNPARTITIONED)
MINE = Lease("c", 1, "m")
TTL_MS = 10_000


@pytest.fixture
def proxy(postgres: PostgresServer) -> Generator[CommitProxy]:
    made = CommitProxy(postgres.port)
    try:
        yield made
    finally:
        made.close()


def hold(replica: Replica, first: int, last: int) -> list[PartOutcome]:
    parts = replica_calls.hold(replica, KEY, [OffsetRange(first, last)], MINE, TTL_MS, 1_000)
    return [part.outcome for part in parts]


def finish(replica: Replica, first: int, last: int) -> None:
    parts = replica_calls.tombstone(replica, KEY, [LeaseEntry(first, last, MINE)])
    assert all(part.outcome is PartOutcome.OK for part in parts)


def start_of(replica: Replica) -> int:
    (state,) = replica_calls.read(replica, "group", [UNPARTITIONED])
    return state.start_offset


@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_tombstone_whose_answer_is_lost_is_read_again_and_holds_stay(
    postgres_holds: PostgresHolds, proxy: CommitProxy, cut: Cut
) -> None:
    with closing(Replica(lambda: postgres_holds.open(url=through(proxy)), HandClock())) as replica:
        hold(replica, 0, 9)
        finish(replica, 0, 1)
        proxy.arm(cut)
        with pytest.raises(Unavailable) as lost:
            finish(replica, 2, 3)
        assert proxy.cuts == 1
        assert PASSWORD not in str(lost.value)
        # Whatever became of it, memory and the store agree, and what is held is still held.
        assert start_of(replica) == (2 if cut == "before" else 4)
        (part,) = replica_calls.hold(
            replica, KEY, [OffsetRange(6, 6)], Lease("d", 1, "m"), TTL_MS, 1_000
        )
        assert part.outcome is PartOutcome.NOK
        finish(replica, 4, 9)
    with closing(Replica(postgres_holds.open, HandClock())) as replica:
        assert start_of(replica) == (2 if cut == "before" else 10)


def test_a_write_that_arrives_late_is_over_when_all_is_read_again(
    postgres_holds: PostgresHolds, proxy: CommitProxy
) -> None:
    def open_store() -> PostgresHoldStore:
        return postgres_holds.open(url=through(proxy), call_seconds=1.5)

    with closing(Replica(open_store, HandClock())) as replica:
        hold(replica, 0, 9)
        proxy.arm("delayed")
        with pytest.raises(Unavailable):
            finish(replica, 0, 3)
        with pytest.raises(Unavailable):  # It is not over: nothing is answered.
            start_of(replica)
        proxy.release.set()
        found = None
        deadline = Deadline.after(90)
        while found is None and not deadline.passed:
            with suppress(Unavailable):
                found = start_of(replica)
        assert found == 4


def finish_every_other(postgres_holds: PostgresHolds, ranges: int) -> None:
    """Leave so many ranges to the next who opens the holds."""
    with closing(Replica(postgres_holds.open, HandClock())) as replica:
        for first in range(1, 2 * ranges, 2):
            hold(replica, first, first)
            finish(replica, first, first)


@pytest.mark.parametrize(("call", "ranges"), [("load", 30), ("forget", 18)])
def test_what_takes_longer_than_a_call_may_is_done_in_several_and_the_lease_is_renewed_meanwhile(
    postgres_holds: PostgresHolds, monkeypatch: pytest.MonkeyPatch, call: str, ranges: int
) -> None:
    finish_every_other(postgres_holds, ranges)
    # A machine may stall for seconds: neither a call nor the lease is over by that.
    monkeypatch.setattr(postgres_store, "CHUNK_ROWS", 2)
    call_seconds = 4.0
    with closing(postgres_holds.open(lease_seconds=15, call_seconds=call_seconds)) as store:
        (loaded,) = store.load()
        begun = postgres_holds.lease_ends()
        started = time.monotonic()
        with postgres_holds.reads_doing("PERFORM pg_sleep(0.16)"):
            if call == "load":
                (loaded,) = store.load()
            else:
                store.forget(KEY.group_uuid)
        assert time.monotonic() - started > call_seconds
        assert postgres_holds.lease_ends() != begun
        store.check()
        assert loaded.finished == [(first, first, 0) for first in range(1, 2 * ranges, 2)]
        assert len(store.load()) == (1 if call == "load" else 0)


def test_whoever_loses_the_lease_while_it_loads_does_not_take_what_it_read(
    postgres_holds: PostgresHolds,
) -> None:
    finish_every_other(postgres_holds, 1)
    with closing(postgres_holds.open()) as store:
        taking_over = "UPDATE owner SET token = gen_random_uuid()"
        with (
            postgres_holds.reads_doing(taking_over),
            pytest.raises(Unavailable, match="taken over"),
        ):
            store.load()
        assert store.is_lost
    postgres_holds.end_lease()


def test_another_process_waits_for_the_lease_and_is_refused_while_it_lasts(
    postgres_holds: PostgresHolds,
) -> None:
    with closing(postgres_holds.open()), pytest.raises(Unavailable, match="another process"):
        postgres_holds.open()
    postgres_holds.open().close()


def test_a_lease_is_renewed_and_taken_over_when_its_owner_is_gone(
    postgres_holds: PostgresHolds,
) -> None:
    # It outlasts a stall of the machine.
    owner = postgres_holds.open(lease_seconds=5.0, margin_seconds=0.5)
    begun = postgres_holds.lease_ends()
    deadline = Deadline.after(30)
    while postgres_holds.lease_ends() == begun:
        assert not deadline.passed, "the lease is not renewed"
    owner.check()
    owner.abandon()
    with pytest.raises(Unavailable):
        owner.check()
    with closing(postgres_holds.open(claim_seconds=60)) as other:
        other.check()


def test_a_lease_outlasts_a_clock_that_was_set_back_by_no_more_than_its_length(
    postgres_holds: PostgresHolds,
) -> None:
    postgres_holds.open().close()
    postgres_holds.run(
        "UPDATE owner SET token = gen_random_uuid(), expires_at = now() + interval '1 day'"
    )
    postgres_holds.open(lease_seconds=1.0, margin_seconds=0.5, claim_seconds=30).close()


def test_a_renewal_that_fails_in_any_way_is_tried_again(
    postgres_holds: PostgresHolds, calls: Calls
) -> None:
    failed = threading.Event()

    def fail(_: postgres_lease.Session) -> None:
        failed.set()
        raise OSError(errno.EMFILE, "Too many open files")

    with closing(postgres_holds.open(lease_seconds=2.0, margin_seconds=0.5)):
        calls.before(postgres_lease.Session, "transaction", fail, times=1)
        assert failed.wait(30)
        begun = postgres_holds.lease_ends()
        deadline = Deadline.after(30)
        while postgres_holds.lease_ends() == begun:
            assert not deadline.passed, "the lease is not renewed any more"


def test_a_standby_takes_over_what_another_process_gives_up(
    postgres_holds: PostgresHolds,
) -> None:
    clock = HandClock()
    first = Replica(postgres_holds.open, clock, try_seconds=0.0)
    other = Replica(postgres_holds.open, clock, try_seconds=0.0)
    with closing(first), closing(other):
        hold(first, 0, 9)
        finish(first, 0, 3)
        with pytest.raises(Unavailable, match="another process"):
            start_of(other)
        first.close()
        assert start_of(other) == 4
        with pytest.raises(Unavailable, match="closed"):
            start_of(first)


def test_whoever_lost_the_lease_writes_and_answers_nothing_until_it_has_it_again(
    postgres_holds: PostgresHolds,
) -> None:
    clock = HandClock()
    with closing(Replica(postgres_holds.open, clock, try_seconds=0.0)) as first:
        hold(first, 0, 9)
        postgres_holds.end_lease()
        with closing(Replica(postgres_holds.open, clock, try_seconds=0.0)) as other:
            assert start_of(other) == 0
            # Until it writes, or renews, it does not know; its write is refused.
            with pytest.raises(Unavailable, match="taken over"):
                finish(first, 0, 3)
            assert not first.serves
            for call in (lambda: hold(first, 20, 29), lambda: start_of(first)):
                with pytest.raises(Unavailable, match="another process"):
                    call()
            assert start_of(other) == 0
            # What the first one may have granted is respected.
            assert hold(other, 0, 9) == [PartOutcome.NOK]
        assert start_of(first) == 0


def test_nobody_waits_for_long_while_a_standby_takes_over(
    postgres_holds: PostgresHolds,
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    answers = iter([False, True])

    def open_slowly() -> PostgresHoldStore:
        if not next(answers):
            raise Unavailable("another process")
        begun.set()
        assert go_on.wait(30)
        return postgres_holds.open()

    replica = Replica(open_slowly, HandClock(), lock_wait_seconds=0.01, try_seconds=0.0)
    with closing(replica) as taking, ThreadPoolExecutor(1) as one:
        with pytest.raises(Unavailable, match="another process"):
            taking.open()
        first = one.submit(start_of, taking)
        assert begun.wait(30)
        try:
            with pytest.raises(Unavailable, match="opens"):
                start_of(taking)
        finally:
            go_on.set()
        assert first.result(30) == start_of(taking) == 0


def test_a_replica_is_served_from_postgresql_alone_and_outlives_a_restart(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    settings = HoldSettings(
        data_dir=tmp_path / "data",
        holds_url=SecretStr(postgres.new_database()),
        listen=Address("127.0.0.1", 0),
    )
    for first in (0, 4):
        server = HoldServer(settings)
        server.start()
        try:
            assert start_of(server.replica) == first
            hold(server.replica, first, first + 3)
            finish(server.replica, first, first + 3)
        finally:
            server.stop()
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("schema", ["", "Wings", "a-b", "x" * 64])
def test_a_schema_that_cannot_be_is_refused_by_its_flag(schema: str) -> None:
    with pytest.raises(InvalidArgument, match="--holds-schema"):
        load(None, {"holds_schema": schema}, HoldSettings)


def test_a_schema_of_a_newer_version_is_refused(postgres_holds: PostgresHolds) -> None:
    postgres_holds.run("INSERT INTO migrations VALUES (99, 0)")
    try:
        with pytest.raises(Internal, match="newer"):
            postgres_holds.open()
    finally:
        postgres_holds.run("DELETE FROM migrations WHERE version = 99")


def test_a_server_that_is_not_there_is_told_without_its_password(postgres: PostgresServer) -> None:
    with pytest.raises(Unavailable) as refused:
        PostgresHoldStore(f"postgresql://wings:{PASSWORD}@127.0.0.1:1/postgres", claim_seconds=0)
    assert PASSWORD not in str(refused.value)
    assert "holds" in refused.value.message
    assert "metadata" not in refused.value.message
