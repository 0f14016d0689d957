"""The part of a worker that sync and async share: takes deliveries, runs handlers, settles.

One thread takes deliveries and begins handlers, each on a thread or as a task of an event loop. A
second, while there is something finished, acknowledges all of it by one request after another.
"""

import inspect
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from wings_client._share_engine import Settlement, ShareEngine
from wings_client._share_model import Delivery, OffsetRange, common, joined, merged
from wings_client._threads import start_thread
from wings_client._worker_model import (
    BackoffPolicy,
    Each,
    Message,
    Release,
    Task,
    WorkerStats,
    is_verdict,
    text_of,
)
from wings_core.errors import Internal, WingsError

if TYPE_CHECKING:
    import asyncio

    from wings_client._worker_coroutines import Coroutines

FINISHED_MAX = 1_000
"""Tasks finished and not yet acknowledged, beyond which no other begins."""

SETTLED_MAX = 1_000
"""The most acknowledgements of one request."""

_logger = logging.getLogger("wings_client")

Handler = Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How a worker works; see `Client.worker`."""

    concurrency: int
    each: Each
    backoff: BackoffPolicy
    prefetch: bool
    limit: int | None


class WorkerEngine:
    """A worker; all methods from any thread.

    Args:
        engine: Closed at the end.
        handler: Plain, or a coroutine function.
        options: How it works.

    Attributes:
        done: Set when all is acknowledged or released, or after `abort`.
        error: Why it ended, if it is not for `stop`, a time-out or the limit.
    """

    def __init__(self, engine: ShareEngine, handler: Handler, options: WorkerOptions) -> None:
        self.done = threading.Event()
        self.error: BaseException | None = None
        self._engine = engine
        self._handler = handler
        self._options = options
        # An RLock's, as a signal handler may call `stop` on a thread that holds it.
        self._changed = threading.Condition()
        self._started = False
        self._stopping = False
        self._aborted = False
        self._counts = Counter[str]()
        self._waiting = 0
        self._running = 0
        self._tasks_running = 0
        self._begun = 0
        self._finished: deque[Settlement] = deque()
        self._settling = False
        self._when_done: list[Callable[[], None]] = []
        self._coroutines: Coroutines | None = None

    @property
    def stats(self) -> WorkerStats:
        """Counts of what was done so far."""
        self.check_process()
        with self._changed:
            return WorkerStats(
                delivered=self._counts["delivered"],
                accepted=self._counts["accept"],
                released=self._counts["release"],
                rejected=self._counts["reject"],
                lost=self._counts["lost"],
                dead=self._counts["dead"],
                waiting=self._waiting,
                running=self._running,
            )

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked child, and the worker its parent's."""
        return self._engine.transport.is_inherited

    def check_process(self) -> None:
        """Refuse a call in a forked child, which has none of its parent's threads."""
        self._engine.transport.check_process()

    def start(self, loop: "asyncio.AbstractEventLoop | None" = None) -> None:
        """Begin; does nothing where it has begun before.

        Args:
            loop: Loop of coroutines; None: one of its own, on a thread.

        Raises:
            RuntimeError: No thread can be started.
            InvalidArgument: This is a forked child, and the worker its parent's.
        """
        self.check_process()
        with self._changed:
            if self._started:
                return
            self._started = True
        if is_async(self._handler):
            module = import_module("wings_client._worker_coroutines")
            self._coroutines = module.Coroutines(self._handler, self._finish, loop)
        start_thread(self._run, "wings-worker")

    def stop(self) -> None:
        """Take no more, and end once what runs has finished. Never blocks."""
        if self.is_inherited:
            return
        with self._changed:
            self._stopping = True
            if not self._started:
                self._started = True
                self.done.set()
            self._changed.notify_all()
        self._engine.stop()

    def abort(self) -> None:
        """Release all that is held at once, whatever runs; coroutines are cancelled."""
        if self.is_inherited:
            return
        with self._changed:
            self._aborted = True
        self.stop()
        self._engine.abandon()
        if self._coroutines is not None:
            self._coroutines.cancel()

    def when_done(self, call: Callable[[], None]) -> None:
        """Call this when `done` is set, on any thread; at once if it is."""
        self.check_process()
        with self._changed:
            if not self.done.is_set():
                self._when_done.append(call)
                return
        call()

    async def ended(self) -> None:
        """Wait for the coroutines that `abort` cancelled; on their loop."""
        if self._coroutines is not None:
            await self._coroutines.ended()

    # The thread that takes deliveries.

    def _run(self) -> None:
        try:
            self._dispatch()
        except BaseException as error:  # noqa: BLE001 - raised where the worker is awaited.
            self.error = error
        try:
            self.stop()
            self._engine.drain()
            while (delivery := self._engine.take()) is not None:
                self._count("delivered", len(delivery))
                self._release_unbegun(delivery, delivery.ranges(None))
            with self._changed:
                self._changed.wait_for(lambda: self._aborted or self._is_settled())
                aborted = self._aborted
            if not aborted:
                self._engine.close()
        finally:
            if self._coroutines is not None:
                self._coroutines.end()
            with self._changed:
                self.done.set()
                calls, self._when_done = self._when_done, []
            for call in calls:
                call()

    def _is_settled(self) -> bool:
        return not (self._tasks_running or self._finished or self._settling)

    def _dispatch(self) -> None:
        """Take deliveries and begin their tasks until the end."""
        while self._may_ask():
            if not self._engine.fill():
                return
            delivery = self._engine.take()
            if delivery is None:
                continue
            self._count("delivered", len(delivery))
            tasks = deque(self._tasks_of(delivery))
            with self._changed:
                self._waiting += len(delivery)
            try:
                while tasks and self._may_begin():
                    self._begin(tasks)
            finally:
                self._give_back(tasks)

    def _tasks_of(self, delivery: Delivery) -> Iterator[Task]:
        if self._options.each == "batch":
            yield Task(delivery)
            return
        tasks = (Task(delivery, Message(delivery, index)) for index in range(len(delivery)))
        if delivery.in_order:
            waiting = deque(tasks)
            tasks = (replace(waiting.popleft(), following=waiting) for _ in (0,) if waiting)
        yield from tasks

    def _may_ask(self) -> bool:
        """Wait until more is to be asked for; returns False at the end."""
        if not self._options.prefetch:
            return self._may_begin()
        return not (self._stopping or self._is_at_limit())

    def _may_begin(self) -> bool:
        """Wait until a task may begin; returns False at the end."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._stopping
                    or (
                        self._tasks_running < self._options.concurrency
                        and len(self._finished) < FINISHED_MAX
                    )
                )
            )
            return not (self._stopping or self._is_at_limit())

    def _is_at_limit(self) -> bool:
        return self._options.limit is not None and self._begun >= self._options.limit

    def _give_back(self, tasks: "deque[Task]") -> None:
        """Release what will not begin."""
        if not tasks:
            return
        delivery = tasks[0].delivery
        ranges = joined(each for task in _with_following(tasks) for each in task.ranges)
        with self._changed:
            self._waiting -= sum(task.messages for task in _with_following(tasks))
        self._release_unbegun(delivery, ranges)

    def _release_unbegun(self, delivery: Delivery, ranges: list[OffsetRange]) -> None:
        self._settle_later([Settlement(delivery, "release", ranges, counts=False)])

    def _lose(self, tasks: "deque[Task]") -> None:
        messages = sum(task.messages for task in _with_following(tasks))
        with self._changed:
            self._waiting -= messages
            self._counts["lost"] += messages
        tasks.clear()
        _logger.info("%d messages were lost before their handler began", messages)

    def _begin(self, tasks: "deque[Task]") -> None:
        """Begin the next of some tasks of a delivery; all are lost where it is held no more."""
        if not self._engine.hand(tasks[0].delivery, tasks[0].ranges):
            self._lose(tasks)
            return
        task = tasks.popleft()
        with self._changed:
            self._waiting -= task.messages
            self._running += task.messages
            self._begun += task.messages
            self._tasks_running += 1
        try:
            if self._coroutines is not None:
                self._coroutines.begin(task)
            else:
                start_thread(partial(self._call, task), "wings-handler")
        except RuntimeError as error:  # No thread, or the loop is closed.
            self._finish(task, Release(text_of(error), delay=0))
            raise

    # A task.

    def _call(self, task: Task) -> None:
        error: BaseException | None = None
        try:
            with task.span():
                found = self._handler(task.argument)
                if inspect.isawaitable(found):
                    if inspect.iscoroutine(found):
                        found.close()
                    raise TypeError("the handler returned an awaitable: make it an `async def`")
        except BaseException as raised:  # noqa: BLE001 - its messages are released.
            error = raised
        self._finish(task, error)

    def _finish(self, task: Task, error: BaseException | None) -> None:
        """Record that a handler returned or raised, and see to its acknowledgement."""
        try:
            settlements = task.settlements(error, self._options.backoff)
        except Exception as wrong:  # noqa: BLE001 - an error without a text, say.
            settlements = task.settlements(Release(type(wrong).__name__), self._options.backoff)
        if error is not None and not self._aborted:
            self._log(error, settlements)
        self._settle_later(settlements)
        if task.following is not None:
            self._go_on(task.following, settlements)
        with self._changed:
            self._running -= task.messages
            self._tasks_running -= 1
            self._changed.notify_all()

    def _log(self, error: BaseException, settlements: list[Settlement]) -> None:
        """Log a handler's error: as an error, with its traceback, where messages are dead."""
        is_fault = not is_verdict(error)
        for each in settlements:
            if each.is_dead or (is_fault and each.kind != "accept"):
                _logger.log(
                    logging.ERROR if each.is_dead else logging.WARNING,
                    "the handler of %s failed at %s, partition %r, offset %s, delivery %d%s: %s",
                    self._engine.ticket.group,
                    self._engine.ticket.topic,
                    each.delivery.partition,
                    ", ".join(f"{a}" if a == z else f"{a} to {z}" for a, z in each.ranges[:10]),
                    each.delivery.delivery_count,
                    ", now dead" if each.is_dead else "",
                    each.reason or "no reason given",
                    exc_info=error if each.is_dead and is_fault else None,
                )

    def _go_on(self, tasks: "deque[Task]", settlements: list[Settlement]) -> None:
        """Begin what follows a message in order; what follows one that comes again does, too."""
        released = any(each.kind == "release" for each in settlements)
        if self._is_at_limit():
            self.stop()  # The thread that takes deliveries may be waiting for the next.
        if released or self._stopping:
            self._give_back(tasks)
        elif tasks:
            with suppress(RuntimeError):  # It is released, and the worker ends as it takes more.
                self._begin(deque([replace(tasks.popleft(), following=tasks)]))

    # The thread that acknowledges.

    def _settle_later(self, settlements: list[Settlement]) -> None:
        with self._changed:
            if self._aborted:  # The server releases it as the stream breaks.
                self._counts["lost"] += sum(map(_messages_of, settlements))
                return
            self._finished.extend(settlements)
            if self._settling or not self._finished:
                return
            self._settling = True
        try:
            start_thread(self._settle, "wings-settle")
        except RuntimeError:
            self._settle()

    def _settle(self) -> None:
        while True:
            with self._changed:
                count = min(SETTLED_MAX, len(self._finished))
                batch = [self._finished.popleft() for _ in range(count)]
                self._settling = bool(batch)
                self._changed.notify_all()
            if not batch:
                return
            batch = _joined(batch)
            try:
                errors = self._engine.settle(batch)
            except Exception as error:
                _logger.exception("messages could not be acknowledged")
                errors = [Internal(text_of(error)) for _ in batch]
            for settlement, error in zip(batch, errors, strict=True):
                self._settled(settlement, error)

    def _settled(self, settlement: Settlement, error: WingsError | None) -> None:
        messages = _messages_of(settlement)
        if error is not None and not self._aborted:
            _logger.warning("%d messages may be delivered again: %s", messages, error.message)
        self._count("lost" if error is not None else settlement.kind, messages)
        if error is None and settlement.is_dead:
            self._count("dead", messages)

    def _count(self, what: str, messages: int) -> None:
        with self._changed:
            self._counts[what] += messages


def is_async(handler: Callable[..., object]) -> bool:
    """Return whether a handler is a coroutine function, or an object whose call is one."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - its function, not whether it has one.
    )


def _with_following(tasks: Iterable[Task]) -> Iterator[Task]:
    for task in tasks:
        yield task
        yield from task.following or ()


def _joined(batch: list[Settlement]) -> list[Settlement]:
    """Return settlements, the acceptances of each delivery as one."""
    accepted: dict[int, tuple[Delivery, list[OffsetRange]]] = {}
    rest: list[Settlement] = []
    for each in batch:
        if each.kind == "accept":
            accepted.setdefault(id(each.delivery), (each.delivery, []))[1].extend(each.ranges)
        else:
            rest.append(each)
    return [
        *(Settlement(delivery, "accept", joined(found)) for delivery, found in accepted.values()),
        *rest,
    ]


def _messages_of(settlement: Settlement) -> int:
    """Return how many messages of the delivery are in it."""
    rows = common(merged(settlement.delivery.offsets), settlement.ranges)
    return sum(last - first + 1 for first, last in rows)
