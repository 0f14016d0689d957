"""The numbers of docs/reliability.md: they are those of the tests that it names."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
TESTS = ROOT / "tests"


def tree(path: str) -> ast.Module:
    return ast.parse((TESTS / path).read_text(encoding="utf-8"))


def assigned(path: str, name: str) -> ast.expr:
    """Return what a module of tests assigns to a name."""
    (value,) = (
        each.value
        for each in tree(path).body
        if isinstance(each, ast.Assign | ast.AnnAssign)
        and each.value is not None
        and name == ast.unparse(each.targets[0] if isinstance(each, ast.Assign) else each.target)
    )
    return value


def constant(path: str, name: str) -> int:
    """Return a number that a module of tests has by name."""
    return ast.literal_eval(assigned(path, name))


def parameters(path: str, test: str) -> list[int]:
    """Return the numbers with which a test runs: in `make test`, and in `make soak`."""
    (function,) = (
        each for each in tree(path).body if isinstance(each, ast.FunctionDef) and each.name == test
    )
    values = ast.unparse(function.decorator_list[0])
    return [int(number) for number in re.findall(r"(?:\[|param\()(\d+)", values)]


def row(first: str) -> list[int]:
    """Return the numbers of a row of a table, by how it begins."""
    (line,) = (line for line in PAGE.splitlines() if line.startswith(f"| {first}"))
    cells = line.removeprefix(f"| {first}").split("|")[1:]
    return [int(each.replace(",", "")) for each in re.findall(r"\b\d[\d,]*\b", "|".join(cells))]


@pytest.mark.parametrize(
    ("simulation", "path"),
    [
        ("the log", "world/test_log_world.py"),
        ("share groups", "unit/share/test_simulation.py"),
        ("consumer groups", "unit/consumer_groups/test_group_simulation.py"),
    ],
)
def test_worlds_are_as_many_as_the_page_says(simulation: str, path: str) -> None:
    worlds, more, _ = row(simulation)
    assert (worlds, more) == (constant(path, "SEEDS"), constant(path, "SOAK_SEEDS"))


@pytest.mark.parametrize(
    ("simulation", "path"),
    [
        ("the log", "world/planted.py"),
        ("share groups", "unit/share/test_simulation.py"),
        ("consumer groups", "unit/consumer_groups/test_group_simulation.py"),
    ],
)
def test_planted_bugs_are_as_many_as_the_page_says(simulation: str, path: str) -> None:
    bugs = assigned(path, "BUGS")
    assert isinstance(bugs, ast.Dict)
    assert row(simulation)[-1] == len(bugs.keys)


@pytest.mark.parametrize(
    ("fault", "path", "test"),
    [
        (
            "power lost at a point",
            "integration/test_power_loss.py",
            "test_what_was_acknowledged_is_there_wherever_power_is_lost",
        ),
        (
            "a server is killed under load",
            "integration/test_crash.py",
            "test_nothing_acknowledged_is_lost_or_doubled_over_many_crashes",
        ),
        (
            "a publish is interrupted",
            "integration/test_stage_crash.py",
            "test_a_publish_that_a_crash_interrupts_is_done_once_and_as_a_whole",
        ),
        (
            "PostgreSQL fails over",
            "integration/test_cluster_faults.py",
            "test_nodes_go_on_at_a_standby_that_was_promoted",
        ),
    ],
)
def test_crashes_are_as_many_as_the_page_says(fault: str, path: str, test: str) -> None:
    assert row(fault) == parameters(path, test)
