"""Flight servers that answer as their tickets say, for tests of gather."""

import json
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from wings_client.gather import Request

SCHEMA = pa.schema([pa.field("n", pa.int64())])

internal_error: Any = flight.FlightInternalError
"""The stubs do not know of `extra_info`."""


def batch(rows: int) -> pa.RecordBatch:
    """Return a batch of so many rows."""
    # Not from a Python list: with the first of these pyarrow imports pandas, for a second.
    return pa.RecordBatch.from_arrays([pa.nulls(rows, pa.int64())], schema=SCHEMA)


class Responder(flight.FlightServerBase):
    """Answers `{"replies": [[milliseconds, rows]...], "then": "end" | "hang" | "refuse"}`.

    Attributes:
        endpoint: Where it listens.
        cancelled: How many streams it saw cancelled.
        running: How many streams are open.
    """

    def __init__(self) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self.endpoint = f"grpc://127.0.0.1:{self.port}"
        self.cancelled = 0
        self.running = 0
        self._lock = threading.Lock()

    def do_get(
        self, context: flight.ServerCallContext, ticket: flight.Ticket
    ) -> flight.FlightDataStream:
        script = json.loads(ticket.ticket)
        return flight.GeneratorStream(SCHEMA, self._replies(context, script))

    def _replies(self, context: flight.ServerCallContext, script: Any) -> Iterator[Any]:
        with self._lock:
            self.running += 1
        try:
            offset = 0
            for milliseconds, rows in script["replies"]:
                if not self._sleep(context, milliseconds):
                    return
                told = {"start_offset": offset, "end_offset": offset + rows - 1} if rows else {}
                offset += rows
                yield batch(rows), json.dumps(told).encode()
            if script["then"] == "refuse":
                body = {"code": "INTERNAL", "message": "refused as told"}
                raise internal_error("refused", extra_info=json.dumps(body).encode())
            while script["then"] == "hang" and self._sleep(context, 10):
                pass
            end = {"end": "end_offset", "next_offset": offset, "log_end_offset": offset}
            yield batch(0), json.dumps(end).encode()
        finally:
            with self._lock:
                self.running -= 1

    def _sleep(self, context: flight.ServerCallContext, milliseconds: float) -> bool:
        """Sleep; return False where the client is gone."""
        end = time.monotonic() + milliseconds / 1000
        while (left := end - time.monotonic()) > 0:
            if context.is_cancelled():
                with self._lock:
                    self.cancelled += 1
                return False
            time.sleep(min(left, 0.005))
        return True

    def wait_until_idle(self, seconds: float = 5.0) -> float:
        """Wait until no stream is open; return the seconds that it took."""
        began = time.monotonic()
        while self.running and time.monotonic() - began < seconds:
            time.sleep(0.002)
        assert self.running == 0, f"{self.running} streams are still open"
        return time.monotonic() - began


def script(endpoint: str, *replies: tuple[float, int], then: str = "end") -> Request:
    """Return a request that is answered by replies of (milliseconds after the last, rows)."""
    ticket = json.dumps({"replies": replies, "then": then}).encode()
    return Request(endpoint=endpoint, ticket=ticket)


@contextmanager
def responder() -> Generator[Responder]:
    """Run a responder for as long as the `with` lasts."""
    server = Responder()
    try:
        yield server
    finally:
        server.shutdown()
