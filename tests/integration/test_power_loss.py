"""Power is lost at any point of a workload: what was acknowledged is there, and nothing else."""

import os
import pickle
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from flight_calls import create_topic, get, numbers, push
from power_loss import COMPILER, Change, Disk, fail_calls, read_record, recorder
from power_loss_lives import ENDED, Life, Lives, lives
from power_loss_workload import History, Workload, assert_kept

from wings_server.testing import running_server, server_process

pytestmark = pytest.mark.skipif(
    COMPILER is None or not sys.platform.startswith("linux"), reason="needs a C compiler on Linux"
)

ROUNDS = 32
SOAK_POINTS = int(os.environ.get("SOAK_POINTS", "10000"))
"""Of `make soak`, where the environment says no other number."""

SOAK_SEED = os.environ.get("SOAK_SEED", "0")
"""Others choose other points, so that processes share them."""


@dataclass
class Recorded:
    """A workload that has ended."""

    root: Path
    changes: list[Change]
    history: History


def begin(directory: Path) -> tuple[Path, Path, Path]:
    """Return the directory that is recorded, the record, and the pickled workload."""
    root, record, pickled = (directory / each for each in ("disk", "record", "workload"))
    root.mkdir()
    pickled.write_bytes(pickle.dumps(Workload(History(record))))
    return root, record, pickled


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lives]:
    directory = tmp_path_factory.mktemp("lives")
    environment, _ = recorder(directory, directory)
    with lives(environment) as forked:
        yield forked


@pytest.fixture(scope="module")
def recorded(forked: Lives, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    directory = tmp_path_factory.mktemp("power")
    root, record, pickled = begin(directory)
    assert forked.run(Life(ROUNDS, everything=True), root, record, pickled) == []
    workload: Workload = pickle.loads(pickled.read_bytes())
    assert not workload.history.failures
    root.rename(directory / "as it was")
    return Recorded(root, read_record(record), workload.history)


@pytest.mark.parametrize(
    "states", [2, pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(6 * 3_600)])]
)
def test_what_was_acknowledged_is_there_wherever_power_is_lost(
    recorded: Recorded, states: int
) -> None:
    random = Random(f"{states} {SOAK_SEED}")
    changes = range(len(recorded.changes))
    points = Counter(random.choices(changes, k=min(states, SOAK_POINTS)))
    disk = Disk(recorded.root, random)
    for index, change in enumerate(recorded.changes):
        disk.follow(change)
        for _ in range(points[index]):
            assert_kept(recorded.root, recorded.history, disk, random, change)


@pytest.mark.parametrize("name", ["metadata.sqlite-wal", ".segment"])
def test_a_sync_that_does_nothing_is_noticed(recorded: Recorded, name: str) -> None:
    """The test of this test: a disk that lies about the syncs of these files loses messages."""
    disk = Disk(recorded.root, Random(0))
    for change in recorded.changes:
        if change.kind not in "be" or not change.path.name.endswith(name):
            disk.follow(change)
    with pytest.raises((AssertionError, pa.ArrowException)):
        assert_kept(recorded.root, recorded.history, disk, Random(0), recorded.changes[-1], keep=0)


# Syncs that fail, in a life before. ###############################################################

LOG, DATABASE, HOLDS = "metadata.sqlite-wal", "metadata.sqlite", "holds.sqlite-wal"
ALWAYS = 1_000
"""Syncs that fail, where all of a life do from some point on."""

FAULTS = {
    "a commit, and the stop is clean": Life(2, LOG, at="last", end="stop"),
    "a checkpoint": Life(16, DATABASE, count=2),
    "holds": Life(3, HOLDS, count=ALWAYS),
    "a segment": Life(4, ".segment"),
    "the remote store": Life(8, "/remote/segments/*", count=2),
}
"""Lives in which syncs fail: which."""

SOME = 3
"""Lives of `FAULTS` in each `make test`, any; `make soak` has all."""

