"""The `wings` command; other layers add theirs through the entry-point group `wings.commands`."""

import sys

from wings_core.errors import WingsError

__all__ = ["main"]


def main() -> None:
    """Run the command line, and exit with its status.

    An error of Wings is one line on standard error and status 1, a mistake in the arguments is
    status 2, and Ctrl-C is status 130 without a word.
    """
    try:
        _run()
    except WingsError as error:
        sys.stderr.write(f"wings: {' '.join(error.message.split())}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _run() -> None:
    try:
        from wings_client.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in {"rich", "typer"}:
            raise
        sys.stderr.write(
            f"wings: the command line needs {error.name}: pip install 'wings-flight[cli]'\n"
        )
        sys.exit(1)
    app(prog_name="wings")
