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


def imports_of(file: Path) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Yield line, module and names of all imports of a file, also those inside functions."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            yield node.lineno, "." * node.level + (node.module or ""), names


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@pytest.mark.parametrize("layer", BELOW)
def test_imports_go_down_only(layer: str) -> None:
    allowed = BELOW[layer] | {layer}
    files = source_files(layer)
    assert files
    wrong = [
        f"{file}:{line} imports {name}"
        for file in files
        for line, name, _ in imports_of(file)
        if (name.split(".")[0] in BELOW and name.split(".")[0] not in allowed)
        or name.startswith(".")
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("layer", BELOW)
def test_nothing_private_of_another_package_is_imported(layer: str) -> None:
    wrong = [
        f"{file}:{line} imports {', '.join(names)} of {module}"
        for file in source_files(layer)
        for line, module, names in imports_of(file)
        if module.split(".")[0] in BELOW.keys() - {layer}
        and any(map(is_private, (*module.split("."), *names)))
    ]
    assert not wrong, "\n".join(wrong)


def test_the_layers_are_seen_at_all() -> None:
    seen = {
        name.split(".")[0]
        for file in source_files("wings_server")
        for _, name, _ in imports_of(file)
    }
    assert {"wings_core", "wings_server", "pyarrow"} <= seen
