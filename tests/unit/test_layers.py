import ast
import graphlib
import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

BELOW = {
    "wings_core": set[str](),
    "wings_server": {"wings_core"},
    "wings_client": {"wings_core"},
    "wings_spark": {"wings_core", "wings_client"},
    "pyspark_wings": {"wings_spark"},
    "pytest_wings": {"wings_client", "wings_server"},
}
"""The layers, and those that each may import."""

NEVER = [
    *(
        ("wings_core.log", f"wings_core.{beside}")
        for beside in ("sql", "sql_process", "tables", "backup", "check", "repair", "queue")
    ),
    ("wings_core.metadata", "wings_core.share"),
    ("wings_core.contracts", "wings_core.share"),
    ("wings_core.contracts", "wings_core.metadata"),
    ("wings_core.fetch", "wings_core.share"),
    ("wings_core.storage", "wings_core.metadata"),
    ("wings_client", "wings_core.share"),
]
"""Packages, and what none of their modules imports, inside functions and for checkers neither."""


def source_files(layer: str) -> list[Path]:
    spec = importlib.util.find_spec(layer)
    assert spec is not None
    assert spec.origin is not None
    return sorted(Path(spec.origin).parent.rglob("*.py"))


class Import(NamedTuple):
    """A statement that imports; `names` are those that it takes out of the module."""

    line: int
    module: str
    names: tuple[str, ...]
    runs: bool
    """Whether it is not for type checkers alone."""

    @property
    def members(self) -> list[str]:
        """The names with their module, as some of them are modules themselves."""
        return [f"{self.module}.{name}" for name in self.names]


@cache
def imports_of(file: Path) -> list[Import]:
    """Return all imports of a file, also those inside functions."""
    found: list[Import] = []
    blocks: list[tuple[ast.AST, bool]] = [(ast.parse(file.read_text(encoding="utf-8")), True)]
    for block, runs in blocks:
        for node, node_runs in statements_of(block, runs=runs):
            if isinstance(node, ast.Import):
                found += (Import(node.lineno, alias.name, (), node_runs) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                names = tuple(alias.name for alias in node.names)
                module = "." * node.level + (node.module or "")
                found.append(Import(node.lineno, module, names, node_runs))
            else:
                blocks.append((node, node_runs))
    return found


def statements_of(block: ast.AST, *, runs: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Yield the statements in one, and whether they run; no expression has any."""
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        is_checked_only = (
            part == "body"
            and isinstance(block, ast.If)
            and isinstance(block.test, ast.Name)
            and block.test.id == "TYPE_CHECKING"
        )
        for node in getattr(block, part, ()):
            yield node, runs and not is_checked_only


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
        for line, name, *_ in imports_of(file)
        if (name.split(".")[0] in BELOW and name.split(".")[0] not in allowed)
        or name.startswith(".")
    ]
    assert not wrong, "\n".join(wrong)


def modules_of(layer: str) -> dict[str, Path]:
    """Return the files of a layer by the names of their modules."""
    files = source_files(layer)
    top = min(len(file.parts) for file in files) - 2
    return {
        ".".join(file.with_suffix("").parts[top:]).removesuffix(".__init__"): file for file in files
    }


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


@pytest.mark.parametrize(("package", "never"), NEVER)
def test_a_layer_within_a_package_does_not_import_what_stands_above(
    package: str, never: str
) -> None:
    modules = modules_of(package.split(".")[0])
    wrong = [
        f"{file}:{each.line} imports {each.module}"
        for module, file in modules.items()
        if is_within(module, package)
        for each in imports_of(file)
        if any(is_within(name, never) for name in (each.module, *each.members))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("layer", BELOW)
def test_nothing_private_of_another_package_is_imported(layer: str) -> None:
    wrong = [
        f"{file}:{line} imports {', '.join(names)} of {module}"
        for file in source_files(layer)
        for line, module, names, _ in imports_of(file)
        if module.split(".")[0] in BELOW.keys() - {layer}
        and any(map(is_private, (*module.split("."), *names)))
    ]
    assert not wrong, "\n".join(wrong)


def test_the_layers_are_seen_at_all() -> None:
    seen = {
        name.split(".")[0]
        for file in source_files("wings_server")
        for _, name, *_ in imports_of(file)
    }
    assert {"wings_core", "wings_server", "pyarrow"} <= seen


def import_graph(layer: str) -> dict[str, set[str]]:
    """Return the modules of a layer that each imports when it runs, also inside functions."""
    modules = modules_of(layer)
    graph: dict[str, set[str]] = {}
    for module, file in modules.items():
        found: set[str] = set()
        for each in imports_of(file):
            if each.runs:
                found.update(name if name in modules else each.module for name in each.members)
                if not each.names:
                    found.add(each.module)
        graph[module] = {name for name in found if name in modules}
    return graph


@pytest.mark.parametrize("layer", BELOW)
def test_no_modules_import_each_other_in_a_circle(layer: str) -> None:
    try:
        graphlib.TopologicalSorter(import_graph(layer)).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))
