import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

BELOW = {
    "wings_core": set[str](),
    "wings_server": {"wings_core"},
    "wings_client": {"wings_core"},
    "wings_spark": {"wings_core", "wings_client"},
    "pyspark_wings": {"wings_spark"},
}
"""The layers, and those that each may import."""


def source_files(layer: str) -> list[Path]:
    spec = importlib.util.find_spec(layer)
    assert spec is not None
    assert spec.origin is not None
    return sorted(Path(spec.origin).parent.rglob("*.py"))


def imports_of(file: Path) -> Iterator[tuple[int, str]]:
    """Yield line and name of all modules that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, "." * node.level + (node.module or "")


@pytest.mark.parametrize("layer", BELOW)
def test_imports_go_down_only(layer: str) -> None:
    allowed = BELOW[layer] | {layer}
    files = source_files(layer)
    assert files
    wrong = [
        f"{file}:{line} imports {name}"
        for file in files
        for line, name in imports_of(file)
        if (name.split(".")[0] in BELOW and name.split(".")[0] not in allowed)
        or name.startswith(".")
    ]
    assert not wrong, "\n".join(wrong)


def test_the_layers_are_seen_at_all() -> None:
    seen = {
        name.split(".")[0] for file in source_files("wings_server") for _, name in imports_of(file)
    }
    assert {"wings_core", "wings_server", "pyarrow"} <= seen
