"""The `wings` command; other layers add theirs through the entry-point group `wings.commands`."""

import gc
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from io import BufferedWriter, RawIOBase, TextIOWrapper
from pathlib import Path
from typing import NoReturn

from wings_client.cli.environment import install_hint
from wings_core.errors import WingsError

__all__ = ["main"]

COLLECTED_OBJECTS = 100_000
"""Threshold of new objects for Python's collection of the youngest generation.

What imports create stays: to look for garbage in it takes a tenth of a command's time."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, and exit with its status.

    An error of Wings is one line on standard error and status 1, as is output that cannot be
    written; a reader that closes the pipe, as in `wings fetch … | head`, is status 0. Bad arguments
    are status 2, and Ctrl-C is status 130 without output, even if SIGINT was inherited as ignored.

    Args:
        arguments: Arguments after the command's name; by default those of the process.
    """
    gc.set_threshold(COLLECTED_OBJECTS)
    _prepare_streams()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A script's `wings … &` inherits it; then Ctrl-C and `kill -INT` would have no effect.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        # Imported here, as it needs the `cli` extra.
        from wings_client.cli.app import app

        try:
            app(arguments, prog_name="wings")
        finally:
            sys.stdout.flush()  # Otherwise flushed at exit, with an unhandled error.
    except WingsError as error:
        _fail(error.message)
    except BrokenPipeError:
        _forget_output()
        sys.exit(0)
    except SystemExit as ended:
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        _forget_output()  # Typer has translated it.
        sys.exit(0)
    except OSError as error:
        _forget_output()
        where = "" if error.filename is None else f"{error.filename}: "
        _fail(f"{where}{error.strerror or error}")
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        message = _message_of(error)
        if message is None:
            raise
        _fail(message)


def _message_of(error: Exception) -> str | None:
    """Return the message of a library's error for users; None for a fault of Wings."""
    if isinstance(error, ModuleNotFoundError):
        name = error.name or ""
        is_ours = name.startswith("wings_")
        return None if is_ours else f"this needs {name}, of an extra: {install_hint(name)}"
    arrow = sys.modules.get("pyarrow")  # If it is not loaded, it raised nothing.
    if arrow is None or not isinstance(error, arrow.ArrowException):
        return None
    return f"Arrow: {error}"


def _prepare_streams() -> None:
    """Replace closed standard streams, and make every text writable."""
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison] - not in its stubs.
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - open until the end.
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison] - not in its stubs.
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - open until the end.
    if isinstance(sys.stdout, TextIOWrapper) and isinstance(sys.stdout.buffer, RawIOBase):
        # Unbuffered, a write may be partial, and its count is not checked.
        sys.stdout = TextIOWrapper(
            BufferedWriter(sys.stdout.buffer), encoding=sys.stdout.encoding, write_through=True
        )
    if isinstance(sys.stdout, TextIOWrapper):
        # Characters that the terminal's encoding lacks become question marks.
        sys.stdout.reconfigure(errors="replace")


def _forget_output() -> None:
    """Drop buffered output, so that the interpreter does not retry the write at exit."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str) -> NoReturn:
    sys.stderr.write(f"wings: {' '.join(message.split())}\n")
    sys.exit(1)
