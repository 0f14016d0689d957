"""A world of one log: machines that crash, clients of random programs, and what must hold.

`run_world` has the command. Import this only where `world_threads.install` was called.
"""

import itertools
import logging
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

import world_threads
from group_clients import committed_of
from group_history import GroupHistory
from group_machines import GroupLog, connect
from history import History, Place
from power_loss import Disk, changes_of, fail_calls
from programs import OUTPUTS, TOPICS, Crash, DiskFault, Operation, Program
from share_clients import LIMIT, ShareClient, config_of, ends_of, letters_of
from share_history import ShareHistory
from world_clients import SCHEMA, numbers_of, places_of
from world_threads import NEVER, Crashed, Life, Scheduler, Task
from world_wire import Wire

from wings_core import log as log_module
from wings_core.check import check_directory
from wings_core.data_directory import DataDirectory, Use
from wings_core.deployments import OneDirectory
from wings_core.errors import Internal, ResourceExhausted, Unavailable
from wings_core.fetch.cursors import PartitionCursor
from wings_core.fetch.fetcher import Cancel, Read
from wings_core.limits import Limits
from wings_core.log import Log
from wings_core.metadata.remote import RemoteMetadata
from wings_core.metadata.sqlite import SqliteMetadata, connections, writer
from wings_core.model import TopicConfig
from wings_core.names import TopicName
from wings_core.storage import disk
from wings_core.storage.lru import Lru
from wings_server.logs import route_to_logging

LIMITS = Limits(
    segment_bytes_max=64 * 1024,
    inline_bytes_max=16 * 1024,
    flush_bytes_max=16 * 1024,
    maintenance_seconds=5.0,
    disk_free_bytes_min=0,
    memory_bytes_max=256 * 1024 * 1024,
)
FLUSH_BYTES_MAX = 2 * 1024
"""Flushes of more go to segments at once."""

DOWN_SECONDS = (0.0, 3.0)
"""How long a machine that crashed stays down."""

FAULTS_SECONDS = 10.0
"""How long the wire fails, at least."""

DISK_SECONDS = 45.0
"""How long after disks failed the log may still say so."""

CLOCK_SECONDS = (0.0, 0.0, 0.0, -7_200.0, -60.0, 60.0, 7_200.0)
"""How far the clock of a process may be ahead of another's."""

LIVENESS_SECONDS = 300.0
"""Once faults have stopped, all clients are done within this time; a publish whose answer was lost
waits for it up to 120 s."""

LOOK_SECONDS = 0.3
"""How often the world looks whether a machine is down, and a client whether it is up."""


def _copy(directory: Path, to: Path) -> None:
    """Copy the files of a directory; their modes and times would take twice as long."""
    shutil.copytree(directory, to, copy_function=shutil.copyfile, dirs_exist_ok=True)


def shrink_bounds() -> None:
    """Make files and reserves of the product small: each world writes and copies them."""
    writer.WAL_BYTES_AHEAD = 32 * 1024
    disk.RESERVE_BYTES = 64 * 1024
    disk.RESERVE_STEP_BYTES = 16 * 1024
    connections.READERS_MAX = 2
    log_module.FLUSH_BYTES_MAX = FLUSH_BYTES_MAX  # pyright: ignore[reportPrivateImportUsage]


