"""The examples of README.md and of pages in docs/, each page run from its top."""

import contextlib
import io
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from forked_commands import write_program
from held_address import held_address

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


# docs/security.md: each of its three set-ups, run from its first command to its last. #############

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
_BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

_SERVED = """> ready 2> log &
server=$!
trap 'kill $server; wait $server' EXIT
until grep -q '^wings ready' ready; do
  kill -0 $server || { cat log >&2; exit 1; }
  sleep 0.05
done"""


def sections() -> dict[str, str]:
    _, *parts = PAGE.read_text(encoding="utf-8").split("\n## ")
    return {part.partition("\n")[0]: part for part in parts if _BLOCK.search(part)}


def script_of(section: str) -> str:
    """Return a section's blocks as one script, which waits for the server that it starts."""
    lines = ["set -euo pipefail"]
    for kind, body in _BLOCK.findall(section):
        if kind == "python":
            lines.append(f"python3 - <<'PYTHON'\n{body}PYTHON")
            continue
        for line in body.splitlines():
            served = "wings serve " in line
            lines.append(f"{line} {_SERVED}" if served else line)
    return "\n".join(lines)


@pytest.mark.parametrize("title", list(sections()))
def test_a_set_up_works_as_it_is_written(title: str, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    write_program(programs / "wings")
    python = programs / "python3"
    forked = f'[ "$*" = - ] && exec "{programs / "wings"}" -'
    python.write_text(f'#!/bin/sh\n{forked}\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o700)
    script = script_of(sections()[title])
    if "0.0.0.0" not in script:
        script = script.replace(
            "--data-dir wings-data",
            "--data-dir wings-data --flight 127.0.0.1:7777 --http 127.0.0.1:7780",
        )
        script = f"export WINGS_ENDPOINT=grpc://127.0.0.1:7777\n{script}"
    with held_address() as flight, held_address() as http:
        ports = {"7777": flight.rpartition(":")[2], "7780": http.rpartition(":")[2]}
        script = re.sub("7777|7780", lambda named: ports[named[0]], script)
        done = subprocess.run(
            ["timeout", "160", "bash", "-c", script],
            cwd=tmp_path,
            env={"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    for name in tmp_path.glob("*.token"):
        assert name.stat().st_mode & 0o077 == 0
        assert name.read_text().strip() not in done.stdout + done.stderr
