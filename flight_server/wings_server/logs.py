"""Structured logs on standard error, of the server and of its libraries.

All entries go through the standard library's root logger: those of structlog, of the core's
`logging.getLogger` (which does not use structlog), and of uvicorn. `extra` and keyword arguments
become keys of an entry.
"""

import logging
import os
import sys
from typing import Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor

from wings_core import tracing


def _add_trace(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Add the ids of the current span, if any."""
    ids = tracing.current_ids()
    if ids is not None:
        event["trace_id"], event["span_id"] = ids
    return event


def _numbering(process: int) -> Processor:
    """Return a processor that adds the number of this process."""

    def add(_logger: object, _method: str, event: EventDict) -> EventDict:
        event.setdefault("process", process)
        return event

    return add


_SHARED: tuple[Processor, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    _add_trace,
)

_TELLS_SECRETS = ("boto3", "botocore", "urllib3")
"""Loggers that write requests and responses at `debug`, including the keys of a role."""


def route_to_logging(process: int | None = None) -> None:
    """Convert entries of structlog to records of the standard library.

    The program's handlers then process them, and pytest captures them.
    """
    structlog.configure(
        processors=[
            *([] if process is None else [_numbering(process)]),
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *_SHARED,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def configure(
    level: str,
    form: Literal["console", "json"] | None = None,
    stream: TextIO | None = None,
    process: int | None = None,
) -> None:
    """Set up the logs of this process, replacing an earlier setup.

    Args:
        level: Least level written: `debug`, `info`, `warning` or `error`.
        form: `json` writes one object a line; None selects `console` for a terminal, or else
            `json`.
        stream: Stream to write to; None for standard error.
        process: Number of this process among several, added to each entry.
    """
    output = sys.stderr if stream is None else stream
    route_to_logging(process)
    handler = logging.StreamHandler(output)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*_SHARED, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(form, output),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for library in _TELLS_SECRETS:
        logging.getLogger(library).setLevel(max(root.level, logging.INFO))


def _renderers(form: Literal["console", "json"] | None, stream: TextIO) -> list[Processor]:
    terminal = stream.isatty()
    if form == "console" or (form is None and terminal):
        # https://no-color.org
        return [
            structlog.dev.ConsoleRenderer(
                colors=terminal and not os.environ.get("NO_COLOR"),
                # If rich is installed, the default prints local variables, including secrets.
                exception_formatter=structlog.dev.plain_traceback,
            )
        ]
    return [
        structlog.processors.format_exc_info,
        structlog.processors.UnicodeDecoder(),
        _in_reading_order,
        structlog.processors.JSONRenderer(default=str),
    ]


def _in_reading_order(_logger: object, _method: str, event: EventDict) -> EventDict:
    first = {key: event[key] for key in ("timestamp", "level", "logger", "event") if key in event}
    return {**first, **event}
