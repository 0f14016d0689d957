"""Validation of objects' names."""

import re

from wings_core.errors import StorageCorrupt

NAME_BYTES_MAX = 512

_NAME = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9._=-]*(/[A-Za-z0-9_=-][A-Za-z0-9._=-]*)*", re.ASCII)


def check_name(name: str) -> str:
    """Return a name after validating it.

    Names come from metadata, so one that leads out of the store is rejected.

    Raises:
        StorageCorrupt: The name is invalid.
    """
    if len(name) > NAME_BYTES_MAX or _NAME.fullmatch(name) is None:
        raise StorageCorrupt(f"{name!r:.80} is not the name of an object")
    return name
