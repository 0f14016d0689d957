"""`HoldService.Session`: a stream of coordinators' requests to a replica.

the calls' coroutines ─▶ queue ─▶ one thread: all messages in one write ─▶ (loop) responses
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc.aio
import structlog

from wings_core.errors import Internal, WingsError

_logger = structlog.get_logger("wings.metadata")

CarryOut = Callable[[Sequence[bytes]], Sequence[bytes | WingsError]]
"""Executes messages together; returns the response to each, or the error that ends its session."""


@dataclass(frozen=True, slots=True)
class _Asked:
    message: bytes
    answer: "asyncio.Future[bytes]"


class Sessions:
    """The sessions of one service; `serve` and `stop` run on its event loop.

    Args:
        carry_out: Executes messages, on the thread; blocks for a sync of the disk.
    """

    def __init__(self, carry_out: CarryOut) -> None:
        self._carry_out = carry_out
        self._asked: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._idle: set[asyncio.Task[Any]] = set()
        """Tasks of calls that wait for a message."""
        self._is_stopped = False

    async def serve(self, _: object, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        """Answer the messages of a call until its client, or `stop`, ends it.

        Raises:
            WingsError: A message is rejected.
        """
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="wings-holds", daemon=True)
            self._thread.start()
        try:
            while not self._is_stopped:
                self._idle.add(task)
                message: Any = await context.read()
                self._idle.discard(task)
                if message is grpc.aio.EOF or self._is_stopped:
                    return
                answer: asyncio.Future[bytes] = loop.create_future()
                self._asked.put(_Asked(message, answer))
                await context.write(await answer)
        except asyncio.CancelledError:
            if not self._is_stopped:
                raise
            # The method must return, or gRPC would leave the call open.
        finally:
            self._idle.discard(task)

    def stop(self) -> None:
        """End the sessions, each after its pending response."""
        self._is_stopped = True
        for task in list(self._idle):
            task.cancel()
        self._asked.put(None)

    # Run on the thread.

    def _run(self) -> None:
        asked = self._asked.get()
        while asked is not None:
            batch = [asked]
            while not self._asked.empty() and (asked := self._asked.get()) is not None:
                batch.append(asked)
            answers: Sequence[bytes | WingsError]
            try:
                answers = self._carry_out([each.message for each in batch])
            except Exception:
                _logger.exception("sessions failed by a fault of the replica")
                answers = [Internal("a fault of the replica of holds") for _ in batch]
            loop = batch[0].answer.get_loop()
            loop.call_soon_threadsafe(_tell, [each.answer for each in batch], answers)
            if asked is not None:
                asked = self._asked.get()


def _tell(
    futures: "Sequence[asyncio.Future[bytes]]", answers: Sequence[bytes | WingsError]
) -> None:
    for future, answer in zip(futures, answers, strict=True):
        if future.done():
            continue  # The call has ended.
        if isinstance(answer, WingsError):
            future.set_exception(answer)
        else:
            future.set_result(answer)
