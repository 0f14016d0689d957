"""Supervision of a source's query, which is restarted after temporary errors."""

import json
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NoReturn, TextIO

from wings_core.errors import InvalidArgument, Unavailable, WingsError
from wings_core.queue.journal import Journal
from wings_spark.ingest.metrics import metrics_of
from wings_spark.ingest.run import QueryEndedError, Reports, check, is_configuration, run
from wings_spark.ingest.session import ClassArchive, log_path, session, standard_error_in
from wings_spark.ingest.settings import SourceSettings
from wings_spark.ingest.stopping import StopSignals

PAUSE_SECONDS = (1.0, 60.0)
"""First pause before a restart of the query, and the longest, up to which it is doubled."""

RESTARTS_OF_SPARK = 3
"""Consecutive failures after which Spark is restarted as well."""

ONCE_FAILURES_MAX = 3
"""Failures after which a run that ends when the queue is empty ends with the error."""

_FAILURES = "WINGS_INGEST_FAILURES"
"""Environment variable in which a process that replaces itself passes its failures in a row."""


def supervise(
    settings: SourceSettings,
    master: str | None,
    stop: StopSignals,
    *,
    once: bool,
) -> None:
    """Run a source's query until asked to stop, and restart it whenever it fails.

    Writes lines for people, and the figures of each batch, on standard error.

    Args:
        settings: Settings of the source.
        master: Where Spark runs; see `session`.
        stop: Signals that stop the run.
        once: Whether to end when the queue is empty, or after `ONCE_FAILURES_MAX` failures.

    Raises:
        WingsError: The queue, the topic or the settings do not fit, at the start or later; another
            pipeline has the checkpoint; or the query fails, with `once`.
        Stopped: A signal arrived before the query ran.
    """
    failures = int(os.environ.get(_FAILURES) or 0)
    if not failures:
        check(settings)
    with (
        metrics_of(settings) as metrics,
        _locked(settings) as journal,
        standard_error_in(log_path(settings)) as people,
        ClassArchive(settings.checkpoint, wanted=settings.class_archive) as archive,
    ):

        def report(figures: dict[str, Any]) -> None:
            _line(people, json.dumps(figures))
            archive.write()

        reports = Reports(journal, report, metrics)
        last = reports.bring()
        _line(people, "wings: starting Spark")
        with session(settings, master, archive) as spark:
            stop.catch()
            until = "until the queue has nothing more" if once else "until it is interrupted"
            _line(people, f"wings: reading files into {settings.target.topic}, {until}")
            while True:
                try:
                    with stop.in_order():
                        run(spark, settings, reports, once=once, is_asked_to_end=lambda: stop.asked)
                    return
                except (QueryEndedError, WingsError) as error:
                    ended = error
                before, last = last, reports.bring()
                failures = 1 if last > before else failures + 1
                reason = _reason(ended, settings)
                if once and failures >= ONCE_FAILURES_MAX:
                    raise Unavailable(reason)
                pause = min(PAUSE_SECONDS[1], PAUSE_SECONDS[0] * 2 ** (failures - 1))
                _line(people, f"wings: {reason}; it starts again in {pause:g} s")
                if stop.wait(pause):
                    return
                if metrics is not None:
                    metrics.restarted()
                lost = isinstance(ended, QueryEndedError) and ended.lost_java
                if lost or failures % RESTARTS_OF_SPARK == 0:
                    break
    _replace_process(failures)


def _line(stream: TextIO, line: str) -> None:
    stream.write(line + "\n")
    stream.flush()


@contextmanager
def _locked(settings: SourceSettings) -> Generator[Journal]:
    journal = Journal(settings.journal_directory)
    journal.lock()
    try:
        yield journal
    finally:
        journal.unlock()


def _reason(error: QueryEndedError | WingsError, settings: SourceSettings) -> str:
    """Return the reason of the query's end, if a restart can help.

    Raises:
        WingsError: A restart cannot help.
    """
    if isinstance(error, QueryEndedError):
        if error.is_configuration:
            raise InvalidArgument(f"the query ended: {error.reason}")
        return f"the query ended: {error.reason} (Spark's log is {log_path(settings)})"
    if is_configuration(error):
        raise error
    return error.message


def _replace_process(failures: int) -> NoReturn:
    """Replace this process by a new run of its command: a process can start Java only once."""
    os.environ[_FAILURES] = str(failures)
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "wings_client.cli", *sys.argv[1:]])
