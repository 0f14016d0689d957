"""Stages: the calls that publish or delete them, and the streams that write them.

A stage is one stream of batches that stay invisible until they are published.

    write ─▶ window (bounded) ─▶ writer's thread ─▶ DoPut
                 ▲                                   │
                 └──── answers' thread ◀── PutResult ┘   counts, makes room

A stage is written by one stream. If it breaks, the stage fails: its writer
starts over under another id, and the server deletes the old stage later.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Self

import pyarrow as pa

from wings_client._admin import AdminCalls, TopicRef
from wings_client._arguments import (
    TimeValue,
    build,
    checked_with,
    list_of,
    wire_partition,
    wire_time,
)
from wings_client._batches import BATCH_ROWS, Cut, Data, to_batches
from wings_client._errors import client_closed, copy_of, lost, timed_out
from wings_client._model import Aborted, PartitionValue, Published, Staged, Topic, parsed
from wings_client._stream import PutStream
from wings_client._threads import Work
from wings_client._transport import Transport
from wings_core.batches import empty_batch
from wings_core.contracts.actions import StageAbort, StagePublish
from wings_core.contracts.put import PutCommand
from wings_core.contracts.shards import ShardEntry
from wings_core.errors import (
    AlreadyExists,
    Internal,
    InvalidArgument,
    ResourceExhausted,
    WingsError,
)
from wings_core.model import ShardProgress

STAGE_SECONDS_MAX = 3_600.0
"""How long a stage may take to be written, by default."""

WINDOW_BATCHES = 64
"""Batches without an answer."""

WINDOW_BYTES = 32 * 1024 * 1024
"""Bytes without an answer; one batch may exceed it."""

ABANDON_SECONDS = 2.0
"""How long leaving a failed block waits for the stream to end, and again for the deletion."""


class Stage:
    """A stage, written over one stream; made by `Client.stage`, for one thread at a time.

    Attributes:
        id: The stage's id.
        topic: The topic its rows will be published to.
    """

    def __init__(
        self,
        transport: Transport,
        topic: Topic,
        stage_id: str,
        *,
        partition: PartitionValue = None,
        timestamp: TimeValue | None = None,
        batch_rows: int = BATCH_ROWS,
        seconds_max: float = STAGE_SECONDS_MAX,
    ) -> None:
        if batch_rows < 1 or not seconds_max > 0:
            raise InvalidArgument("batch_rows and seconds_max must be positive")
        self.id = stage_id
        self.topic = topic
        self._transport = transport
        self._seconds_max = seconds_max
        self._command = build(
            PutCommand,
            "stage",
            topic=topic.name,
            partition=wire_partition(partition),
            timestamp=None if timestamp is None else wire_time(timestamp),
            stage=stage_id,
        )
        self._cut = Cut.of(topic, batch_rows, routed=partition is None)
        # Guards the fields below, and notifies of every change; never held across a blocking call.
        self._changed = threading.Condition()
        self._unwritten: deque[pa.RecordBatch] = deque()
        self._unanswered: deque[int] = deque()
        """The bytes of each unanswered batch, including the unwritten ones."""
        self._bytes_unanswered = 0
        self._batches = self._rows = self._bytes = 0
        """Staged."""
        self._complete = False
        """Whether no more batches are put in."""
        self._opened = False
        self._answered = False
        """Whether no more answers come."""
        self._ended = False
        self._failure: WingsError | None = None
        self._is_empty = True
        """Whether nothing was put in."""
        self._writing = Work(self._run, "wings-stage")

    @property
    def rows(self) -> int:
        """How many rows are durable in the stage so far."""
        return self._rows

    def write(self, data: Data) -> None:
        """Add data and return, at once or as soon as there is room for it.

        Up to 64 batches and 32 MiB wait for an answer.

        Args:
            data: Data, as for `Client.push`.

        Raises:
            SchemaMismatch: The data does not fit the topic; batches before the one that does not
                are in the stage.
            InvalidArgument: The stage is closed.
            WingsError: What a batch was refused with, or `Unavailable` where the connection broke
                or stood still: the stage is of no use then.
        """
        self._transport.check_process()
        for batch in to_batches(data, self.topic.schema, self._cut):
            self._put(batch)

    def close(self) -> Staged:
        """Wait until everything is durable, and end the stage; again returns the same.

        Returns:
            What is in the stage: nothing is visible before it is published.

        Raises:
            WingsError: As `write`.
        """
        self._transport.check_process()
        if self._is_empty and not self._complete:
            # A stage is created by its first batch, and an empty one may be published too.
            self._put(empty_batch(self.topic.schema))
        with self._changed:
            self._start()  # Ctrl-C may have come before it was.
            self._complete = True
            self._changed.notify_all()
            self._wait_until_ended()
            if self._failure is not None:
                raise copy_of(self._failure)
            return Staged(self.id, self._rows, self._batches, self._bytes)

    def cancel(self) -> None:
        """Stop at once, as closing the client does; deleting the stage is up to `Client.abort`."""
        if self._transport.is_inherited:
            return
        with self._changed:
            if not self._ended:
                self._fail(client_closed(self._transport.endpoint))

    def __enter__(self) -> Self:
        """Return the stage itself."""
        return self

    def __exit__(self, error_type: object, error: BaseException | None, *_: object) -> None:
        """Close the stage; if the block or the close raises, delete it, in at most 4 s."""
        if error is not None:
            self._abandon()
            return
        try:
            self.close()
        except BaseException:
            self._abandon()
            raise

    def _put(self, batch: pa.RecordBatch) -> None:
        with self._changed:
            self._wait_for_room(batch.nbytes)
            self._unwritten.append(batch)
            self._unanswered.append(batch.nbytes)
            self._bytes_unanswered += batch.nbytes
            self._is_empty = False
            self._changed.notify_all()
            self._start()

    def _start(self) -> None:
        """Start the writer's thread; called with the lock held."""
        try:
            self._writing.start()
        except RuntimeError as error:  # There are too many.
            self._fail(Internal(f"the stage's thread does not start: {error}"))
            raise

    def _wait_for_room(self, size: int) -> None:
        while True:
            if self._failure is not None:
                raise copy_of(self._failure)
            if self._complete:
                raise InvalidArgument(f"stage {self.id!r} is closed")
            waiting = len(self._unanswered)
            if not waiting or (
                waiting < WINDOW_BATCHES and self._bytes_unanswered + size <= WINDOW_BYTES
            ):
                return
            self._wait_for_answer()

    def _wait_until_ended(self) -> None:
        while not self._ended and self._failure is None:
            self._wait_for_answer()

    def _wait_for_answer(self) -> None:
        """Wait for a change; the stage fails if none comes within the client's timeout."""
        # To open the stream takes no longer than any other call.
        seconds = self._transport.timeout if self._opened else None
        if self._changed.wait(seconds):
            return
        self._fail(
            timed_out(
                f"stage {self.id!r}: no answer in {self._transport.timeout} s",
                self._transport.endpoint,
            )
        )

    def _fail(self, error: WingsError) -> None:
        """Fail the stage and all later calls; called with the lock held."""
        self._failure = self._failure or copy_of(error)
        self._unwritten.clear()
        self._changed.notify_all()

    def _abandon(self) -> None:
        """End the stream, and delete the stage."""
        if self._transport.is_inherited:
            return
        with self._changed:
            self._fail(InvalidArgument(f"stage {self.id!r} was left by an error"))
            self._complete = True
        if self._is_empty:
            return
        self._writing.join(ABANDON_SECONDS)
        if isinstance(self._failure, AlreadyExists):
            return  # The stage of this id belongs to another writer.
        body = StageAbort(writer=self.id, stages=(self.id,))
        # If that fails, the server deletes it later.
        with contextlib.suppress(WingsError):
            self._transport.act("stage-abort", body, repeatable=True, timeout=ABANDON_SECONDS)

    # The writer's thread.

    def _run(self) -> None:
        error: WingsError | None
        try:
            error = self._write_all()
        except BaseException as failed:  # noqa: BLE001 - all who write would wait for it.
            error = Internal(f"the stage's thread has failed: {failed!r:.200}")
        with self._changed:
            if error is not None:
                self._fail(error)
            self._ended = True
            self._changed.notify_all()

    def _write_all(self) -> WingsError | None:
        """Write until the stage is complete or failed; returns the error that ended the stream."""
        try:
            stream = self._transport.repeat(self._open, repeatable=False)
        except WingsError as error:
            return error
        with self._changed:
            self._opened = True
            self._changed.notify_all()
        answers = threading.Thread(
            target=self._read_answers, args=(stream,), name="wings-answers", daemon=True
        )
        answers.start()
        while (batch := self._next()) is not None:
            if not stream.write(batch, None):
                break
        stream.finish()
        answers.join()
        ended = stream.close()
        if self._unanswered or not self._complete:
            return ended or lost("a stream ended before its answers", stream.endpoint)
        if self._batches and isinstance(ended, ResourceExhausted):
            return None  # There was no room to read on, and so to see that nothing more comes.
        return ended

    def _open(self, seconds: float) -> PutStream:
        del seconds  # Bounds the connecting; the stream has a deadline of its own.
        return PutStream(self._transport, self._command, self.topic, self._seconds_max)

    def _next(self) -> pa.RecordBatch | None:
        """Return the next batch to write; blocks until there is one. None ends the stream."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._unwritten or self._complete or self._answered or self._failure is not None
                )
            )
            if self._answered or not self._unwritten:
                return None
            return self._unwritten.popleft()

    # The answers' thread.

    def _read_answers(self, stream: PutStream) -> None:
        try:
            while (answer := stream.read()) is not None:
                self._count(answer["staged"])
        except WingsError as error:
            with self._changed:
                self._fail(error)
        finally:
            with self._changed:
                self._answered = True
                self._changed.notify_all()

    def _count(self, staged: Mapping[str, Any]) -> None:
        with self._changed:
            self._bytes_unanswered -= self._unanswered.popleft()
            self._batches += 1
            self._rows += staged["rows"]
            self._bytes += staged["bytes"]
            self._changed.notify_all()


@checked_with(shards=list_of("ShardProgress", ShardProgress))
class StageCalls(AdminCalls):
    """The calls of `Client` that stage and publish."""

    def stage(
        self,
        topic: TopicRef,
        stage_id: str,
        *,
        partition: PartitionValue = None,
        timestamp: TimeValue | None = None,
        batch_rows: int = BATCH_ROWS,
        seconds_max: float = STAGE_SECONDS_MAX,
    ) -> Stage:
        """Open a stage: batches that are durable and stay invisible until they are published.

        A context manager: leaving the block closes the stage; leaving it by an error ends the
        stream and deletes the stage.

        Args:
            topic: The topic; a `Topic` spares the call that asks for its schema.
            stage_id: 1 to 128 letters, digits and `._:-`, used for one stage only: put a random
                part in it. A stage that fails is written again under another.
            partition: Partition of all rows; None: by the key column, row by row.
            timestamp: The timestamp of all rows; None: the time of the publish.
            batch_rows: Most rows of one batch.
            seconds_max: After which the stage fails, if it is still not closed.

        Raises:
            TopicNotFound: There is none of this name.
            InvalidArgument: The id has another form.
        """
        stage = Stage(
            self._transport,
            self._described(topic),
            stage_id,
            partition=partition,
            timestamp=timestamp,
            batch_rows=batch_rows,
            seconds_max=seconds_max,
        )
        self._transport.add_stream(stage)
        return stage

    def publish(
        self,
        writer: str,
        batch: int,
        stages: Iterable[str | Staged],
        shards: Iterable[ShardProgress] = (),
    ) -> Published:
        """Make all rows of stages visible at once, and at most once for each batch of a writer.

        Publish stages that are closed. The same writer and batch again change nothing and return
        the first result, whatever the stages.

        Args:
            writer: The name that batches are counted under, such as a streaming query's.
            batch: At least 0, and higher than any that the writer published, or its last one.
            stages: Their ids, or what closing them returned, in the order of their rows; may be
                empty.
            shards: Changes of shards in the same transaction; see `open_shards`.

        Raises:
            StageNotFound: One was never written, or was aborted or swept (fact `stage`); nothing
                is published.
            TopicNotFound: The topic of one was deleted (fact `stage`); nothing is published.
            PublishFenced: The writer published a higher batch (fact `last_batch`); or a shard
                (facts `source` and `shard`) has another owner or position.
            BatchTooLarge: More than 500,000 pages: a page is a batch's rows in one partition.
        """
        body = build(
            StagePublish,
            "publish",
            writer=writer,
            batch=batch,
            stages=_ids(stages),
            shards=tuple(ShardEntry.of(progress) for progress in shards),
        )
        return parsed(Published, self._act("stage-publish", body))

    def abort(
        self,
        writer: str,
        stages: Iterable[str | Staged],
        batch: int | None = None,
        *,
        prefix: str | None = None,
    ) -> Aborted:
        """Delete stages that are not published; unknown ones are no error.

        Args:
            writer: The writer of the stages.
            stages: Their ids, or what closing them returned.
            batch: A batch of the writer, to learn whether it was published.
            prefix: Delete also the stages whose ids begin with this, at most 10,000 at a time.
        """
        body = build(
            StageAbort, "abort", writer=writer, batch=batch, stages=_ids(stages), prefix=prefix
        )
        return parsed(Aborted, self._act("stage-abort", body))


def _ids(stages: Iterable[str | Staged]) -> tuple[str, ...]:
    return tuple(stage.stage if isinstance(stage, Staged) else stage for stage in stages)
