"""The examples of README.md and of pages in docs/, each page run from its top."""

import contextlib
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from wings_server.testing import running_server

ROOT = Path(__file__).parents[2]
ENDPOINT = "grpc://127.0.0.1:7777"
_FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Example:
    line: int
    code: str
    output: str | None = None
    """What it prints, where the page shows it."""


def examples(page: Path) -> list[Example]:
    text = page.read_text(encoding="utf-8")
    found: list[Example] = []
    for match in _FENCED.finditer(text):
        kind, body = match.groups()
        if kind == "python":
            found.append(Example(text.count("\n", 0, match.start()) + 2, body))
        else:
            assert kind == "text", f"a block of {kind}"
            found[-1].output = body
    return found


@pytest.mark.parametrize(
    ("name", "examples_min"),
    [
        ("README.md", 2),
        ("docs/index.md", 1),
        ("docs/tutorial.md", 6),
        ("docs/client.md", 16),
        ("docs/share.md", 6),
        ("docs/celery.md", 4),
        ("docs/server.md", 2),
        ("docs/schemas.md", 4),
        ("docs/consumer-groups.md", 1),
        ("docs/exactly-once.md", 2),
        ("docs/notebooks.md", 5),
    ],
)
def test_the_examples_of_a_page_do_what_it_says(name: str, examples_min: int) -> None:
    for needed in ("duckdb", "pandas", "polars"):
        pytest.importorskip(needed)
    page = ROOT / name
    # Spark's are run by tests/spark/test_docs.py, out of docs/spark.md.
    found = [example for example in examples(page) if "wings_spark" not in example.code]
    assert len(found) >= examples_min
    names: dict[str, Any] = {}
    with running_server() as server:
        for example in found:
            code = "\n" * (example.line - 1) + example.code.replace(ENDPOINT, server.flight)
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(code, str(page), "exec"), names)
            if example.output is not None:
                assert printed.getvalue() == example.output, f"line {example.line}"
