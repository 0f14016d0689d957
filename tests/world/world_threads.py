"""Threads and clocks of a simulated world: one thread runs at a time, and a seed decides which.

The modules of the product are imported with other `threading`, `time`, `queue`,
`concurrent.futures`, `random`, `secrets` and `uuid` than those of the standard library; nothing of
the product is changed for it. Its threads are greenlets of one thread of the operating system: all
but one stand still until the scheduler hands them the turn. Turns change where a thread takes or
releases a lock, waits, sleeps, begins or ends. The clock is virtual: it moves a microsecond at each
such point, to the next timer where no thread can run, and now and then by a stall while others
could.

A part of the world that crashes is a `Life`: its own threads never run again, and callers in it
get `Crashed`. What is below the interpreter stays real: SQLite, pyarrow, the file system.
"""

import _thread
import builtins
import heapq
import importlib.util
import itertools
import math
import queue
import random
import secrets
import sys
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Generator, Sequence
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

from greenlet import getcurrent, greenlet

PACKAGES = ("wings_core", "wings_server")
"""Import packages that are simulated."""

EPOCH_NS = 1_800_000_000 * 10**9
"""Time of day when a world begins."""

POINT_NS = 1_000
"""Virtual time of a step from one scheduling point to the next."""

POINTS_MAX = 300_000
"""Scheduling points of a world; one that has more makes no progress."""

NEVER = 1 << 62
"""A point, or a time, that no world comes to."""

STALL_SECONDS_MAX = 4.0
"""Longest stall: shorter than leases and sessions of the product, longer than its pauses."""


class Crashed(BaseException):
    """Raised in a caller whose callee has crashed."""


class StuckError(AssertionError):
    """No thread can run and no timer is set, or the world makes no progress."""


@dataclass(eq=False)
class Life:
    """A process that may crash; the threads that it starts belong to it."""

    name: str
    dead: bool = False
    clock_ns: int = 0
    """How far its clock of the time of day is ahead."""


@dataclass(eq=False)
class Task:
    """One thread."""

    number: int
    name: str
    life: Life
    greenlet: greenlet
    woken: bool = True
    """Whether it can run; False: it waits for a lock or a timer."""
    waits: int = 0
    """How often it has waited: tells a timer that is out of date."""


_parked: set[greenlet] = set()
"""Threads that have not ended: one that is forgotten would run on, by an error raised in it."""


