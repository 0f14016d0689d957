"""The two threads of a DoPut stream, which take turns at reading and answering.

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
from collections.abc import Callable
from contextlib import suppress

from wings_server.flight.put_answers import Answers

LATE_SECONDS = 0.02
"""Longest time that one thread answers before the other reads."""

LOOK_SECONDS = 0.1
"""Time between two looks for such threads, where there are streams."""


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
