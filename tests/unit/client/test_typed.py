"""A strict program in an environment that has pyarrow, and no stubs of it."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("typed_program.py")
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

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(
        find_spec("basedpyright") is None, reason="needs basedpyright, of the group lint"
    ),
]


WRONG = """
import pyarrow as pa

import wings_client

client = wings_client.connect("grpc://127.0.0.1:7777")
count: str = client.fetch("orders", offset=0).table.num_rows
client.push("orders", pa.table({"id": [1]}))
"""


@pytest.fixture(scope="module")
def complaints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What a strict checker says of a program that is right, and of a wrong one, by their files."""
    directory = tmp_path_factory.mktemp("typed")
    programs = {"right.py": PROGRAM.read_text(), "wrong.py": WRONG}
    packages = directory / "venv/lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    for name in INSTALLED:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        origin = Path(spec.origin)
        found = origin.parent if origin.name == "__init__.py" else origin
        (packages / found.name).symlink_to(found)
    for name, text in programs.items():
        (directory / name).write_text(text)
    config = {"include": [*programs], "typeCheckingMode": "strict", "pythonVersion": "3.11"}
    config |= {"venvPath": ".", "venv": "venv"}
    (directory / "pyrightconfig.json").write_text(json.dumps(config))
    checker = [sys.executable, "-m", "basedpyright", "--outputjson", "-p", str(directory)]
    run = subprocess.run(checker, capture_output=True, text=True, cwd=directory)
    report = json.loads(run.stdout)
    assert report["summary"]["filesAnalyzed"] == len(programs)
    said: dict[str, list[dict[str, Any]]] = {name: [] for name in programs}
    for each in report["generalDiagnostics"]:
        said[Path(each["file"]).name].append(each)
    return said


def test_a_strict_program_passes_without_stubs_of_pyarrow(
    complaints: dict[str, list[dict[str, Any]]],
) -> None:
    assert complaints["right.py"] == []


def test_a_strict_program_is_told_what_results_do_not_have(
    complaints: dict[str, list[dict[str, Any]]],
) -> None:
    found = {(each["range"]["start"]["line"], each["rule"]) for each in complaints["wrong.py"]}
    assert (6, "reportAssignmentType") in found
    assert (7, "reportUnknownMemberType") in found  # pyarrow's own names stay unknown.
