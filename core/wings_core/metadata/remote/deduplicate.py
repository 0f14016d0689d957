"""Deduplicate: concurrent requests for one key share one call.

    first caller ─▶ begin the call ─▶ … ─▶ its end ─▶ all that wait for the key
    the others   ─▶ join it          ─▶ … ─▶

No caller owns a call: it runs until it ends, or until its last waiter has left, and then nothing
is kept. A waiter that leaves, the first one too, does not disturb the others.

A call can end in three ways. With a value, which all waiters get. Early, without one, because it
was begun for a shorter deadline: those who have time left go on with another call, again one for
all. With an error, which those get that came before the call began; those that joined it later go
on with one more call, since what failed may have been the first caller's alone, its deadline or its
bad luck. So every waiter hears of an error within two calls, and a thousand make no more than that.
"""

import threading
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from wings_core.errors import Internal, WingsError
from wings_core.times import Deadline

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class CallOutcome(Generic[V]):
    """How a call ended: with a value, with an error, or early, with neither."""

    value: V | None = None
    error: WingsError | None = None


Begin = Callable[[K, Deadline, Callable[[CallOutcome[V]], None]], Callable[[], None]]
"""Begins a call for a key without waiting for it, and returns what cancels it.

The call should end early once the deadline has passed, as no caller waits then. The function given
is called once, from any thread, when the call has ended; once it was cancelled it need not be.
An exception raised counts as the end: a `WingsError` as it is, any other as `Internal`.
"""


class Waiter(Generic[K, V]):
    """One request; its callback is called once, or never if it has left before.

    Its attributes belong to `Deduplicate`, under whose lock they change.
    """

    __slots__ = ("call", "callback", "deadline", "fresh", "key")

    def __init__(
        self, key: K, deadline: Deadline, callback: Callable[[CallOutcome[V]], None]
    ) -> None:
        self.key = key
        self.deadline = deadline
        self.callback = callback
        self.call: _SharedCall[K, V] | None = None
        self.fresh = False
        """Whether the call began after this request came."""


class _SharedCall(Generic[K, V]):
    """A call under way, told apart by identity."""

    __slots__ = ("cancel", "over", "waiters")

    def __init__(self) -> None:
        self.waiters: dict[Waiter[K, V], None] = {}
        self.cancel: Callable[[], None] | None = None
        """None until it has been begun."""
        self.over = False
        """True once it ended, or its last waiter left."""


class Deduplicate(Generic[K, V]):
    """Shares calls among concurrent requests; all methods from any thread.

    The lock here is a leaf: nothing is called while it is held.

    Args:
        begin: Begins a call. The value must be right for all that ask for the key while the
            call is under way.
    """

    def __init__(self, begin: Begin[K, V]) -> None:
        self._begin = begin
        self._lock = threading.Lock()
        self._calls: dict[K, _SharedCall[K, V]] = {}

    def __len__(self) -> int:
        """Return the number of calls under way."""
        return len(self._calls)

    def get(self, key: K, deadline: Deadline) -> V | None:
        """Return the answer for a key, or None where the deadline passes without one.

        Blocks until then. Leaving at the deadline does not disturb others who wait.

        Raises:
            WingsError: What the call failed with.
        """
        ended = threading.Event()
        outcomes: list[CallOutcome[V]] = []

        def end(outcome: CallOutcome[V]) -> None:
            outcomes.append(outcome)
            ended.set()

        waiter = self.join(key, deadline, end)
        try:
            ended.wait(deadline.remaining())
        finally:
            self.leave(waiter)
        if not outcomes:
            return None
        if outcomes[0].error is not None:
            # Shared by several threads, so not with the frames that others raised it from.
            raise outcomes[0].error.with_traceback(None)
        return outcomes[0].value

    def join(
        self, key: K, deadline: Deadline, callback: Callable[[CallOutcome[V]], None]
    ) -> Waiter[K, V]:
        """Ask for a key without waiting.

        Args:
            key: Key of the call.
            deadline: After it the callback is not of interest; the call may end without a value.
            callback: Called once with the outcome, on the thread on which the call ended (maybe
                this one, before this returns), with no lock held: quick, and never raises.
        """
        waiter: Waiter[K, V] = Waiter(key, deadline, callback)
        self._join(key, [waiter], fresh=False)
        return waiter

    def leave(self, waiter: Waiter[K, V]) -> None:
        """Withdraw a request; does nothing once it was answered.

        The callback may still be under way on another thread. The last to leave cancels the call.
        """
        with self._lock:
            call, waiter.call = waiter.call, None
            if call is None or call.over:
                return
            call.waiters.pop(waiter, None)
            if call.waiters:
                return
            call.over = True
            self._forget(waiter.key, call)
            cancel = call.cancel
        if cancel is not None:
            cancel()

    def _join(self, key: K, waiters: Iterable[Waiter[K, V]], *, fresh: bool) -> None:
        """Let requests wait for one call, begun here if none is under way."""
        with self._lock:
            joined = [waiter for waiter in waiters if not fresh or waiter.call is not None]
            if not joined:
                return
            call = self._calls.get(key)
            begun = call is None
            if call is None:
                call = self._calls[key] = _SharedCall()
            for waiter in joined:
                waiter.call = call
                waiter.fresh = fresh or begun
                call.waiters[waiter] = None
        if begun:
            self._begin_call(key, call, _longest(waiter.deadline for waiter in joined))

    def _begin_call(self, key: K, call: _SharedCall[K, V], deadline: Deadline) -> None:
        try:
            cancel = self._begin(key, deadline, lambda outcome: self._end(key, call, outcome))
        except Exception as error:  # noqa: BLE001 - else all that wait for the key did for ever.
            failure = (
                error
                if isinstance(error, WingsError)
                else Internal(f"a call could not be begun: {error!r:.200}")
            )
            self._end(key, call, CallOutcome(error=failure))
            return
        with self._lock:
            call.cancel = cancel
            left = call.over
        if left:
            cancel()  # The last waiter left while it was being begun, or it has ended.

    def _end(self, key: K, call: _SharedCall[K, V], outcome: CallOutcome[V]) -> None:
        """Deliver the outcome of a call, and begin another for those whom it does not serve."""
        served: list[Waiter[K, V]] = []
        going_on: list[Waiter[K, V]] = []
        with self._lock:
            if call.over:
                return
            call.over = True
            self._forget(key, call)
            for waiter in call.waiters:
                serves = outcome.value is not None or waiter.deadline.passed
                if serves or (outcome.error is not None and waiter.fresh):
                    waiter.call = None
                    served.append(waiter)
                else:
                    going_on.append(waiter)
        for waiter in served:
            waiter.callback(outcome)
        if going_on:
            self._join(key, going_on, fresh=True)

    def _forget(self, key: K, call: _SharedCall[K, V]) -> None:
        if self._calls.get(key) is call:
            del self._calls[key]


def _longest(deadlines: Iterable[Deadline]) -> Deadline:
    times = [deadline.at for deadline in deadlines]
    return Deadline(None if None in times else max(at for at in times if at is not None))
