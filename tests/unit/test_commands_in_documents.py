"""The commands that documents, the console and messages name: each is there, with its options."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from wings_client.cli.app import app

ROOT = Path(__file__).parents[2]
CODE = ("core", "clients", "flight_server", "spark_connector", "examples", "deploy")
SUFFIXES = {".py", ".js", ".html", ".md", ".yaml", ".sh", ".service", ".toml"}
NAMED = [
    *(ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("**/*.md")),
    *sorted(
        path
        for name in CODE
        for path in (ROOT / name).rglob("*")
        if path.suffix in SUFFIXES and "node_modules" not in path.parts
    ),
]

_COMMAND = re.compile(
    r"""(?:^\s*(?:\$ |sudo )?|[`"'|] ?|&& |\\n|> )wings ([a-z](?:\\\n|[^`\n])*)""", re.M
)
"""Where a line, a string, or a span of code begins with the name of the program."""

_ENDS = ("|", ">", "2>", "&&", "&", ";", "#", "--", "<")
_NO_COMMANDS = re.compile(r"(?:(?:holds |metadata )?ready|data directory|failed)\b")
"""What a server says, and what stands in a file of it."""


@cache
def root() -> Any:
    return typer.main.get_command(app)


def words_of(text: str) -> Iterator[str]:
    """Yield the words of a command, up to what a shell takes for itself."""
    # A string of JavaScript or Python may end before its line does, and may have parts to fill in.
    text = re.split(r"""\\n|["'],|["']\)|\$\{|\{\{|` """, text.replace("\\\n", " "))[0]
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    for word in words:
        if word in _ENDS:
            return
        yield word


def problem_of(text: str) -> str | None:
    """Return what is wrong with a command."""
    command, path = root(), "wings"
    context = typer.Context(command)
    arguments = 0
    words = words_of(text)
    for word in words:
        if word.startswith("-") and len(word) > 1:
            name, equals, _ = word.partition("=")
            known = {name: each for each in command.params for name in _names(each)}
            if name in known:
                if not equals and not known[name].is_flag:
                    next(words, None)
            elif re.fullmatch(r"--[a-z0-9-]+", name) and name != "--help":
                return f"{path} has no option {name}"
        elif hasattr(command, "get_command"):
            found = command.get_command(context, word)
            if found is None and path == "wings backup":
                found, arguments = command.get_command(context, "create"), 1
            if found is None:
                return f"{path} has no command {word}" if re.fullmatch(r"[a-z-]+", word) else None
            command, path = found, f"{path} {word}"
        else:
            arguments += 1
    taken = [each.nargs for each in command.params if each.param_type_name == "argument"]
    if -1 in taken or arguments <= sum(taken):
        return None
    return f"{path} takes {sum(taken)} arguments, not {arguments}"


def _names(parameter: Any) -> tuple[str, ...]:
    return (*parameter.opts, *parameter.secondary_opts)


def commands_in(text: str) -> list[str]:
    found = (match[1] for match in _COMMAND.finditer(text))
    return [each for each in found if not _NO_COMMANDS.match(each)]


def test_every_command_that_is_named_is_there(subtests: pytest.Subtests) -> None:
    named = 0
    for path in NAMED:
        for command in commands_in(path.read_text(encoding="utf-8")):
            named += 1
            with subtests.test(f"{path.relative_to(ROOT)}: {command[:60]}"):
                assert problem_of(command) is None
    assert named > 250


def _all(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
        yield from _all(command.get_command(None, name), f"{path} {name}")


def test_no_paragraph_of_the_help_becomes_a_list(subtests: pytest.Subtests) -> None:
    """A line that begins with a number and a dot does, where the help is wrapped."""
    for path, command in _all(root(), "wings"):
        with subtests.test(path):
            assert not re.search(r"^\s*(?:\d+[.)]|[-*+]) ", command.help or "", re.M)


# The paths that documents name: every one is there. ###############################################

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
