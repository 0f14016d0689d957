"""Run of a pipeline's query, from start to end, and the reason for its end, in one line."""

import re
from collections.abc import Callable
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from py4j.protocol import (  # pyright: ignore[reportMissingTypeStubs] - it has none.
    Py4JError,
    Py4JNetworkError,
)
from pyspark.errors import PySparkException

from wings_core import errors
from wings_core.errors import InvalidArgument, TopicNotFound, WingsError
from wings_core.queue.commit import mark_prefix, stage_prefix, writer_of
from wings_core.queue.journal import Fate, Journal, Outcome
from wings_core.times import format_timestamp
from wings_spark.ingest.connections import open_queue
from wings_spark.ingest.data_source import NAME, SETTINGS, TASKS, IngestDataSource
from wings_spark.ingest.disposal import disposal_of
from wings_spark.ingest.metrics import RunMetrics
from wings_spark.ingest.own_topics import DeadLetters, History
from wings_spark.ingest.read_file import FileReader
from wings_spark.ingest.settings import SourceSettings

REPORT_SECONDS = 1
"""Interval at which a run checks for new outcomes, and for a request to end."""

REASON_CHARACTERS_MAX = 500

_SPARK_ERRORS = (PySparkException, Py4JError, ConnectionError)
"""Exceptions of PySpark for its own errors, Java's, and those of the connection to Java."""

_CONFIGURATION = (
    errors.InvalidArgument,
    errors.TopicNotFound,
    errors.NamespaceNotFound,
    errors.GroupNotFound,
    errors.Unauthenticated,
    errors.PermissionDenied,
)
"""Errors that remain after a restart."""

_STATE = "=== Streaming Query ==="
"""Beginning of Spark's description of a query, which follows the error."""

_OURS = re.compile(r"(?:wings_core\.errors\.)(\w+): (.*)")
_RAISED = re.compile(r"(?:Caused by: |: )?((?:[\w$]+\.)*[\w$]*(?:Error|Exception)): (.+)")
_CODE = re.compile(r"\s*SQLSTATE: \w+\s*$")

_FAILED = re.compile(r"^\[STREAM_FAILED\].*terminated with exception: ?")

_SLOW_WORKER = re.compile("(?i)python worker failed to connect|accept timed out")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def check(settings: SourceSettings) -> None:
    """Check that a source's queue and topic exist and fit its settings; receives no message.

    The topic of its dead letters is created, if missing.

    Raises:
        WingsError: The queue or a topic does not exist or fit; the message says which.
    """
    disposal_of(settings)
    with closing(open_queue(settings)) as queue:
        queue.pending()
    with settings.target.server().connect() as client:
        try:
            topic = client.topic(settings.target.topic)
        except TopicNotFound as error:
            raise TopicNotFound(
                f"{error.message}: create it, or name another in 'target.topic'", **error.facts
            ) from None
        DeadLetters(settings, client).prepare()
        History(settings, client, "").prepare()
    FileReader(settings, topic.schema, topic.partition_key)


def start(
    spark: "SparkSession", settings: SourceSettings, *, once: bool = False
) -> "StreamingQuery":
    """Start the query of a source, which resumes from its checkpoint.

    Args:
        spark: A classic session.
        settings: Settings of the source.
        once: Whether to end when the queue is empty.

    Raises:
        WingsError: The queue or the topic does not exist, or does not fit the settings.
        InvalidArgument: The session has speculative execution.
    """
    check(settings)
    if spark.conf.get("spark.speculation", "false") == "true":
        raise InvalidArgument(
            "'spark.speculation' must be off: each of two attempts of a task would take the other "
            "for one that was killed"
        )
    spark.dataSource.register(IngestDataSource)
    text = settings.model_dump_json()
    tasks = settings.limits.tasks or spark.sparkContext.defaultParallelism
    source = spark.readStream.format(NAME).option(SETTINGS, text).option(TASKS, str(tasks)).load()
    sink = (
        source.writeStream.format(NAME)
        .option(SETTINGS, text)
        .option("checkpointLocation", str(settings.checkpoint / "spark"))
        .queryName(f"wings-ingest-{settings.name}")
    )
    if once:
        return sink.trigger(availableNow=True).start()
    return sink.trigger(
        processingTime=f"{round(settings.limits.trigger_seconds * 1_000)} milliseconds"
    ).start()


