"""Flight servers that answer as their tickets say, for tests of gather."""

import json
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from wings_client.gather import (
    EMPTY,
    Gather,
    GatherEnd,
    GatherReason,
    Reply,
    Request,
    first,
    stall,
    wait,
)

TRIES = 50
"""How often a bound on time is tried: another process may have the processor for a while."""

SCHEMA = pa.schema([pa.field("n", pa.int64())])

internal_error: Any = flight.FlightInternalError
"""The stubs do not know of `extra_info`."""


def batch(rows: int) -> pa.RecordBatch:
    """Return a batch of so many rows."""
    # Not from a Python list: with the first of these pyarrow imports pandas, for a second.
    return pa.RecordBatch.from_arrays([pa.nulls(rows, pa.int64())], schema=SCHEMA)


class Responder(flight.FlightServerBase):
    """Answers `{"replies": [[milliseconds, rows]...], "then": "end" | "hang" | "refuse"}`.

    Or "break": the stream ends without its end chunk. The script is the ticket, or the topic of a
    ticket, whose offset then is gone on at.

    Attributes:
        endpoint: Where it listens.
        cancelled: How many streams it saw cancelled.
        running: How many streams are open.
        tickets: All that it got.
    """

    def __init__(self) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self.endpoint = f"grpc://127.0.0.1:{self.port}"
        self.cancelled = 0
        self.running = 0
        self.tickets: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def do_get(
        self, context: flight.ServerCallContext, ticket: flight.Ticket
    ) -> flight.FlightDataStream:
        told = json.loads(ticket.ticket)
        self.tickets.append(told)
        script = json.loads(told["topic"]) if "topic" in told else told
        begin = told.get("offset", 0)
        return flight.GeneratorStream(SCHEMA, self._replies(context, script, begin))

    def _replies(self, context: flight.ServerCallContext, script: Any, begin: int) -> Iterator[Any]:
        with self._lock:
            self.running += 1
        try:
            offset = 0
            for milliseconds, rows in script["replies"]:
                if offset < begin:
                    offset += rows
                    continue
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
            if script["then"] == "break":
                return
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

    def wait_until_idle(self, seconds: float = 60.0) -> float:
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


def near_script(*replies: tuple[float, int], then: str = "end", **options: Any) -> Request:
    """Return a request to the client's own server that is answered as `script` says.

    It has an offset and so on, like one to a Wings server. Unless the options say else, a scan.
    """
    topic = json.dumps({"replies": replies, "then": then})
    options = {"kind": "scan", **options}
    return Request(topic, offset=0, **options)


@contextmanager
def responder() -> Generator[Responder]:
    """Run a responder for as long as the `with` lasts."""
    server = Responder()
    try:
        yield server
    finally:
        server.shutdown()


def gather_that_ends(
    replies: int, reason: GatherReason, ended: Callable[[], tuple[list[Reply], GatherEnd]]
) -> tuple[list[Reply], GatherEnd]:
    """Return what a gather brought that ended after so many replies, for this reason.

    Raises:
        AssertionError: None of `TRIES` did.
    """
    seen: set[tuple[int, GatherReason]] = set()
    for _ in range(TRIES):
        found, end = ended()
        if (len(found), end.reason) == (replies, reason):
            return found, end
        seen.add((len(found), end.reason))
    raise AssertionError(f"{seen}: never {replies}, {reason}")


def wait_for_streams(server: Responder, count: int) -> None:
    """Wait until so many streams are open."""
    until = time.monotonic() + 60
    # One that is read on by a thread is there twice for a moment.
    while server.running != count and time.monotonic() < until:
        time.sleep(0.002)
    assert server.running == count


def has_rows(reply: Reply) -> bool:
    return reply.batch.num_rows > 0


EMPTY_AT_MS = {"": 100, "slow": 400, "late": 3_000}
"""When the empty reply comes: where only what comes before it counts, so late that a machine under
load changes nothing."""

# What the sources do after their replies, and when the empty reply comes.
CASES: dict[str, tuple[dict[str, Any], str, int, GatherReason]] = {
    "only the total": ({"timeout": 0.8}, "hang", 6, GatherReason.TIMEOUT),
    "all answered": ({}, "end", 6, GatherReason.COMPLETE),
    "the strategy wait": ({"strategy": wait}, "end", 6, GatherReason.COMPLETE),
    "a stall shorter than the gap": ({"stall_timeout": 0.4}, "hang late", 5, GatherReason.STALL),
    "the strategy stall": (
        {"timeout": 4.0, "strategy": stall}, "hang late", 5, GatherReason.STALL,
    ),
    "first three": ({"max_messages": 3}, "hang late", 3, GatherReason.MAX_MESSAGES),
    "the strategy first": ({"strategy": first(3)}, "hang late", 3, GatherReason.MAX_MESSAGES),
    "more than there are": ({"max_messages": 9, "timeout": 0.8}, "hang", 6, GatherReason.TIMEOUT),
    "more than there are, all ended": ({"max_messages": 9}, "end", 6, GatherReason.COMPLETE),
    "the empty sentinel": ({"sentinel": EMPTY}, "hang slow", 5, GatherReason.SENTINEL),
    "a predicate": (
        {"sentinel": has_rows}, "hang", 6, GatherReason.SENTINEL,
    ),
    "a stall below a millisecond": (
        {"stall_timeout": 0.0009, "sentinel": EMPTY}, "hang slow", 5, GatherReason.SENTINEL,
    ),
    "a stall beyond the total": (
        {"stall_timeout": 9.0, "timeout": 0.8}, "hang", 6, GatherReason.TIMEOUT,
    ),
    "all options, the stall wins": (
        {"timeout": 4.0, "stall_timeout": 0.4, "max_messages": 9, "sentinel": EMPTY},
        "hang late", 5, GatherReason.STALL,
    ),
    "all options, the maximum wins": (
        {"timeout": 3.0, "stall_timeout": 0.5, "max_messages": 3, "sentinel": EMPTY},
        "hang late", 3, GatherReason.MAX_MESSAGES,
    ),
    "all options, the sentinel wins": (
        {"timeout": 3.0, "stall_timeout": 2.0, "max_messages": 9, "sentinel": EMPTY},
        "hang slow", 5, GatherReason.SENTINEL,
    ),
    "all options, the total wins": (
        {"timeout": 0.6, "stall_timeout": 0.599, "max_messages": 9, "sentinel": EMPTY},
        "hang late", 5, GatherReason.TIMEOUT,
    ),
}  # fmt: skip


def leaves(gather: Gather) -> None:
    for _ in gather:
        break


def raises(gather: Gather) -> None:
    def fail() -> None:
        for _ in gather:
            raise KeyError

    with pytest.raises(KeyError):
        fail()


def never_reads(gather: Gather) -> None:
    with gather:
        pass


WAYS_OUT = [leaves, raises, never_reads]
"""How a caller may leave a gather."""
