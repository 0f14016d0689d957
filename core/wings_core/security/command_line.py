"""What may not stand on a command line, which every user of the machine can read."""

from urllib.parse import parse_qs, urlsplit

from wings_core.errors import InvalidArgument


def without_password(url: str | None) -> str | None:
    """Return a database's URL that was given as an option of a command.

    Raises:
        InvalidArgument: There is a password in it. The message does not show it.
    """
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        has_password = bool(parts.password) or "password" in parse_qs(parts.query)
    except ValueError:
        has_password = True  # It cannot be told.
    if has_password:
        raise InvalidArgument(
            "a password on a command line can be read by every user of the machine: give the URL "
            "in the environment (WINGS_METADATA_URL, WINGS_HOLDS_URL) or the file of settings, or "
            "the password in PGPASSWORD or ~/.pgpass"
        )
    return url