_CACHES = [
    each
    for name, module in tuple(sys.modules.items())
    if name.partition(".")[0] in world_threads.PACKAGES
    for each in vars(module).values()
    if isinstance(each, Lru)
]
"""What the product's modules remember; other worlds in this process have left something there."""


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

    def __init__(self, world: Scheduler, is_expected: Callable[[], bool]) -> None:
        super().__init__(logging.ERROR)
        self._world = world
        self._is_expected = is_expected

    def emit(self, record: logging.LogRecord) -> None:
        """End the world by what is logged."""
        if not (self._world.current.life.dead or self._is_expected()):
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
        self.groups = GroupHistory()
        self.share_config = config_of(program.shares)
        self.shares = ShareHistory(LIMIT, self.share_config.is_ordered)
        self.scheduler = Scheduler(program.schedule)
        self.schedule = program.schedule
        self.has_nodes = program.nodes > 0
        self._program = program
        self._random = Random(program.schedule)
        self._root = directory
        self._record = record
        self._ready = ready
        self._recorded = record.stat().st_size if record is not None and record.exists() else 0
        """Bytes of the record that the disks have followed."""
        self._faults: list[Crash | DiskFault] = sorted(
            [*program.crashes, *program.disk_faults], key=lambda each: each.point
        )
        self._failing = directory.with_name("failing")
        self._failing_until_ns = -NEVER
        self._clients: list[Task] = []
        self._at_work = 0
        """Clients that are not done."""
        self._lives = 0
        self.doing: dict[int, tuple[Operation, int]] = {}
        """What each client does, and since when."""
        self.lookers: list[Task] = []
        """Clients that wait to look."""
        self._disks: dict[Path, Disk] = {}
        """What may be durable of each directory."""
        self.wire = Wire(self.scheduler, self._random)
        self._machines = [self._machine(number) for number in range(program.nodes + 1)]
        connect(self)

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
        route_to_logging()  # So that `Errors` takes the entries of the server, too.
        for cache in _CACHES:
            cache.clear()
        handler = Errors(self.scheduler, lambda: self.disk_fails)
        logging.getLogger().addHandler(handler)
        try:
            world_threads.run(self.scheduler, main)
        finally:
            logging.getLogger().removeHandler(handler)
            for life in (self.scheduler.outside, *(each.life for each in self._machines)):
                life.dead = True  # No other world in this process wakes its threads.

    @property
    def disk_fails(self) -> bool:
        """Whether disks fail, or did a short while ago."""
        return self.scheduler.now_ns < self._failing_until_ns + int(DISK_SECONDS * 1e9)

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

    def machine(self, number: int) -> Machine:
        """Return a machine by its number, up or not."""
        return self._machines[number]

    def _prepare(self) -> None:
        for machine in self._machines:
            self._start(machine)
        config = TopicConfig(tier_after_ms=0) if self._program.merges else None
        machine = self.up(0)
        with self.scheduler.calling(machine.life):
            assert machine.log is not None
            for name, key in {**TOPICS, **OUTPUTS}.items():
                machine.log.admin.create_topic(TopicName.parse(name), SCHEMA, key, config)
        self._stop()

    def _main(self) -> None:
        assert self._ready is not None
        _copy(self._ready, self._root)
        if self._record is not None:
            os.environ["RECORDED"] = str(self._root)
            os.environ["RECORD"] = str(self._record)
        self._end_record()
        self._hold(self._root / "pages")
        for machine in self._machines:
            self._start(machine)
        self.scheduler.alarm(self._fail_due)
        self.wire.fails = True
        for number, operations in enumerate(self._program.clients):
            if operations:
                self.doing[number] = operations[0], self.scheduler.now_ns
            work = partial(self._work, ShareClient(self, number), operations)
            self._at_work += 1
            self._clients.append(self.scheduler.start(f"client {number}", work))
        quiet_ns = self.scheduler.now_ns
        while self._at_work:
            world_threads.sleep(LOOK_SECONDS)
            if self.scheduler.now_ns >= self._failing_until_ns:
                self._mend_disks()
            is_faulty = "FAILING" in os.environ or self.scheduler.now_ns < FAULTS_SECONDS * 1e9
            if self._revive() or self._faults or is_faulty:
                quiet_ns = self.scheduler.now_ns
            else:
                self.wire.fails = False
            waited = (self.scheduler.now_ns - quiet_ns) / 1e9
            assert waited < LIVENESS_SECONDS, f"not done by {self.scheduler.now_ns}: {self.doing}"
        self._faults.clear()
        self._mend_disks()
        self.wire.fails = False
        while self._revive():
            pass
        self._end()

    def _work(self, client: ShareClient, operations: Sequence[Operation]) -> None:
        client.run(operations)
        self._at_work -= 1

    def _mend_disks(self) -> None:
        if os.environ.pop("FAILING", None) is not None:
            self._failing.unlink()

    # Machines. ####################################################################################

    def _machine(self, number: int) -> Machine:
        self._lives += 1
        clock_ns = int(self._random.choice(CLOCK_SECONDS) * 1e9)
        life = Life(f"life {self._lives}", clock_ns=clock_ns)
        return Machine(number, self._root / f"life{self._lives}", life)

    def _start(self, machine: Machine) -> None:
        """Start a machine; where it crashes meanwhile, it is down again."""
        if machine.directory.exists():
            self._hold(machine.directory)
        nodes, is_service = self._program.nodes, machine.number == 0
        if is_service or not nodes:
            self.groups.opened.append(self.scheduler.now_ns)
        try:
            with self.scheduler.calling(machine.life):
                if nodes and is_service:
                    opened = self._open(machine, machine.directory, "metadata")
                    machine.service = SqliteMetadata(opened.metadata)
                    self.wire.serve(machine.service, machine.life)
                elif nodes:
                    opened = self._open(machine, self._root / "pages", "pages")
                    metadata = RemoteMetadata("service:1")
                    self._serve(machine, OneDirectory(opened, metadata))
                else:
                    opened = self._open(machine, machine.directory, "all")
                    self._serve(machine, OneDirectory(opened))
        except Crashed:
            pass
        except (Unavailable, Internal, ResourceExhausted, OSError):
            assert self.disk_fails or nodes
            self._crash([machine], power=False)

    def _serve(self, machine: Machine, deployment: OneDirectory) -> None:
        if not self._program.groups:
            machine.log = Log.open(deployment, LIMITS)
            return
        log = GroupLog.open(deployment, LIMITS)
        log.serve(self, machine.number, machine.life.name)
        machine.log = log

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
            left = self._left(machine.directory)
            if left.exists():
                left.rename(following.directory)
                self._disks.pop(machine.directory, None)
            self._machines[machine.number] = following
            self._start(following)
        return bool(down)

    def _fail_due(self) -> int:
        """Have happen what is to at this point; returns the point of the next fault."""
        while self._faults and self._faults[0].point <= self.scheduler.points:
            fault = self._faults.pop(0)
            if isinstance(fault, Crash):
                nodes = self._machines[1:]
                number = fault.machine % len(self._machines)
                is_of_all = fault.power and number > 0
                self._crash(nodes if is_of_all else [self._machines[number]], power=fault.power)
            elif self._record is not None:
                until_ns = self.scheduler.now_ns + fault.milliseconds * 10**6
                self._failing_until_ns = max(self._failing_until_ns, until_ns)
                os.environ["FAILING"] = str(self._failing)  # Not before: it takes time.
                fail_calls(
                    self._failing,
                    fault.ending,
                    kind=fault.kind,
                    after=fault.after,
                    count=fault.calls,
                )
        self._end_record()
        return self._faults[0].point if self._faults else NEVER

    def _crash(self, machines: Sequence[Machine], *, power: bool) -> None:
        """End processes; where power is lost, so is what was not synced."""
        machines = [each for each in machines if not each.life.dead]
        for machine in machines:
            for opened in machine.locked:
                opened.close()  # Its locks end with a process.
            if machine.directory.exists():
                self._leave(machine.directory, self._left(machine.directory), power)
            self.scheduler.crash(machine.life, [self.scheduler.main, *self._clients])
            self.wire.crash(machine.life)
        pages = self._root / "pages"
        if power and self._program.nodes and machines and machines[0].number:
            left = self._left(pages)
            self._leave(pages, left, power)
            pages.rename(self._root.with_name(f"pages before {self.scheduler.points}"))
            left.rename(pages)
            self._hold(pages)

    def _left(self, directory: Path) -> Path:
        """Return where to put what a crash leaves of a directory: it is not recorded there."""
        return self._root.with_name(f"left of {directory.name}")

    @property
    def _is_recorded(self) -> bool:
        """Whether power is still to be lost, and so what is done to files recorded."""
        losses = (each for each in self._faults if isinstance(each, Crash) and each.power)
        return self._record is not None and next(losses, None) is not None

    def _end_record(self) -> None:
        """Record no more once power is not to be lost: it takes time."""
        if not self._is_recorded:
            os.environ.pop("RECORD", None)
            self._disks.clear()

    def _hold(self, directory: Path) -> None:
        """Take what a directory has now for durable, and follow what is done to it."""
        if self._is_recorded and directory.exists():
            self._follow()
            self._disks[directory] = Disk(directory, self._random)
            self._disks[directory].hold()

    def _follow(self) -> None:
        """Have disks follow what was done since the last time."""
        if self._record is None or not self._record.exists():
            return
        with self._record.open("rb") as record:
            record.seek(self._recorded)
            raw = record.read()
        self._recorded += len(raw)
        disks = [(f"{directory}/", followed) for directory, followed in self._disks.items()]
        for change in changes_of(raw):
            path = f"{change.path}/"
            for prefix, followed in disks:
                if path.startswith(prefix):
                    followed.follow(change)

    def _leave(self, directory: Path, left: Path, power: bool) -> None:
        """Make what a crash leaves of a directory: all that was written, or what was synced."""
        if self._record is None or not power:
            _copy(directory, left)
            return
        self._follow()
        self._disks[directory].state(self._random, left)

    def _end(self) -> None:
        """Read everything on each machine, stop them, and check the directory."""
        for machine in self._machines:
            if machine.log is not None:
                with self.scheduler.calling(machine.life):
                    self.history.check(self._read_all(machine.log), self.scheduler.now_ns)
                    for consumer in sorted({name for name, _ in self.history.offered}):
                        stored = machine.log.registry.get_offsets(consumer)
                        self.history.see_offsets(consumer, places_of(stored))
                    self.groups.check(self.history, partial(committed_of, machine.log))
                    if self._program.shares:
                        letters = letters_of(machine.log) if self.share_config.dlq_topic else None
                        self.shares.check(ends_of(machine.log), letters)
        self._stop()
        directory = self._machines[0].directory
        if self._program.nodes:
            _copy(self._root / "pages", directory)
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
        for name in self._program.topics:
            topic = log.admin.get_topic(TopicName.parse(name))
            states = log.registry.partition_states(topic.uuid)
            cursors = [
                PartitionCursor(each.partition, each.log_start_offset, each.next_offset)
                for each in states
            ]
            starts = {(name, str(each.partition)): each.log_start_offset for each in states}
            found |= {place: (start, []) for place, start in starts.items()}
            for chunk in log.fetcher.scan(Read.of(topic, cursors), Cancel()):
                numbers = iter(numbers_of(chunk))
                for partition, first, _, count in chunk.ranges:
                    start, rows = found[name, str(partition)]
                    assert first == start + len(rows), f"{first} of {partition} after {len(rows)}"
                    rows += itertools.islice(numbers, count)
                assert next(numbers, None) is None, f"{chunk.ranges} are not all of a chunk"
            for each in states:
                start, rows = found[name, str(each.partition)]
                assert start + len(rows) == each.next_offset, f"{len(rows)} rows from {start} on"
        return found
