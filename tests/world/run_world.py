"""Runs worlds: `python tests/world/run_world.py --seed 7`, or `--seeds 0 1000`.

Each world runs in a fork of a process that has imported the product, so that all begin the same,
and one that hangs or ends its process is a failure like others. A world that fails is made smaller,
and printed. The same seed is the same world: power is only lost where there is a C compiler for the
recorder of writes, and processes are killed elsewhere.
"""

import argparse
import faulthandler
import gc
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "integration")]

import world_threads  # noqa: E402
from power_loss import COMPILER, recorder  # noqa: E402
from programs import NODES, Program, shrink  # noqa: E402

SECONDS_MAX = 120
"""Real time of a world, after which it prints all stacks and ends."""

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
    directory = Path(tempfile.mkdtemp(prefix="wings-world-"))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            faulthandler.dump_traceback_later(SECONDS_MAX, exit=True)
            with os.fdopen(writing, "wb") as answer:
                answer.write("\0".join(_run(program, directory, plant)).encode())
            status = 0
        except BaseException:  # noqa: BLE001 - this process ends here
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        text = answer.read().decode()
    _, status = os.waitpid(child, 0)
    shutil.rmtree(directory)
    if status:
        return Result("", f"its process ended with {os.waitstatus_to_exitcode(status)}")
    return Result(*text.split("\0"))


def _run(program: Program, directory: Path, plant: Callable[[], None]) -> Result:
    from log_world import World

    gc.disable()  # It would touch, and so copy, the memory of all that was imported.
    plant()
    record = None
    if "LD_PRELOAD" in os.environ:
        record = directory / "record"
        os.environ["RECORD"] = str(record)
    root = directory / "world"
    root.mkdir()
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


def _run_seeds(seeds: Iterable[int], *, smaller: bool) -> int:
    failed = 0
    for seed in seeds:
        program = Program.of(seed)
        result = run(program)
        _say(f"seed {seed}: {result.error or result.trace}")
        if result.error:
            failed += 1
            if smaller:
                _say(shrink(program, partial(_fails_alike, result.place), SHRINK_TRIES))
    return failed


def _run_planted(name: str, seeds: Iterable[int]) -> int:
    """Find bugs whose names have a text; returns how many were not found."""
    from planted import BUGS, FOUND_BY

    missed = 0
    for bug, planted in BUGS.items():
        if name not in bug:
            continue
        tried = [FOUND_BY[bug]] if bug in FOUND_BY else []
        fails = (each for each in [*tried, *seeds] if run(Program.of(each), planted.plant).error)
        seed = next(fails, None)
        missed += seed is None
        _say(f"{bug}: {seed}")
    return missed


def main() -> int:
    """Run what the command line names; returns 1 where a world failed, or a bug was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, action="append", default=[])
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 0), metavar=("FIRST", "END"))
    parser.add_argument("--no-shrink", action="store_true")
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
    return _run_seeds(seeds, smaller=not given.no_shrink) > 0


def _prepared() -> int:
    """Run this command with the recorder of writes, and sets in the same order each time."""
    where = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="wings-worlds-", dir=where) as directory:
        environment = {**os.environ, "PYTHONHASHSEED": "0", "TMPDIR": directory}
        if COMPILER is not None:
            environment |= recorder(Path(directory), Path(directory) / "none")[0]
        return subprocess.run([sys.executable, *sys.argv], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
