"""A share stream: deliveries of a member, and its acknowledgements, both ways at once.

A thread of the stream reads it and hands on what comes. Where much comes, it leaves that to the
thread that waits for it, which saves two hand-overs a message (without it, a worker that waits for
each acceptance used 1.0 ms of CPU a message instead of 0.7), and watches: a thread that reads can
be woken by nothing but a message, so when none comes it asks for one, and takes over.

Acknowledgements without a waiting caller are gathered: those of a moment share a request, as rows
of a producer share a batch, because a request costs both sides more than its entries. The stream
has no gRPC deadline, as what it holds is released when it ends; a silent server is noticed by a
request that stays unanswered.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice, repeat
from queue import Empty, SimpleQueue
from typing import Any

import pyarrow as pa

from wings_client._errors import (
    Connection,
    call_errors,
    ignored_call_errors,
    lost,
    timed_out,
    typed_error,
)
from wings_client._share_model import Delivery
from wings_client._threads import start_thread
from wings_client._transport import Transport
from wings_core.contracts.share import (
    ALIVE,
    AcknowledgementEntry,
    ShareAnswer,
    ShareCommand,
    ShareEnd,
    acknowledge_metadata,
    credit_metadata,
    delivery_limit_of,
    lock_seconds_of,
    parse_server_message,
)
from wings_core.errors import InvalidRecordState, Unavailable, WingsError, error_from_json

CLOSE_SECONDS = 5.0
"""Longest wait for the server to answer and release the rest when a stream is closed."""

UNANSWERED_MAX = 500
"""Most unanswered requests, which slows a worker that only writes to the pace of the answers."""

GATHERED_MAX = 100
"""Most acknowledgements that share a request."""

LINGER_SECONDS = 0.005
"""Longest wait of an acknowledgement for others."""

WATCH_SECONDS = 0.2
"""When nothing came for so long, the stream's own thread takes over from the caller's."""

QUICK_READS = 16
"""After so many messages in a row, none later than that, it leaves the reading to callers."""

SHARED_SECONDS = 1.0
"""For how long it does not after two callers have waited at a time."""

SAID_PER_LOCK = 3
"""Messages that a stream sends in each lock at least, while its caller waits."""

LOCK_SECONDS_MIN = 1.0
"""The shortest lock of a group."""

SILENT_SECONDS = 30.0
"""A server that does not answer for so long while a caller reads is taken to be gone: a signal is
heeded only then."""


@dataclass(slots=True, eq=False)
class Sent:
    """An acknowledgement.

    Attributes:
        entries: The acknowledged ranges.
        answered: Called with the error of the first refused entry, or None; also at the end of the
            stream. Twice only if a signal handler raised meanwhile.
        messages: Number of its messages whose credit the answer gives back.
        results: Result of each entry, once answered.
        is_told: Whether `answered` was called.
    """

    entries: Sequence[AcknowledgementEntry]
    answered: Callable[[WingsError | None], None]
    messages: int = 0
    results: Sequence[dict[str, Any]] | None = None
    is_told: bool = False

    def tell(self, error: WingsError | None) -> None:
        """Call `answered`; the first call counts."""
        if not self.is_told:
            self.answered(error)
            self.is_told = True


class ShareStream:
    """An open share stream; all methods from any thread.

    Args:
        transport: To the server.
        command: The descriptor.
        opened: Called with this before its thread starts, as a signal handler may raise as soon as
            that runs.
        delivered: Called with each delivery, on the thread that reads.
        ended: Called once on such a thread, after `error` is set.

    Attributes:
        credit: How many messages the server may have it hold at once.
        error: Why it ended; None while it is open.
        spent: How many messages were acknowledged, but not over it, so that the server counts them
            among what it holds until their locks end.
        is_served: False where the server is of a version without share streams.
        endpoint: The address of the node that serves it.

    Raises:
        WingsError: `Unavailable` where no server was reached.
    """

    def __init__(
        self,
        transport: Transport,
        command: ShareCommand,
        opened: Callable[["ShareStream"], None],
        delivered: Callable[[Delivery], None],
        ended: Callable[[], None],
    ) -> None:
        self.credit = command.credit
        self.error: WingsError | None = None
        self.spent = 0
        self.is_served = True
        self._transport = transport
        self._delivered = delivered
        self._ended = ended
        self._requests = 0
        self._is_begun = False
        """Whether the server has begun its side."""
        self._lock_seconds = LOCK_SECONDS_MIN
        """The group's lock, as last told; without end, where the server's version tells none."""
        self._delivery_limit: int | None = None
        """The group's limit when the stream began; None: the server's version tells none."""
        self._said_at = 0.0
        """When something was last sent."""
        self._is_closing = False
        self._end: WingsError | None = None
        """Reason of the end, as far as the server has told it."""
        # A signal handler may raise at any step: then the stream is broken, and all here are told.
        self._unanswered: dict[int, list[Sent]] = {}
        self._gathered: list[Sent] = []
        """Acknowledgements that were not sent yet."""
        self._closed = threading.Event()
        # Whose turn it is to read; taken before the lock below.
        self._turn = threading.Lock()
        self._caller: int | None = None
        """The thread that has the turn, where it is a caller's."""
        self.callers_reads = 0
        """Number of messages that callers have read, not the stream's own thread."""
        self._expecting: set[object] = set()
        """Callers that wait for messages that another thread reads."""
        self._takes_over = False
        """Whether a caller that reads is to release its turn."""
        self._shared_until = 0.0
        self._called = threading.Lock()
        """Released to wake the stream's thread; no event, as a signal handler may do so."""
        self._called.acquire()
        self._is_interrupted = False
        """Whether a thread is called to read."""
        self._lingers = False
        """Whether a thread is called to write what is gathered, a moment later."""
        # Guards what is written, and the fields above; the stream's thread never takes it for long.
        # Reentrant, as a signal handler may come on a thread that holds it.
        self._lock = threading.RLock()
        self._is_writing = False
        self._writer, self._reader, self.endpoint = transport.exchange(command)
        self._chunks = chain(iter(self._reader.read_chunk, None), repeat(None))
        """Messages that come, and then None for ever."""
        self._inbox = deque[Any]()
        """Messages that were read and are not handed on."""
        self._is_handing_on = False
        try:
            opened(self)
            with self._lock:
                self._write(credit_metadata(self.credit))
            start_thread(self._run, "wings-share")
        except BaseException:
            self._reader.cancel()
            self.error = lost(f"a share stream to {self.endpoint} was not opened", self.endpoint)
            self._closed.set()
            raise

    def ask(self, credit: int) -> float:
        """Let the stream hold so many messages at once, at most `CREDIT_MAX`.

        A server gives nothing to a client that stands still, so one that waits asks again.

        Returns:
            In how many seconds it is to ask again; without end, where the stream has ended.
        """
        with self._lock:
            if self.error is not None or self._is_closing:
                return math.inf
            pause = self._lock_seconds / SAID_PER_LOCK
            left = self._said_at + pause - time.monotonic()
            if credit != self.credit:
                self.credit = credit
                self._write(credit_metadata(credit))
            elif left > 0:
                return left
            elif self._is_begun:
                self._write(ALIVE)
            return pause

    @property
    def is_paused(self) -> bool:
        """Whether nothing more comes before it is asked for, and it can be."""
        return not (self.credit or self._is_closing or self.error is not None)

    def drain(self, seconds: float | None = None) -> None:
        """Ask for nothing more, and wait until all has come that is on its way.

        Args:
            seconds: How long it blocks at most; None: for the client's timeout.

        Raises:
            WingsError: `Unavailable` where no answer came in time.
        """
        self.ask(0)
        self.acknowledge((), seconds)

    def acknowledge(
        self, entries: Sequence[AcknowledgementEntry], seconds: float | None = None
    ) -> list[WingsError | None] | None:
        """Acknowledge messages; blocks until it is durable, at most for the client's timeout.

        Args:
            entries: Acknowledgements to send; none: all that is on its way comes before the answer.
            seconds: How long it blocks at most, instead.

        Returns:
            The error of each entry, in order, or None; None where nothing was sent: the stream has
            ended already, or a signal handler came while its thread writes a request.

        Raises:
            WingsError: `Unavailable` where the outcome is unknown.
        """
        known = SimpleQueue[WingsError | None]()

        def answered(error: WingsError | None) -> None:
            self._expecting.discard(known)
            known.put(error)

        sent = Sent(entries, answered)
        with self._lock:
            if self.error is not None or self._is_closing:
                return None
            if self._is_writing:
                for each in entries:
                    self.spent += each.last - each.first + 1 if each.type != "renew" else 0
                return None
            self._write_gathered()
            self._expecting.add(known)
            self._write_request([sent])
        if seconds is None or self._caller == threading.get_ident():
            self.read(lambda: sent.is_told)
        else:
            self.interrupt()  # A caller that reads itself may be kept for longer.
        if not sent.is_told:
            try:
                known.get(timeout=self._transport.timeout if seconds is None else seconds)
            except Empty:
                raise timed_out(f"no answer from {self.endpoint} in time", self.endpoint) from None
            finally:
                self._expecting.discard(known)
        if sent.results is None:
            assert self.error is not None
            raise _in_doubt(self.error, self.endpoint)
        return [None if each["code"] is None else error_from_json(each) for each in sent.results]

    def send(self, sent: Sent, *, at_once: bool) -> bool:
        """Acknowledge messages, and wait for no answer; blocks while the server does not read.

        It is sent with those that follow within `LINGER_SECONDS`, until they are half the credit;
        at once where it is of several ranges, or another thread reads.

        Args:
            sent: The caller is told of the answer once, on a thread that reads: in a caller's next
                `read`, or `WATCH_SECONDS` later. Not where False is returned.
            at_once: Whether the server may deliver nothing more before it.

        Returns:
            False where nothing was sent: the stream has ended, too many are unanswered, or a signal
            handler came while its thread writes a request.
        """
        with self._lock:
            is_over = self.error is not None or self._is_closing
            if is_over or self._is_writing or len(self._unanswered) >= UNANSWERED_MAX:
                return False
            is_large = len(sent.entries) > 1
            if is_large:
                self._write_gathered()
            self._gathered.append(sent)
            if (
                at_once
                or is_large
                or len(self._gathered) >= GATHERED_MAX
                or sum(each.messages for each in self._gathered) >= self.credit // 2
                or self.is_being_read
            ):
                self._write_gathered()
            elif not self._lingers:
                self._lingers = True
                self._call()
        return True

    @property
    def is_being_read(self) -> bool:
        """Whether a thread reads the stream now, its own or a caller's."""
        return self._turn.locked()

    @property
    def unanswered(self) -> int:
        """Number of messages acknowledged by `send` and not answered yet."""
        return sum(each.messages for each in self._unfinished())

    def _unfinished(self) -> list[Sent]:
        """Return the acknowledgements not answered yet, sent or not."""
        with self._lock:
            requests = [*self._unanswered.values()]  # Answers come meanwhile.
            return [*chain.from_iterable(requests), *self._gathered]

    def flush(self) -> None:
        """Wait until all that was sent is answered, and told; at most for the client's timeout.

        Raises:
            WingsError: `Unavailable` where no answer came in time, or a signal handler came while
                its thread writes a request, or tells of an answer.
        """
        sent = self._unfinished()
        try:
            for _ in range(GATHERED_MAX.bit_length() + 1):  # By halves some may be sent again.
                if all(each.is_told for each in sent):
                    return
                self.acknowledge(())
        finally:
            self.wait_told()
        if not all(each.is_told for each in sent):
            raise Unavailable(f"acknowledgements to {self.endpoint} are not answered yet")

    def wait_told(self) -> None:
        """Where the stream has ended or is closed, wait until all are told, but not for ever."""
        if self.error is not None or self._is_closing:
            self._closed.wait(CLOSE_SECONDS)

    def read(self, is_done: Callable[[], bool]) -> None:
        """Read on the caller's thread until it has what it waits for, where it is to do so.

        Returns early where another thread reads, the stream has ended, or nothing came for a while;
        so the caller waits for the stream's thread then. Ctrl-C is heeded after it.
        """
        caller = threading.get_ident()
        is_nested = self._caller == caller  # A signal handler's, while this thread reads.
        if not is_nested:
            if self._takes_over or not self._turn.acquire(blocking=False):
                if self._caller is not None:
                    self._shared_until = time.monotonic() + SHARED_SECONDS
                return
            self._caller = caller
        try:
            # A handler's answer is read by no other thread, as the turn is this one's.
            while not (self._closed.is_set() or is_done()):
                if self._takes_over and not is_nested:
                    return
                self.callers_reads += 1
                self._read_one()
        except BaseException:
            if self._is_handing_on:
                self.cancel()  # It may be lost, so the server is to release it.
            raise
        finally:
            if not is_nested:
                self._caller, self._is_handing_on = None, False
                self._turn.release()
                if self._is_needed:
                    self.interrupt()

    @contextmanager
    def expected(self) -> Generator[None]:
        """Have the stream read by other threads for as long as the block lasts."""
        caller = object()
        self._expecting.add(caller)
        try:
            if not self.is_being_read:
                self.interrupt()
            yield
        finally:
            self._expecting.discard(caller)

    def interrupt(self) -> None:
        """Have the stream's thread read at once instead of a caller's; never blocks."""
        self._is_interrupted = True
        self._call()

    def _call(self) -> None:
        with suppress(RuntimeError):  # It was called already.
            self._called.release()

    def close(self) -> None:
        """End this side: the server answers, releases what is held, and ends the stream."""
        with self._lock:
            if not self._is_writing:
                self._write_gathered()
            is_ended, self._is_closing = self._is_closing, True
            try:
                if self._is_writing:
                    self.cancel()  # A signal handler's: the request is not to come later.
                elif not is_ended:
                    self._writer.done_writing()
            except call_errors():
                self.cancel()
        if self._caller == threading.get_ident():
            self.read(self._closed.is_set)
        self.interrupt()
        if not self._closed.wait(CLOSE_SECONDS):
            self.cancel()

    def cancel(self) -> None:
        """Break the stream, which the server notices at once; never blocks."""
        # Nothing is written any more: gRPC aborts the process where the end of this side is sent
        # while a read, which fails now, sends it too.
        self._is_closing = True
        self._reader.cancel()
        self.interrupt()  # To read that it has ended.

    def _write(self, message: bytes) -> None:
        """Send a message; the lock is held."""
        self._said_at = time.monotonic()
        try:
            self._writer.write_metadata(pa.py_buffer(message))
        except call_errors():
            # The reader's error says more; it comes now.
            self.cancel()

    def _write_gathered(self) -> None:
        """Send what was gathered, by one request; the lock is held, and nothing being written."""
        try:
            self._is_writing = True  # A signal handler is not to add to what is being sent.
            if self._gathered and not self._is_closing:
                self._write_request(self._gathered)
        finally:
            self._is_writing = False

    def _write_request(self, sent: list[Sent]) -> None:
        """Send acknowledgements by one request; the lock is held, and nothing being written."""
        try:
            self._is_writing = True
            self._requests += 1
            self._unanswered[self._requests] = sent
            if sent is self._gathered:
                self._gathered = []
            entries = [entry for each in sent for entry in each.entries]
            self._write(acknowledge_metadata(self._requests, entries))
            if any(entry.type == "release" for entry in entries):
                self.credit = 0  # Until it is asked for more.
        except BaseException:
            self.cancel()  # A signal handler's: requests that were not sent count too.
            raise
        finally:
            self._is_writing = False

    # The stream's thread.

    def _run(self) -> None:
        while not self._closed.is_set():
            self._take_turn()
            self._end_linger()  # From now on nothing is gathered.
            try:
                self._read_slow()
            finally:
                self._turn.release()
            if self.is_being_read or not self._is_needed:
                self._watch()

    def _read_slow(self) -> None:
        """Read until the stream has ended, or callers can read it."""
        quick, read_at = 0, time.monotonic()
        while not self._closed.is_set():
            self._read_one()
            now = time.monotonic()
            quick, read_at = quick + 1 if now - read_at < WATCH_SECONDS else 0, now
            if quick >= QUICK_READS and not self._is_needed and now > self._shared_until:
                return

    def _watch(self) -> None:
        """Return when no caller reads, or one that gets nothing, or the thread is interrupted."""
        reads = -1
        while not self._closed.is_set() and self.callers_reads != reads:
            reads = self.callers_reads
            self._called.acquire(timeout=WATCH_SECONDS)
            if self._lingers and not self._is_interrupted:
                reads = -1
                self._called.acquire(timeout=LINGER_SECONDS)
            self._end_linger()
            if self._is_interrupted:
                self._is_interrupted = False
                return

    def _end_linger(self) -> None:
        with self._lock:
            self._lingers = False
            self._write_gathered()

    def _take_turn(self) -> None:
        if self._turn.acquire(blocking=False):
            return
        self._takes_over = True
        with suppress(RuntimeError):  # No thread can be started: the stream is broken below.
            start_thread(self._ask, "wings-share-ask")
        if not self._turn.acquire(timeout=min(SILENT_SECONDS, self._transport.timeout)):
            self.cancel()
            self._turn.acquire()
        self._takes_over = False

    def _ask(self) -> None:
        """Send a request whose answer wakes the caller; blocks while the server does not read."""
        with self._lock:
            if self._takes_over and not (self._is_closing or self.error is not None):
                self._write_request([])

    @property
    def _is_needed(self) -> bool:
        """Whether a caller waits for what another thread reads."""
        return bool(self._expecting)

    # Of who has the turn.

    def _read_one(self) -> None:
        """Read a message, and hand it on; or end the stream. Blocks until there is one.

        What a signal handler raises meanwhile is raised; what it kept from being handed on is lost
        with the stream.
        """
        try:
            error = self._take_one()
        except Exception as failed:
            if isinstance(failed, call_errors()) and not (self._inbox or self._is_handing_on):
                error = typed_error(failed, self.endpoint)
                self.is_served = not isinstance(failed, pa.ArrowNotImplementedError)
            elif self._caller == threading.main_thread().ident or not (
                self._caller is None or self._is_handing_on
            ):
                raise
            else:
                error = lost(f"the share stream of {self.endpoint}: {failed!r:.200}", self.endpoint)
                self.cancel()
        if error is not None:
            self._finish(error)

    def _take_one(self) -> WingsError | None:
        """Read a message, and hand it on; returns why the stream has ended."""
        if not self._is_begun:
            self._lock_seconds = lock_seconds_of(self._reader.schema) or math.inf
            self._delivery_limit = delivery_limit_of(self._reader.schema)
            self._is_begun = True
        was_handing_on = self._is_handing_on  # A signal handler reads while its thread does.
        if not self._inbox:
            # In C throughout: where a signal handler raises, that is before it, or after all of it.
            self._inbox.extend(islice(self._chunks, 1))
        if not self._inbox:
            return None  # A signal handler, which read too, took it.
        self._is_handing_on = True
        chunk = self._inbox.popleft()
        if chunk is None:
            return self._end or lost(f"{self.endpoint} ended a share stream", self.endpoint)
        self._hand_on(*chunk)
        self._is_handing_on = was_handing_on
        return None

    def _hand_on(self, batch: Any, metadata: Any) -> None:
        match parse_server_message(metadata):
            case ShareAnswer(number, results):
                self._tell(number, results)
            case ShareEnd(code, message):
                self._end = _error_of(code, message, self.endpoint)
                with self._lock, ignored_call_errors():  # The next read says more.
                    self._is_closing = True
                    self._writer.done_writing()
            case chunk:
                if self._lock_seconds != math.inf:
                    self._lock_seconds = chunk.lock_duration_ms / 1_000
                self._delivered(Delivery.of(batch, chunk, self._delivery_limit))

    def _tell(self, number: int, results: Sequence[dict[str, Any]]) -> None:
        """Tell of the answers to a request.

        One that was refused has others of its partition refused, so they are sent again by halves.
        """
        found = iter(results)
        answers: list[tuple[Sent, WingsError | None]] = []
        for sent in self._unanswered.get(number, ()):
            sent.results = [*islice(found, len(sent.entries))]
            refusal = next((each for each in sent.results if each["code"]), None)
            answers.append((sent, None if refusal is None else error_from_json(refusal)))
        refused = [sent for sent, error in answers if isinstance(error, InvalidRecordState)]
        if len(refused) > 1:
            with self._lock:
                is_over = self.error is not None or self._is_closing or self._is_writing
                if not (is_over or len(self._unanswered) >= UNANSWERED_MAX):
                    self._write_gathered()
                    half = len(refused) // 2
                    self._write_request(refused[:half])
                    self._write_request(refused[half:])
                    answers = [each for each in answers if each[0] not in refused]
        for sent, error in answers:
            sent.tell(error)
        self._unanswered.pop(number, None)  # Not before, as a flush waits until they are told.

    def _finish(self, error: WingsError) -> None:
        self._transport.addresses.note(error, self.endpoint)
        with self._lock:
            self.error = error
        for each in self._unfinished():
            each.tell(_in_doubt(error, self.endpoint))
        self._unanswered.clear()
        self._gathered = []
        with ignored_call_errors():  # Told already.
            self._writer.close()
        self._closed.set()
        self.interrupt()
        self._ended()


def _error_of(code: str | None, message: str, endpoint: str) -> WingsError:
    if code is None:
        return Unavailable(message, endpoint=endpoint)
    return error_from_json({"code": code, "message": message})


def _in_doubt(error: WingsError, endpoint: str) -> WingsError:
    """Return the error of a request whose stream ended before its answer."""
    return Unavailable(
        f"the share stream ended before the answer: {error.message}",
        endpoint=endpoint,
        connection=Connection.LOST.value,
    )
