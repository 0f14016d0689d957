"""A share stream: deliveries of a member, and its acknowledgements, both ways at once.

A thread of the stream reads it and hands on what comes. The stream has no gRPC deadline, as what it
holds is released when it ends; a silent server is noticed by a request that stays unanswered.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from wings_client._errors import (
    CALL_ERRORS,
    Connection,
    copy_of,
    lost,
    timed_out,
    typed_error,
)
from wings_client._share_model import Delivery
from wings_client._threads import start_thread
from wings_client._transport import Transport
from wings_core.contracts.share import AcknowledgementEntry
from wings_core.contracts.share_stream import (
    ShareAnswer,
    ShareCommand,
    ShareEnd,
    acknowledge_metadata,
    credit_metadata,
    parse_server_message,
)
from wings_core.errors import Unavailable, WingsError, error_from_json

CLOSE_SECONDS = 5.0
"""How long the server may take to answer and release what is left when a stream is closed."""


class _Request:
    """An acknowledgement that waits for its answer."""

    def __init__(self) -> None:
        self.results: Sequence[dict[str, Any]] | None = None
        self.known = threading.Lock()
        self.known.acquire()


class ShareStream:
    """An open share stream; all methods from any thread.

    Args:
        transport: To the server.
        command: The descriptor.
        delivered: Called with each delivery, on the stream's thread.
        ended: Called once on that thread, after `error` is set.

    Attributes:
        credit: How many messages it may hold at once.
        error: Why it ended; None while it is open.
        is_served: False where the server is of a version without share streams.
        endpoint: The address of the node that serves it.

    Raises:
        WingsError: `Unavailable` where no server was reached.
    """

    def __init__(
        self,
        transport: Transport,
        command: ShareCommand,
        delivered: Callable[[Delivery], None],
        ended: Callable[[], None],
    ) -> None:
        self.credit = command.credit
        self.error: WingsError | None = None
        self.is_served = True
        self._transport = transport
        self._delivered = delivered
        self._ended = ended
        self._requests = 0
        self._is_closing = False
        self._waiting: dict[int, _Request] = {}
        self._closed = threading.Event()
        # Guards what is written, and the fields above; the stream's thread never takes it for long.
        self._lock = threading.Lock()
        self._writer, self._reader, self.endpoint = transport.exchange(command)
        try:
            with self._lock:
                self._write(credit_metadata(self.credit))
            start_thread(self._read, "wings-share")
        except BaseException:
            self._reader.cancel()
            raise

    def set_credit(self, credit: int) -> None:
        """Let the stream hold so many messages at once, at most `CREDIT_MAX`.

        Raises:
            WingsError: The stream has ended.
        """
        with self._lock:
            if self.error is not None:
                raise copy_of(self.error)
            self.credit = credit
            self._write(credit_metadata(credit))

    def acknowledge(
        self, entries: Sequence[AcknowledgementEntry]
    ) -> list[WingsError | None] | None:
        """Acknowledge messages; blocks until it is durable, at most for the client's timeout.

        Returns:
            The error of each entry, in order, or None; None where the stream has ended already, and
            nothing was sent.

        Raises:
            WingsError: `Unavailable` where the outcome is unknown.
        """
        request = _Request()
        with self._lock:
            if self.error is not None or self._is_closing:
                return None
            self._requests += 1
            number = self._requests
            self._waiting[number] = request
            self._write(acknowledge_metadata(number, entries))
        if not request.known.acquire(timeout=self._transport.timeout):
            raise timed_out(f"no answer from {self.endpoint} in time", self.endpoint)
        if request.results is None:
            assert self.error is not None
            raise _in_doubt(self.error, self.endpoint)
        return [None if each["code"] is None else error_from_json(each) for each in request.results]

    def close(self) -> None:
        """End this side: the server answers, releases what is held, and ends the stream."""
        with self._lock:
            self._is_closing = True
            try:
                self._writer.done_writing()
            except CALL_ERRORS:
                self._reader.cancel()
        if not self._closed.wait(CLOSE_SECONDS):
            self.cancel()

    def cancel(self) -> None:
        """Break the stream, which the server notices at once; never blocks."""
        self._reader.cancel()

    def _write(self, message: bytes) -> None:
        """Send a message; the lock is held."""
        try:
            self._writer.write_metadata(pa.py_buffer(message))
        except CALL_ERRORS:
            # The reader's error says more; it comes now.
            self._reader.cancel()

    def _read(self) -> None:
        try:
            error = self._read_to_end()
        except CALL_ERRORS as failed:
            error = typed_error(failed, self.endpoint)
            self.is_served = not isinstance(failed, pa.ArrowNotImplementedError)
        except Exception as failed:  # noqa: BLE001 - told to who waits.
            error = lost(f"the share stream of {self.endpoint}: {failed!r:.200}", self.endpoint)
            self._reader.cancel()
        self._transport.addresses.note(error, self.endpoint)
        with self._lock:
            self.error = error
            waiting, self._waiting = self._waiting, {}
        for request in waiting.values():
            request.known.release()
        with suppress(*CALL_ERRORS):  # Told already.
            self._writer.close()
        self._closed.set()
        self._ended()

    def _read_to_end(self) -> WingsError:
        end: WingsError | None = None
        while True:
            try:
                batch, metadata = self._reader.read_chunk()
            except StopIteration:
                return end or lost(f"{self.endpoint} ended a share stream", self.endpoint)
            match parse_server_message(metadata):
                case ShareAnswer(number, results):
                    request = self._waiting.pop(number, None)
                    if request is not None:
                        request.results = results
                        request.known.release()
                case ShareEnd(code, message):
                    end = _error_of(code, message, self.endpoint)
                    with self._lock:
                        self._is_closing = True
                        self._writer.done_writing()
                case chunk:
                    self._delivered(Delivery.of(batch, chunk))


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