OTHERS = {
    "a commit": Life(2, LOG, at="last"),
    "a commit and all fences": Life(2, LOG, at="last", count=ALWAYS),
    "a commit without a sequence": Life(2, LOG, at="last", last="plain", count=ALWAYS),
    "the log at a stop": Life(2, LOG, at="stop", end="stop"),
    "the database at a stop": Life(2, DATABASE, at="stop", end="stop", count=ALWAYS),
    "the directory of segments": Life(4, "/segments"),
    "a commit and its fence": Life(2, LOG, at="last", count=2),
    "a commit, all fences and the stop": Life(2, LOG, at="last", count=ALWAYS, end="stop"),
    "a commit and its fences, and the stop is clean": Life(2, LOG, at="last", count=4, end="stop"),
    "the log, all the time": Life(3, LOG, count=ALWAYS),
    "everything, all the time": Life(3, "*", count=ALWAYS, end="stop"),
    "a directory of the remote store": Life(8, "/remote/segments/*", after=1),
    "an old segment, all the time": Life(16, "/remote/*", count=ALWAYS, end="stop"),
    "holds at a stop": Life(3, "holds.sqlite", at="stop", end="stop", count=ALWAYS),
    **{f"sync {number} of a start": Life(1, "*", at="start", after=number) for number in range(24)},
}


@dataclass
class Failing:
    """Runs lives on a directory whose syncs fail, and looks at what a power cut leaves."""

    lives: Lives
    directory: Path

    def expect_kept(self, lives: Sequence[Life], random: Random, states: int) -> bool:
        """Run lives one after another, and look at states of the disk, half of them in the last.

        Returns:
            Whether a sync failed.
        """
        root, record, pickled = begin(self.directory)
        begun = 0
        for life in lives:
            begun = record.stat().st_size if record.exists() else 0
            said = self.lives.run(life, root, record, pickled)
            assert not [line for line in said if line.startswith(ENDED)], said
        workload: Workload = pickle.loads(pickled.read_bytes())
        root.rename(self.directory / "as it was")
        changes = read_record(record)
        last = [index for index, change in enumerate(changes) if change.end > begun]
        points = set(random.choices(last, k=states // 2)) | {last[-1]}
        points |= set(random.choices(range(len(changes)), k=states - len(points)))
        disk = Disk(root, random)
        for index, change in enumerate(changes):
            disk.follow(change)
            if index in points:
                assert_kept(root, workload.history, disk, random, change)
        return any(change.kind == "f" for change in changes)


@pytest.fixture
def failing(forked: Lives, tmp_path: Path) -> Iterator[Failing]:
    yield Failing(forked, tmp_path)
    shutil.rmtree(tmp_path)


@pytest.fixture(scope="module")
def some_faults() -> list[str]:
    return Random().sample(sorted(FAULTS), SOME)


@pytest.mark.parametrize("number", range(SOME))
def test_what_is_acknowledged_after_syncs_failed_in_an_earlier_life_is_there(
    failing: Failing, some_faults: list[str], number: int
) -> None:
    which = some_faults[number]
    assert failing.expect_kept([FAULTS[which], Life(2)], Random(which), states=2), which


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("which", FAULTS | OTHERS)
def test_so_it_is_in_many_states(failing: Failing, which: str, seed: int) -> None:
    # In the first life of a directory, and in a later one.
    failing.expect_kept(
        [*[Life(1)] * (seed % 2), (FAULTS | OTHERS)[which], Life(2)], Random(seed), states=6
    )


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100))
def test_so_it_is_after_any_lives(failing: Failing, seed: int) -> None:
    random = Random(seed)
    lives = [
        Life(
            random.choice((1, 2, 4, 12)),
            random.choice((LOG, LOG, DATABASE, HOLDS, "*")),
            random.choice((0, 0, random.randrange(100))),
            random.choice((1, 2, 4, ALWAYS)),
            random.choice(("start", "run", "last", "stop")),
            random.choice(("keyed", "plain")),
            random.choice(("stop", "kill")),
        )
        for _ in range(random.randint(1, 4))
    ]
    failing.expect_kept([*lives, Life(2)], random, states=6)


def test_a_first_start_that_cannot_sync_says_what_failed(failing: Failing) -> None:
    (said,) = failing.lives.run(Life(1, LOG, at="start", after=1), *begin(failing.directory))
    assert said.endswith("metadata failed: disk I/O error")


def test_a_stop_that_cannot_sync_says_so_and_loses_nothing(tmp_path: Path) -> None:
    environment, _ = recorder(tmp_path, tmp_path / "disk")
    failing = tmp_path / "failing"
    with server_process(
        tmp_path / "disk" / "data", environment={**environment, "FAILING": str(failing)}
    ) as server:
        with server.client() as client:
            create_topic(client, "t", ["n: int64"])
            push(client, "t", numbers(1))
        fail_calls(failing, DATABASE, count=ALWAYS)
        assert server.terminate() == 1
        assert "metadata is closed, and keeps its log: metadata failed: disk I/O error" in (
            server.stderr
        )
    with running_server(tmp_path / "disk" / "data") as again:
        assert get(again.client(), kind="scan", topic="t").column("n") == [1]
