"""Structured logs on standard error: the server's own and those of the libraries it runs on.

All of it goes through the standard library's root logger: loggers of structlog, `logging.getLogger`
of the core (which knows nothing of structlog), and uvicorn's. What was given as `extra` or as
keyword arguments becomes keys of the entry.
"""

import logging
import os
import sys
from typing import Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor

from wings_core import tracing


def _add_trace(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Add the ids of the present span, where there is one."""
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
"""At `debug` they write requests and answers, the keys of a role among them."""


def route_to_logging(process: int | None = None) -> None:
    """Turn the entries of structlog's loggers into records of the standard library's.

    The program's handlers then decide where entries go, and pytest captures them.
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
    """Set up the logs of this process; called again, it replaces what it set up.

    Args:
        level: The least severe entries written: `debug`, `info`, `warning` or `error`.
        form: `json` is one object a line. None: `console` where the stream is a terminal.
        stream: Where entries go; standard error if None.
        process: The number of this process among several, which each entry tells.
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
                # Where rich is installed, the default prints all local variables, secrets too.
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
