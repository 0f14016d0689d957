"""What a release takes is there: its heading in the changelog, and the workflow."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]


def test_the_changelog_has_the_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changes, re.MULTILINE)


def test_the_workflow_builds_by_the_commands_of_the_makefile() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    assert workflow["permissions"] == {}, "each job has what it needs alone"
    steps = workflow["jobs"]["build"]["steps"]
    commands = [step["run"] for step in steps if "run" in step]
    assert {".ci/run", "make dist"} <= set(commands)
    targets = (ROOT / "Makefile").read_text()
    assert "\ndist:" in targets
    assert "contents" not in workflow["jobs"]["publish"]["permissions"]


def test_no_file_names_a_registry_by_its_address(subtests: pytest.Subtests) -> None:
    """Packages are asked for by name: where they come from is up to the machine's settings."""
    registry = re.compile(
        r"//[\w.-]*\b(?:maven\.org|pypi\.org|pythonhosted\.org|npmjs\.(?:org|com)|crates\.io|anaconda\.org)\b"
    )
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    for name in listed.stdout.decode().split("\0")[:-1]:
        text = (ROOT / name).read_bytes().decode(errors="replace")
        if found := registry.search(text):
            with subtests.test(name):
                pytest.fail(f"{found[0]} is named")
