"""Runs worlds: `python tests/world/run_world.py --seed 7`, or `--seeds 0 1000`.

Some worlds run one after another in a fork of a process that has imported the product, and as many
forks at a time as there are cores. A world that fails, hangs or ends its process runs again in a
fork of its own, as all do that are made smaller; what it does there counts. The same seed is the
same world, after others too: power is only lost where there is a C compiler for the recorder of
writes, and processes are killed elsewhere.
"""

import argparse
import faulthandler
import gc
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "integration")]

import world_threads  # noqa: E402
from power_loss import COMPILER, recorder  # noqa: E402
from programs import NODES, Program, shrink  # noqa: E402

SECONDS_MAX = 120
"""Real time of a world, after which it prints all stacks and ends."""

WORLDS_EACH = 40
"""Worlds of a fork: one that runs alone spends a fifth of its time on copies of memory."""

SHRINK_TRIES = 150

MEMORY = "/dev/shm"
"""Where worlds write, if it is there: their syncs cost nothing."""


class Result(NamedTuple):
    """What came of a world."""

    trace: str
    """Tells whether two runs were the same; empty where the process ended."""
    error: str
    """Empty where all held."""

    @property
    def place(self) -> str:
        """Where it failed, by which failures are told apart; empty where all held."""
        lines = [line for line in self.error.splitlines() if line.startswith("  File ")]
        return lines[-1] if lines else self.error


def run(program: Program, plant: Callable[[], None] = lambda: None) -> Result:
    """Run a world in a process of its own.

    Args:
        program: What happens.
        plant: Called before the world: plants a bug.
    """
    return next(run_all([program], plant))


def run_all(
    programs: Iterable[Program], plant: Callable[[], None] = lambda: None, processes: int = 1
) -> Iterator[Result]:
    """Yield the results of worlds, in order, some processes at a time; arguments as of `run`."""
    programs = list(programs)
    firsts = deque(range(0, len(programs), WORLDS_EACH))
    forks: deque[_Fork] = deque()
    while firsts or forks:
        if forks and forks[0].process in _ended:
            yield from _results(forks.popleft(), plant)
        elif firsts and sum(fork.process not in _ended for fork in forks) < processes:
            first = firsts.popleft()
            forks.append(_fork(programs[first : first + WORLDS_EACH], plant))
        else:
            process, status = os.wait()
            _ended[process] = os.waitstatus_to_exitcode(status)


class _Fork(NamedTuple):
    """A process that runs worlds, up to the first that fails."""

    programs: Sequence[Program]
    process: int
    directory: Path

    @property
    def answer(self) -> Path:
        """The file of its results, a line each."""
        return self.directory / "results"


_ended: dict[int, int] = {}
"""Status of each process that has ended, until its results are taken."""


def _fork(programs: Sequence[Program], plant: Callable[[], None]) -> _Fork:
    fork = _Fork(programs, 0, Path(tempfile.mkdtemp(prefix="wings-world-")))
    child = os.fork()
    if child:
        return fork._replace(process=child)
    status = 1
    try:
        # A thread that is woken does not interrupt the one that wakes it, to wait for it at once.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        gc.disable()  # It would touch, and so copy, the memory of all that was imported.
        sys.unraisablehook = _note_unraisable
        plant()
        with fork.answer.open("w") as answer:
            for number, program in enumerate(programs):
                faulthandler.dump_traceback_later(SECONDS_MAX, exit=True)
                result = _run(program, fork.directory, number)
                answer.write(json.dumps(result) + "\n")
                answer.flush()  # A world that hangs ends the process.
                if result.error:
                    break
        status = 0
    except BaseException:  # noqa: BLE001 - this process ends here
        traceback.print_exc()
    finally:
        os._exit(status)


def _note_unraisable(raised: Any) -> None:
    """Print an error that cannot be raised, but for the end of a life in a generator's own."""
    if not isinstance(raised.exc_value, world_threads.Crashed):
        sys.__unraisablehook__(raised)


def _results(fork: _Fork, plant: Callable[[], None]) -> Iterator[Result]:
    """Yield the results of a process that has ended; the rest of its worlds run now."""
    end = f"its process ended with {_ended.pop(fork.process)}"
    lines = fork.answer.read_text().splitlines() if fork.answer.exists() else []
    shutil.rmtree(fork.directory)
    found = [Result(*json.loads(line)) for line in lines]
    done = [each for each in found if not each.error]
    yield from done
    if len(done) < len(fork.programs):
        failed = Result("", end) if len(done) == len(found) else found[-1]
        alone = run(fork.programs[len(done)], plant) if done else failed
        yield alone if alone.error else Result("", f"only after other worlds: {failed.error}")
        yield from run_all(fork.programs[len(done) + 1 :], plant)


