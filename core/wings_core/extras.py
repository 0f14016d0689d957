"""Libraries of the distribution's extras, which an installation may lack."""

import importlib
from typing import Any

from wings_core.errors import InvalidArgument

OBSTORE_NEEDED = "files in object stores need obstore"


def import_extra(
    module: str, needed: str, extra: str, error: type[Exception] = InvalidArgument
) -> Any:
    """Return a module that is imported where it is used.

    Args:
        module: Its full name.
        needed: Says what needs which library.
        extra: That brings the library.
        error: Raised where it is not installed, with the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise error(f"{needed}: pip install 'wings-flight[{extra}]'") from None
