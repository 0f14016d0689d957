import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from wings_server import logs


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, config = root.handlers[:], root.level, structlog.get_config()
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**config)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def entries(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_entries_of_both_kinds_of_logger_are_lines_of_json() -> None:
    stream = io.StringIO()
    logs.configure("info", stream=stream)
    structlog.get_logger("wings.test").info("one", rows=3, path=logging)
    logging.getLogger("wings_core.test").warning("two %s", "x", extra={"rows": 4})
    one, two = entries(stream)
    assert list(one)[:4] == ["timestamp", "level", "logger", "event"]
    assert (one["level"], one["logger"], one["event"]) == ("info", "wings.test", "one")
    assert one["rows"] == 3
    assert (two["level"], two["event"], two["rows"]) == ("warning", "two x", 4)
    assert one["timestamp"].endswith("Z")


def test_entries_below_the_level_are_dropped() -> None:
    stream = io.StringIO()
    logs.configure("warning", "json", stream)
    structlog.get_logger("wings.test").info("no")
    logging.getLogger("wings_core.test").info("no")
    structlog.get_logger("wings.test").error("yes")
    assert [entry["event"] for entry in entries(stream)] == ["yes"]


def test_an_exception_is_one_line_with_its_traceback() -> None:
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    for logger in (structlog.get_logger("wings.test"), logging.getLogger("wings_core.test")):
        try:
            raise ZeroDivisionError("zero")
        except ZeroDivisionError:
            logger.exception("failed")
    assert all("ZeroDivisionError: zero" in entry["exception"] for entry in entries(stream))
    assert len(entries(stream)) == 2


def test_configuring_again_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    logs.configure("info", "json", first)
    logs.configure("info", "json", second)
    structlog.get_logger("wings.test").info("x")
    assert (first.getvalue(), len(entries(second))) == ("", 1)


def test_a_terminal_gets_lines_for_people() -> None:
    stream = Terminal()
    logs.configure("info", stream=stream)
    structlog.get_logger("wings.test").info("serving", port=7777)
    logs.configure("info", "json", stream)
    structlog.get_logger("wings.test").info("again")
    people, program = stream.getvalue().splitlines()
    assert "serving" in people
    assert not people.startswith("{")
    assert json.loads(program)["event"] == "again"


def test_colours_are_left_out_where_nobody_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    logs.configure("info", stream=stream)
    structlog.get_logger("wings.test").info("serving")
    assert "\x1b[" not in stream.getvalue()
