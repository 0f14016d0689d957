"""A fetched file on this machine's disk, and the errors of fetching and reading."""

import errno
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from wings_client.files.sections import Section
from wings_core.errors import Unavailable
from wings_core.queue.uris import is_object

_MACHINE_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EROFS})
"""Error numbers that are caused by the reading machine, not by the file."""


class FileError(Exception):
    """A file cannot be read, or a row does not fit: the file is retried, and finally dead."""


class RefusedError(Exception):
    """A file is outside the places that its source may read: it is dead at once."""


class SupersededError(Exception):
    """The announced version of a file was overwritten by another."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file on this machine's disk, or the part of it that a section needs."""

    path: Path
    section: Section | None = None
    """Section of the file; None for all rows."""
    seen: str | None = None
    """Version of the file, which differs from that of another file of the same name."""
    check: Callable[[], None] = lambda: None
    """Called after the read; raises if the file has changed since it was fetched."""


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
