"""Run: the query of one pipeline, for as long as it goes."""

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException

import wings_client
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
"""How often a task is tried on this machine; as often as on a cluster, unless set otherwise."""

TELL_SECONDS = 1
"""How often a run looks for what was published."""

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def check(settings: SourceSettings) -> None:
    """See that a source's queue and topic are there, and fit what it asks for; receives nothing.

    The topic of its dead letters is created, if it is not there.

    Raises:
        WingsError: One of them does not; the message says what.
    """
    queue = open_queue(settings)
    try:
        queue.pending()
    finally:
        queue.close()
    with wings_client.connect(settings.target.endpoint) as client:
        topic = client.topic(settings.target.topic)
        DeadLetters(settings, client).prepare()
    FileReader(settings, topic.schema, topic.partition_key)


def start(
    spark: "SparkSession", settings: SourceSettings, *, once: bool = False
) -> "StreamingQuery":
    """Start the query of a source; it goes on from its checkpoint.

    Args:
        spark: A classic session.
        settings: Of the source.
        once: End when the queue has nothing more.

    Raises:
        WingsError: The queue or the topic is not there, or does not fit what the source asks for.
        InvalidArgument: The session runs tasks twice on speculation.
    """
    check(settings)
    if spark.conf.get("spark.speculation", "false") == "true":
        raise InvalidArgument(
            "'spark.speculation' must be off: two tries of a task would each take the other for "
            "one that was killed"
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
    tell: Callable[[dict[str, Any]], None] = lambda _: None,
) -> None:
    """Run a source's query until it ends, or for good.

    Args:
        spark: A classic session.
        settings: Of the source.
        once: End when the queue has nothing more.
        tell: Called with the figures of each batch that was published.

    Raises:
        Unavailable: It runs already on this machine.
        WingsError: As `start`.
    """
    journal = Journal(settings.journal_directory)
    journal.lock()
    try:
        told = journal.last_done  # One that a last run left behind is told of too.
        query = start(spark, settings, once=once)
        try:
            ended = False
            while not ended:
                ended = bool(query.awaitTermination(TELL_SECONDS))
                while (outcome := journal.outcome(told + 1)) is not None:
                    told += 1
                    tell(figures(outcome))
        except StreamingQueryException as error:
            raise Unavailable(f"the query ended: {_reason(error)}") from None
        finally:
            if query.isActive:
                spark.sparkContext.setLogLevel(
                    "OFF"
                )  # Of tasks that are cut off, pages are logged.
            query.stop()
    finally:
        journal.unlock()


def _reason(error: StreamingQueryException) -> str:
    """Return what Python said of a failure last; Spark wraps it in pages of Java's."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if _RAISED.match(line)]
    return (told or lines or ["for an unknown reason"])[-1][:400]


def figures(outcome: Outcome) -> dict[str, Any]:
    """Return what a batch did, as JSON."""
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
    """Return a master on this machine as one that tries tasks several times; others as they are."""
    local = _LOCAL.fullmatch(master)
    return master if local is None else f"local[{local[1] or 1},{TASK_ATTEMPTS}]"


@contextmanager
def session(settings: SourceSettings, master: str | None) -> Generator["SparkSession"]:
    """Run a Spark session for a source.

    Args:
        settings: Of the source.
        master: Where Spark runs; None: as Spark is configured, else all cores of this machine.
            On this machine, a task is tried four times too, as on a cluster: a file that ends the
            process that reads it is found out by the next try.

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
        # Else a line is logged whenever a wait for files is longer than a trigger.
        spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()
