"""The places that a source may read: writers to its queue can choose only files in them.

A place is a bucket or a folder of one, such as `s3://BUCKET/FOLDER`, or a directory. A name is
checked as text, and a local path again by the opened file: links are followed, and must end in a
place.
"""

import os
import re
import stat
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from wings_core.errors import InvalidArgument
from wings_core.queue.uris import bucket_and_key, is_bucket, is_object
from wings_spark.ingest.fetched import FileError, RefusedError

UNREACHABLE_KEY = re.compile(r"(^|/)(\.{0,2})(/|$)|[\x00-\x1f\x7f]")
"""Keys that obstore rejects or normalizes: with `..`, they would lead to another folder."""

_OPEN_FILES = Path("/proc/self/fd")
"""Directory in which Linux shows the paths of open files."""


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
