"""Import of optional libraries, which belong to the distribution's extras."""

import importlib
from typing import Any

from wings_core.errors import InvalidArgument

OBSTORE_NEEDED = "files in object stores need obstore"


def import_extra(
    module: str, needed: str, extra: str, error: type[Exception] = InvalidArgument
) -> Any:
    """Import a module of an extra.

    Args:
        module: Full name of the module.
        needed: Beginning of the message, which names the feature and the library.
        extra: The extra that installs the library.
        error: Class of the error if it is not installed; the message has the command to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise error(f"{needed}: pip install 'wings-flight[{extra}]'") from None
