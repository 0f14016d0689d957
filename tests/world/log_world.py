"""A world of one log: machines that crash, clients of random programs, and what must hold.

`run_world` has the command. Import this only where `world_threads.install` was called.
"""

import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

import world_threads
from history import History, Place
from power_loss import Disk, changes_of
from programs import TOPICS, Crash, Operation, Program
from world_clients import SCHEMA, Client, numbers_of, places_of
from world_threads import NEVER, Crashed, Life, Scheduler, Task
from world_wire import Wire

from wings_core import log as log_module
from wings_core.check import check_directory
from wings_core.data_directory import DataDirectory, Use
from wings_core.deployments import OneDirectory
from wings_core.errors import Unavailable
from wings_core.fetch.cursors import PartitionCursor
from wings_core.fetch.fetcher import Cancel, Read
from wings_core.limits import Limits
from wings_core.log import Log
from wings_core.metadata.remote import RemoteMetadata
from wings_core.metadata.sqlite import SqliteMetadata, connections, writer
from wings_core.model import TopicConfig
from wings_core.names import TopicName
from wings_core.storage import disk

LIMITS = Limits(
    segment_bytes_max=64 * 1024,
    inline_bytes_max=16 * 1024,
    flush_bytes_max=16 * 1024,
    maintenance_seconds=5.0,
    disk_free_bytes_min=0,
)
FLUSH_BYTES_MAX = 2 * 1024
"""Flushes of more go to segments at once."""

DOWN_SECONDS = (0.0, 3.0)
"""How long a machine that crashed stays down."""

FAULTS_SECONDS = 10.0
"""How long the wire fails, at least."""

LIVENESS_SECONDS = 120.0
"""Once faults have stopped, all clients are done within this time."""

LOOK_SECONDS = 0.1
"""How often the world looks whether a machine is down, and a client whether it is up."""


def shrink_bounds() -> None:
    """Make files and reserves of the product small: each world writes and copies them."""
    writer.WAL_BYTES_AHEAD = 32 * 1024
    disk.RESERVE_BYTES = 64 * 1024
    disk.RESERVE_STEP_BYTES = 16 * 1024
    connections.READERS_MAX = 2
    log_module.FLUSH_BYTES_MAX = FLUSH_BYTES_MAX  # pyright: ignore[reportPrivateImportUsage]


@dataclass(eq=False)
class Machine:
    """A process that serves: the log of a directory, a metadata service, or a node of one."""

    number: int
    directory: Path
    life: Life
    log: Log | None = None
    service: SqliteMetadata | None = None
    locked: list[DataDirectory] = field(default_factory=list[DataDirectory])

    @property
    def is_up(self) -> bool:
        """Whether it serves."""
        return not self.life.dead and (self.log or self.service) is not None


class Errors(logging.Handler):
    """Takes an unexpected failure that a part of the product logs for one of the world."""

    def __init__(self, world: Scheduler) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        """End the world by what is logged."""
        if not self._world.current.life.dead:
            error = AssertionError(f"logged: {record.getMessage()}")
            error.__cause__ = record.exc_info[1] if record.exc_info else None
            self._world.fail(error)


