"""The examples of docs/client.md, run one after another."""

import contextlib
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from wings_server.testing import running_server

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
ENDPOINT = "grpc://127.0.0.1:7777"
_FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Example:
    line: int
    code: str
    output: str | None = None
    """What it prints, where the page shows it."""


def examples() -> list[Example]:
    text = PAGE.read_text(encoding="utf-8")
    found: list[Example] = []
    for match in _FENCED.finditer(text):
        kind, body = match.groups()
        if kind == "python":
            found.append(Example(text.count("\n", 0, match.start()) + 2, body))
        else:
            assert kind == "text", f"a block of {kind}"
            found[-1].output = body
    return found


def test_the_examples_of_the_page_do_what_it_says() -> None:
    for needed in ("pandas", "polars"):
        pytest.importorskip(needed)
    assert len(examples()) > 15
    names: dict[str, Any] = {}
    with running_server() as server:
        for example in examples():
            code = "\n" * (example.line - 1) + example.code.replace(ENDPOINT, server.flight)
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(code, str(PAGE), "exec"), names)
            if example.output is not None:
                assert printed.getvalue() == example.output, f"line {example.line}"
