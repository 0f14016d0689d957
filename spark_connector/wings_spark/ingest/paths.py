"""Reading of file paths: whether a source takes a file, and its partition values.

A pattern matches a file name, as `*.csv`, or, if it has a slash, the whole path below one of the
places that the source may read, as `2026/**/*.csv`.
"""

import re
from collections.abc import Iterable, Sequence

from wings_client.files.folders import folder_values
from wings_spark.ingest.fetched import FileError

_WILD = re.compile(r"\*\*/|\*\*|\*|\?")
_REGEXES = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


class Patterns:
    """Patterns of the files that a source takes.

    Args:
        include: Patterns, one of which a file must match; empty to allow all.
        exclude: Patterns that a file must not match.
        places: The places that the source may read; paths are matched below these.
    """

    def __init__(
        self, include: Iterable[str], exclude: Iterable[str], places: Sequence[str]
    ) -> None:
        self._include = [(pattern, _compiled(pattern)) for pattern in include]
        self._exclude = [(pattern, _compiled(pattern)) for pattern in exclude]
        self._places = sorted((f"{place.rstrip('/')}/" for place in places), key=len, reverse=True)

    def takes(self, uri: str) -> bool:
        """Return whether the source takes a file."""
        place = next((each for each in self._places if uri.startswith(each)), "")
        path = uri.removeprefix(place)
        if self._include and not _matches(path, self._include):
            return False
        return not _matches(path, self._exclude)


def _matches(path: str, patterns: Iterable[tuple[str, re.Pattern[str]]]) -> bool:
    name = path.rpartition("/")[2]
    return any(regex.fullmatch(path if "/" in text else name) for text, regex in patterns)


def _compiled(pattern: str) -> re.Pattern[str]:
    """Return a pattern as a regular expression: `*` and `?` match no slash, `**` does."""
    parts: list[str] = []
    place = 0
    for found in _WILD.finditer(pattern):
        parts += [re.escape(pattern[place : found.start()]), _REGEXES[found.group()]]
        place = found.end()
    return re.compile("".join([*parts, re.escape(pattern[place:])]), re.DOTALL)


def partition_values(uri: str, names: Iterable[str]) -> dict[str, str | None]:
    """Return the values of folders `NAME=VALUE` in a file's path, the last one for each name.

    Raises:
        FileError: A name has no folder.
    """
    found = folder_values(uri)
    values: dict[str, str | None] = {}
    for name in names:
        if name not in found:
            raise FileError(
                f"{uri!a:.300} has no folder '{name}=…', which 'partition_columns' needs"
            )
        values[name] = found[name]
    return values
