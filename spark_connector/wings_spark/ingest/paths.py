"""What a file's path says: whether a source takes the file, and the values of its partitions.

A pattern is that of a name, `*.csv`, or, with a slash in it, of the whole path below one of the
places that the source may read, `2026/**/*.csv`.
"""

import re
from collections.abc import Iterable, Sequence

from wings_client.files.folders import folder_values
from wings_spark.ingest.fetched import FileError

_WILD = re.compile(r"\*\*/|\*\*|\*|\?")
_REGEXES = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


class Patterns:
    """Which files a source takes.

    Args:
        include: Patterns of which a file must match one; empty: all files do.
        exclude: Patterns of which it must match none.
        places: What the source may read; paths are matched below these.
    """

    def __init__(
        self, include: Iterable[str], exclude: Iterable[str], places: Sequence[str]
    ) -> None:
        self._include = [(pattern, _compiled(pattern)) for pattern in include]
        self._exclude = [(pattern, _compiled(pattern)) for pattern in exclude]
        self._places = sorted((f"{place.rstrip('/')}/" for place in places), key=len, reverse=True)

    def takes(self, uri: str) -> bool:
        """Tell whether a file is taken."""
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
    """Return the values of `NAME=VALUE` among the folders of a file, the last of each name.

    Raises:
        FileError: There is no folder of a name.
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
