"""The inputs of `wings push`: files, directories, patterns, objects, standard input."""

import glob
import os
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import typer

from wings_client.files.formats import format_by_name
from wings_client.files.opened import Folder, folders_of
from wings_core.errors import InvalidArgument, Unavailable
from wings_core.runtime import OBSTORE_NEEDED, import_extra
from wings_core.storage.objects.open import S3_ENDPOINTS

CLOUDS = ("s3://", "gs://", "az://")

FETCH_BYTES = 8 * 1024 * 1024
"""Size of the chunks in which an object is copied."""

_PATTERN = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class Input:
    """One file to push."""

    name: str
    path: Path | None
    """Path of the file; None for standard input."""
    is_one_of_many: bool = False
    folders: tuple[Folder, ...] = ()
    """Columns from its path, below the directory or the fixed part of the pattern."""

    @property
    def identity(self) -> str:
        """URI or absolute path."""
        if self.path is None or self.name.startswith(CLOUDS):
            return self.name
        return str(self.path.absolute())

    @property
    def is_stream(self) -> bool:
        """Whether the input is a stream, which can only be read once."""
        return self.path is None or self.path.is_fifo()

    @property
    def is_empty(self) -> bool:
        """Whether the input is an empty file."""
        return self.path is not None and self.path.is_file() and not self.path.stat().st_size


@contextmanager
def inputs_of(texts: Sequence[str]) -> Generator[list[Input]]:
    """Yield the distinct files named by arguments, in order; those of a directory by name.

    Objects are copied to the local disk; the copies are deleted at the end.

    Raises:
        typer.BadParameter: An argument names no file.
        WingsError: An object cannot be read.
    """
    with ExitStack() as stack:
        found: dict[str, Path | None] = {}
        below: dict[str, str] = {}
        for text in texts:
            if text == "-":
                found["standard input"] = None
            elif text.startswith(CLOUDS):
                directory = Path(stack.enter_context(TemporaryDirectory(prefix="wings-push-")))
                found[text] = _fetched(text, directory)
            else:
                paths = {str(path): path for path in _paths(text)}
                found |= paths
                below |= {name: _below(text, path) for name, path in paths.items()}
        folders = folders_of(below.get(name, "") for name in found)
        yield [
            Input(_printable(name), path, len(found) > 1, each)
            for (name, path), each in zip(found.items(), folders, strict=True)
        ]


def _printable(name: str) -> str:
    """Return a name with invalid UTF-8 escaped."""
    return name.encode("utf-8", "backslashreplace").decode()


def _paths(text: str) -> list[Path]:
    path = Path(text)
    if not text:  # For example an unset variable; it would mean the current directory.
        raise typer.BadParameter("it is empty", param_hint="FILE")
    if path.is_file() or path.is_fifo():
        return [path]
    if path.is_dir():
        below = (each for each in sorted(path.rglob("*")) if _is_visible(each.relative_to(path)))
        files = [each for each in below if each.is_file() and format_by_name(each) is not None]
        problem = f"{text!r} has no files of a known format"
    else:
        # `Path.glob` does not support absolute patterns.
        wanted = sorted(glob.glob(text, recursive=True)) if _PATTERN & set(text) else []  # noqa: PTH207
        files = [Path(each) for each in wanted if Path(each).is_file()]
        problem = f"{text!r} is not a file" if path.exists() else f"there is no file {text!r}"
    if not files:
        raise typer.BadParameter(problem, param_hint="FILE")
    return files


def _below(text: str, path: Path) -> str:
    """Return a file's path relative to the given directory or the fixed part of the pattern.

    Returns the name of a file that was given itself.
    """
    given = Path(text)
    fixed = takewhile(lambda part: not _PATTERN & set(part), given.parts)
    base = given if given.is_dir() else path.parent if given == path else Path(*fixed)
    return path.relative_to(base).as_posix()


def _is_visible(path: Path) -> bool:
    return not any(part.startswith((".", "_")) for part in path.parts)


def _fetched(url: str, directory: Path) -> Path:
    """Copy an object to a directory, with the credentials and region of the environment."""
    obstore: Any = import_extra("obstore", OBSTORE_NEEDED, "objects")
    from obstore import exceptions
    from obstore.store import from_url

    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    if not bucket or not key or key.endswith("/"):
        raise typer.BadParameter(f"{url!r} is not {scheme}://BUCKET/KEY", param_hint="FILE")
    is_plain = any(os.environ.get(name, "").startswith("http://") for name in S3_ENDPOINTS)
    options: Any = {"allow_http": True} if is_plain and scheme == "s3" else {}
    path = directory / Path(key).name
    try:
        store: Any = from_url(f"{scheme}://{bucket}", client_options=options)
        found = obstore.get(store, key)
        with path.open("wb") as file:
            for part in found.stream(min_chunk_size=FETCH_BYTES):
                file.write(part)
        changed_at = found.meta["last_modified"].timestamp()
        os.utime(path, (changed_at, changed_at))  # By which `--resume` recognises the object.
    except FileNotFoundError:
        raise InvalidArgument(f"{url} does not exist") from None
    except (exceptions.BaseError, OSError, ValueError) as error:
        raise Unavailable(f"{url}: {str(error).splitlines()[0]:.300}") from None
    return path
