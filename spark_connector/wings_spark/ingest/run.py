"""The run of a pipeline: its query, from start to end."""

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException

from wings_core.errors import InvalidArgument, Unavailable
from wings_core.queue.claims import Fate, Outcome
from wings_core.queue.journal import Journal
from wings_core.times import format_timestamp
from wings_spark.ingest.connections import open_queue
from wings_spark.ingest.data_source import NAME, SETTINGS, TASKS, IngestDataSource
from wings_spark.ingest.dead_letters import DeadLetters
from wings_spark.ingest.read_file import FileReader
from wings_spark.ingest.settings import SourceSettings
from wings_spark.testing import find_java, use_this_python

_RAISED = re.compile(r"(\w+\.)+\w+(Error|Exception)?: |\w+Error: ")

_LOCAL = re.compile(r"local(?:\[(\d+|\*)\])?")

TASK_ATTEMPTS = 4
"""Attempts of a task on this machine, as many as a cluster's default."""

REPORT_SECONDS = 1
"""How often a run looks for new outcomes to report."""

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def check(settings: SourceSettings) -> None:
    """Check that a source's queue and topic exist and fit its settings; receives no message.

    The topic of its dead letters is created, if missing.

    Raises:
        WingsError: One of them does not exist or fit; the message says which.
    """
    queue = open_queue(settings)
    try:
        queue.pending()
    finally:
        queue.close()
    with settings.target.server().connect() as client:
        topic = client.topic(settings.target.topic)
        DeadLetters(settings, client).prepare()
    FileReader(settings, topic.schema, topic.partition_key)


def start(
    spark: "SparkSession", settings: SourceSettings, *, once: bool = False
) -> "StreamingQuery":
    """Start the query of a source, which continues from its checkpoint.

    Args:
        spark: A classic session.
        settings: Of the source.
        once: End when the queue has nothing more.

    Raises:
        WingsError: The queue or the topic does not exist, or does not fit the settings.
        InvalidArgument: The session runs tasks twice on speculation.
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


def run(
    spark: "SparkSession",
    settings: SourceSettings,
    *,
    once: bool = False,
    report: Callable[[dict[str, Any]], None] = lambda _: None,
) -> None:
    """Run a source's query; blocks until it ends, or forever.

    Args:
        spark: A classic session.
        settings: Of the source.
        once: End when the queue has nothing more.
        report: Called with the figures of each published batch.

    Raises:
        Unavailable: It runs already on this machine.
        WingsError: As `start`.
    """
    journal = Journal(settings.journal_directory)
    journal.lock()
    try:
        reported = journal.last_done  # A claim that an earlier run left open is reported too.
        query = start(spark, settings, once=once)
        try:
            ended = False
            while not ended:
                ended = bool(query.awaitTermination(REPORT_SECONDS))
                while (outcome := journal.outcome(reported + 1)) is not None:
                    reported += 1
                    report(figures(outcome))
        except StreamingQueryException as error:
            raise Unavailable(f"the query ended: {_reason(error)}") from None
        finally:
            if query.isActive:
                # Spark logs pages of each task that is interrupted.
                spark.sparkContext.setLogLevel("OFF")
            query.stop()
    finally:
        journal.unlock()


def _reason(error: StreamingQueryException) -> str:
    """Return the last Python error of a failure, which Spark wraps in pages of Java's."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)]
    return (raised or lines or ["for an unknown reason"])[-1][:400]


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


def with_attempts(master: str) -> str:
    """Return a local master with `TASK_ATTEMPTS` attempts of a task; others unchanged."""
    local = _LOCAL.fullmatch(master)
    return master if local is None else f"local[{local[1] or 1},{TASK_ATTEMPTS}]"


@contextmanager
def session(settings: SourceSettings, master: str | None) -> Generator["SparkSession"]:
    """Run a Spark session for a source.

    Args:
        settings: Of the source.
        master: Where Spark runs; None: as Spark is configured, else all cores of this machine.
            A local task has four attempts too, as on a cluster: the next attempt detects a file
            that ended the process that read it.

    Raises:
        RuntimeError: There is no Java.
    """
    find_java()
    use_this_python()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(f"wings-ingest-{settings.name}")
    if master is not None:
        builder = builder.master(with_attempts(master))
    builder = builder.config("spark.speculation", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    found = spark.sparkContext.master or ""
    if with_attempts(found) != found:
        spark.stop()
        spark = builder.master(with_attempts(found)).getOrCreate()
    if spark.conf.get("spark.log.level", None) is None:
        # At WARN, a line is logged whenever a wait for files is longer than a trigger.
        spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()
