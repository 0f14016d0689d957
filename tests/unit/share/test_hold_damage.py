"""Files of holds that are damaged: found, refused, and rebuilt without a message lost."""

import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import replica_calls
from property_examples import examples

from wings_core.errors import AlreadyExists, StorageCorrupt, Unavailable
from wings_core.model import Lease, ShareConfig, ShareGroup
from wings_core.partitions import UNPARTITIONED, Partition
from wings_core.share.model import OffsetRange, ShareKey
from wings_core.share.open import open_replica
from wings_core.share.replica.copies import rebuild_holds
from wings_core.share.replica.replica import Replica
from wings_core.share.replica.requests import LeaseEntry, ReplicaState
from wings_core.share.replica.sqlite_store import MIGRATIONS, SqliteHoldStore, problems_of
from wings_core.share.replica.store import Mark, PartitionWrite

GROUP, TOPIC = "2f7c8f4e-group", "9b1d33a0-topic"
PARTITIONS = [Partition(f'"customer {number}"') for number in range(40)]
LEASE = Lease("node", 1, "member")
FLIPS = examples(32, 100)


def key(partition: Partition) -> ShareKey:
    return ShareKey(GROUP, TOPIC, partition)


def state_of(path: Path) -> dict[Partition, ReplicaState]:
    """Return what a replica says of all partitions."""
    with closing(open_replica(path, list)) as replica:
        return {state.partition: state for state in replica_calls.read(replica, GROUP, ())}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file at rest in which each second message was finished, and some were counted."""
    path = tmp_path_factory.mktemp("holds") / "holds.sqlite"
    with closing(SqliteHoldStore(path)) as store:
        store.load()
        store.write(
            [
                PartitionWrite(
                    key(partition),
                    1_000 * number,
                    finished_added=[
                        (at, at, 0) for at in range(1_000 * number + 2, 1_000 * number + 80, 2)
                    ],
                    counts_added=[(1_000 * number + 91, 1_000 * number + 95, 2)],
                )
                for number, partition in enumerate(PARTITIONS)
            ],
            {},
        )
    return path


@pytest.fixture
def path(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(sound, tmp_path))


def test_a_changed_value_of_any_column_is_found(path: Path) -> None:
    with closing(SqliteHoldStore(path)) as store:
        store.load()
        store.write([], {GROUP: Mark("boot", 1.5, 30.0)})
    assert not list(problems_of(path))
    data = path.read_bytes()
    changed: list[tuple[str, str]] = []
    for table in ("partitions", "finished", "counts", "marks"):
        with closing(sqlite3.connect(path)) as connection:
            columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
        for _, column, kind, *_ in columns:
            value = f"{column} || 'x'" if kind == "TEXT" else f"{column} + 1000000"
            with closing(sqlite3.connect(path)) as connection:
                row = f"SELECT {column} FROM {table} LIMIT 1"
                connection.execute(
                    f"UPDATE {table} SET {column} = {value} WHERE {column} = ({row})"
                )
                connection.commit()
            assert list(problems_of(path)), (table, column)
            changed.append((table, column))
            path.write_bytes(data)
    assert len(changed) == 6 + 5 + 5 + 3


def damages(data: bytes, flips: int) -> Iterator[tuple[str, bytes]]:
    """Yield a file with one byte changed, and cut off, in many places."""
    chance = random.Random(19)
    for _ in range(flips):
        damaged = bytearray(data)
        at = chance.randrange(len(data))
        damaged[at] ^= chance.randrange(1, 256)
        yield f"byte {at}", bytes(damaged)
    for length in [0, 1, 99, 512, *(chance.randrange(len(data)) for _ in range(6))]:
        yield f"length {length}", data[:length]


@pytest.mark.hypothesis
def test_damage_is_refused_or_changes_nothing_and_the_check_finds_what_is_refused(
    sound: Path, tmp_path: Path
) -> None:
    expected = state_of(sound)
    assert len(expected) == len(PARTITIONS)
    assert not list(problems_of(sound))
    path = tmp_path / "holds.sqlite"
    group = ShareGroup("billing", GROUP, None, ShareConfig())  # pyright: ignore[reportArgumentType]
    refused = 0
    for what, data in damages(sound.read_bytes(), FLIPS):
        for left in tmp_path.iterdir():
            left.unlink()
        path.write_bytes(data)
        found = list(problems_of(path))
        with closing(open_replica(path, lambda: [group])) as replica:
            try:
                states = {
                    state.partition: state for state in replica_calls.read(replica, GROUP, ())
                }
            except (StorageCorrupt, Unavailable):
                refused += 1
                assert found or len(data) < 512, what
            else:
                assert states == expected, what
    assert refused > FLIPS // 2


@pytest.mark.hypothesis
def test_what_is_rebuilt_was_so(sound: Path, tmp_path: Path) -> None:
    expected = state_of(sound)
    path = tmp_path / "holds.sqlite"
    kept = 0
    for what, data in damages(sound.read_bytes(), FLIPS // 4):
        for left in tmp_path.iterdir():
            left.unlink()
        path.write_bytes(data)
        if len(data) >= 512 and not list(problems_of(path)):
            with pytest.raises(AlreadyExists):
                rebuild_holds(path, [])
            continue
        rebuilt = rebuild_holds(path, [])
        assert rebuilt.kept_as is not None
        assert rebuilt.kept_as.read_bytes()[: len(data)] == data, what
        assert not list(problems_of(path)), what
        states = state_of(path)
        assert len(states) == rebuilt.partitions, what
        for partition, state in states.items():
            assert state.start_offset == expected[partition].start_offset, what
            assert set(state.finished) <= set(expected[partition].finished), what
            assert set(state.counts) <= set(expected[partition].counts), what
            kept += len(state.finished)
    assert kept > 10 * FLIPS


def test_nothing_is_delivered_until_locks_of_before_have_passed(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])
    rebuild_holds(path, [])
    with closing(open_replica(path, list)) as replica:
        (part,) = replica_calls.hold(
            replica, key(PARTITIONS[0]), [OffsetRange(0, 0)], LEASE, 1_000, 10
        )
        assert part.outcome.name == "NOK"
        assert part.retry_ms > 20_000


def test_a_group_of_which_nothing_is_left_is_named(path: Path) -> None:
    path.write_bytes(b"")
    group = ShareGroup("billing", GROUP, None, ShareConfig())  # pyright: ignore[reportArgumentType]
    assert rebuild_holds(path, [group]).groups_lost == (group,)


@pytest.mark.parametrize("file", ["missing", "empty"])
def test_no_state_of_groups_that_are_there_is_damage(tmp_path: Path, file: str) -> None:
    path = tmp_path / "holds.sqlite"
    if file == "empty":
        path.touch()
    group = ShareGroup("billing", GROUP, None, ShareConfig())  # pyright: ignore[reportArgumentType]
    with closing(open_replica(path, lambda: [group])) as replica:
        for _ in range(2):
            with pytest.raises(StorageCorrupt, match="wings holds rebuild"):
                replica_calls.read(replica, GROUP, ())
        assert replica.damage is not None
    with closing(open_replica(path, list)) as replica:
        assert replica_calls.read(replica, GROUP, ()) == []


def finish_all(replica: Replica) -> None:
    for number, partition in enumerate(PARTITIONS):
        for first in range(1_000 * number, 1_000 * number + 3):
            replica_calls.hold(
                replica, key(partition), [OffsetRange(first, first)], LEASE, 1_000, 1_000
            )
            replica_calls.tombstone(replica, key(partition), [LeaseEntry(first, first, LEASE)])


def test_damage_that_is_met_later_closes_the_replica(path: Path) -> None:
    with closing(open_replica(path, list)) as replica:
        with sqlite3.connect(path) as other:
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        other.close()
        size = path.stat().st_size
        path.write_bytes(path.read_bytes()[:100] + bytes(size - 100))
        with pytest.raises(StorageCorrupt):
            finish_all(replica)
        with pytest.raises(StorageCorrupt):
            replica_calls.read(replica, GROUP, ())
        assert replica.damage is not None


def test_a_file_without_checksums_gets_them(tmp_path: Path) -> None:
    path = tmp_path / "holds.sqlite"
    with closing(sqlite3.connect(path)) as old:
        for statement in MIGRATIONS[0]:
            old.execute(statement)
        old.execute("INSERT INTO partitions VALUES (7, ?, ?, ?, 12)", (GROUP, TOPIC, UNPARTITIONED))
        old.execute("INSERT INTO finished VALUES (7, 20, 30, 0)")
        old.execute("PRAGMA user_version = 1")
        old.commit()
    assert not list(problems_of(path))
    with closing(Replica(lambda: SqliteHoldStore(path))) as replica:
        (state,) = replica_calls.read(replica, GROUP, ())
    assert (state.start_offset, state.finished) == (12, (OffsetRange(20, 30),))
    assert not list(problems_of(path))
    with closing(sqlite3.connect(path)) as other:
        other.execute("UPDATE finished SET last = 31")
        other.commit()
    assert list(problems_of(path)) == ["a row of finished is not what was written"]


def test_a_file_that_is_cut_off_in_space_that_it_does_not_use_is_told(path: Path) -> None:
    """SQLite reads zeros for what is missing of the last page: its own check finds nothing."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE last (x TEXT)")
    data = path.read_bytes()
    assert list(problems_of(path)) == []
    path.write_bytes(data[:-1_000])
    assert list(problems_of(path)) == ["it ends within a page: it is cut off"]