class Scheduler:
    """Runs one world; its calling thread is the first task.

    Args:
        seed: Decides every choice.

    Attributes:
        now_ns: The monotonic clock, in nanoseconds.
        points: Scheduling points so far.
        trace: Checksum of all choices so far.
        stalled_ns: Time that stalls took so far.
    """

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self.now_ns = 10**9
        self.points = self.trace = self.stalled_ns = 0
        # Logarithms of the chance that nothing happens at a point.
        self._switches = math.log(1 - self.random.choice((0.02, 0.1, 0.3, 0.7)))
        self._stalls = math.log(1 - self.random.choice((0.0, 0.0, 0.0002, 0.002)))
        self._numbers = itertools.count()
        self._ready: list[Task] = []
        self._timers: list[tuple[int, int, int, Task]] = []
        self.outside = Life("the world")
        self.current = Task(next(self._numbers), "main", self.outside, getcurrent())
        self.failure: BaseException | None = None
        self.blocked: dict[Task, Lock] = {}
        """The lock that each task waits for."""
        self.main = self.current
        self._stall_at = self._after(self._stalls)
        self._switch_at = self._after(self._switches)
        self._rare_at = self._eventful = 0
        self._due_ns = NEVER
        """The first timer."""
        self._alarm = NEVER
        self._at_point: Callable[[], int] = lambda: NEVER

    def alarm(self, at_point: Callable[[], int]) -> None:
        """Call a function soon, and at each point that it returns; it may crash lives."""
        self._at_point = at_point
        self._alarm = self._rare_at = 0

    # Called by the task whose turn it is.

    def point(self) -> None:
        """Let other threads run, perhaps; raises `Crashed` where the caller's life has ended."""
        task = self.current
        if task.life.dead:
            raise Crashed
        self.points = points = self.points + 1
        self.now_ns = now_ns = self.now_ns + POINT_NS
        if points >= self._eventful or now_ns >= self._due_ns:
            self._act(task, points)

    def _act(self, task: Task, point: int) -> None:
        """Do what is due at this point: crash, stall, wake threads, or hand the turn over."""
        if point >= self._rare_at:
            self._act_rarely(point)
        if self.now_ns >= self._due_ns:
            self._wake_due()
        if point >= self._switch_at:
            self._switch_at = switch_at = self._after(self._switches)
            rare_at = self._rare_at
            self._eventful = switch_at if switch_at < rare_at else rare_at
            if self._ready:
                self._ready.append(task)
                self._switch()
        self._check(task)

    def _act_rarely(self, point: int) -> None:
        """Do what few points have: a crash, a stall, or the end."""
        if point > POINTS_MAX and self.failure is None:
            self.fail(StuckError(f"{POINTS_MAX} points passed: {self._where()}"))
        if point >= self._alarm:
            self._alarm = self._at_point()
        if point >= self._stall_at:
            self.stall(self.random.uniform(0, STALL_SECONDS_MAX))
            self._stall_at = self._after(self._stalls)
        self._plan()

    def _plan(self) -> None:
        """Note the next points at which something happens."""
        self._rare_at = min(self._alarm, self._stall_at, POINTS_MAX + 1)
        self._eventful = min(self._rare_at, self._switch_at)

    def _after(self, log_none: float) -> int:
        """Draw the next point at which something happens that has a chance at each."""
        if not log_none:
            return NEVER
        return self.points + 1 + int(math.log(1 - self.random.random()) / log_none)

    def stall(self, seconds: float) -> None:
        """Let time pass, as where a process is stopped for a while."""
        self.now_ns += int(seconds * 1e9)
        self.stalled_ns += int(seconds * 1e9)

    def wait(self, until_ns: int | None) -> None:
        """Block until `wake`, or a time; raises as `point`."""
        task = self.current
        self._check(task)
        task.woken = False
        task.waits += 1
        if until_ns is not None:
            entry = (max(until_ns, self.now_ns), next(self._numbers), task.waits, task)
            heapq.heappush(self._timers, entry)
            self._due_ns = self._timers[0][0]
        self._switch()
        self._check(task)

    def wake(self, task: Task) -> None:
        """Let a task that waits run again."""
        if not task.woken and not task.life.dead:
            task.woken = True
            self._ready.append(task)

    def start(self, name: str, run: Callable[[], None], life: Life | None = None) -> Task:
        """Begin a thread; by default, of the caller's life."""
        made = greenlet(lambda *_: self._serve(task, run), self.main.greenlet)
        task = Task(next(self._numbers), name, life or self.current.life, made)
        _parked.add(made)
        self._ready.append(task)
        return task

    def fail(self, error: BaseException) -> None:
        """End the world: the main task gets the error, and no other runs again."""
        if self.failure is None:
            self.failure = error
        self._ready = [self.main]
        self._timers.clear()
        self._due_ns = NEVER
        self.main.woken = True
        if self.current is not self.main:
            self.current.life = Life("ended", dead=True)

    @contextmanager
    def calling(self, life: Life) -> Generator[None]:
        """Run the block within a life; raises `Crashed` where it ends meanwhile."""
        task = self.current
        before, task.life = task.life, life
        try:
            yield
        except BaseException as error:
            if life.dead:  # Whatever came of the locks that it held.
                raise Crashed from error
            raise
        finally:
            task.life = before

    def crash(self, life: Life, tasks: Sequence[Task]) -> None:
        """End a life: its threads never run again; callers among the tasks get `Crashed`."""
        life.dead = True
        for task, lock in self.blocked.items():
            if not lock.locked():
                self.wake(task)
        self._ready = [task for task in self._ready if task.life is not life or task in tasks]
        for task in tasks:
            if task.life is life and not task.woken:
                task.woken = True
                self._ready.append(task)

    # Inside.

    def _where(self) -> str:
        waiting = {task.name for *_, task in self._timers if not task.woken}
        return f"{self.current.name} runs, {sorted(waiting)} wait for timers"

    def _wake_due(self) -> None:
        while self._timers and self._timers[0][0] <= self.now_ns:
            *_, waits, task = heapq.heappop(self._timers)
            if task.waits == waits:
                self.wake(task)
        self._due_ns = self._timers[0][0] if self._timers else NEVER

    def _next(self) -> Task:
        while True:
            if self.now_ns >= self._due_ns:
                self._wake_due()
            ready = self._ready
            if ready:
                # The order of those that stay does not matter: each draw is over all of them.
                index = int(self.random.random() * len(ready))
                ready[index], ready[-1] = ready[-1], ready[index]
                task = ready.pop()
                if task.life.dead and not task.woken:
                    continue
                return task
            if not self._timers:
                self.fail(StuckError("no thread can run, and no timer is set"))
                continue
            self.now_ns = max(self.now_ns, self._timers[0][0])

    def _serve(self, task: Task, run: Callable[[], None]) -> None:
        """Run a task to its end, which goes on with that whose turn is next."""
        try:
            run()
        except Crashed:
            pass
        except BaseException as error:  # noqa: BLE001 - the world ends by it
            if not task.life.dead:
                self.fail(error)
        task.woken = False
        task.life = Life("ended", dead=True)  # Nothing wakes it any more.
        _parked.remove(task.greenlet)
        task.greenlet.parent = self._hand_over().greenlet

    def _hand_over(self) -> Task:
        """Give the turn to a task that can run; returns it."""
        self.current = task = self._next()
        self.trace = zlib.crc32(b"%d %d" % (task.number, self.now_ns), self.trace)
        return task

    def _switch(self) -> None:
        before, task = self.current, self._hand_over()
        if task is not before:
            task.greenlet.switch()

    def _check(self, task: Task) -> None:
        if task is self.main and self.failure is not None:
            raise self.failure
        if task.life.dead:
            raise Crashed


