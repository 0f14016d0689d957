"""The `wings` command; other layers add theirs through the entry-point group `wings.commands`."""

import sys
from typing import NoReturn

from wings_core.errors import WingsError

__all__ = ["main"]


def main() -> None:
    """Run the command line, and exit with its status.

    An error of Wings is one line on standard error and status 1, a mistake in the arguments is
    status 2, and Ctrl-C is status 130 without a word.
    """
    try:
        # Imported here, as it needs the `cli` extra.
        from wings_client.cli.app import app

        app(prog_name="wings")
    except WingsError as error:
        _fail(error.message)
    except ModuleNotFoundError as error:
        name = error.name or ""
        if name.startswith("wings_"):
            raise
        extra = "cli" if name in {"rich", "typer"} else "server"
        _fail(f"this needs {name}, of an extra: pip install 'wings-flight[{extra}]'")
    except KeyboardInterrupt:
        sys.exit(130)


def _fail(message: str) -> NoReturn:
    sys.stderr.write(f"wings: {' '.join(message.split())}\n")
    sys.exit(1)
