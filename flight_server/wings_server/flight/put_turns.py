"""The two threads of a DoPut stream, and its answers: a PutResult for each batch, in order.

The threads take turns at reading and answering.

Batches that come close behind each other are read by one and answered by the other. A batch that
comes alone is flushed and answered by the thread that has read it, which then reads on: it is
passed to no other thread. Where that takes long the other reads meanwhile ("Leader/Followers",
Schmidt et al., Pattern-Oriented Software Architecture, volume 2). The other is started when it is
first called: a stream of one small batch has no need of it.

Two traps of pyarrow's server shape this (both measured): an error raised while another thread reads
the stream aborts the process, so a call ends when neither thread reads; and `writer.write` blocks
when a client leaves about 26,000 answers unread, so what comes is read on by the other thread then.
"""

import contextvars
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from operator import attrgetter

import pyarrow as pa
import pyarrow.flight as flight
import structlog

from wings_core.contracts.put import results_to_json
from wings_core.errors import Internal
from wings_core.ingest.pending import Pending, PushStream
from wings_core.memory import ReadRoom
from wings_core.model import Accepted, CommitResult, Rejected
from wings_server.metrics import Metrics
from wings_server.quotas import PushQuotas

LATE_SECONDS = 0.02
"""Longest time that one thread answers before the other reads."""

LOOK_SECONDS = 0.1
"""Time between two looks for such threads, where there are streams."""

_logger = structlog.get_logger("wings.flight")

ANSWERS_WAITING_MAX = 100_000
"""Most unwritten answers of one stream; from then on its batches are not read."""

GATHERED_MIN = 4
"""After so many answers at once the batches that they bring are gathered for one flush,"""

GATHERED_BYTES = 64 * 1024
"""up to so many bytes, beyond which a flush is no cheaper for being larger,"""

LINGER_SECONDS_MAX = 0.005
"""and for so long, or as long as the last flush took, if that is less: at most that long would the
last of them wait for a flush that the first had begun."""

UNREAD_SECONDS = 0.01
"""Time of a write from which the client counts as not reading."""

_rows_of = attrgetter("num_rows")