_IMPORTS = Life("imports")

world: Scheduler | None = None
"""The world that runs; None while modules are imported, which no thread does at once."""


_objects = itertools.count()
"""Numbers of threads and futures."""


def run(scheduler: Scheduler, main: Callable[[], None]) -> None:
    """Run a world on the calling thread; its threads stay parked for ever where it fails."""
    global world, _objects
    world, _objects = scheduler, itertools.count()
    try:
        main()
    finally:
        world = None
    if scheduler.failure is not None:
        raise scheduler.failure


# The standard library over the scheduler. #########################################################


class Lock:
    """A lock as `_thread` makes them; all else of `threading` is made of these."""

    __slots__ = ("__weakref__", "_holder", "_waiting")

    def __init__(self) -> None:
        self._holder: Life | None = None
        """The life of the thread that took it. One that is the module's outlives it."""
        self._waiting: list[Task] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it; see `threading.Lock.acquire`."""
        if world is None:
            assert not self.locked() or not blocking
        else:
            world.point()
            if self._holder is None or self._holder.dead:
                self._holder = world.current.life
                return True
            until = None if timeout < 0 else world.now_ns + int(timeout * 1e9)
            while self.locked() and blocking and (until is None or world.now_ns < until):
                self._waiting.append(world.current)
                world.blocked[world.current] = self
                try:
                    world.wait(until)
                finally:
                    del world.blocked[world.current]
                    if world.current in self._waiting:
                        self._waiting.remove(world.current)
        if self.locked():
            return False
        self._holder = _IMPORTS if world is None else world.current.life
        return True

    def release(self) -> None:
        """Release it; all that wait compete for it."""
        if world is not None and world.current.life.dead:
            return  # What is left of a caller; the lock died with the life.
        if self._holder is None or self._holder.dead:
            raise RuntimeError("release unlocked lock")
        self._holder = None
        if world is not None:
            if self._waiting:
                for task in self._waiting:
                    world.wake(task)
                self._waiting.clear()
            world.point()

    def locked(self) -> bool:
        """Tell whether it is held, by a life that goes on."""
        return self._holder is not None and not self._holder.dead

    def _at_fork_reinit(self) -> None:
        self._holder = None

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()


class Local:
    """Attributes that each thread has of its own, as `threading.local` has them."""

    def __init__(self) -> None:
        self.__dict__["_of_tasks"] = {}

    def _own(self) -> dict[str, Any]:
        return self._of_tasks.setdefault(world and world.current, {})

    def __getattr__(self, name: str) -> Any:
        try:
            return self._own()[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self._own()[name] = value


class Thread:
    """A thread as `threading` has them, by the part that the product uses."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., Any] = lambda: None,
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        assert group is None
        # Its hash too: executors keep threads in sets, whose order must not be that of addresses.
        self._number = next(_objects)
        self.name = name or f"Thread-{self._number}"
        self.daemon = bool(daemon)
        self._run = lambda: target(*args, **(kwargs or {}))
        self._running = Lock()

    def __hash__(self) -> int:
        return self._number

    def start(self) -> None:
        """Begin it."""
        assert world is not None, f"{self.name} begins outside of any world"
        self._running.acquire()

        def run() -> None:
            try:
                self._run()
            finally:
                self._running.release()

        world.start(self.name, run)
        world.point()

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        if self._running.acquire(timeout=-1 if timeout is None else timeout):
            self._running.release()

    def is_alive(self) -> bool:
        """Tell whether it runs."""
        return self._running.locked()


