"""Files of a source: the places where it may read them, the names that it takes, and their errors.

Writers to a source's queue can choose only files in its places. A place is a bucket or a folder of
one, such as `s3://BUCKET/FOLDER`, or a directory. A name is checked as text, and a local path again
by the opened file: links are followed, and must end in a place.

A pattern matches a file name, as `*.csv`, or, if it has a slash, the whole path below one of the
places, as `2026/**/*.csv`.
"""

import errno
import os
import re
import stat
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from wings_client.files.opened import folder_values
from wings_core.errors import InvalidArgument, Unavailable
from wings_core.queue.notifications import bucket_and_key, is_bucket, is_object

UNREACHABLE_KEY = re.compile(r"(^|/)(\.{0,2})(/|$)|[\x00-\x1f\x7f]")
"""Keys that obstore rejects or normalizes: with `..`, they would lead to another folder."""

_OPEN_FILES = Path("/proc/self/fd")
"""Directory in which Linux shows the paths of open files."""

_WILD = re.compile(r"\*\*/|\*\*|\*|\?")
_REGEXES = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}

_MACHINE_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EROFS})
"""Error numbers that are caused by the reading machine, not by the file."""


class FileError(Exception):
    """A file cannot be read, or a row does not fit: the file is retried, and finally dead."""


class RefusedError(Exception):
    """A file is outside the places that its source may read: it is dead at once."""


class SupersededError(Exception):
    """The announced version of a file was overwritten by another."""


def check_place(place: str) -> None:
    """Check that a text names a place.

    Raises:
        InvalidArgument: The text is neither a bucket, with or without a folder, nor a path.
    """
    if is_object(place):
        bucket, folder = bucket_and_key(place)
        if is_bucket(bucket) and (
            not folder or UNREACHABLE_KEY.search(folder.removesuffix("/")) is None
        ):
            return
    elif place and "://" not in place and not place.startswith("file:") and "\0" not in place:
        return
    raise InvalidArgument(
        f"{place[:80]!r} is no place: expected s3://BUCKET/FOLDER, gs://BUCKET/FOLDER, "
        "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/FOLDER or a directory"
    )


def real_path(descriptor: int, uri: str) -> Path:
    """Return a path to an open file, even if its name leads elsewhere by now.

    Outside Linux, this is where the name leads now.
    """
    own = _OPEN_FILES / str(descriptor)
    return own if own.exists() else Path(uri).resolve()


class Places:
    """The places of one source.

    Args:
        prefixes: Buckets, folders of them, and absolute directories.
    """

    def __init__(self, prefixes: Iterable[str]) -> None:
        self._prefixes = tuple(prefixes)
        self._folders = [f"{each.rstrip('/')}/" for each in prefixes if is_object(each)]
        self._directories = [Path(each) for each in prefixes if not is_object(each)]

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Prefixes as given."""
        return self._prefixes

    def check(self, uri: str) -> None:
        """Check the name of a file, an object's URI or an absolute path; looks at no file.

        Raises:
            RefusedError: The name is in no place, or has a `..`.
        """
        if ".." in uri.split("/"):
            raise RefusedError(f"{uri!a:.300} has a '..', which is not followed")
        if is_object(uri):
            if any(uri.startswith(folder) for folder in self._folders):
                return
        elif any(Path(uri).is_relative_to(each) for each in self._directories):
            return
        raise self._refused(uri)

    @contextmanager
    def opened(self, uri: str) -> Generator[int]:
        """Open a local file for reading; yields its descriptor.

        Raises:
            RefusedError: The path, or the target of its links, is in no place.
            FileError: The file cannot be opened, or is not regular.
        """
        self.check(uri)
        # Not blocking, as a pipe without a writer would.
        try:
            descriptor = os.open(uri, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            self._check_real(uri, Path(uri))  # A refusal does not tell what is there.
            raise FileError(f"{uri}: {getattr(error, 'strerror', None) or error}") from None
        try:
            # The opened file, even if its name leads elsewhere by now.
            self._check_real(uri, real_path(descriptor, uri))
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise FileError(f"{uri} is not a file")
            yield descriptor
        finally:
            os.close(descriptor)

    def _check_real(self, uri: str, path: Path) -> None:
        try:
            real = path.resolve()
            places = [each.resolve() for each in self._directories]
        except (OSError, RuntimeError, ValueError) as error:
            raise FileError(f"{uri!a:.300} cannot be followed: {error}") from None
        if not any(real.is_relative_to(place) for place in places):
            raise self._refused(uri)

    def _refused(self, uri: str) -> RefusedError:
        allowed = ", ".join(self._prefixes) or "nothing"
        return RefusedError(f"{uri!a:.300} is not in what the source may read: {allowed:.300}")


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


def is_of_machine(error: OSError, uri: str) -> bool:
    """Return whether an error is caused by the reading machine and not by the file."""
    # Remote files are read from a copy on the machine's own disk.
    is_copy = is_object(uri)
    return error.errno in _MACHINE_ERRORS or (is_copy and error.errno == errno.EIO)


@contextmanager
def read_errors(uri: str) -> Generator[None]:
    """Translate errors of reading a file.

    Args:
        uri: URI of the file.

    Raises:
        FileError: The file cannot be read.
        Unavailable: No file can be read: a disk is full or broken, or too many files are open.
    """
    try:
        yield
    except OSError as error:
        message = f"{uri}: {error!s:.300}"
        if is_of_machine(error, uri):
            raise Unavailable(message) from None
        raise FileError(message) from None
    except pa.ArrowException as error:
        raise FileError(f"{uri}: {error!s:.300}") from None


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
