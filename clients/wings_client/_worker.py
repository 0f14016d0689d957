"""The worker: calls a handler for the messages of a share group, and acknowledges them by it."""

from typing import Any, Self

from wings_client._admin import AdminCalls, TopicRef, name_of
from wings_client._arguments import checked
from wings_client._cancellation import LOOK_SECONDS
from wings_client._model import PartitionValue
from wings_client._share import DELIVERY_MESSAGES, member_name, ticket_of
from wings_client._share_engine import ShareEngine
from wings_client._worker_engine import WorkerEngine, WorkerOptions, is_async
from wings_client._worker_model import DELAY_SECONDS_MAX, BackoffPolicy, Each, WorkerStats
from wings_client._worker_rows import RowHandler, of_rows
from wings_core.errors import InvalidArgument
from wings_core.times import Deadline

CONCURRENCY_MAX = 1_000
"""The most handlers of a worker that run at once."""


@checked
class Worker:
    """Calls a handler for the messages of a share group; made by `Client.worker`.

    `run` works until `stop`, or Ctrl-C on its thread. As a context manager, it works in the
    background of the block, and the block's end stops it. All methods may be called from any
    thread, also from handlers, but `run`, `wait` and `close`, which wait for these.

    Attributes:
        group: The share group's name.
        topic: The topic of the group.
        member: This member's name.
        engine: The part that `AsyncWorker` shares.
    """

    def __init__(self, engine: WorkerEngine, group: str, topic: str, member: str) -> None:
        self.engine = engine
        self.group = group
        self.topic = topic
        self.member = member

    @property
    def stats(self) -> WorkerStats:
        """Counts of what it has done so far, in messages."""
        return self.engine.stats

    def run(self) -> WorkerStats:
        """Work until the end; returns what was done.

        The end is `stop`, the limit, or the time-out. Ctrl-C stops it too; `KeyboardInterrupt` is
        raised once what runs has finished. A second one aborts it.

        Raises:
            WingsError: The server's refusal; `Unavailable` where it could not be reached again.
        """
        self.engine.start()
        try:
            self.wait()
        except KeyboardInterrupt:
            self.engine.stop()
            try:
                self.wait()
            except KeyboardInterrupt:
                self.engine.abort()
                raise
            raise
        return self.stats

    def stop(self) -> None:
        """Take no more messages, and end once the running handlers have returned.

        Returns at once; `wait` waits for the end. Messages whose handler has not begun are released
        now, the others are acknowledged as always.
        """
        self.engine.stop()

    def abort(self) -> None:
        """End at once: all that is held is released, whatever the running handlers do."""
        self.engine.abort()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end, at most `timeout` seconds; returns False on time-out.

        Raises:
            WingsError: Why it ended.
        """
        if not self._wait(timeout):
            return False
        if self.engine.error is not None:
            raise self.engine.error
        return True

    def close(self) -> None:
        """Stop, and wait until the running handlers have returned; `wait` says why it ended.

        In a forked child it does nothing.
        """
        if self.engine.is_inherited:
            return
        self.engine.stop()
        self._wait(None)

    def _wait(self, timeout: float | None) -> bool:
        self.engine.check_process()
        deadline = Deadline.never() if timeout is None else Deadline.after(timeout)
        while not deadline.passed:
            left = deadline.remaining()
            # A signal that comes just before the wait begins does not interrupt it.
            if self.engine.done.wait(LOOK_SECONDS if left is None else min(LOOK_SECONDS, left)):
                return True
        return self.engine.done.is_set()

    def __enter__(self) -> Self:
        """Begin to work in the background; returns the worker itself."""
        self.engine.start()
        return self

    def __exit__(self, error_type: object, error: BaseException | None, *_: object) -> None:
        """Close the worker; an error raised in the block takes precedence over one of its own."""
        if self.engine.is_inherited:
            return
        self.engine.stop()
        try:
            self.wait()
        except Exception:
            if error is None:
                raise


@checked
class WorkerCalls(AdminCalls):
    """The call of `Client` that makes workers."""

    def worker(
        self,
        group: str,
        topic: TopicRef,
        handler: RowHandler,
        *,
        concurrency: int = 1,
        each: Each = "row",
        backoff: float = 1.0,
        backoff_max: float = 300.0,
        max_messages: int | None = None,
        prefetch: bool = True,
        limit: int | None = None,
        member: str | None = None,
        partition: PartitionValue = None,
        timeout: float | None = None,
        auto_renew: bool | float = True,
    ) -> Worker:
        """Return a worker, which calls a handler for each message of a share group.

        A handler that returns has its messages accepted. One that raises has them released, with a
        delay that doubles from delivery to delivery; raising `Reject` makes them dead letters,
        `Release` chooses the delay. While it works, its messages stay locked.

        Args:
            group: The name of an existing group; see `create_share_group`.
            topic: The topic of the group.
            handler: Takes a `Message`, or with `each="batch"` a `Delivery`. Where its parameter is
                annotated with a dataclass, a pydantic model or a NamedTuple, it takes the row as
                one, and in a second parameter the `Message`; a row that the class refuses becomes a
                dead letter. A plain function runs on a thread, a coroutine function on an event
                loop: the caller's, or with `Client` one of the worker's own.
            concurrency: How many calls of it run at once.
            each: Unit of one call: `row`, a message, or `batch`, a delivery.
            backoff: Seconds until the second delivery; half of it is random.
            backoff_max: The longest delay, in seconds.
            max_messages: Most messages of a delivery; None: for rows as many as `concurrency`, for
                batches 500.
            prefetch: Take a further delivery while all handlers are busy. False for long tasks: no
                message waits here for one that runs; rows are then taken one by one. So it is where
                `auto_renew` is not True, as a handler that hangs must keep none from others.
            limit: End after so many messages.
            member: This member's name; None: a random one.
            partition: Messages of this partition alone; None: of any.
            timeout: End after so many seconds without a message; None: never.
            auto_renew: False leaves locks to expire after their duration; a number renews them for
                so many seconds from when their handler began, so that one that hangs loses its
                messages.

        Raises:
            InvalidTicket: A name or number is out of range.
            InvalidArgument: Likewise; or the handler cannot be called so, or no row can become an
                instance of its class.
            TopicNotFound: From the worker: there is no such topic.
            GroupNotFound: From the worker: the topic has no such group.
        """
        _check("concurrency", concurrency, 1, CONCURRENCY_MAX)
        _check("backoff", backoff, 0, DELAY_SECONDS_MAX)
        _check("backoff_max", backoff_max, 0, DELAY_SECONDS_MAX)
        if limit is not None and limit < 1:
            raise InvalidArgument(f"limit must be at least 1; got {limit}")
        if each not in ("row", "batch"):
            raise InvalidArgument(f'each must be "row" or "batch"; got {each!r:.80}')
        prefetch = prefetch and auto_renew is True
        if max_messages is None:
            max_messages = _messages(each, concurrency, limit, prefetch=prefetch)
        name = member or member_name()
        ticket = ticket_of(group, name_of(topic), name, partition, max_messages, "worker")
        engine = WorkerEngine(
            ShareEngine(self._transport, ticket, timeout, auto_renew),
            of_rows(handler, each, is_async=is_async(handler)),
            WorkerOptions(concurrency, each, BackoffPolicy(backoff, backoff_max), prefetch, limit),
        )
        worker = Worker(engine, ticket.group, ticket.topic, name)
        self._transport.add(worker)
        return worker


def _check(name: str, value: Any, least: float, most: float) -> None:
    if not least <= value <= most:
        raise InvalidArgument(f"{name} must be {least} to {most:g}; got {value!r:.80}")


def _messages(each: Each, concurrency: int, limit: int | None, *, prefetch: bool) -> int:
    """Return how many messages a delivery has where the caller does not say."""
    if each == "row":
        return min(concurrency, limit or concurrency) if prefetch else 1
    return min(DELIVERY_MESSAGES, limit or DELIVERY_MESSAGES)
