"""Reason for a query's end, extracted as one line from Spark's long messages."""

import contextlib
import re
from typing import Any

from py4j.protocol import (  # pyright: ignore[reportMissingTypeStubs] - it has none.
    Py4JError,
    Py4JNetworkError,
)
from pyspark.errors import PySparkException

from wings_core import errors
from wings_core.errors import WingsError

REASON_CHARACTERS_MAX = 500

SPARK_ERRORS = (PySparkException, Py4JError, ConnectionError)
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


def is_configuration(error: WingsError) -> bool:
    """Return whether an error remains until the settings, or the things they name, are changed."""
    return isinstance(error, _CONFIGURATION)


def ended_by(error: Exception) -> QueryEndedError:
    """Return the reason of a query's end, by the exception of PySpark."""
    if isinstance(error, Py4JNetworkError | ConnectionError):
        return QueryEndedError("Java ended, and Spark with it", lost_java=True)
    text = ""
    with contextlib.suppress(Exception):  # It asks Java.
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


def _short(text: str) -> str:
    return _CODE.sub("", text)[:REASON_CHARACTERS_MAX]
