"""Strict programs are checked by pyright and by mypy, with the stubs of pyarrow and without."""

import json
import re
import subprocess
import sys
import venv
from collections import defaultdict
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).with_name("typed_program.py")
README = "\n".join(re.findall("```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[:2])
INSTALLED = (
    "annotated_types",
    "pyarrow",
    "pydantic",
    "pydantic_core",
    "typing_extensions",
    "typing_inspection",
    "wings_client",
    "wings_core",
)
STUBS = "pyarrow-stubs"

WRONG = """
import wings_client

client = wings_client.connect("grpc://127.0.0.1:7777")
count: str = client.fetch("orders", offset=0).table.num_rows
rows: int = client.fetch("orders", offset=0).table
for batch, start in client.follow("orders"):
    print(batch.num_rows, start)
"""
WRONG_LINES = {5, 6, 7}
UNSEEN = {6}
"""Without the stubs, to pyright: a class of an unknown base may be any other."""

WITH_STUBS = """
import pyarrow as pa

import wings_client


def count(table: pa.Table) -> int:
    return table.num_rows


client = wings_client.connect("grpc://127.0.0.1:7777")
result = client.fetch("orders", offset=0)
print(count(result.table))
batches: list[pa.RecordBatch] = result.table.to_batches()
for batch, _, _ in client.follow("orders"):
    batches.append(batch)
"""

Complaints = dict[str, set[int]]
"""The lines that a checker complains of, by the program's name."""

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(
        find_spec("basedpyright") is None or find_spec("mypy") is None,
        reason="needs basedpyright and mypy, of the group lint",
    ),
]


def pyright(directory: Path) -> Complaints:
    config = {"include": ["*.py"], "typeCheckingMode": "strict", "venvPath": ".", "venv": "venv"}
    (directory / "pyrightconfig.json").write_text(json.dumps(config))
    checker = [sys.executable, "-m", "basedpyright", "--outputjson", "-p", str(directory)]
    report = json.loads(output_of(checker, directory))
    assert report["summary"]["filesAnalyzed"] == len(list(directory.glob("*.py")))
    found: Complaints = defaultdict(set)
    for each in report["generalDiagnostics"]:
        found[Path(each["file"]).name].add(each["range"]["start"]["line"] + 1)
    return found


def mypy(directory: Path) -> Complaints:
    programs = [path.name for path in directory.glob("*.py")]
    python = ["--python-executable", "venv/bin/python", "--cache-dir", "/dev/null"]
    report = output_of([sys.executable, "-m", "mypy", "--strict", *python, *programs], directory)
    assert f"checked {len(programs)} source files" in report, report
    found: Complaints = defaultdict(set)
    for name, line in re.findall(r"^(\w+\.py):(\d+): error", report, re.M):
        found[name].add(int(line))
    return found


def output_of(command: list[str], directory: Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, cwd=directory).stdout


@pytest.mark.parametrize("stubs", [False, pytest.param(True, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    "complaints_of",
    [
        pytest.param(pyright, id="pyright"),
        pytest.param(mypy, marks=pytest.mark.soak, id="mypy"),  # Five seconds, of the same types.
    ],
)
def test_strict_programs_pass_and_wrong_ones_do_not(
    complaints_of: Callable[[Path], Complaints], stubs: bool, tmp_path: Path
) -> None:
    venv.create(tmp_path / "venv", symlinks=True)
    (packages,) = (tmp_path / "venv").glob("lib/python3*/site-packages")
    for name in INSTALLED:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        origin = Path(spec.origin)
        found = origin.parent if origin.name == "__init__.py" else origin
        (packages / found.name).symlink_to(found)
    programs = {"program.py": PROGRAM.read_text(), "readme.py": README, "wrong.py": WRONG}
    if stubs:
        pyarrow = (packages / "pyarrow").resolve()
        (packages / STUBS).symlink_to(pyarrow.with_name(STUBS))
        programs["arrow.py"] = WITH_STUBS
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
    unseen: set[int] = UNSEEN if complaints_of is pyright and not stubs else set()
    assert complaints_of(tmp_path) == {"wrong.py": WRONG_LINES - unseen}
