"""The paths that documents name: every one is there."""

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *(ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("**/*.md")),
]
PACKAGES = [
    ROOT / "core/wings_core",
    ROOT / "clients/wings_client",
    ROOT / "flight_server/wings_server",
    ROOT / "spark_connector/wings_spark",
]
FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "."}

_PATH = re.compile(r"`([\w.{},*-]+(?:/[\w.{},*-]+)*(?:\.py|\.proto|\.md|/))`")
_NOT_OURS = {"NNNN-title.md", "tenants/T/namespaces/N/topics/"}
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


@cache
def _is_there(path: str) -> bool:
    """Whether a path, from the root, a package or inside of one, leads somewhere."""
    first = path.split("/", 1)[0]
    if first in FOLDERS:
        return any(ROOT.glob(path.rstrip("/")))
    for package in PACKAGES:
        if first == package.name:
            return any(package.parent.glob(path.rstrip("/")))
    return any(any(package.rglob(path.rstrip("/"))) for package in PACKAGES)


def test_every_path_that_a_document_names_is_there() -> None:
    missing: list[str] = []
    for document in DOCUMENTS:
        text, name = document.read_text(encoding="utf-8"), document.relative_to(ROOT)
        paths = {*_PATH.findall(text)} - _NOT_OURS
        missing += [f"{path} in {name}" for path in paths if not _is_there(path)]
        links = {*_LINK.findall(text)}
        missing += [f"{link} in {name}" for link in links if not (document.parent / link).exists()]
    assert missing == []
