"""Checks for secrets on command lines, which every user of the machine can read."""

from urllib.parse import parse_qs, urlsplit

from wings_core.errors import InvalidArgument


def without_password(url: str | None) -> str | None:
    """Return a database URL given as a command's option, after checking it for a password.

    Raises:
        InvalidArgument: The URL contains a password, which the message does not show.
    """
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        has_password = bool(parts.password) or "password" in parse_qs(parts.query)
    except ValueError:
        has_password = True  # Unparseable: assume so.
    if has_password:
        raise InvalidArgument(
            "a password on a command line can be read by every user of the machine: set the URL "
            "in the environment (WINGS_METADATA_URL, WINGS_HOLDS_URL) or the settings file, or "
            "the password in PGPASSWORD or ~/.pgpass"
        )
    return url
