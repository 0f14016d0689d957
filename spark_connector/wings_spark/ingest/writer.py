"""The writer of a query: tasks read and stage files, the driver publishes and acknowledges.

A task reads each file, or section of one, into a stage of its own. An empty stage marks each
section that is begun, so that a later attempt at the same work finds the section at which an
earlier attempt ended. If only that process ended, the file is the cause: this counts as a failed
attempt at the file, and the other files are read. If the whole pipeline ended, the file is read
again, up to the limit of attempts. An attempt that ends by a server's error, or has read
everything, deletes its marks: no file caused its end.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from wings_client import Client, Topic
from wings_core.errors import BatchTooLarge, Internal, InvalidArgument, WingsError
from wings_core.queue.commit import stage_prefix, writer_of
from wings_core.queue.journal import FileResult
from wings_core.times import now_us
from wings_spark.connection import ServerAccess
from wings_spark.ingest.columns import NewColumnsError
from wings_spark.ingest.connections import Connections
from wings_spark.ingest.files import FileError, RefusedError, SupersededError
from wings_spark.ingest.own_topics import DeadLetters
from wings_spark.ingest.plan import FileSection, PlannedWork
from wings_spark.ingest.read_file import FileReader, FileReading
from wings_spark.ingest.settings import SourceSettings

STAGE_SECONDS_MAX = 24 * 3600.0
"""Longest time for one file: the default age at which a server sweeps stages."""

UNMARK_SECONDS_MAX = 60.0
"""Longest time to retry deletion of marks; then the file counts as failed."""

UNMARK_PAUSE_SECONDS = 0.5

EVOLUTIONS_MAX = 3
"""Most attempts to add a section's columns: another task may add some at the same time."""


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a work."""

    claim: int
    results: tuple[FileResult, ...]
    """Results of files; empty if the claim had been published before."""


@dataclass
class TaskDone(WriterCommitMessage):
    """The commit message of one attempt of a task."""

    done: list[Done]


class IngestWriter(DataSourceStreamArrowWriter):
    """A writer whose tasks read and stage files, and that publishes and acknowledges on the driver.

    Args:
        settings: Settings of the source.
    """

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._server = settings.target.server()  # For the tasks, which have no files of a token.

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Read and stage the files of one task."""
        return TaskDone(carry_out(self._settings, _works_of(iterator), self._server))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name.
        """Publish a claim and acknowledge its messages."""
        del batchId
        done = _done(messages)
        if not done:
            return
        (number,) = {each.claim for each in done}
        with Connections(self._settings) as connections:
            claim = connections.journal.claim(number)
            if claim is None:
                raise Internal(f"claim {number} is not in the journal")
            dead_letters = DeadLetters(self._settings, connections.client)
            committer = connections.committer(dead_letters.stage)
            committer.commit(claim, [result for each in done for result in each.results])

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name.
        """Delete the unpublished stages of a batch's tasks, failed ones included."""
        del batchId
        claims = {each.claim for each in _done(messages)}
        if not claims:
            return
        with Connections(self._settings) as connections:
            for claim in claims:
                token = connections.journal.token
                prefix = stage_prefix(token, claim)
                connections.client.abort(writer_of(self._settings.name, token), (), prefix=prefix)


def carry_out(
    settings: SourceSettings, works: Sequence[PlannedWork], server: ServerAccess | None = None
) -> list[Done]:
    """Read and stage the files of some works, unless their claim is already published.

    A file that cannot be read is a result with an error, and does not affect the others. Blocks
    until all stages are durable.

    Args:
        settings: Settings of the source.
        works: The works to do.
        server: Server of the target, with files read by the driver; None to read them here.

    Raises:
        WingsError: The server failed: the task must be retried.
    """
    with (server or settings.target.server()).connect() as client:
        done: list[Done] = []
        for work in works:
            writer = writer_of(settings.name, work.token)
            aborted = client.abort(writer, (), work.claim, prefix=work.marks)
            if aborted.published is True:
                done.append(Done(work.claim, ()))
                continue
            topic = client.topic(settings.target.topic)
            reader = FileReader(settings, topic.schema, topic.partition_key)
            task = _Task(client, topic, reader, work, settings.limits.max_delivery_attempts)
            try:
                results = tuple(task.results(aborted.deleted))
            except WingsError:
                _forget_begun(client, writer, work)
                raise
            _forget_begun(client, writer, work)
            done.append(Done(work.claim, results))
        return done


def _works_of(batches: Iterator[pa.RecordBatch]) -> list[PlannedWork]:
    """Return the works of a task, given as rows of one column of JSON."""
    texts: list[Any] = []
    for batch in batches:
        texts += cast("Any", batch).column(0).to_pylist()
    return [PlannedWork.model_validate_json(text) for text in texts]