class Answers:
    """Writes one PutResult for each batch, in order, on the thread whose turn it is.

    Batches that were read before a refusal was known are answered with it too. After a client is
    gone nothing more is written, but the outcomes are still waited for. While the reader's thread
    waits for the client to read, it holds no room of the budget of memory: a client that never
    does would keep it from all others.
    """

    def __init__(
        self,
        writer: flight.FlightMetadataWriter,
        stream: PushStream,
        metrics: Metrics,
        room: ReadRoom,
        quotas: PushQuotas | None = None,
    ) -> None:
        self._quotas = quotas
        self._room = room
        self._writer = writer
        self._stream = stream
        self._metrics = metrics
        self._due: deque[Pending | Rejected] = deque()
        self._last: Pending | Rejected | None = None
        self._added = 0  # Counted by the thread that reads,
        self._answered = 0  # and this by the one that answers.
        self._silent = False
        self._turn = threading.Lock()
        """Lock held by the answering thread while answers are due."""
        self._writing = threading.Lock()
        """Lock held by the answering thread while it has answers to write."""
        self._is_writing = False
        self._unread_at = -1
        self._before = 0
        """Number of answers before the last group that was written together."""
        self._flush_seconds = 0.0
        """Time that the last outcome was waited for."""
        self._gathered: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._wanted = 0
        """Number of unanswered batches that the answering thread waits for, or 0."""
        self._ended = False

    @property
    def idle(self) -> bool:
        """Whether all added batches are answered."""
        return self._added == self._answered

    def add(self, outcome: Pending | Rejected) -> None:
        """Add the next batch, answered once its outcome is known; blocks while too many are due.

        Args:
            outcome: Its own, or, joined with the batches before it, the same that those have.
        """
        while self._added - self._answered >= ANSWERS_WAITING_MAX:
            self._room.close()
            if self._turn.acquire(timeout=UNREAD_SECONDS):
                self.write_due()  # No thread does: the one that did has failed.
        self._added += 1
        if outcome is not self._last:
            self._last = outcome
            self._due.append(outcome)
        if self._wanted and (
            self._added - self._answered >= self._wanted
            or (isinstance(outcome, Pending) and outcome.batch.bytes >= GATHERED_BYTES)
        ):
            self._gathered.put(None)
            self._wanted = 0

    def let_go(self) -> None:
        """Free the last batch once it is answered; for the reading thread.

        If it were freed when the next one is added, that one would be delayed.
        """
        if self._added == self._answered:
            self._last = None

    @property
    def is_due(self) -> bool:
        """Whether answers are due, and no thread writes them."""
        return bool(self._due) and not self._turn.locked()

    def take_turn(self) -> bool:
        """Return whether the caller must write the due answers, as the only one, by `write_due`."""
        return bool(self._due) and self._turn.acquire(blocking=False)

    def give_way(self) -> None:
        """Wait while answers are written, unless the client leaves them unread.

        Were batches taken in meanwhile, the two threads would pass the interpreter's lock to and
        fro with each of them, which costs more than the batches (a fifth of all CPU, measured). And
        a batch that comes right after an answer is flushed by the thread that wrote it, once that
        says so, not by the flusher.
        """
        answered = self._answered
        if not self._writing.locked() or answered == self._unread_at:
            return
        if self._writing.acquire(timeout=UNREAD_SECONDS):
            self._writing.release()
        elif answered == self._answered:
            self._unread_at = answered

    def write_due(self, let_read: Callable[[], None] = lambda: None) -> None:
        """Write the due answers, and those added meanwhile; after `take_turn`.

        Args:
            let_read: Function called before anything that may take longer than a flush by this
                thread.
        """
        has_turn = True
        while has_turn:
            try:
                while self._due:
                    outcome = self._due.popleft()
                    waits = isinstance(outcome, Pending)
                    if not waits or not outcome.results:
                        if self._is_writing:
                            self._stop_writing()
                        if waits and self._answered != self._before:
                            self._gather(let_read)
                    self._answer(outcome, self._outcomes(outcome, let_read))
                    if not self._due:
                        self._stop_writing()
                        self._gather(let_read)
            except BaseException:
                # The thread that answers next would number its answers wrongly.
                self._silent = True
                raise
            finally:
                if self._is_writing:
                    self._stop_writing()
                self._turn.release()
            has_turn = self.take_turn()  # One may have been added before the turn was over.

    def finish(self) -> None:
        """Wait until all batches are answered; for the reading thread. Can be called again.

        No batch may be added afterwards.
        """
        self._room.close()
        self._ended = True
        self._gathered.put(None)
        self._turn.acquire()
        self.write_due()

    def fail(self) -> None:
        """Reject all further batches after an internal error, which is sent as the stream's."""
        self._silent = True
        self._stream.refused = self._stream.refused or Internal("the answers ended by a fault")
        with suppress(BaseException):
            self.finish()

    def _answer(self, outcome: Pending | Rejected, results: tuple[CommitResult, ...]) -> None:
        if not self._is_writing:
            self._is_writing = self._writing.acquire()
        rows = [0]
        if isinstance(outcome, Pending):
            batch = outcome.batch
            if self._quotas is not None:
                self._quotas.release(batch)
            rows = list(map(_rows_of, batch.parts))
            committed = [result for result in results if isinstance(result, Accepted)]
            if committed:
                # Counted before they are answered: a client that has its answer finds it counted.
                # One result may stand for all; after a refused batch, all later ones are refused.
                counted = rows if isinstance(results[-1], Accepted) else rows[: len(committed)]
                size = batch.bytes * sum(counted) // max(1, sum(rows))
                topic = batch.topic.name
                self._metrics.pushed("flight", topic, sum(counted), size, len(counted))
        for answer in results_to_json(self._answered, results, rows):
            self._write(answer)
            self._answered += 1

    def _gather(self, let_read: Callable[[], None]) -> None:
        """After several answers at once, wait a moment for the batches that they will bring.

        A client that keeps many in flight sends one for each answer. Were a flush begun with the
        first of them, the others would wait for it and the next; and the two groups into which
        they fall, as uneven as 63 and 1, would last: two flushes for each round.
        """
        burst, self._before = self._answered - self._before, self._answered
        if burst < GATHERED_MIN:
            return
        while not self._gathered.empty():
            self._gathered.get()
        wanted = (burst + self._added - self._answered) * 3 // 4
        self._wanted = wanted
        if self._added - self._answered < wanted and not self._ended:
            let_read()
            with suppress(queue.Empty):
                self._gathered.get(timeout=self._linger_seconds())
        self._wanted = 0

    def _linger_seconds(self) -> float:
        return min(self._flush_seconds, LINGER_SECONDS_MAX)

    def _stop_writing(self) -> None:
        self._is_writing = False
        self._writing.release()

    def _outcomes(
        self, pending: Pending | Rejected, let_read: Callable[[], None]
    ) -> tuple[CommitResult, ...]:
        if isinstance(pending, Rejected):
            # A batch before it may have been refused since it was read.
            return (Rejected(self._stream.refused or pending.error),)
        if not pending.results:
            began = time.monotonic()
            if not pending.flush():
                let_read()
                pending.outcomes()
            self._flush_seconds = time.monotonic() - began
        return pending.results

    def _write(self, answer: bytes) -> None:
        """Write an answer, unless the client is gone."""
        if self._silent:
            return
        try:
            self._writer.write(pa.py_buffer(answer))
        except (pa.ArrowException, OSError) as gone:
            _logger.info("a producer left before its answers", reason=str(gone)[:200])
            self._silent = True


