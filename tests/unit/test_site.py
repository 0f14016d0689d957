"""The site of the documentation: every page is in it, and its reference has what the code has."""

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from wings_core import errors
from wings_server.actions import ACTIONS
from wings_server.settings import Settings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    """The module that writes the pages."""
    sys.path.insert(0, str(DOCS / "site"))
    try:
        return importlib.import_module("reference")
    finally:
        sys.path.remove(str(DOCS / "site"))


def test_every_page_is_in_the_navigation(reference: ModuleType) -> None:
    nav = set(re.findall(r": ([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {each.name for each in DOCS.glob("*.md")}
    generated = {f"reference/{name}.md" for name in reference.PAGES}
    root = {f"project/{name}.md" for name in ("ARCHITECTURE", "SECURITY", "CHANGELOG")}
    assert nav == pages | generated | root | {"adr/README.md"}


def test_the_reference_has_what_the_code_has(reference: ModuleType) -> None:
    pages = {name: write() for name, write in reference.PAGES.items()}
    assert set(re.findall(r"^## (.+)$", pages["actions"], re.MULTILINE)) == set(ACTIONS)
    keys = set(re.findall(r"^\| `(\w+)[`.]", pages["settings"], re.MULTILINE))
    assert keys == set(Settings.model_fields)
    assert not re.findall(r"^\|.*\|  \|$", pages["settings"], re.MULTILINE), "each has a meaning"
    codes = set(re.findall(r"[A-Z]+(?:_[A-Z]+)*$", errors.__doc__ or "", re.MULTILINE))
    assert codes <= set(re.findall(r"^\| `([A-Z_]+)`", pages["errors"], re.MULTILINE))
    for command in ("wings serve", "wings topic alter", "wings ingest run", "wings sql"):
        assert f"\n## {command}\n" in pages["commands"]
    for call in ("Client.push", "Client.follow", "AsyncClient.sql", "Worker.run"):
        assert f"\n### {call}\n" in pages["client"]
    kinds = re.findall(r"^## (.+)$", pages["tickets"], re.MULTILINE)
    assert kinds == ["fetch", "scan", "follow", "acquire", "sql"]
    assert "| `deadline` | `str \\| null` |  | Time in RFC 3339" in pages["tickets"]


def test_the_configuration_is_strict() -> None:
    found = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert found["strict"] is True, "a link that leads nowhere fails the build"