def _forget_begun(client: Client, writer: str, work: PlannedWork) -> None:
    """Delete the marks of an attempt that did not end because of a file.

    Blocks until the server responds, at most for `UNMARK_SECONDS_MAX`.
    """
    until = time.monotonic() + UNMARK_SECONDS_MAX
    while True:
        try:
            client.abort(writer, (), prefix=work.begun_marks)
            return
        except WingsError:
            if time.monotonic() > until:
                return  # The error that ended the attempt is the one to raise.
            time.sleep(UNMARK_PAUSE_SECONDS)


@dataclass(slots=True)
class _Task:
    client: Client
    topic: Topic
    reader: FileReader
    work: PlannedWork
    attempts_max: int

    def results(self, marks: Sequence[str]) -> Iterator[FileResult]:
        """Read all sections except those at which earlier attempts ended.

        Args:
            marks: Ids of the marks that the last attempt at this work left.
        """
        found = self.work.ends(marks)
        for section, end in found.items():
            # If this attempt ends at another section, the next attempt must know this one too.
            self._leave(self.work.mark_of_end(section, end))
        for section in self.work.sections:
            ends = 0
            if section in found:
                if found[section].plan == self.work.plan:
                    yield self._failed(section, "the process that read it ended")
                    continue
                ends = found[section].ends + 1
                if ends >= self.attempts_max:
                    error = f"the pipeline ended {ends} times while it was read"
                    yield self._failed(section, error, permanent=True)
                    continue
            began_at = now_us()
            result = self._result(section, ends)
            yield replace(
                result,
                section=section.index,
                sections=section.count,
                began_at=began_at,
                ended_at=now_us(),
            )

    def _failed(self, section: FileSection, error: str, *, permanent: bool = False) -> FileResult:
        return FileResult(
            section.file.shard,
            error=error,
            permanent=permanent,
            section=section.index,
            sections=section.count,
        )

    def _leave(self, mark: str) -> None:
        with self.client.stage(self.topic, mark):
            pass  # It is durable once it is closed.

    def _result(self, section: FileSection, ends: int) -> FileResult:
        """Read and stage one section; an error of the file is in the result."""
        file = section.file
        if file.problem is not None:
            return FileResult(file.shard, error=file.problem, permanent=True)
        self._leave(self.work.mark(section, ends))
        try:
            return self._evolved(section)
        except SupersededError as error:
            if file.position == 0:
                return FileResult(file.shard, finished=True, superseded=True)
            return FileResult(file.shard, error=str(error), permanent=True)
        except RefusedError as error:
            return FileResult(file.shard, error=str(error), permanent=True, refused=True)
        except FileError as error:
            return FileResult(file.shard, error=str(error))
        except (InvalidArgument, BatchTooLarge) as error:
            # The server rejected the rows.
            return FileResult(file.shard, error=error.message)

    def _evolved(self, section: FileSection) -> FileResult:
        """Add the columns of a section's file to the topic, then read and stage the section."""
        for _ in range(EVOLUTIONS_MAX):
            try:
                return self._staged(section)
            except NewColumnsError as error:
                self.topic = self.client.alter_schema(self.topic, add=pa.schema(error.fields))
                self.reader = FileReader(
                    self.reader.settings, self.topic.schema, self.topic.partition_key
                )
        return self._failed(section, "its columns differ at each attempt to add them to the topic")

    def _staged(self, section: FileSection) -> FileResult:
        reading = FileReading()
        batches = self.reader.batches(section, reading)
        first = next(batches, None)
        result = FileResult(section.file.shard)
        if first is not None:
            # On an error, the `with` statement deletes the stage.
            stage_id = f"{stage_prefix(self.work.token, self.work.claim)}{uuid4()}"
            with self.client.stage(self.topic, stage_id, seconds_max=STAGE_SECONDS_MAX) as stage:
                stage.write(first)
                for batch in batches:
                    stage.write(batch)
            staged = stage.close()
            if staged.rows != reading.rows:
                raise FileError(f"{reading.rows} of its rows were read, and {staged.rows} staged")
            result = replace(result, stages=(staged.stage,), bytes=staged.bytes)
        return replace(
            result,
            rows=reading.rows,
            finished=reading.finished,
            rescued=reading.rescued,
            seen=reading.seen,
            is_whole=reading.is_whole,
        )


def _done(messages: Sequence[WriterCommitMessage | None]) -> list[Done]:
    return [each for part in messages if isinstance(part, TaskDone) for each in part.done]
