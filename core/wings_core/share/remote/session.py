"""Session: one call of `HoldService.Session`, on which a coordinator asks a replica.

    begin ─▶ waiting ─▶ (one message under way at a time) the replica ─▶ one thread reads ─▶ done

What is asked while a message is under way goes into the next, as the replica syncs once for each.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from wings_core.errors import Unavailable, WingsError
from wings_core.share.remote.codec import decode_answers, encoded_requests
from wings_core.share.replica.requests import BATCH_MAX, Answer, Request, refused

Done = Callable[[int, Answer], None]
"""Called with the index of a request, and its answer."""


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """Requests that are answered together."""

    requests: Sequence[Request]
    """At most `BATCH_MAX`."""
    until: float
    """When an answer comes too late, by the monotonic clock."""
    done: Done

    def fail(self, error: WingsError) -> None:
        """Answer all of them with an error."""
        for number, answer in enumerate(refused(self.requests, error)):
            self.done(number, answer)


class HoldSession:
    """An open call; all methods from any thread.

    Args:
        method: Method of the channel; takes messages as bytes, and returns them so.
        error_of: Returns the error that a call ended with.
    """

    def __init__(
        self,
        method: "grpc.StreamStreamMultiCallable[bytes, bytes]",
        error_of: Callable[[grpc.RpcError], WingsError],
    ) -> None:
        self._error_of = error_of
        self._lock = threading.Lock()
        self._waiting: list[Asked] = []
        self._under_way: list[Asked] = []
        self.has_ended = False
        """Set when the session takes nothing any more."""
        self.error: WingsError | None = None
        """The error that it ended with; None: it goes on, or its requests were overdue."""
        self._messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        # Without a deadline of its own: see `begin`.
        self._call: Any = method(iter(self._messages.get, None))
        try:
            threading.Thread(target=self._read, name="wings-holds", daemon=True).start()
        except RuntimeError as error:  # There are too many.
            self._call.cancel()
            self._end(Unavailable(f"a session with a replica of holds failed: {error!r:.200}"))

    def begin(self, asked: Asked) -> bool:
        """Ask for something; its `done` is called on the session's thread.

        Returns:
            False where the session has ended, also before it was asked for anything, or ends now as
            what is under way is overdue: nothing was sent.
        """
        with self._lock:
            if self.has_ended:
                return False
            if not self._under_way:
                self._under_way = [asked]
                self._messages.put(encoded_requests(asked.requests))
                return True
            is_overdue = time.monotonic() > self._under_way[0].until
            if not is_overdue:
                self._waiting.append(asked)
                return True
            self.has_ended = True
        self._call.cancel()  # The replica must not carry it out long after.
        return False

    def _read(self) -> None:
        try:
            for message in self._call:
                self._answered(decode_answers(message))
        except grpc.RpcError as error:
            self._end(self._error_of(error))
        except BaseException as error:
            self._call.cancel()
            self._end(Unavailable(f"a session with a replica of holds failed: {error!r:.200}"))
            raise
        else:
            self._end(Unavailable("the replica of holds has ended its session"))

    def _answered(self, answers: Sequence[Answer]) -> None:
        with self._lock:
            answered = self._under_way
            if len(answers) != sum(len(each.requests) for each in answered):
                raise ValueError(f"{len(answers)} answers")
            self._under_way = []
            room = BATCH_MAX
            while self._waiting and len(self._waiting[0].requests) <= room:
                following = self._waiting.pop(0)
                room -= len(following.requests)
                self._under_way.append(following)
            if self._under_way:
                # Encoded messages follow one another as the requests of one.
                message = b"".join(encoded_requests(each.requests) for each in self._under_way)
                self._messages.put(message)
        found = iter(answers)
        for each in answered:
            for number in range(len(each.requests)):
                each.done(number, next(found))

    def _end(self, error: WingsError) -> None:
        with self._lock:
            self.has_ended, self.error = True, error
            left = [*self._under_way, *self._waiting]
            self._under_way, self._waiting = [], []
        self._messages.put(None)  # Ends gRPC's thread that takes them.
        for each in left:
            each.fail(error)
