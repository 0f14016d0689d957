"""Check how the texts in the code begin: docstrings, the entries of their sections, `#:` comments.

A text begins with a noun that names the thing, or with a verb that says what it does. Where a
preposition, a conjunction or a pronoun stands there ("What the reader has.", "Of each: its size."),
readers must guess the thing. `make check` runs `python tools/words.py`; it takes paths as well.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

_HELD = ("core", "flight_server", "clients", "spark_connector")

_OPENER = re.compile(
    r"(?:#: *)?(?:And|As|But|By|It|Like|Nobody|Of|Or|Somebody|That|These|They|Those|What|Whatever"
    r"|Whether it|Who|Whoever|Whom|Whose)\b"
)
_HEADING = re.compile(r" *(?:Args|Attributes|Returns|Yields):")
_NAME = re.compile(r"\*{0,2}\w[\w., ]*(?: \(.*?\))?: (?=\S)")


def faults(source: str) -> list[tuple[int, str]]:
    """Return the line, and its beginning, of each text that begins with such a word."""
    texts = [*_docstrings(source), *_comments(source.split("\n"))]
    return [(line, text[:60]) for line, text in sorted(texts) if _OPENER.match(text)]


def _docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield the first line of each docstring, attributes' included, and of each entry in one."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            continue
        first, *more = str(node.value.value).split("\n")
        yield node.lineno, first
        entries = -1  # The indentation of the section's entries.
        for number, line in enumerate(more, node.lineno + 1):
            indentation = len(line) - len(line.lstrip())
            if _HEADING.fullmatch(line):
                entries = indentation + 4
            elif line and indentation < entries:
                entries = -1
            elif line and indentation == entries:
                yield number, _NAME.sub("", line.lstrip(), count=1)


def _comments(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield the first line of each `#:` comment, which documents the attribute below it."""
    before = ""
    for number, line in enumerate(map(str.lstrip, lines), 1):
        if line.startswith("#:") and not before.startswith("#:"):
            yield number, line
        before = line


def main(paths: list[str]) -> int:
    """Print each fault of the files and folders at `paths`; return 1 where there is one."""
    found = False
    for file in sorted(file for path in paths for file in _files(Path(path))):
        for line, text in faults(file.read_text(encoding="utf-8")):
            sys.stdout.write(f"{file}:{line}: begins with neither a noun nor a verb: {text}\n")
            found = True
    return int(found)


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else list(path.rglob("*.py"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(_HELD)))
