"""Pages of the site that are no files of docs/: the reference, and what lies beside the code."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent))

from reference import PAGES

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files


_ROOT = Path(__file__).parents[2]
_PROJECT = ("ARCHITECTURE.md", "SECURITY.md", "CHANGELOG.md")
"""Of the repository's root: pages below project/."""


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Add the generated pages."""
    from mkdocs.structure.files import File

    for name, write in PAGES.items():
        files.append(File.generated(config, f"reference/{name}.md", content=write()))
    for name in _PROJECT:
        text = (_ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](../")
        text = re.sub(r"\[([^]]+)\]\((?:examples|deploy|benchmarks)/[^)]*\)", r"\1", text)
        files.append(File.generated(config, f"project/{name}", content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let links to the root's files lead to their pages."""
    names = "|".join(map(re.escape, _PROJECT))
    return re.sub(rf"\]\(((?:\.\./)*)\.\./({names})(?=[)#])", r"](\1project/\2", markdown)