class QueryEndedError(Exception):
    """A query ended with an error.

    Args:
        reason: The reason, in one line.
        is_configuration: Whether the settings, or the queue or topic they name, must be changed
            first.
        lost_java: Whether Java is gone, and Spark with it.
    """

    def __init__(
        self, reason: str, *, is_configuration: bool = False, lost_java: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_configuration = is_configuration
        self.lost_java = lost_java


class Reports:
    """Reporter of batches' figures, each once.

    Args:
        journal: Journal of the pipeline.
        report: Function called with the figures of each published batch, in order.
        metrics: Metrics that count the figures too, or None.
    """

    def __init__(
        self,
        journal: Journal,
        report: Callable[[dict[str, Any]], None],
        metrics: RunMetrics | None = None,
    ) -> None:
        self._journal = journal
        self._report = report
        self.metrics = metrics
        self._last = journal.last_done  # A claim that an earlier run left open is reported too.

    def bring(self) -> int:
        """Report batches that were published since the last call; returns the last one's number."""
        while (outcome := self._journal.outcome(self._last + 1)) is not None:
            self._last += 1
            found = figures(outcome)
            self._report(found)
            if self.metrics is not None:
                self.metrics.add(found)
        return self._last


def run(
    spark: "SparkSession",
    settings: SourceSettings,
    reports: Reports,
    *,
    once: bool = False,
    is_asked_to_end: Callable[[], bool] = lambda: False,
) -> None:
    """Run a source's query; blocks until the query ends, or is asked to.

    Args:
        spark: A classic session.
        settings: Settings of the source, whose journal the caller has locked.
        reports: Reporter of its batches.
        once: Whether to end when the queue is empty.
        is_asked_to_end: Function called every `REPORT_SECONDS`; if true, the batch in progress is
            dropped.

    Raises:
        QueryEndedError: The query failed.
        WingsError: As `start`.
    """
    try:
        query = start(spark, settings, once=once)
        try:
            while not query.awaitTermination(REPORT_SECONDS):
                reports.bring()
                if reports.metrics is not None:
                    reports.metrics.note(query.lastProgress)
                if is_asked_to_end():
                    break
        finally:
            reports.bring()
            if is_asked_to_end():
                # Spark logs pages of each task that is interrupted.
                spark.sparkContext.setLogLevel("OFF")
            query.stop()
    except _SPARK_ERRORS as error:
        if is_asked_to_end():
            return  # Java may have been asked to end as well.
        raise _ended_by(error) from None
    if is_asked_to_end():
        with suppress(WingsError):
            _forget_progress(settings)


def is_configuration(error: WingsError) -> bool:
    """Return whether an error remains until the settings, or the things they name, are changed."""
    return isinstance(error, _CONFIGURATION)


def _ended_by(error: Exception) -> QueryEndedError:
    """Return the reason of a query's end, by the exception of PySpark."""
    if isinstance(error, Py4JNetworkError | ConnectionError):
        return QueryEndedError("Java ended, and Spark with it", lost_java=True)
    text = ""
    with suppress(Exception):  # It asks Java.
        text = str(error)
    return ended_with(text)


def ended_with(text: str) -> QueryEndedError:
    """Return the reason in Spark's text: the last error of Python, else of Java."""
    lines = [line.strip() for line in text.partition(_STATE)[0].splitlines() if line.strip()]
    ours = [found for line in lines if (found := _OURS.search(line))]
    if ours:
        kind: Any = getattr(errors, ours[-1][1], WingsError)
        return QueryEndedError(
            _short(ours[-1][2]), is_configuration=issubclass(kind, _CONFIGURATION)
        )
    if _SLOW_WORKER.search(text):
        return QueryEndedError("a Python worker of Spark did not start in time")
    raised = [found for line in lines if (found := _RAISED.match(line))]
    if raised:
        kind = raised[-1][1].rpartition(".")[2]
        return QueryEndedError(_short(f"{kind}: {raised[-1][2]}"))
    reason = _FAILED.sub("", lines[0]) if lines else ""
    return QueryEndedError(_short(reason) or "a process of Spark ended")


def _forget_progress(settings: SourceSettings) -> None:
    """Delete the stages and marks of a dropped batch's tasks.

    A remaining mark would count as an end that its file may have caused.
    """
    journal = Journal(settings.journal_directory)
    with settings.target.server().connect() as client:
        for claim in journal.open_claims():
            for prefix in (stage_prefix, mark_prefix):
                client.abort(
                    writer_of(settings.name, journal.token),
                    (),
                    prefix=prefix(journal.token, claim.number),
                )


def figures(outcome: Outcome) -> dict[str, Any]:
    """Return the figures of a batch, as JSON."""
    fates = [file.fate for file in outcome.files]
    return {
        "batch": outcome.number,
        "published_at": format_timestamp(outcome.published_at),
        "files": {fate.value: fates.count(fate) for fate in Fate if fate in fates},
        "rows": outcome.rows,
        "bytes": sum(file.bytes for file in outcome.files),
        "rescued_rows": sum(file.rescued for file in outcome.files),
    }


def _short(text: str) -> str:
    return _CODE.sub("", text)[:REASON_CHARACTERS_MAX]
