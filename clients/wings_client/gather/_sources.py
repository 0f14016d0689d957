"""The sources of a gather: their streams, read by a bounded number of threads.

A thread reads one stream to its end and takes the next. Where there are more sources than threads,
a server waits for a source no longer than a slice at a time, so that each gets its turn.
"""

import json
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.flight as flight

from wings_client._errors import client_closed, typed_error, typed_errors
from wings_client._stream import Reading, StreamCancelled
from wings_client._transport import Transport
from wings_client.gather._request import Reply, Request
from wings_core.contracts.messages import to_bytes
from wings_core.errors import WingsError
from wings_core.times import Deadline

THREADS_MAX = 64
"""Streams read at once, each by a thread."""

SLICE_SECONDS = 0.1
"""How long a source keeps a thread without a reply, where there are more sources than threads."""

BACKSTOP_SECONDS = 300.0
"""A stream's gRPC deadline is so much later than the end of the gather: it would count the time
that the caller spends with a reply."""


@dataclass(slots=True)
class Source:
    """One source; the gather's lock guards it."""

    request: Request
    deadline: Deadline
    """Of what the server may wait."""
    arrived: int = 0
    """Replies."""
    replies: int = 0
    """Handed on."""
    rows: int = 0
    """Handed on."""
    next_offset: int | None = None
    """After what was handed on."""
    read_offset: int | None = None
    """After what arrived."""
    ended: bool = False
    error: WingsError | None = None


class Sources:
    """Reads all sources.

    Args:
        transports: By endpoint; None is the client's own.
        sources: What to read.
        seconds: How long the gather may last.
        put: Takes a reply; blocks while there is no room; False where the gather has ended.
        end: Takes a source that ended, with what it failed with.
        opened: Takes a source whose server answered.
        finished: Called once no thread reads any more.
    """

    def __init__(
        self,
        transports: Mapping[str | None, Transport],
        sources: Sequence[Source],
        seconds: float,
        *,
        put: Callable[[Source, Reply], bool],
        end: Callable[[Source, WingsError | None], None],
        opened: Callable[[Source], None],
        finished: Callable[[], None],
    ) -> None:
        self._transports = transports
        self._seconds = seconds
        self._put = put
        self._end = end
        self._opened = opened
        self._finished = finished
        self._lock = threading.Lock()
        self._waiting = deque(sources)
        self._readings: set[Reading] = set()
        self._cancelled = False
        self._sliced = len(sources) > THREADS_MAX
        self._running = min(THREADS_MAX, len(sources))

    def start(self) -> None:
        """Send the requests."""
        for index in range(self._running):
            threading.Thread(target=self._run, name=f"wings-gather-{index}", daemon=True).start()

    def cancel(self) -> None:
        """End all streams, here and on the servers."""
        with self._lock:
            self._cancelled = True
            self._waiting.clear()
            readings = list(self._readings)
        for reading in readings:
            reading.cancel()

    def _run(self) -> None:
        try:
            while (source := self._next()) is not None:
                if self._read(source):
                    with self._lock:
                        if not self._cancelled:
                            self._waiting.append(source)
        finally:
            with self._lock:
                self._running -= 1
                last = self._running == 0
            if last:
                self._finished()

    def _next(self) -> Source | None:
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

    def _read(self, source: Source) -> bool:
        """Read a source's stream to its end; return whether it is to be read again later."""
        request = source.request
        transport = self._transports[request.endpoint]
        reading: Reading | None = None
        try:
            ticket = request.to_ticket(self._wait(source), source.read_offset)
            reading = Reading(transport)
            with self._lock:
                self._readings.add(reading)
                if self._cancelled:
                    return False
            stream = reading.open(ticket, self._seconds + BACKSTOP_SECONDS)
            self._opened(source)
            if not self._read_replies(source, stream.reader, transport.endpoint):
                return False
        except StreamCancelled:
            self._fail(source, client_closed(transport.endpoint))
            return False
        except WingsError as error:
            by_client = reading is not None and reading.cancelled.is_set()
            self._fail(source, client_closed(transport.endpoint) if by_client else error)
            return False
        except BaseException as error:  # noqa: BLE001 - it would end the thread in silence.
            self._end(source, typed_error(_as_exception(error), transport.endpoint))
            return False
        finally:
            if reading is not None:
                with self._lock:
                    self._readings.discard(reading)
                reading.done()
        if self._sliced and request.waits and not self._is_over(source):
            return True
        self._end(source, None)
        return False

    def _fail(self, source: Source, error: WingsError) -> None:
        """Say what a source failed with, unless it is the gather that ended it."""
        if not self._cancelled:
            self._end(source, error)

    def _wait(self, source: Source) -> float:
        remaining = source.deadline.remaining()
        assert remaining is not None
        return min(SLICE_SECONDS, remaining) if self._sliced else remaining

    def _is_over(self, source: Source) -> bool:
        """Tell whether a source was read as long as it may, or has answered its fetch."""
        if source.request.kind == "fetch" and source.arrived > 0:
            return True
        return source.deadline.passed

    def _read_replies(
        self, source: Source, reader: flight.FlightStreamReader, endpoint: str
    ) -> bool:
        """Hand over the replies of a stream; return False where the gather has ended."""
        while True:
            try:
                with typed_errors(endpoint):
                    batch, metadata = reader.read_chunk()
            except StopIteration:
                return True
            told = _told(metadata)
            if "end" in told:
                source.read_offset = told.get("next_offset", source.read_offset)
                continue
            if batch is None:  # pyright: ignore[reportUnnecessaryComparison] - metadata alone.
                continue
            start_offset, end_offset = told.get("start_offset"), told.get("end_offset")
            if end_offset is not None:
                source.read_offset = end_offset + 1
            source.arrived += 1
            if not self._put(source, Reply(batch, source.request, start_offset, end_offset)):
                return False


def _told(metadata: Any) -> dict[str, Any]:
    """Return the JSON object that comes with a chunk; another server may send anything."""
    try:
        found = json.loads(to_bytes(metadata) or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else RuntimeError(repr(error))