def _monotonic() -> float:
    return 0.0 if world is None else world.now_ns / 1e9


def _time_ns() -> int:
    return EPOCH_NS if world is None else EPOCH_NS + world.now_ns + world.current.life.clock_ns


def sleep(seconds: float) -> None:
    """Sleep, by the clock of the world."""
    assert world is not None
    world.wait(world.now_ns + int(seconds * 1e9))


def _identity() -> int:
    return 0 if world is None else world.current.number


def _random() -> random.Random:
    return random.Random(0) if world is None else world.random


def _random_of(seed: int | None = None) -> random.Random:
    return random.Random(_random().getrandbits(64) if seed is None else seed)


def _drawing(name: str) -> Callable[..., Any]:
    """Return a method of the world's random numbers, as a function of a module."""
    return lambda *given: getattr(_random(), name)(*given)


def _like(module: ModuleType, **changed: Any) -> ModuleType:
    """Return a module with other attributes of some names."""
    made = ModuleType(module.__name__)
    made.__dict__.update({**module.__dict__, **changed})
    return made


class _Loader(SourceFileLoader):
    """Runs a module whose imports get the simulated modules."""

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _import}
        super().exec_module(module)


class _Finder(PathFinder):
    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module of the product."""
        if fullname.partition(".")[0] not in PACKAGES:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.path)
        return spec


def _import(name: str, *args: Any) -> ModuleType:
    found = _simulated.get(name)
    return found if found is not None else builtins.__import__(name, *args)


def _anew(name: str) -> ModuleType:
    """Run the source of a module of the standard library once more, over simulated ones."""
    path = sys.modules[name].__file__
    spec = importlib.util.spec_from_file_location(name, path, loader=_Loader(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


_simulated: dict[str, ModuleType] = {
    "time": _like(
        time,
        monotonic=_monotonic,
        monotonic_ns=lambda: int(_monotonic() * 1e9),
        perf_counter=_monotonic,
        thread_time=lambda: 0.0,
        time=lambda: _time_ns() / 1e9,
        time_ns=_time_ns,
        sleep=sleep,
    ),
    "_thread": _like(
        _thread, allocate_lock=Lock, _set_sentinel=Lock, _local=Local, get_ident=_identity
    ),
}
"""What the product's modules import, by name."""


def _number(base: Any) -> None:
    """Have futures numbered, by which they are hashed and locked in order; else by address."""
    initialize = base.Future.__init__

    def number(future: Any) -> None:
        initialize(future)
        future.number = next(_objects)

    def number_of(future: Any) -> int:
        return future.number

    base.Future.__init__, base.Future.__hash__ = number, number_of
    base.id = hash


def install() -> None:
    """Have the product imported with simulated modules; once, before its first import."""
    assert not any(name.partition(".")[0] in PACKAGES for name in sys.modules)
    vars(_simulated["_thread"]).pop("RLock")  # `threading` makes its own of locks then.
    made = _simulated["threading"] = _anew(threading.__name__)
    made.Thread = Thread  # pyright: ignore[reportAttributeAccessIssue]
    made = _simulated["queue"] = _anew(queue.__name__)
    made.SimpleQueue = made._PySimpleQueue  # pyright: ignore[reportAttributeAccessIssue]
    names = ("_base", "thread")
    both = _simulated["concurrent.futures"] = _like(futures)
    for name in names:
        part = _anew(f"concurrent.futures.{name}")
        both.__dict__.update({name: part})
        both.__dict__.update(
            {each: getattr(part, each) for each in dir(part) if each in futures.__all__}
        )
    _number(both._base)
    drawn = ("random", "uniform", "randrange", "choice", "sample", "shuffle")
    _simulated["random"] = _like(
        random,
        Random=_random_of,
        **{name: _drawing(name) for name in drawn},
    )
    _simulated["secrets"] = _like(
        secrets,
        token_hex=lambda size=16: _random().randbytes(size).hex(),
        token_bytes=lambda size=32: _random().randbytes(size),
        randbits=_drawing("getrandbits"),
    )
    _simulated["uuid"] = _like(
        uuid, uuid4=lambda: uuid.UUID(int=_random().getrandbits(128), version=4)
    )
    sys.meta_path.insert(0, _Finder)