class Turns:
    """The turns of one stream; at any time one thread reads, and at most one answers.

    Args:
        read_next: Function that reads and submits a batch; returns whether it was single, None at
            the end.
        answers: Answers of the stream.
    """

    def __init__(self, read_next: Callable[[], bool | None], answers: Answers) -> None:
        self._read_next = read_next
        self._answers = answers
        self._reading = threading.Lock()
        """Lock held by the reading thread."""
        self._kept: list[None] = []
        """One item while the answering thread still holds the lock; a thread that pops it may
        release the lock."""
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Calls for the idle thread to check whether it may read or answer."""
        self._in_context = contextvars.copy_context().run
        self._starting = threading.Lock()
        self._other: threading.Thread | None = None
        self._since = 0.0
        """Time at which the answering thread began."""
        self._ended = False
        self._error: BaseException | None = None

    def run(self) -> None:
        """Read and answer until the stream ends; blocks until all batches are answered.

        Raises:
            WingsError: The stream cannot be read.
        """
        self._take()
        with self._starting:  # It is not started from now on, as the stream has ended.
            other = self._other
        if other is not None:
            other.join()
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # Its traceback refers to this frame.

    def look(self, late_seconds: float) -> None:
        """Let the other thread read if the answering thread has been busy for too long."""
        if self._kept and time.monotonic() - self._since > late_seconds:
            self._let_read()

    def _take(self) -> None:
        """Read if the other thread does not, answer if it does not, else wait to be called."""
        while not self._ended:
            if self._reading.acquire(blocking=False):
                self._read()
            elif self._answers.take_turn():
                self._answer(lambda: self._answers.write_due(self._let_read))
            else:
                self._calls.get()

    def _read(self) -> None:
        """Read until the stream ends, or the other thread reads; with `_reading` held."""
        try:
            while not self._ended and (alone := self._read_next()) is not None:
                if alone and self._answers.take_turn():
                    self._since = time.monotonic()
                    self._kept.append(None)
                    self._answer(lambda: self._answers.write_due(self._let_read))
                    if not self._take_back():
                        return
                elif self._answers.is_due and not self._call() and self._answers.take_turn():
                    self._answer(self._answers.write_due)
        except BaseException as error:  # noqa: BLE001 - `run` raises it, when neither reads
            self._error = self._error or error
        self._ended = True
        self._answer(self._answers.finish)
        self._release()

    def _answer(self, write: Callable[[], None]) -> None:
        """Run a function that answers; its failure ends the stream."""
        try:
            write()
        except BaseException as error:  # noqa: BLE001 - as above
            self._error = self._error or error
            self._ended = True
            self._answers.fail()

    def _let_read(self) -> None:
        """Let the other thread read on, if it may not yet."""
        if self._take_back():
            self._release()

    def _release(self) -> None:
        self._reading.release()
        if not self._call():
            self._calls.put(None)  # The only thread may have found the lock held still.

    def _call(self) -> bool:
        """Make the idle thread check whether it may read or answer; starts it if missing.

        Returns:
            Whether the thread exists. If it cannot be started, the stream continues with one
            thread.
        """
        if self._other is None:
            with suppress(RuntimeError), self._starting:
                if self._other is None and not self._ended:
                    other = threading.Thread(
                        target=self._in_context, args=(self._take,), name="wings-put", daemon=True
                    )
                    other.start()
                    self._other = other
            if self._other is None:
                return False
        self._calls.put(None)
        return True

    def _take_back(self) -> bool:
        """Return whether the thread that answers may still read on itself."""
        try:
            self._kept.pop()
        except IndexError:
            return False
        return True


class Lookout:
    """A thread that calls `look` of all open streams, and sleeps while there are none.

    It sleeps only once it finds no stream, so that a sequence of short streams need not wake it
    each time.

    Args:
        late_seconds: Longest time that one thread of a stream answers before the other reads.
        look_seconds: Time between two checks of the streams.
    """

    def __init__(
        self, late_seconds: float = LATE_SECONDS, look_seconds: float = LOOK_SECONDS
    ) -> None:
        self._late_seconds = late_seconds
        self._look_seconds = look_seconds
        self._changed = threading.Condition()
        self._streams: set[Turns] = set()
        self._thread: threading.Thread | None = None
        self._asleep = True
        self._stopped = False

    def run(self, turns: Turns) -> None:
        """Run the turns of a stream, with their errors; blocks until the stream ends."""
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._look, name="wings-lookout", daemon=True)
                thread.start()
                self._thread = thread
            if self._asleep:
                self._asleep = False
                self._changed.notify()
            self._streams.add(turns)
        try:
            turns.run()
        finally:
            with self._changed:
                self._streams.discard(turns)

    def stop(self) -> None:
        """End the thread; open streams are no longer checked."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def _look(self) -> None:
        with self._changed:
            while not self._stopped:
                if self._asleep:
                    self._changed.wait()
                else:
                    self._changed.wait(self._look_seconds)
                    self._asleep = not self._streams
                for turns in self._streams:
                    turns.look(self._late_seconds)