class World:
    """One world.

    Args:
        program: What clients do, and when machines crash.
        directory: Empty; written to.
        record: The record of `recorded_writes`, for losses of power; None: machines are killed.
        ready: What `prepare` has left for worlds like this one; None: nothing is there yet.
    """

    def __init__(
        self, program: Program, directory: Path, record: Path | None, ready: Path | None = None
    ) -> None:
        self.history = History()
        self.scheduler = Scheduler(program.schedule)
        self.has_nodes = program.nodes > 0
        self._program = program
        self._random = Random(program.schedule)
        self._root = directory
        self._record = record
        self._ready = ready
        self._recorded = 0
        """Bytes of the record that earlier lives wrote."""
        self._crashes = list(program.crashes)
        self._clients: list[Task] = []
        self._lives = 0
        self.doing: dict[int, tuple[Operation, int]] = {}
        """What each client does, and since when."""
        self.lookers: list[Task] = []
        """Clients that wait to look."""
        self._disk = Disk(directory, self._random)
        self.wire = Wire(self.scheduler, self._random)
        self._machines = [self._machine(number) for number in range(program.nodes + 1)]

    def run(self) -> None:
        """Run it to its end.

        Raises:
            AssertionError: Something that must hold does not.
        """
        self._run(self._main)

    def prepare(self) -> None:
        """Leave the topics, without rows, in the directory: most of the time a world takes."""
        self._run(self._prepare)

    def _run(self, main: Callable[[], None]) -> None:
        shrink_bounds()
        handler = Errors(self.scheduler)
        logging.getLogger().addHandler(handler)
        try:
            world_threads.run(self.scheduler, main)
        finally:
            logging.getLogger().removeHandler(handler)

    def up(self, number: int) -> Machine:
        """Return a machine with a log that is up, for a client; waits for one."""
        while True:
            logs = [each for each in self._machines if each.is_up and each.log is not None]
            if logs:
                return logs[number % len(logs)]
            world_threads.sleep(LOOK_SECONDS)

    def call_lookers(self) -> None:
        """Have clients look that wait to."""
        for task in self.lookers:
            self.scheduler.wake(task)
        self.lookers.clear()

    def _prepare(self) -> None:
        for machine in self._machines:
            self._start(machine)
        config = TopicConfig(tier_after_ms=0) if self._program.merges else None
        machine = self.up(0)
        with self.scheduler.calling(machine.life):
            assert machine.log is not None
            for name, key in TOPICS.items():
                machine.log.admin.create_topic(TopicName.parse(name), SCHEMA, key, config)
        self._stop()

    def _main(self) -> None:
        assert self._ready is not None
        shutil.copytree(self._ready, self._root, dirs_exist_ok=True)
        for machine in self._machines:
            self._start(machine)
        self.scheduler.at_point = self._crash_due
        self.scheduler.alarm = 0
        self.wire.fails = True
        for number, operations in enumerate(self._program.clients):
            if operations:
                self.doing[number] = operations[0], self.scheduler.now_ns
            work = partial(Client(self, number).run, operations)
            self._clients.append(self.scheduler.start(f"client {number}", work))
        quiet_ns = self.scheduler.now_ns
        while not all(client.life.dead for client in self._clients):
            world_threads.sleep(LOOK_SECONDS)
            if self._revive() or self._crashes or self.scheduler.now_ns < FAULTS_SECONDS * 1e9:
                quiet_ns = self.scheduler.now_ns
            else:
                self.wire.fails = False
            waited = (self.scheduler.now_ns - quiet_ns) / 1e9
            assert waited < LIVENESS_SECONDS, f"not done by {self.scheduler.now_ns}: {self.doing}"
        self._crashes.clear()
        self.wire.fails = False
        self._revive()
        self._end()

    # Machines. ####################################################################################

    def _machine(self, number: int) -> Machine:
        self._lives += 1
        return Machine(number, self._root / f"life{self._lives}", Life(f"life {self._lives}"))

    def _start(self, machine: Machine) -> None:
        """Start a machine; where it crashes meanwhile, it is down again."""
        if self._record is not None and not self._program.nodes:
            os.environ["RECORDED"] = str(machine.directory)
            self._recorded = self._record.stat().st_size if self._record.exists() else 0
            self._disk = Disk(machine.directory, self._random)
            self._disk.hold()
        nodes, is_service = self._program.nodes, machine.number == 0
        try:
            with self.scheduler.calling(machine.life):
                if nodes and is_service:
                    opened = self._open(machine, machine.directory, "metadata")
                    machine.service = SqliteMetadata(opened.metadata)
                    self.wire.serve(machine.service, machine.life)
                elif nodes:
                    opened = self._open(machine, self._root / "pages", "pages")
                    metadata = RemoteMetadata("service:1")
                    machine.log = Log.open(OneDirectory(opened, metadata), LIMITS)
                else:
                    opened = self._open(machine, machine.directory, "all")
                    machine.log = Log.open(OneDirectory(opened), LIMITS)
        except (Crashed, Unavailable):
            machine.life.dead = True

    def _open(self, machine: Machine, directory: Path, use: Use) -> DataDirectory:
        opened = DataDirectory.open(directory, use)
        machine.locked.append(opened)
        return opened

    def _revive(self) -> bool:
        """Start machines that are down, after a while; returns whether there was one."""
        down = [each for each in self._machines if each.life.dead]
        for machine in down:
            world_threads.sleep(self._random.uniform(*DOWN_SECONDS))
            following = self._machine(machine.number)
            if machine.directory.exists():
                (self._root / f"left{machine.directory.name}").rename(following.directory)
            self._machines[machine.number] = following
            self._start(following)
        return bool(down)

    def _crash_due(self) -> int:
        """Crash the machine that is to crash at this point; returns the point of the next."""
        while self._crashes and self._crashes[0].point <= self.scheduler.points:
            self._crash(self._crashes.pop(0))
        return self._crashes[0].point if self._crashes else NEVER

    def _crash(self, crash: Crash) -> None:
        machine = self._machines[crash.machine % len(self._machines)]
        if machine.life.dead:
            return
        for opened in machine.locked:
            opened.close()  # Its locks end with a process.
        if machine.directory.exists():
            self._leave(
                machine.directory, self._root / f"left{machine.directory.name}", crash.power
            )
        self.scheduler.crash(machine.life, [self.scheduler.main, *self._clients])
        self.wire.crash(machine.life)

    def _leave(self, directory: Path, left: Path, power: bool) -> None:
        """Make what a crash leaves of a directory: all that was written, or what was synced."""
        if self._record is None or not power:
            shutil.copytree(directory, left)
            return
        with self._record.open("rb") as record:
            record.seek(self._recorded)
            for change in changes_of(record.read()):
                self._disk.follow(change)
        self._disk.state(self._random, left)

    def _end(self) -> None:
        """Read everything on each machine, stop them, and check the directory."""
        for machine in self._machines:
            if machine.log is not None:
                with self.scheduler.calling(machine.life):
                    self.history.check(self._read_all(machine.log), self.scheduler.now_ns)
                    for consumer in sorted({name for name, _ in self.history.offered}):
                        stored = machine.log.registry.get_offsets(consumer)
                        self.history.see_offsets(consumer, places_of(stored))
        self._stop()
        directory = self._machines[0].directory
        if self._program.nodes:
            shutil.copytree(self._root / "pages", directory, dirs_exist_ok=True)
        problems = check_directory(directory).problems
        assert not problems, [str(each) for each in problems]

    def _stop(self) -> None:
        for machine in reversed(self._machines):
            with self.scheduler.calling(machine.life):
                if machine.log is not None:
                    machine.log.close()
                if machine.service is not None:
                    machine.service.close()

    def _read_all(self, log: Log) -> dict[Place, tuple[int, list[int]]]:
        found: dict[Place, tuple[int, list[int]]] = {}
        for name in TOPICS:
            topic = log.admin.get_topic(TopicName.parse(name))
            for state in log.registry.partition_states(topic.uuid):
                start, stop = state.log_start_offset, state.next_offset
                cursor = PartitionCursor(state.partition, start, stop)
                chunks = log.fetcher.scan(Read.of(topic, [cursor]), Cancel())
                rows = [number for each in chunks for number in numbers_of(each)]
                assert len(rows) == stop - start, f"{len(rows)} rows between {start} and {stop}"
                found[name, str(state.partition)] = start, rows
        return found