def _run(program: Program, directory: Path, number: int) -> Result:
    from log_world import World

    record = directory / "record" if "LD_PRELOAD" in os.environ else None
    root = directory / f"world{number}" / "root"
    root.mkdir(parents=True)
    world, error = World(program, root, record, _ready(program.nodes, program.merges)), ""
    try:
        world.run()
    except BaseException as failed:  # noqa: BLE001 - told by the result
        error = "".join(traceback.format_exception(failed))
    scheduler = world.scheduler
    trace = f"{scheduler.trace:08x} {scheduler.points} {scheduler.now_ns} {world.history.reads}"
    return Result(trace, error)


def _ready(nodes: int, merges: bool) -> Path:
    """Return the directory of what a kind of world begins with."""
    return Path(tempfile.gettempdir(), f"ready {nodes} {merges}")


def _prepare() -> None:
    """Make what worlds begin with, and have caches filled: each would do so on its own."""
    from log_world import World

    for nodes, merges in itertools.product((0, NODES), (False, True)):
        ready = _ready(nodes, merges)
        ready.mkdir()
        program = Program.all_of(nodes, merges)
        World(program, ready, None).prepare()
        with tempfile.TemporaryDirectory() as directory:
            World(program, Path(directory), None, ready).run()


def _say(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _fails_alike(place: str, program: Program) -> bool:
    return run(program).place == place


def _run_seeds(seeds: Iterable[int], processes: int, *, smaller: bool) -> int:
    failed = 0
    seeds = list(seeds)
    results = run_all(map(Program.of, seeds), processes=processes)
    for seed, result in zip(seeds, results, strict=True):
        _say(f"seed {seed}: {result.error or result.trace}")
        if result.error:
            failed += 1
            if smaller:
                _say(shrink(Program.of(seed), partial(_fails_alike, result.place), SHRINK_TRIES))
    return failed


def _run_planted(name: str, seeds: Iterable[int]) -> int:
    """Find bugs whose names have a text; returns how many were not found."""
    from planted import BUGS, FOUND_BY

    missed = 0
    for bug, planted in BUGS.items():
        if name not in bug:
            continue
        planted.made()  # Raises here where it cannot be planted: in a world that would be a find.
        tried = [FOUND_BY[bug]] if bug in FOUND_BY else []
        tried = [*tried, *seeds]
        results = run_all(map(Program.of, tried), planted.plant)
        found = zip(tried, results, strict=True)
        seed = next((each for each, result in found if result.error), None)
        missed += seed is None
        _say(f"{bug}: {seed}")
    return missed


def main() -> int:
    """Run what the command line names; returns 1 where a world failed, or a bug was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, action="append", default=[])
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 0), metavar=("FIRST", "END"))
    parser.add_argument("--no-shrink", action="store_true")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--processes", type=int, default=cores, help="at a time, for seeds")
    parser.add_argument("--plant", metavar="NAME", help="plant each bug whose name has this text")
    given = parser.parse_args()
    if "PYTHONHASHSEED" not in os.environ:
        return _prepared()
    for name in ("grpc", "pyarrow.dataset"):
        import_module(name)  # Before the product, and so not simulated.
    world_threads.install()
    import_module("log_world")  # Once, for all worlds.
    _prepare()

    seeds = [*given.seed, *range(*given.seeds)]
    if given.plant is not None:
        return _run_planted(given.plant, seeds) > 0
    return _run_seeds(seeds, given.processes, smaller=not given.no_shrink) > 0


def _prepared() -> int:
    """Run this command with the recorder of writes, and sets in the same order each time."""
    where = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="wings-worlds-", dir=where) as directory:
        environment = {**os.environ, "PYTHONHASHSEED": "0", "TMPDIR": directory}
        environment["MALLOC_ARENA_MAX"] = "1"  # One thread runs at a time, and none fills its own.
        if COMPILER is not None:
            environment |= recorder(Path(directory), Path(directory) / "none")[0]
        return subprocess.run([sys.executable, *sys.argv], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
